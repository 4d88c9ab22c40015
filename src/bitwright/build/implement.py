# SPDX-License-Identifier: Apache-2.0
"""The step ``implement``: a design folder to resources, Fmax, critical path and bitstream.

Where open tools place and route and the target has a board, the design is put into the serial
shell and placed and routed once for both the timing and the bitstream; without a board it is
placed out of context. Targets that are only synthesised stop there, with a project for the
vendor's tools beside the result, which says so.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from bitwright.base.described import validated
from bitwright.base.errors import RunError
from bitwright.base.figures import Figure, Resources, Source
from bitwright.base.files import atomic_write, regular_bytes
from bitwright.base.folders import make_folder
from bitwright.base.records import Baud, Mhz
from bitwright.base.tools.process import Tick
from bitwright.build.clocks import check_clock
from bitwright.build.nextpnr import PnrOptions, PnrResult, best_of_seeds, pack_bitstream
from bitwright.build.plls import clock_below
from bitwright.build.pnr_tools import pnr_tools
from bitwright.build.shell import BoardDesign, beyond_shell, write_board_design
from bitwright.build.soc import beyond_soc
from bitwright.build.target import Board, Target, load_board, require_fit
from bitwright.build.timing import CriticalPath
from bitwright.build.vendor import VENDOR_FAMILIES, write_vendor_project
from bitwright.build.vendor_system import SYSTEM, write_system_project
from bitwright.build.yosys import (
    TOP_GLUE,
    SynthesisOptions,
    SynthesisResult,
    instance_resources,
    synthesise,
)
from bitwright.host.description import FILE as DESCRIPTION
from bitwright.sim.spec import load_design

Progress = Callable[[str, int, int], None]
"""Called as ``progress(what, done, total)``; total 0 means unknown."""

RESULT = "implement.json"
VENDOR = "vendor"
_CLOCK_ATTEMPTS = 3


@dataclass(frozen=True)
class ImplementOptions:
    """How to implement.

    Attributes:
        clock_mhz: frequency to aim at; None: the target's default.
        seeds: placements to try until the clock is met.
        bitstream: make one where the target has a board; else place out of context.
        board: board name or file; None: the target's own.
        needed_mhz: where a placement for a board does not reach this clock, none is tried for a
            slower one: the design is to be folded again. None: there is a bitstream at any clock.
        rate_mhz: keeps the rate that is asked for: a bitstream is not slower where the placement
            reaches it. None: no rate is asked for.
        synthesis: how to synthesise.
        timeout_s: longest time of one tool.
    """

    clock_mhz: float | None = None
    seeds: int = 1
    bitstream: bool = True
    board: str | None = None
    needed_mhz: float | None = None
    rate_mhz: float | None = None
    synthesis: SynthesisOptions = field(default_factory=SynthesisOptions)
    timeout_s: float = 1200.0


@dataclass(frozen=True)
class ToolRun:
    """One run of a tool that the result rests on.

    ``seconds``, ``cpu_seconds`` and ``peak_memory`` (bytes) are those of the run itself, also
    when its result came from the cache.
    """

    tool: str
    seconds: float
    cpu_seconds: float
    peak_memory: int
    cached: bool


@dataclass(frozen=True)
class ImplementResult:
    """What implementation found, with every figure labelled.

    Attributes:
        target, part, flow: the device, and how far the flow goes on it.
        clock_mhz: frequency aimed at.
        figures: ``lut``, ``ff``, ``dsp``, ``bram`` of everything on the device, LUTs packed where
            the family's packing is known (`bitwright.build.packing`); ``lut_cells``, the LUTs of
            synthesis alone; ``fmax_mhz`` and ``bitstream_bytes`` where there are any.
        capacity: what the device has.
        design: resources of the design alone (synthesis, packed as above).
        shell: resources of the serial shell (synthesis); zero without one.
        instances: resources of each instance of the design's top (synthesis).
        critical_path: the slowest path; None where nothing was placed.
        clock_met: whether Fmax reaches ``clock_mhz``; None where nothing was placed.
        bitstream_clock_mhz: clock of the design in the bitstream; never above its Fmax.
        baud: of the serial shell in the bitstream; None without one.
        seed: of the placement kept.
        files: what was written, by role, relative to the output folder.
        runs: tool runs by role.
        notes: what a reader must know.
        missed_mhz: the clock that was needed and is not reached, so that there is no bitstream.
    """

    target: str
    part: str
    flow: str
    clock_mhz: Mhz
    figures: Mapping[str, Figure]
    capacity: Resources
    design: Resources
    shell: Resources
    instances: Mapping[str, Resources]
    critical_path: CriticalPath | None
    clock_met: bool | None
    bitstream_clock_mhz: Mhz | None
    seed: int | None
    files: Mapping[str, str]
    runs: Mapping[str, ToolRun]
    notes: tuple[str, ...]
    baud: Baud | None = None
    missed_mhz: float | None = None

    def to_json(self) -> str:
        """As JSON text; :func:`read_result` is the inverse."""
        return _ADAPTER.dump_json(self, indent=1).decode()


_ADAPTER = TypeAdapter(ImplementResult)


def read_result(path: Path) -> ImplementResult:
    """Read a result written by :func:`implement`.

    Raises:
        RunError: the file is missing or malformed.
    """
    try:
        return validated(_ADAPTER, regular_bytes(path))
    except (OSError, ValidationError) as error:
        raise RunError(f"cannot be read: {error}", where=str(path)) from error


def no_progress(what: str, done: int, total: int) -> None:
    """The progress callback that shows nothing."""


def implement(
    design_dir: Path,
    target: Target,
    out_dir: Path,
    options: ImplementOptions | None = None,
    progress: Progress = no_progress,
) -> ImplementResult:
    """Synthesise a design and, where open tools can, place and route it and make a bitstream.

    Args:
        design_dir: folder with ``design.json``.
        target: the device.
        out_dir: gets everything, and ``implement.json`` last.
        options: clock, seeds, effort.
        progress: called during slow work.

    Raises:
        GraphError: the design folder is not whole.
        TargetError: the design does not fit; says what is short and the smallest target that fits.
            Or the clock is beyond what the device carries.
        ToolError: a tool is missing, failed, ran out of time, or wrote no result.
    """
    use = options or ImplementOptions()
    clock = use.clock_mhz or target.default_clock_mhz
    check_clock(target, clock)
    make_folder(out_dir)
    work = _Work(design_dir, target, out_dir, use, clock, progress)
    if not target.places_and_routes:
        result = _synthesis_only(work)
    elif use.bitstream and (use.board or (target.board and work.bare_reason is None)):
        board = load_board(use.board or str(target.board))
        # A target of one's own may name a board that does not know it.
        if use.board or target.name in board.targets:
            work = replace(work, target=board.mounted(target))
        result = _on_board(work, board)
    elif pnr_tools(target).out_of_context is None:
        result = _not_placed(work)
    else:
        result = _out_of_context(work)
    atomic_write(out_dir / RESULT, result.to_json())
    return result


def implement_parts(
    folders: Sequence[Path],
    target: Target,
    out_dir: Path,
    options: ImplementOptions,
    progress: Progress = no_progress,
) -> ImplementResult:
    """`implement` for every device of a partition, out of context, and the result of all.

    Resources are added, the slowest clock counts; what was written lies in a folder a device.

    Raises:
        GraphError, TargetError, ToolError: as `implement`.
    """
    bare = replace(options, bitstream=False)
    made = {
        folder.name: implement(folder, target, out_dir / folder.name, bare, progress)
        for folder in folders
    }
    each = list(made.values())
    slowest = min(each, key=lambda r: r.figures["fmax_mhz"].value if "fmax_mhz" in r.figures else 0)
    figures = dict(slowest.figures)
    for key in (*Resources().to_json(), "lut_cells"):
        total = sum(result.figures[key].value for result in each)
        figures[key] = replace(figures[key], value=total)
    notes = dict.fromkeys(note for result in each for note in result.notes)
    result = replace(
        slowest,
        figures=figures,
        capacity=sum((r.capacity for r in each), Resources()),
        design=sum((r.design for r in each), Resources()),
        instances={f"i_{n}.{k}": v for n, r in made.items() for k, v in r.instances.items()},
        clock_met=None if slowest.clock_met is None else all(r.clock_met for r in each),
        seed=None,
        files={
            f"{n}, {role}": f"{n}/{path}" for n, r in made.items() for role, path in r.files.items()
        },
        runs={f"{n}, {role}": run for n, r in made.items() for role, run in r.runs.items()},
        notes=(f"{len(each)} devices, each implemented alone; sums of all", *notes),
    )
    atomic_write(out_dir / RESULT, result.to_json())
    return result


@dataclass(frozen=True)
class _Work:
    """The arguments of :func:`implement`, for its parts."""

    design_dir: Path
    target: Target
    out_dir: Path
    options: ImplementOptions
    clock_mhz: float
    progress: Progress

    @cached_property
    def bare_reason(self) -> str | None:
        """Why the design cannot stand in the serial shell; None if it can."""
        return beyond_shell(load_design(self.design_dir), self.target)

    def tick(self, what: str) -> Tick:
        return lambda seconds: self.progress(f"{what} ({seconds:.0f} s)", 0, 0)

    def synthesise(self, folder: Path, suffix: str = "") -> SynthesisResult:
        self.progress("synthesis", 0, 0)
        return synthesise(
            folder,
            self.target,
            self.out_dir / f"synthesis{suffix}",
            options=self.options.synthesis,
            timeout=self.options.timeout_s,
            tick=self.tick("synthesis"),
        )

    def place(self, netlist: Path, options: PnrOptions, suffix: str = "") -> PnrResult:
        self.progress("place and route", 0, 0)
        return best_of_seeds(
            netlist,
            self.target,
            self.out_dir / f"place{suffix}",
            options,
            range(1, self.options.seeds + 1),
            timeout=self.options.timeout_s,
            tick=self.tick("place and route"),
        )

    def relative(self, path: Path) -> str:
        return path.relative_to(self.out_dir).as_posix()


def _synthesis_only(work: _Work) -> ImplementResult:
    made = work.synthesise(work.design_dir)
    require_fit(made.resources, work.target, stage="synthesis")
    note = (
        f"{work.target.name} is synthesised only: open tools do not place and route it, "
        "so there is no Fmax and no bitstream"
    )
    result = _synthesised(work, made, (note,))
    if work.target.family not in VENDOR_FAMILIES:
        return result
    script = write_vendor_project(
        work.design_dir, work.target, work.out_dir / VENDOR, clock_mhz=work.clock_mhz
    )
    note = f"to place and route it where the vendor's tools are: `{_start(script)}` in {VENDOR}/"
    files = {**result.files, "vendor_project": work.relative(script)}
    result = replace(result, files=files, notes=(*result.notes, note))
    return _with_system(work, result) if work.target.processor else result


def _with_system(work: _Work, result: ImplementResult) -> ImplementResult:
    """Add the project with the processor, or why there is none."""
    processor = work.target.processor
    design = load_design(work.design_dir)
    reason = beyond_soc(design)
    if reason is not None or processor is None:
        return replace(result, notes=(*result.notes, f"no project with the processor: {reason}"))
    folder = work.out_dir / VENDOR / SYSTEM
    script = write_system_project(work.design_dir, work.target, folder, clock_mhz=work.clock_mhz)
    around = "registers and a driver" if design.control else "DMA, registers and a driver"
    note = (
        f"bitstream for {processor.board}, with {around}: `{_start(script)}` "
        f"in {work.relative(folder)}/; linted and simulated, not run"
    )
    files = {**result.files, "vendor_system": work.relative(script)}
    return replace(result, files=files, notes=(*result.notes, note))


def _start(script: Path) -> str:
    """How a vendor's script is started: its first line says so."""
    return script.read_text().splitlines()[0].removeprefix("# ")


