# SPDX-License-Identifier: Apache-2.0
"""Whole designs after synthesis, and after place and route, beside what the models predict.

    python benchmarks/placed.py measure digits table --seeds 1,2
    python benchmarks/placed.py measure mnist-cnn --seeds none
    python benchmarks/placed.py link
    python benchmarks/placed.py page

A design is a recipe's network before training, with the folding in docs/results/placed/NAME.json
(written by the search where there is none, so that a design stays what it is when the model
changes). `measure` synthesises it for ECP5, counts packed LUTs in the netlist (nextpnr's own count
equals them: docs/results/packed_luts.md), and places and routes it out of context, once a seed.
`link` fits the one coefficient of the cost model that comes from whole designs: LUTs that a stream
between two blocks saves. Writes docs/results/placed.json and placed.md; rows of other designs are
kept.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any

from bitwright.base.progress import no_progress
from bitwright.build.nextpnr import PnrOptions, place_and_route
from bitwright.build.target import Target, load_target
from bitwright.build.yosys import synthesise
from bitwright.hw import MapOptions, analyse, folding_of, load_folding, map_graph
from bitwright.hw.cost import coefficients, graph_resources
from bitwright.hw.reads import reads_of
from bitwright.ir import Graph
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.pipeline.steps.map import choose_mapping
from bitwright.pipeline.steps.preflight import untrained_graph
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.rtl.emit import emit

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
ROWS, PAGE, FOLDINGS = RESULTS / "placed.json", RESULTS / "placed.md", RESULTS / "placed"
COEFFICIENTS = RESULTS.parents[1] / "src" / "bitwright" / "hw" / "cost.json"
_TIMEOUT = 7200.0
_GOALS = ("target_fps", "fill", "budget", "rate_clock_mhz")


@dataclass(frozen=True)
class Design:
    """A recipe's network, and what is asked of its hardware other than in the recipe."""

    recipe: str
    size: str  # small, middle, large
    hardware: Mapping[str, Any] = field(default_factory=dict)


def _within(lut: int, bram: int, dsp: int = 0) -> dict[str, Any]:
    """The fastest that fits into a part of a device."""
    return {"budget": {"lut": lut, "bram": bram, "dsp": dsp}}


DESIGNS = {
    "table": Design("table-mlp-w4a4", "small"),
    "table-dsp": Design("table-mlp-w4a4", "small", _within(1700, 20, 16)),
    "digits-slow": Design("digits", "small", {"target_fps": 20_000}),
    "digits": Design("digits", "small", _within(2700, 20)),
    "digits-dsp": Design("digits", "small", _within(2400, 20, 12)),
    "embedding": Design("digits-embedding-w4a4", "small"),
    "digits-lut": Design("digits", "middle", {"target_fps": 86_000}),
    "digits-fast": Design("digits", "middle", _within(4000, 20)),
    "sounds": Design("sounds-cnn1d-w4a4", "middle"),
    "boxes": Design("shapes-boxes-w4a4", "middle"),
    "boxes-dsp": Design("shapes-boxes-w4a4", "middle", _within(6500, 80, 60)),
    "map": Design("shapes-map-w4a4", "middle"),
    "sounds-fast": Design("sounds-cnn1d-w4a4", "large", _within(9000, 60)),
    "boxes-fast": Design("shapes-boxes-w4a4", "large", _within(13_000, 80)),
    "map-dsp": Design("shapes-map-w4a4", "large", _within(10_000, 80, 100)),
    "embedding-fast": Design("digits-embedding-w4a4", "large", _within(12_000, 60)),
    "map-fast": Design("shapes-map-w4a4", "large", _within(18_000, 80, 60)),
}


@cache
def mapped(name: str) -> tuple[Graph, Target]:
    """The hardware graph of a design."""
    design = DESIGNS[name]
    recipe = load_recipe(design.recipe)
    network = untrained_graph(Workspace(recipe, no_progress))
    fields = recipe.hardware.model_dump()
    if set(design.hardware) & set(_GOALS):
        fields |= dict.fromkeys(_GOALS)
    wanted = HardwareSection.model_validate({**fields, **design.hardware})
    target, path = load_target(wanted.target), FOLDINGS / f"{name}.json"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        folding_of(choose_mapping(network, wanted, target, no_progress)).save(path)
    options = MapOptions(target.family, clock_mhz=wanted.clock_mhz)
    return map_graph(network, load_folding(path), options), target


def measure(name: str, seeds: list[int], aim_mhz: float) -> dict[str, Any]:
    """A design synthesised, and placed and routed once a seed."""
    hardware, target = mapped(name)
    options = PnrOptions(aim_mhz, out_of_context=True)
    placed = []
    with tempfile.TemporaryDirectory() as folder:
        emit(hardware, Path(folder, "rtl"))
        made = synthesise(Path(folder, "rtl"), target, Path(folder, "out"), timeout=_TIMEOUT)
        print(f"{name}: {made.resources} in {made.cpu_seconds:.0f} s", flush=True)
        for seed in seeds:
            one = PnrOptions(options.clock_mhz, seed, out_of_context=True)
            out = Path(folder, f"seed-{seed}")
            placed.append(place_and_route(made.netlist, target, out, one, timeout=_TIMEOUT))
            print(f"{name}: seed {seed}, {placed[-1].fmax_mhz} MHz", flush=True)
    paths = [p.critical_path for p in placed if p.critical_path is not None]
    return {
        "design": name,
        "target": target.name,
        "interval": analyse(hardware).interval,
        "reads": asdict(reads_of(hardware)),
        **{kind: round(value) for kind, value in made.resources.to_json().items()},
        "fmax_mhz": {str(p.seed): round(p.fmax_mhz or 0, 1) for p in placed},
        "critical": [path.summary() for path in paths],
        "tools": [made.tool, *{p.tool for p in placed}],
        "cpu": cpu_name(),
        "date": date.today().isoformat(),
    }


