# SPDX-License-Identifier: Apache-2.0
"""How well the LUTs that the model predicts are those that the device fills.

    python benchmarks/packed_luts.py digits mnist-tfc-w1a1 --runs RUNS
    python benchmarks/packed_luts.py cifar-resnet20-w4a4 --untrained

Each recipe's network is mapped for its target, written as RTL, synthesised, and placed and routed
out of context. Four counts of its LUTs are compared: by the model, cells of synthesis, packed as
we count from the netlist, packed by nextpnr. The network is the trained one of a run below RUNS
(`bitwright build NAME --run-dir RUNS/NAME --until lower`), or the recipe's before training; the
model's coefficients come from samples of single blocks (benchmarks/estimates.py), from none of
these networks. Writes docs/results/packed_luts.json and packed_luts.md; rows of recipes that were
not named are kept.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.progress import no_progress
from bitwright.build.nextpnr import PnrOptions, place_and_route
from bitwright.build.target import load_target
from bitwright.build.yosys import synthesise
from bitwright.hw.cost import graph_resources
from bitwright.ir import Graph
from bitwright.pipeline.api import versions
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.pipeline.steps.lower import read_graph
from bitwright.pipeline.steps.map import choose_mapping
from bitwright.pipeline.steps.preflight import untrained_graph
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.rtl.emit import emit

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
_TIMEOUT = 5400.0


def network(name: str, runs: Path | None) -> Graph:
    """The integer graph of a recipe: of its run, or before training."""
    if runs is not None:
        return read_graph(next((runs / name).glob("*-lower")))
    return untrained_graph(Workspace(load_recipe(name), no_progress))


def measure(name: str, runs: Path | None, route: bool) -> dict[str, Any]:
    """All counts of one recipe's design."""
    graph, wanted = network(name, runs), load_recipe(name).hardware
    target = load_target(wanted.target)
    hardware = choose_mapping(graph, wanted, target, no_progress)
    with tempfile.TemporaryDirectory() as folder:
        emit(hardware, Path(folder, "rtl"))
        made = synthesise(Path(folder, "rtl"), target, Path(folder, "out"), timeout=_TIMEOUT)
        extra = () if route else ("--pack-only",)
        options = PnrOptions(wanted.clock_mhz, out_of_context=True, extra=extra)
        placed = place_and_route(
            made.netlist, target, Path(folder, "place"), options, timeout=_TIMEOUT
        )
    return {
        "recipe": name,
        "trained": runs is not None,
        "target": target.name,
        "blocks": len(hardware.nodes),
        "model": round(graph_resources(hardware, target.family).lut),
        "cells": made.cell_luts,
        "netlist": made.resources.lut,
        "nextpnr": placed.resources.lut,
        "fmax_mhz": None if placed.fmax_mhz is None else round(placed.fmax_mhz, 1),
        "tools": [made.tool, placed.tool],
        "date": date.today().isoformat(),
        "cpu": cpu_name(),
    }


def page(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown, with the errors together."""
    lines = [
        "# LUTs: predicted, synthesised, packed",
        "",
        "What a design fills of an ECP5 is its packed count, nextpnr's TRELLIS_COMB. The model's "
        "coefficients come from single blocks (`benchmarks/estimates.py`), from none of these "
        "networks. Placed and routed out of context, without the serial shell.",
        "",
        "| recipe | weights | target | blocks | model | cells of synthesis | packed, from the "
        "netlist | packed, nextpnr | model to packed | cells to packed | Fmax |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    errors = []
    for row in rows:
        packed = row["nextpnr"]
        errors.append((row["model"] / packed - 1, row["cells"] / packed - 1))
        fmax = "-" if row["fmax_mhz"] is None else f"{row['fmax_mhz']} MHz"
        cells = [row["recipe"], "trained" if row["trained"] else "before training", row["target"]]
        cells += [f"{row[key]:,}" for key in ("blocks", "model", "cells", "netlist", "nextpnr")]
        cells += [f"{error:+.1%}" for error in errors[-1]]
        lines.append("| " + " | ".join([*cells, fmax]) + " |")
    table = np.array(errors)
    means, sizes = table.mean(axis=0), np.abs(table).mean(axis=0)
    lines += [
        "",
        f"Mean error of the model {means[0]:+.1%}, of its size {sizes[0]:.1%}; of the cells of "
        f"synthesis {means[1]:+.1%}. The count from the netlist equals nextpnr's in "
        f"{sum(r['netlist'] == r['nextpnr'] for r in rows)} of {len(rows)}.",
        "",
        *commands(rows),
        f"On {', '.join(sorted({row['cpu'] for row in rows}))}, {', '.join(rows[-1]['tools'])}, "
        + ", ".join(f"{name} {version}" for name, version in versions().items())
        + ".",
    ]
    return "\n".join(lines) + "\n"


def commands(rows: list[dict[str, Any]]) -> list[str]:
    """What made the rows."""
    lines = []
    for trained, source in ((True, "--runs RUNS"), (False, "--untrained")):
        names = [row["recipe"] for row in rows if row["trained"] is trained]
        if names:
            lines += [f"`python benchmarks/packed_luts.py {' '.join(names)} {source}`", ""]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipes", nargs="+")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--runs", type=Path, help="folder of runs of these recipes")
    source.add_argument("--untrained", action="store_true", help="the networks before training")
    parser.add_argument("--pack-only", action="store_true", help="do not place: no Fmax")
    given = parser.parse_args()
    path = RESULTS / "packed_luts.json"
    rows = {r["recipe"]: r for r in json.loads(path.read_text())} if path.is_file() else {}
    for name in given.recipes:
        rows[name] = measure(name, given.runs, not given.pack_only)
        print(rows[name], flush=True)
        path.write_text(json.dumps(list(rows.values()), indent=1) + "\n")
    (RESULTS / "packed_luts.md").write_text(page(list(rows.values())))


if __name__ == "__main__":
    main()