def _not_placed(work: _Work) -> ImplementResult:
    """A design without a shell, on a family that is only placed with pins."""
    made = work.synthesise(work.design_dir)
    require_fit(made.resources, work.target, stage="synthesis")
    tool = pnr_tools(work.target).nextpnr
    note = f"synthesised only: {tool} places nothing out of context, and the design has no shell"
    if work.bare_reason:
        note += f": {work.bare_reason}"
    return _synthesised(work, made, (note,))


def _out_of_context(work: _Work) -> ImplementResult:
    made = work.synthesise(work.design_dir)
    require_fit(made.resources, work.target, stage="synthesis")
    placed = work.place(made.netlist, PnrOptions(work.clock_mhz, out_of_context=True))
    note = "placed and routed out of context: no port has a pin, and there is no bitstream"
    if work.options.bitstream and work.target.board and work.bare_reason:
        note += f"; {work.bare_reason}"
    return _placed(work, _synthesised(work, made, (note,)), placed)


def _on_board(work: _Work, board: Board) -> ImplementResult:
    """Place the design in its shell; when the clock is missed, again with one that is met.

    All figures are those of the first attempt, which aims at the wanted clock; a later one gives
    the bitstream only.
    """
    result: ImplementResult | None = None
    clock = work.clock_mhz
    for attempt in range(_CLOCK_ATTEMPTS):
        suffix = f"-{clock:g}MHz" if attempt else ""
        shelled = write_board_design(
            work.design_dir, board, work.target, work.out_dir / f"board{suffix}", clock
        )
        made = work.synthesise(shelled.folder, suffix)
        require_fit(made.resources, work.target, stage="synthesis")
        aim = PnrOptions(shelled.clock.mhz, constraints=shelled.constraints)
        placed = work.place(made.netlist, aim, suffix)
        result = result or _placed(work, _shelled(work, made), placed)
        fmax = placed.fmax_mhz or shelled.clock.mhz
        if fmax >= shelled.clock.mhz:
            return _with_bitstream(work, board, shelled, placed, result)
        needed = work.options.needed_mhz
        if needed is not None and fmax < needed:
            note = f"no bitstream: {needed:g} MHz are needed, and {fmax:.1f} were reached"
            return replace(result, missed_mhz=needed, notes=(*result.notes, note))
        rate = work.options.rate_mhz
        clock = clock_below(board.clock_mhz, fmax, rate, work.target.family).mhz
    if result is None:
        raise AssertionError("at least one attempt is made")
    note = f"no bitstream: in {_CLOCK_ATTEMPTS} attempts timing was met at no clock"
    return replace(result, notes=(*result.notes, note))


