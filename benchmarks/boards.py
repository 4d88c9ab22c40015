# SPDX-License-Identifier: Apache-2.0
"""Every board to its bitstream with one design: what it fills, how fast it is, how large it is.

    python benchmarks/boards.py DESIGN [--boards icebreaker,..] [--clock-mhz X]

DESIGN is a folder with ``design.json``, as the step `map` leaves it. Boards go one after another;
each row is kept in docs/results/boards.json, and docs/results/boards.md is written from all of
them. Nothing here has run on a board.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]

from networks import machine  # noqa: E402

from bitwright.base.errors import BitwrightError  # noqa: E402
from bitwright.build.implement import ImplementOptions, implement  # noqa: E402
from bitwright.build.target import Board, Target, list_boards, load_target  # noqa: E402
from bitwright.host.protocol import VERSION  # noqa: E402
from bitwright.sim.spec import load_design  # noqa: E402

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
ROWS, PAGE = RESULTS / "boards.json", RESULTS / "boards.md"
_TIMEOUT_S = 1500.0


def row(design: Path, board: Board, target: Target, clock_mhz: float) -> dict[str, Any]:
    """One board with one device; a failure is a row, too."""
    found: dict[str, Any] = {
        "board": board.name,
        "target": target.name,
        "part": board.mounted(target).part,
        "design": load_design(design).top,
        "clock_mhz": clock_mhz,
        "shell": f"packets, version {VERSION}",
        "date": date.today().isoformat(),
        "machine": machine(),
    }
    options = ImplementOptions(board=board.name, clock_mhz=clock_mhz, timeout_s=_TIMEOUT_S)
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = implement(design, target, Path(folder), options)
        except BitwrightError as error:
            return {**found, "failure": " ".join(error.message.splitlines()[:2])}
    figures = {name: figure.value for name, figure in result.figures.items()}
    runs = {role: {"tool": r.tool, "seconds": r.seconds} for role, r in result.runs.items()}
    shown = {"lut_cells": result.design.lut + result.shell.lut, "capacity": result.capacity.lut}
    bitstream = {"bitstream_clock_mhz": result.bitstream_clock_mhz}
    return {**found, "figures": figures, **shown, **bitstream, "runs": runs}


def page(rows: list[dict[str, Any]]) -> str:
    """The table, and how it was made."""
    lines = [
        "# Boards",
        "",
        "A design in its serial shell, to a bitstream. LUTs are packed ones, as nextpnr counts",
        "them (of iCE40: logic cells); Fmax is what was reached when this clock was aimed at, the",
        "last column the clock of the design in the bitstream. **None has run on a board.**",
        "",
        "| board | device | design | shell | LUT | of | FF | BRAM | Fmax | aim | bytes | clock |",
        "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for found in rows:
        start = f"| {found['board']} | {found['part']} | {found['design']} | {found['shell']} "
        if "failure" in found:
            lines.append(f"{start}| {found['failure']} " + "| " * 6 + "|")
            continue
        have = found["figures"]
        cells = [f"{have['lut']:.0f}", f"{found['capacity']:.0f}", f"{have['ff']:.0f}"]
        cells += [f"{have['bram']:.0f}", f"{have['fmax_mhz']:.1f} MHz"]
        cells += [f"{found['clock_mhz']:g} MHz", f"{have.get('bitstream_bytes', 0):.0f}"]
        clock = found["bitstream_clock_mhz"]
        cells.append("none" if clock is None else f"{clock:.3f} MHz")
        lines.append(start + "".join(f"| {cell} " for cell in cells) + "|")
    tools = sorted({run["tool"] for r in rows for run in r.get("runs", {}).values()})
    machines = sorted({json.dumps(r["machine"], sort_keys=True) for r in rows})
    dates = sorted({r["date"] for r in rows})
    lines += [
        "",
        f"- Measured on {', '.join(dates)} by `python benchmarks/boards.py DESIGN`, DESIGN being",
        "  `04-map/rtl` of a run of the recipe `digits` as it is shipped, folded for ecp5-45k (512",
        "  cycles an image; 1 152 in the table of 2026-11-23); for the HX8K the same with",
        "  `--target ice40-hx8k --set hardware.budget.lut=2000`, as that one fills 6 993 of 7 680",
        "  cells and finds no legal placement; for iCEBreaker, `tests/yosys/dots`: three dot",
        "  products of 16. The shell is part of the figures.",
        f"- Tools: {'; '.join(tools)}.",
    ]
    for text in machines:
        known = json.loads(text)
        lines.append("- Machine: " + ", ".join(f"{k} {v}" for k, v in known.items()) + ".")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("design", type=Path)
    parser.add_argument("--boards", help="names, separated by commas; all by default")
    parser.add_argument("--clock-mhz", type=float, help="the target's default")
    given = parser.parse_args()
    wanted = given.boards.split(",") if given.boards else None
    for board in list_boards():
        if wanted is not None and board.name not in wanted:
            continue
        for name in board.targets:
            target = load_target(name)
            clock = given.clock_mhz or target.default_clock_mhz
            made = row(given.design, board, target, clock)
            rows = json.loads(ROWS.read_text()) if ROWS.is_file() else []
            same = ("board", "target", "design")
            rows = [r for r in rows if any(r[key] != made[key] for key in same)] + [made]
            rows.sort(key=lambda r: tuple(r[key] for key in same))
            ROWS.write_text(json.dumps(rows, indent=1) + "\n")
            PAGE.write_text(page(rows))
            print(board.name, name, made.get("figures", made.get("failure")), flush=True)


if __name__ == "__main__":
    main()
