# SPDX-License-Identifier: Apache-2.0
"""What the programmed engine takes of a device, and its clock.

    python benchmarks/engine_area.py e256 --dsps 4
    python benchmarks/engine_area.py e128 --clock 62.5

Synthesises an engine with Yosys, and with `--clock` places and routes it out of context. Prints a
row of the table of docs/engine.md for each stage.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from bitwright.build.nextpnr import PnrOptions, place_and_route
from bitwright.build.target import load_target
from bitwright.build.yosys import synthesise
from bitwright.engine.config import ENGINES
from bitwright.rtl.emit_engine import emit_engine

_TIMEOUT = 14_400.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("engine", choices=sorted(ENGINES))
    parser.add_argument("--dsps", type=int, default=None, help="lanes that are multipliers")
    parser.add_argument("--target", default="ecp5-85k")
    parser.add_argument("--clock", type=float, default=None, help="MHz; places and routes, too")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=None, help="folder for netlist and logs")
    given = parser.parse_args()
    target = load_target(given.target)
    with tempfile.TemporaryDirectory() as folder:
        out = given.keep or Path(folder)
        emit_engine(ENGINES[given.engine], out / "rtl", dsps=given.dsps)
        mapped = synthesise(out / "rtl", target, out / "synthesis", timeout=_TIMEOUT)
        print(f"| {given.engine} | {mapped.tool} | {mapped.resources} | |", flush=True)
        if given.clock is not None:
            options = PnrOptions(given.clock, seed=given.seed, out_of_context=True)
            placed = place_and_route(
                mapped.netlist, target, out / "pnr", options, timeout=_TIMEOUT
            )  # fmt: skip
            print(f"| {given.engine} | {placed.tool} | {placed.resources} | {placed.fmax_mhz} |")
            if placed.critical_path is not None:
                print(placed.critical_path.summary())
                for hop in placed.critical_path.hops:
                    print(f"  {hop.delay_ns:6.2f} {hop.kind:8} {hop.cell} {hop.port}")


if __name__ == "__main__":
    main()