def _with_bitstream(
    work: _Work, board: Board, shelled: BoardDesign, placed: PnrResult, result: ImplementResult
) -> ImplementResult:
    """Add the bitstream of a placement that meets its clock."""
    if placed.config is None:
        raise AssertionError("a placement with pins has a configuration")
    work.progress("bitstream", 0, 0)
    bitstream = pack_bitstream(placed.config, work.target, work.out_dir)
    pins = work.out_dir / f"pins{shelled.constraints.suffix}"
    shutil.copyfile(shelled.constraints, pins)
    size = Figure(bitstream.stat().st_size, "byte", Source.PLACE_AND_ROUTE)
    told = Path(shutil.copyfile(shelled.folder / DESCRIPTION, work.out_dir / DESCRIPTION))
    made = {"config": placed.config, "bitstream": bitstream, "pins": pins}
    made["board_description"] = told
    note = (
        f"bitstream for {board.description}: serial shell at {shelled.description.baud:.0f} baud, "
        f"design at {shelled.clock.mhz:g} MHz"
    )
    if shelled.clock.mhz < work.clock_mhz:
        note += f", the PLL setting below {work.clock_mhz:g} MHz whose timing is met"
    return replace(
        result,
        bitstream_clock_mhz=shelled.clock.mhz,
        baud=shelled.description.baud,
        figures={**result.figures, "bitstream_bytes": size},
        files={**result.files, **{role: work.relative(path) for role, path in made.items()}},
        notes=(*result.notes, note, *([] if board.run_here else [_NOT_RUN])),
    )


