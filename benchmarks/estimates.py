# SPDX-License-Identifier: Apache-2.0
"""Fit the cost model of `bitwright.hw` to synthesis of our own modules, and say how well it fits.

    python benchmarks/estimates.py measure ecp5 [--groups matvec,window]
    python benchmarks/estimates.py fit

`measure` synthesises samples of every block; `fit` writes hw/cost.json and prints the errors.
Samples are single blocks between AXI ends, many in one design. Their instances keep their
hierarchy: of a flat netlist a cell between two blocks may have the name of either. What each takes,
LUTs packed, is read from the netlist. The ends of the group `dwc` are samples, too. Measurements
are kept in docs/results/estimates.json, so that fitting needs no Yosys; the coefficients are
committed in src/bitwright/hw/cost.json with tool version, date and command. One more coefficient
comes from whole designs (benchmarks/placed.py).
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

sys.path[:0] = [str(Path(__file__).parent)]

from estimate_samples import GROUPS, samples  # noqa: E402

from bitwright.build.target import list_targets  # noqa: E402
from bitwright.build.yosys import synthesise  # noqa: E402
from bitwright.hw.blocks import block_of  # noqa: E402
from bitwright.hw.blocks.products import ProductUnit  # noqa: E402
from bitwright.hw.cost import block_terms, end_terms  # noqa: E402
from bitwright.hw.memory import FAMILIES  # noqa: E402
from bitwright.ir import Graph, rebuild  # noqa: E402
from bitwright.rtl.emit import emit  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
MEASURED = ROOT / "docs" / "results" / "estimates.json"
COEFFICIENTS = ROOT / "src" / "bitwright" / "hw" / "cost.json"
ENDS_OF = "dwc"  # the group whose AXI ends are samples
_TIMEOUT = 3000.0


def resolved(graph: Graph, family: str) -> Graph:
    """With what a multiplication of the family's DSP blocks does, and how weights are read."""
    blocks = (block_of(graph, node) for node in graph)
    return rebuild(
        graph,
        tuple(
            unit.resolve(family) if isinstance(unit, ProductUnit) else unit.node for unit in blocks
        ),
    )


def keep_instances(top: Path) -> None:
    """Have synthesis keep each instance of a generated top as a module of its own."""
    text = re.sub(r"(?m)^  (\w+ #\($)", r"  (* keep_hierarchy *) \1", top.read_text())
    top.write_text(text)


def measure(family: str, groups: list[str]) -> None:
    """Synthesise the samples for a family and keep what each instance takes."""
    target = next(t for t in list_targets() if t.family == family)
    table: dict[str, Any] = json.loads(MEASURED.read_text()) if MEASURED.is_file() else {}
    for group in groups:
        graph = resolved(samples([group]), family)
        with tempfile.TemporaryDirectory() as folder:
            emit(graph, Path(folder, "rtl"))
            keep_instances(Path(folder, "rtl", f"{graph.name}.sv"))
            out = Path(folder, "out")
            result = synthesise(Path(folder, "rtl"), target, out, timeout=_TIMEOUT)
        kinds = {group: [node.name for node in graph]}
        if group == ENDS_OF:
            kinds |= {"axis_in": _ends("s", graph.inputs), "axis_out": _ends("m", graph.outputs)}
        for kind, names in kinds.items():
            table.setdefault(family, {})[kind] = {
                "tool": result.tool,
                "date": datetime.date.today().isoformat(),
                "command": f"python benchmarks/estimates.py measure {family} --groups {group}",
                "samples": {name: result.by_instance[f"i_{name}"].to_json() for name in names},
            }
        MEASURED.parent.mkdir(parents=True, exist_ok=True)
        MEASURED.write_text(json.dumps(table, indent=1) + "\n")
        print(f"{family} {group}: {len(graph.nodes)} samples, {result.seconds:.0f} s", flush=True)


def _ends(side: str, edges: Sequence[str]) -> list[str]:
    """Names of the AXI ends of a top, in the order of its edges."""
    return [f"{side}_axis_{number}" for number in range(len(edges))]


