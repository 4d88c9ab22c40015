# SPDX-License-Identifier: Apache-2.0
"""The clock that whole designs reach after place and route, over several seeds of the placer.

    python benchmarks/clock.py digits --runs RUNS --foldings FOLDINGS
    python benchmarks/clock.py mnist-tfc-w1a1 --runs RUNS --foldings docs/results/clock
    python benchmarks/clock.py mnist-cnn-w4a4 --untrained --foldings docs/results/clock --seeds 1,2
    python benchmarks/clock.py digits --runs RUNS --foldings FOLDINGS --board

A recipe's network (of a run below RUNS, as `bitwright build NAME --run-dir RUNS/NAME --until lower`
leaves it, or before training) is mapped for its target with the folding FOLDINGS/NAME.json, which
the search writes where there is none, so that two versions of the hardware are compared at the same
cycles. It is synthesised, and placed and routed once a seed: out of context, or with `--board` in
the serial shell of the target's board. Rows of another version are made by that version's code:

    git worktree add OLD 7552660
    PYTHONPATH=OLD/src python benchmarks/clock.py digits ... --label 7552660

Writes docs/results/clock.json and clock.md; rows of other designs, labels and ways are kept.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

from bitwright.base.progress import no_progress
from bitwright.build.nextpnr import PnrOptions, PnrResult, place_and_route
from bitwright.build.shell import write_board_design
from bitwright.build.target import Target, load_board, load_target
from bitwright.build.yosys import SynthesisResult, synthesise
from bitwright.hw import MapOptions, analyse, folding_of, load_folding, map_graph
from bitwright.hw.reads import reads_of
from bitwright.ir import Graph
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.pipeline.steps.lower import read_graph
from bitwright.pipeline.steps.map import choose_mapping
from bitwright.pipeline.steps.preflight import untrained_graph
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.rtl.emit import emit

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
ROWS, PAGE = RESULTS / "clock.json", RESULTS / "clock.md"
_TIMEOUT = 7200.0
_KEY = ("design", "label", "way")


def network(name: str, runs: Path | None) -> Graph:
    """The integer graph of a recipe: of its run, or before training."""
    if runs is not None:
        return read_graph(next((runs / name).glob("*-lower")))
    return untrained_graph(Workspace(load_recipe(name), no_progress))


def mapped(name: str, graph: Graph, foldings: Path, aim_mhz: float) -> tuple[Graph, Target]:
    """The hardware graph of a recipe for a clock, with the folding that is kept for it."""
    wanted = load_recipe(name).hardware
    target = load_target(wanted.target)
    path = foldings / f"{name}.json"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        chosen = folding_of(choose_mapping(graph, wanted, target, no_progress))
        path.write_text(json.dumps(chosen.to_json(), indent=1) + "\n")
    # Before it knew of clocks, mapping put a register behind every adder.
    options: dict[str, Any] = {"family": target.family}
    if "clock_mhz" in MapOptions.__dataclass_fields__:
        options["clock_mhz"] = aim_mhz
    return map_graph(graph, load_folding(path), MapOptions(**options)), target


def routed(
    rtl: Path, target: Target, folder: Path, given: argparse.Namespace
) -> tuple[SynthesisResult, list[PnrResult]]:
    """Synthesis, and a placement of each seed."""
    options = PnrOptions(given.aim_mhz, out_of_context=True)
    if given.board:
        board = load_board(str(target.board))
        target = board.mounted(target)
        shelled = write_board_design(rtl, board, target, folder / "board", given.aim_mhz)
        rtl = shelled.folder
        options = PnrOptions(shelled.clock.mhz, constraints=shelled.constraints)
    made = synthesise(rtl, target, folder / "synthesis", timeout=_TIMEOUT)
    placed = []
    for seed in given.seeds:
        one = PnrOptions(
            options.clock_mhz, seed, options.constraints, out_of_context=options.out_of_context
        )
        out = folder / f"seed-{seed}"
        placed.append(place_and_route(made.netlist, target, out, one, timeout=_TIMEOUT))
        print(f"  seed {seed}: {placed[-1].fmax_mhz} MHz", flush=True)
    return made, placed


def measure(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """One design: its clock with every seed, and what it takes."""
    hardware, target = mapped(name, network(name, given.runs), given.foldings, given.aim_mhz)
    flow = analyse(hardware)
    print(f"{name}: {flow.interval} cycles", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        emit(hardware, Path(folder, "rtl"))
        made, placed = routed(Path(folder, "rtl"), target, Path(folder), given)
    worst = min(placed, key=lambda result: result.fmax_mhz or 0)
    path = worst.critical_path
    blocks = [] if path is None else [part.instance for part in path.by_instance()]
    return {
        "design": name,
        "label": given.label,
        "way": "in its shell" if given.board else "out of context",
        "weights": "before training" if given.untrained else "trained",
        "target": target.name,
        "aim_mhz": given.aim_mhz,
        "fmax_mhz": {str(r.seed): round(r.fmax_mhz or 0, 1) for r in placed},
        **{key: round(value) for key, value in placed[0].resources.to_json().items()},
        "interval": flow.interval,
        "reads": asdict(reads_of(hardware)),
        "latency": flow.latency,
        "critical": {
            "blocks": list(dict.fromkeys(blocks)),
            "path": None if path is None else path.summary(),
        },
        "tools": [made.tool, placed[0].tool],
        "cpu": cpu_name(),
        "date": date.today().isoformat(),
    }


def page(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "# Clock after place and route",
        "",
        "The lowest, middle and highest Fmax over the seeds of the placer, by",
        "`benchmarks/clock.py`; LUTs packed, as nextpnr counts them. Rows of one design have the",
        "same folding; for mnist-* with `--foldings docs/results/clock`. `7552660` is the",
        "commit before the work on the clock; the last column is where the slowest path of the",
        "slowest seed lies.",
        "",
        "| design | version | placed | device | seeds | lowest | middle | highest (MHz) | LUT | FF "
        "| BRAM | DSP | cycles a frame | latency | slowest path in |",
        "|---|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for row in rows:
        found = list(row["fmax_mhz"].values())
        clocks = [f"{value:.1f}" for value in (min(found), median(found), max(found))]
        counts = [row[key] for key in ("lut", "ff", "bram", "dsp", "interval", "latency")]
        cells = [row["design"], row["label"], row["way"], row["target"], len(found), *clocks]
        cells += [*(f"{count:,}" for count in counts), ", ".join(row["critical"]["blocks"])]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    untrained = sorted({r["design"] for r in rows if r["weights"] != "trained"})
    if untrained:
        lines += ["", f"Weights before training: {', '.join(untrained)}."]
    lines += [
        f"\n{r['design']}, {r['label']}, {r['way']}: {r['note']}." for r in rows if "note" in r
    ]
    tools = sorted({tool for row in rows for tool in row["tools"]})
    facts = sorted({(row["cpu"], row["date"]) for row in rows})
    lines += ["", f"Tools: {'; '.join(tools)}."]
    lines += [f"On {cpu}, {day}." for cpu, day in facts]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipes", nargs="+")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--runs", type=Path, help="folder of runs of these recipes")
    source.add_argument("--untrained", action="store_true", help="the networks before training")
    parser.add_argument("--foldings", type=Path, required=True, help="folder of NAME.json")
    parser.add_argument(
        "--seeds", type=lambda text: [int(seed) for seed in text.split(",")], default=[1, 2, 3]
    )
    parser.add_argument("--aim-mhz", type=float, default=160.0, help="what nextpnr aims at")
    parser.add_argument("--board", action="store_true", help="in the serial shell of the board")
    parser.add_argument("--label", default="now", help="version of the hardware")
    given = parser.parse_args()
    for name in given.recipes:
        row = measure(name, given)
        known = json.loads(ROWS.read_text()) if ROWS.is_file() else []
        rows = [r for r in known if any(r[key] != row[key] for key in _KEY)] + [row]
        rows.sort(key=lambda r: tuple(r[key] for key in _KEY))
        ROWS.write_text(json.dumps(rows, indent=1) + "\n")
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
