# SPDX-License-Identifier: Apache-2.0
"""Place and route with nextpnr, and the bitstream with the family's packer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bitwright.base.errors import TargetError, ToolError
from bitwright.base.figures import Resources
from bitwright.base.folders import make_folder
from bitwright.base.source import code_key
from bitwright.base.store import Store, content_key
from bitwright.base.tools.finder import Tool, require, run_tool
from bitwright.base.tools.process import Completed, Tick, require_result, run_process
from bitwright.build.macros import MACROS, better_places, fix_places
from bitwright.build.pnr_tools import PnrTools, pnr_tools
from bitwright.build.target import Target, require_fit
from bitwright.build.timing import (
    CriticalPath,
    TimingReport,
    first_errors,
    parse_log_utilisation,
    parse_report,
)

REPORT, LOG = "report.json", "nextpnr.log"
#: Cells of a netlist from which on router2 routes: router1, nextpnr's own choice, had 180 000 arcs
#: of an engine of 80 000 cells left after 7 minutes, and came on by 200 in 4 seconds. The placer
#: "heap" makes more wire than router2 can part: 515 000 units of E256-INT8 against 450 000 of
#: "static", and 20 000 wires wanted twice after 8 rounds, no longer fewer; behind "static" none
#: after 69 rounds (9 minutes).
_MANY_CELLS = 50_000
_LARGE = ("--router", "router2", "--placer", "static")
#: Share of a device's block RAMs or multipliers from which on a large design is placed twice, with
#: the second time's block RAMs and multipliers where they need the least wire behind the first
#: (`bitwright.build.macros`): E256-INT8 (90 % of them) has 402 000 units of wire then, not 495 000.
_FULL_COLUMNS = 0.75
_PLACED, _FIXED = "first_placed.json", "fixed_netlist.json"
_KIND = "nextpnr"


@dataclass(frozen=True)
class PnrOptions:
    """How to place and route.

    Attributes:
        clock_mhz: the frequency to aim at.
        seed: of the placer.
        constraints: pin file of the family (`bitwright.build.pins`), or None.
        out_of_context: no I/O buffers, no pins, no bitstream: for tops with more ports than pins.
        extra: further options of nextpnr.
    """

    clock_mhz: float
    seed: int = 1
    constraints: Path | None = None
    out_of_context: bool = False
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class PnrResult:
    """A placed and routed design.

    Attributes:
        resources: packed LUTs, flip-flops, DSPs and block RAMs used.
        fmax_mhz: achieved frequency of the slowest clock; None when no path has a register at
            both ends.
        clock: that clock's name.
        critical_path: its slowest path.
        report: everything in nextpnr's report.
        config: textual configuration for :func:`pack_bitstream`; None out of context.
        seed, seconds, cpu_seconds, peak_memory, tool, cached: of the run.
    """

    resources: Resources
    fmax_mhz: float | None
    clock: str | None
    critical_path: CriticalPath | None
    report: TimingReport
    config: Path | None
    log: Path
    seed: int
    seconds: float
    cpu_seconds: float
    peak_memory: int
    tool: str
    cached: bool


def place_and_route(
    netlist: Path,
    target: Target,
    out_dir: Path,
    options: PnrOptions,
    *,
    timeout: float = 600.0,
    tick: Tick | None = None,
) -> PnrResult:
    """Place and route a netlist.

    Args:
        netlist: JSON netlist from :func:`bitwright.build.yosys.synthesise`.
        target: one that open tools place and route.
        out_dir: gets report, configuration and log.
        options: clock, seed, pins.
        timeout: seconds.
        tick: called with the seconds passed while nextpnr runs.

    Raises:
        TargetError: the target is not placed and routed by open tools (or not out of context), or
            the design does not fit.
        ToolError: nextpnr is missing, failed, ran out of time, or wrote no result.
    """
    tools = pnr_tools(target)
    text = netlist.read_bytes()
    flags = _flags(tools, target, options)
    large = text.count(b'"port_directions"') > _MANY_CELLS
    if large and "--router" not in flags:
        flags += _LARGE
    twice = large and _fills_columns(text, target)
    tool = require(tools.nextpnr)
    make_folder(out_dir)
    pins = options.constraints.read_bytes() if options.constraints else b""
    key = content_key(tool.identity, flags, pins, text, *_code(twice))
    store = Store()
    if (entry := store.find(_KIND, key)) is not None:
        entry.bring(out_dir)
        return _result(out_dir, tools, options, tool, entry.value, cached=True)

    def run(source: Path, *more: str) -> dict[str, float]:
        # Nothing that an earlier run left, the placement alone included, counts as this one's.
        for stale in (REPORT, tools.config):
            (out_dir / stale).unlink(missing_ok=True)
        completed = run_process(
            [*tool.command, *_arguments(tools, source, out_dir, flags, options), *more],
            cwd=out_dir,
            log=out_dir / LOG,
            timeout=timeout,
            env=dict(tool.env),
            name=tool.name,
            tick=tick,
        )
        _check(completed, out_dir, tools, target, tool, options, placed_only=bool(more))
        return completed.figures()

    ran = _run_twice(run, netlist, out_dir, options.seed) if twice else run(netlist)
    kept = [REPORT, LOG] if options.out_of_context else [REPORT, LOG, tools.config]
    store.offer(_KIND, key, ran, {name: out_dir / name for name in kept})
    return _result(out_dir, tools, options, tool, ran, cached=False)


def best_of_seeds(
    netlist: Path,
    target: Target,
    out_dir: Path,
    options: PnrOptions,
    seeds: Sequence[int],
    *,
    timeout: float = 600.0,
    tick: Tick | None = None,
) -> PnrResult:
    """Place and route with one seed after another until the clock is met; the fastest result.

    Each seed has a folder ``seed-N`` in ``out_dir``.

    Raises:
        TargetError, ToolError: as for :func:`place_and_route`.
        ValueError: no seed is given.
    """
    best: PnrResult | None = None
    for seed in seeds:
        one, folder = replace(options, seed=seed), out_dir / f"seed-{seed}"
        result = place_and_route(netlist, target, folder, one, timeout=timeout, tick=tick)
        if best is None or (result.fmax_mhz or 0) > (best.fmax_mhz or 0):
            best = result
        if best.fmax_mhz is None or best.fmax_mhz >= options.clock_mhz:
            return best
    if best is None:
        raise ValueError("best_of_seeds needs at least one seed")
    return best


def pack_bitstream(config: Path, target: Target, out_dir: Path, *, timeout: float = 300.0) -> Path:
    """Turn a textual configuration into a bitstream, in a folder.

    Raises:
        TargetError: the target is not placed and routed by open tools.
        ToolError: the packer is missing, failed, or wrote nothing.
    """
    tools = pnr_tools(target)
    tool = require(tools.packer)
    make_folder(out_dir)
    out = out_dir / tools.bitstream
    out.unlink(missing_ok=True)
    back = os.path.relpath(config.resolve(), out_dir.resolve())
    log = out.with_suffix(f".{tools.packer}.log")
    arguments = tools.pack(back, out.name)
    completed = run_tool(tool, arguments, cwd=out_dir, log=log, timeout=timeout)
    return require_result(out, completed, tool.name)


def _fills_columns(netlist: bytes, target: Target) -> bool:
    """Whether most places of block RAMs or of multipliers are taken (an ECP5's)."""
    rams, multipliers = (netlist.count(f'"type": "{kind}"'.encode()) for kind in MACROS)
    have = target.capacity
    return rams > _FULL_COLUMNS * have.bram or multipliers > _FULL_COLUMNS * have.dsp


def _code(twice: bool) -> list[str]:
    return [code_key("bitwright.build.macros")] if twice else []


def _run_twice(
    run: Callable[..., dict[str, float]], netlist: Path, out_dir: Path, seed: int
) -> dict[str, float]:
    """Place, find better places of block RAMs and multipliers, place anew with them and route.

    Returns:
        seconds, processor seconds and peak memory of both runs.
    """
    placed, fixed = out_dir / _PLACED, out_dir / _FIXED
    try:
        first = run(netlist, "--no-route", "--write", _PLACED)
        shutil.copyfile(netlist, fixed)
        fix_places(fixed, better_places(placed, seed=seed))
        second = run(fixed)
    finally:
        placed.unlink(missing_ok=True)
        fixed.unlink(missing_ok=True)
    return {
        name: (max if name == "peak_memory" else sum)((first[name], second[name]))
        for name in second
    }


def _flags(tools: PnrTools, target: Target, options: PnrOptions) -> list[str]:
    flags = tools.flags(target)
    flags += ["--freq", f"{options.clock_mhz:g}", "--seed", str(options.seed)]
    flags += ["--timing-allow-fail", *options.extra]
    if options.out_of_context:
        if tools.out_of_context is None:
            raise TargetError(
                f"{tools.nextpnr} places no design out of context",
                where=f"target {target.name}",
                hint="put the design on a board with a serial shell",
            )
        return [*flags, tools.out_of_context]
    return flags if options.constraints else [*flags, tools.free_pins]


def _arguments(
    tools: PnrTools, netlist: Path, out_dir: Path, flags: Sequence[str], options: PnrOptions
) -> list[str]:
    # Relative paths: the WebAssembly build sees a /tmp of its own.
    here = out_dir.resolve()
    arguments = [*flags, "--json", os.path.relpath(netlist.resolve(), here), "--report", REPORT]
    if options.constraints is not None:
        pins = os.path.relpath(options.constraints.resolve(), here)
        arguments += [tools.pins_option, pins]
    if options.out_of_context:
        return arguments
    return [*arguments, tools.config_option, tools.config]


def _check(
    completed: Completed,
    out_dir: Path,
    tools: PnrTools,
    target: Target,
    tool: Tool,
    options: PnrOptions,
    *,
    placed_only: bool = False,
) -> None:
    """Tell a full device from a failing tool, and make sure that results came.

    Raises:
        TargetError: the design does not fit.
        ToolError: any other failure.
    """
    if completed.returncode == 0:
        if placed_only:
            require_result(out_dir / _PLACED, completed, tool.name)
            return
        require_result(out_dir / REPORT, completed, tool.name)
        if not options.out_of_context:
            require_result(out_dir / tools.config, completed, tool.name)
        return
    log = completed.text()
    usage = parse_log_utilisation(log)
    used = tools.count({name: use.used for name, use in usage.items()}, log)
    require_fit(used, target, stage="packing")
    over = [
        f"{name}: {use.used} needed, {use.available} there"
        for name, use in usage.items()
        if use.used > use.available
    ]
    if over:
        raise TargetError(
            "the design does not fit: " + "; ".join(over),
            where=f"target {target.name}",
            hint="give fewer pins to it, or choose a larger target",
        )
    raise ToolError(
        f"failed with exit status {completed.returncode}:\n{first_errors(log) or completed.tail()}",
        where=f"{tool.name} (log: {completed.log})",
    )


def _result(
    out_dir: Path,
    tools: PnrTools,
    options: PnrOptions,
    tool: Tool,
    figures: dict[str, float],
    *,
    cached: bool,
) -> PnrResult:
    report = parse_report((out_dir / REPORT).read_text(), where=str(out_dir / REPORT))
    clock = report.slowest
    used = {name: use.used for name, use in report.utilisation.items()}
    return PnrResult(
        resources=tools.count(used, (out_dir / LOG).read_text(errors="replace")),
        fmax_mhz=None if clock is None else report.fmax_mhz[clock],
        clock=clock,
        critical_path=None if clock is None else report.path_of(clock),
        report=report,
        config=None if options.out_of_context else out_dir / tools.config,
        log=out_dir / LOG,
        seed=options.seed,
        seconds=figures["seconds"],
        cpu_seconds=figures["cpu_seconds"],
        peak_memory=int(figures["peak_memory"]),
        tool=tool.identity,
        cached=cached,
    )