def alone(name: str) -> tuple[float, int]:
    """LUTs of a design if its blocks shared nothing, and its streams between blocks and ends."""
    hardware, target = mapped(name)
    streams = len(hardware.outputs) + sum(len(n.inputs) for n in hardware if n.op != "flatten")
    saved = coefficients()["families"][target.family].get("link", {}).get("lut", 0.0)
    return graph_resources(hardware, target.family).lut + saved * streams, streams


def link(rows: Mapping[str, dict[str, Any]]) -> float:
    """LUTs that a stream saves: least sum of squares of relative errors of these designs. No block
    costs less than nothing, so that it depends a little on what is kept: run it until it stays.
    """
    above = under = 0.0
    for name, row in rows.items():
        said, streams = alone(name)
        above += (said - row["lut"]) * streams / row["lut"] ** 2
        under += (streams / row["lut"]) ** 2
    return above / under


def write_link(rows: Mapping[str, dict[str, Any]]) -> float:
    """Put the coefficient of all designs into the cost model."""
    table = json.loads(COEFFICIENTS.read_text())
    saved = round(link(rows), 3)
    table["families"]["ecp5"]["link"] = {"lut": saved, "designs": sorted(rows)}
    COEFFICIENTS.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n")
    return saved


def unseen(rows: Mapping[str, dict[str, Any]]) -> list[float]:
    """Errors of LUTs of each design with the coefficient of the others."""
    found = []
    for name, row in rows.items():
        said, streams = alone(name)
        others = link({other: rows[other] for other in rows if other != name})
        found.append(abs((said - others * streams) / row["lut"] - 1))
    return found


def errors(rows: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Design -> kind of resource -> predicted over found, less one (less found where none is)."""
    found: dict[str, dict[str, float]] = {}
    for name, row in rows.items():
        hardware, target = mapped(name)
        said = graph_resources(hardware, target.family).to_json()
        found[name] = {
            kind: said[kind] / row[kind] - 1 if row[kind] else said[kind] for kind in said
        }
    return found


def page(rows: Mapping[str, dict[str, Any]]) -> str:
    """The rows as Markdown."""
    wrong = errors(rows)
    lines = [
        "# Whole designs: predicted, and found",
        "",
        f"{len(rows)} designs of three sizes for ECP5, weights before training, out of context:",
        "packed LUTs, flip-flops, and Fmax after place and route. The cost model's lines come from",
        "single blocks (`benchmarks/estimates.py`); one coefficient, the LUTs that a stream",
        "between two blocks saves, from these designs.",
        "",
        "| design | recipe | size | cycles | LUT | model | FF | model | DSP | BRAM | Fmax, MHz |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, design in DESIGNS.items():
        if name not in rows:
            continue
        row, off = rows[name], wrong[name]
        clocks = sorted(row["fmax_mhz"].values())
        text = "-" if not clocks else f"{median(clocks):.1f} ({len(clocks)} seeds)"
        lines.append(
            f"| {name} | {design.recipe} | {design.size} | {row['interval']:,} | {row['lut']:,} "
            f"| {off['lut']:+.1%} | {row['ff']:,} | {off['ff']:+.1%} | {row['dsp']} "
            f"| {row['bram']} | {text} |"
        )
    luts, others = [abs(off["lut"]) for off in wrong.values()], unseen(rows)
    registers = [abs(off["ff"]) for off in wrong.values()]
    lines += [
        "",
        f"Error of LUTs: mean {mean(luts):.1%}, worst {max(luts):.1%}; of each design with the",
        f"coefficient of the others: mean {mean(others):.1%}, worst {max(others):.1%}. Error of",
        f"flip-flops: mean {mean(registers):.1%}, worst {max(registers):.1%}.",
    ]
    tools = sorted({tool for row in rows.values() for tool in row["tools"]})
    facts = sorted({(row["cpu"], row["date"]) for row in rows.values()})
    lines += ["", "`python benchmarks/placed.py measure NAME`, `python benchmarks/placed.py page`."]
    lines += ["", f"Tools: {'; '.join(tools)}."]
    return "\n".join([*lines, *(f"On {cpu}, {day}." for cpu, day in facts), ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("measure")
    run.add_argument("names", nargs="*", default=list(DESIGNS), help=", ".join(DESIGNS))
    run.add_argument("--seeds", default="1", help="of the placer; none: only synthesis")
    run.add_argument("--aim-mhz", type=float, default=160.0, help="what nextpnr aims at")
    verbs.add_parser("link")
    verbs.add_parser("page")
    given = parser.parse_args()
    rows = json.loads(ROWS.read_text()) if ROWS.is_file() else {}
    if given.verb == "measure":
        seeds = [] if given.seeds == "none" else [int(seed) for seed in given.seeds.split(",")]
        for name in given.names:
            rows[name] = measure(name, seeds, given.aim_mhz)
            ROWS.write_text(json.dumps(rows, indent=1) + "\n")
    elif given.verb == "link":
        print(f"{write_link(rows)} LUTs a stream")
    if given.verb in ("measure", "page"):
        PAGE.write_text(page(rows))


if __name__ == "__main__":
    main()