_NOT_RUN = (
    "not run on the board: its pins are those of its public constraint files, and nobody has tried "
    "a bitstream of Bitwright on one yet"
)


def _synthesised(work: _Work, made: SynthesisResult, notes: tuple[str, ...]) -> ImplementResult:
    """The result as far as synthesis of the bare design goes."""
    return ImplementResult(
        target=work.target.name,
        part=work.target.part,
        flow=work.target.flow.value,
        clock_mhz=work.clock_mhz,
        figures={
            **_figures(made.resources, Source.SYNTHESIS),
            "lut_cells": Figure(made.cell_luts, "LUT", Source.SYNTHESIS),
        },
        capacity=work.target.capacity,
        design=made.resources,
        shell=Resources(),
        instances=made.by_instance,
        critical_path=None,
        clock_met=None,
        bitstream_clock_mhz=None,
        seed=None,
        files={"netlist": work.relative(made.netlist), "synthesis_log": work.relative(made.log)},
        runs={"synthesis": _run_of(made)},
        notes=notes,
    )


def _shelled(work: _Work, made: SynthesisResult) -> ImplementResult:
    """The same for a design inside its shell: the two are told apart by the names of the cells."""
    family = work.target.family
    parts = instance_resources(made.netlist, family, within="i_serial")
    design = parts.get("i_design", Resources())
    inside = instance_resources(made.netlist, family, within="i_serial.i_design")
    outside = inside.get(TOP_GLUE, Resources())
    shell = made.resources - design
    instances = {**inside, TOP_GLUE: outside - shell}
    result = _synthesised(work, made, ())
    return replace(result, design=design, shell=shell, instances=instances)


def _placed(work: _Work, base: ImplementResult, placed: PnrResult) -> ImplementResult:
    """Add what place and route found."""
    figures = {**base.figures, **_figures(placed.resources, Source.PLACE_AND_ROUTE)}
    if placed.fmax_mhz is not None:
        figures["fmax_mhz"] = Figure(round(placed.fmax_mhz, 3), "MHz", Source.PLACE_AND_ROUTE)
    files = {**base.files, "place_log": work.relative(placed.log)}
    if placed.config is not None:
        files["config"] = work.relative(placed.config)
    return replace(
        base,
        figures=figures,
        critical_path=placed.critical_path,
        clock_met=placed.fmax_mhz is None or placed.fmax_mhz >= work.clock_mhz,
        seed=placed.seed,
        files=files,
        runs={**base.runs, "place and route": _run_of(placed)},
    )


def _run_of(made: SynthesisResult | PnrResult) -> ToolRun:
    return ToolRun(made.tool, made.seconds, made.cpu_seconds, made.peak_memory, made.cached)


def _figures(resources: Resources, source: Source) -> dict[str, Figure]:
    units = {"lut": "LUT", "ff": "FF", "dsp": "DSP", "bram": "BRAM"}
    return {key: Figure(value, units[key], source) for key, value in resources.to_json().items()}