def fit_line(terms: list[dict[str, float]], measured: list[float]) -> dict[str, float]:
    """Coefficients >= 0 of least relative error; below 20 units, of least absolute error."""
    names = sorted({name for row in terms for name in row})
    matrix = np.array([[row.get(name, 0.0) for name in names] for row in terms])
    target = np.array(measured)
    weight = 1.0 / np.maximum(target, 20.0)
    solution, _ = nnls(matrix * weight[:, None], target * weight)
    return {n: round(float(x), 4) for n, x in zip(names, solution, strict=True) if x > 1e-6}


def predicted(line: dict[str, float], terms: dict[str, float]) -> float:
    """The fitted line at these terms."""
    return sum(line.get(name, 0.0) * value for name, value in terms.items())


def terms_of(family: str, group: str) -> dict[str, tuple[dict[str, float], float]]:
    """Sample -> the terms of its cost, and the flip-flops of its memories, which are counted."""
    if group in ("axis_in", "axis_out"):
        graph = samples([ENDS_OF])
        blocks = [block_of(graph, node) for node in graph]
        ports = [b.inputs[0] if group == "axis_in" else b.outputs[0] for b in blocks]
        names = _ends("s" if group == "axis_in" else "m", graph.inputs)
        return {name: (end_terms(port), 0.0) for name, port in zip(names, ports, strict=True)}
    graph = samples([group])
    each = {node.name: block_of(graph, node) for node in graph}
    return {n: (block_terms(b, family), b.memory_cost(family).ff) for n, b in each.items()}


def fit_group(family: str, group: str, rows: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Coefficients and errors of one kind of block, from the samples that were measured."""
    known = {name: found for name, found in terms_of(family, group).items() if name in rows}
    terms = [found[0] for found in known.values()]
    result: dict[str, Any] = {}
    for kind in ("lut", "ff"):
        values = [rows[name][kind] for name in known]
        counted = [found[1] if kind == "ff" else 0.0 for found in known.values()]
        line = fit_line(terms, [value - own for value, own in zip(values, counted, strict=True)])
        errors = [
            abs(predicted(line, row) + own - value) / max(value, 20.0)
            for row, own, value in zip(terms, counted, values, strict=True)
        ]
        result[kind] = line
        result[f"{kind}_error"] = {
            "mean": round(float(np.mean(errors)), 3),
            "max": round(float(np.max(errors)), 3),
        }
    return result


def fit(chosen: list[str]) -> None:
    """Fit these families, write the coefficients (those of others are kept), print the errors."""
    table: dict[str, Any] = json.loads(MEASURED.read_text())
    families: dict[str, Any] = json.loads(COEFFICIENTS.read_text())["families"]
    for family in (f for f in chosen if f in table):
        print(f"\n{family:10s} {'block':10s} {'samples':>7s} {'LUT mean':>9s} {'LUT max':>8s} "
              f"{'FF mean':>8s} {'FF max':>7s}")  # fmt: skip
        blocks: dict[str, Any] = {}
        for group, entry in table[family].items():
            found = blocks[group] = fit_group(family, group, entry["samples"])
            lut, ff = found["lut_error"], found["ff_error"]
            print(f"{'':10s} {group:10s} {len(entry['samples']):7d} {lut['mean']:9.1%} "
                  f"{lut['max']:8.1%} {ff['mean']:8.1%} {ff['max']:7.1%}")  # fmt: skip
        tools = sorted({entry["tool"] for entry in table[family].values()})
        dates = sorted({entry["date"] for entry in table[family].values()})
        families[family] |= {"tool": tools, "date": dates, "blocks": blocks}
    text = {
        "command": "python benchmarks/estimates.py fit",
        "measurements": "docs/results/estimates.json",
        "families": families,
    }
    COEFFICIENTS.write_text(json.dumps(text, indent=1, sort_keys=True) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("measure")
    run.add_argument("family", choices=FAMILIES)
    run.add_argument("--groups", default=",".join(GROUPS))
    again = verbs.add_parser("fit")
    again.add_argument("families", nargs="*", default=list(FAMILIES), help="ecp5, xc7, ...")
    given = parser.parse_args()
    if given.verb == "measure":
        measure(given.family, given.groups.split(","))
    else:
        fit(list(given.families))


if __name__ == "__main__":
    main()
