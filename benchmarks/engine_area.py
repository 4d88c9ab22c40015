# SPDX-License-Identifier: Apache-2.0
"""What the programmed engine takes of a device, and its clock.

    python benchmarks/engine_area.py e256 --dsps 4
    python benchmarks/engine_area.py e128 --clock 62.5
    python benchmarks/engine_area.py e256 --dsps 4 --clock 62.5 --board ulx3s
    python benchmarks/engine_area.py e256 --dsps 4 --clock 62.5 --board ulx3s --not-placed

Synthesises an engine with Yosys, and with `--clock` places and routes it out of context; with
`--board` the whole top: engine, controller of the SDRAM, serial shell, on the board's pins. Prints
a row of the table of docs/results/engine.md for each stage, and the slowest path.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from bitwright.build.implement import ImplementOptions, implement
from bitwright.build.nextpnr import PnrOptions, place_and_route
from bitwright.build.shell import write_board_design
from bitwright.build.target import Target, load_board, load_target
from bitwright.build.timing import CriticalPath
from bitwright.build.yosys import synthesise
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.cost import PAIRING_FAMILIES
from bitwright.rtl.emit_engine import emit_engine, emit_engine_board

_TIMEOUT = 14_400.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("engine", help="name, or a file with its sizes")
    parser.add_argument("--dsps", type=int, default=None, help="lanes that are multipliers")
    parser.add_argument("--target", default="ecp5-85k")
    parser.add_argument("--clock", type=float, default=None, help="MHz; places and routes, too")
    parser.add_argument("--board", default=None)
    parser.add_argument("--not-placed", action="store_true", help="the board's top: synthesis only")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=None, help="folder for netlist and logs")
    given = parser.parse_args()
    target = load_target(given.target)
    if given.engine in ENGINES:
        config = ENGINES[given.engine]
    else:
        config = EngineConfig.from_json(Path(given.engine).read_text())
    with tempfile.TemporaryDirectory() as folder:
        out = given.keep or Path(folder)
        if given.board is not None:
            _on_board(given, config, target, out)
        else:
            _out_of_context(given, config, target, out)


def _out_of_context(
    given: argparse.Namespace, config: EngineConfig, target: Target, out: Path
) -> None:
    paired = target.family in PAIRING_FAMILIES
    emit_engine(config, out / "rtl", dsps=given.dsps, paired=paired)
    mapped = synthesise(out / "rtl", target, out / "synthesis", timeout=_TIMEOUT)
    print(f"| {given.engine} | {mapped.tool} | {mapped.resources} | |", flush=True)
    if given.clock is None:
        return
    options = PnrOptions(given.clock, seed=given.seed, out_of_context=True)
    placed = place_and_route(mapped.netlist, target, out / "pnr", options, timeout=_TIMEOUT)
    print(f"| {given.engine} | {placed.tool} | {placed.resources} | {placed.fmax_mhz} |")
    _show(placed.critical_path)


def _on_board(given: argparse.Namespace, config: EngineConfig, target: Target, out: Path) -> None:
    emit_engine_board(config, out / "rtl", dsps=given.dsps)
    if given.not_placed:
        board = load_board(given.board)
        top = write_board_design(out / "rtl", board, target, out / "board", given.clock)
        mapped = synthesise(top.folder, target, out / "synthesis", timeout=_TIMEOUT)
        print(f"| {given.engine} on {given.board} | {mapped.tool} | {mapped.resources} | |")
        return
    options = ImplementOptions(
        clock_mhz=given.clock, board=given.board, needed_mhz=given.clock, timeout_s=_TIMEOUT
    )
    made = implement(out / "rtl", target, out / "implement", options)
    figures = {name: figure.value for name, figure in made.figures.items()}
    print(f"| {given.engine} on {given.board} | {figures} | clock met: {made.clock_met} |")
    print(f"engine with console and controller: {made.design}; serial shell: {made.shell}")
    for name, used in made.instances.items():
        print(f"  {name}: {used}")
    print(*made.notes, sep="\n")
    _show(made.critical_path)


def _show(path: CriticalPath | None) -> None:
    if path is None:
        return
    print(path.summary())
    for hop in path.hops:
        print(f"  {hop.delay_ns:6.2f} {hop.kind:8} {hop.cell} {hop.port}")


if __name__ == "__main__":
    main()
