# SPDX-License-Identifier: Apache-2.0
"""Build recipes end to end and tabulate what they reach.

    python benchmarks/recipes.py digits
    python benchmarks/recipes.py mnist-tfc-w1a1 mnist-tfc-w2a2 mnist-cnn-w4a4 --until simulate

Runs lie under ``--runs`` and are resumed. Writes docs/results/recipes.json and recipes.md; rows of
recipes that were not named are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from bitwright.base.figures import show
from bitwright.base.progress import no_progress
from bitwright.hw.reads import reads_of
from bitwright.pipeline.api import Pipeline, versions
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.steps.baseline import cpu_name
from bitwright.pipeline.steps.map import read_hardware
from bitwright.pipeline.steps.names import STEP_NAMES
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import SimulateResult
from bitwright.pipeline.steps.workspace import Workspace

RESULTS = Path(__file__).resolve().parent.parent / "docs" / "results"
#: Headings, and how the labels of a run's summary end that stand below them. A task's metric, and
#: what one input is called, stand in front.
COLUMNS = {
    "float": ", float",
    "quantized": ", quantized",
    "integer graph": ", integer graph",
    "model size": "model size",
    "cycles an input, predicted": ", predicted",
    "cycles an input, simulated": ", simulated",
    "LUT": "LUT",
    "BRAM": "BRAM",
    "Fmax": "Fmax",
}
METRICS = ("float", "quantized", "integer graph")


def build(name: str, runs: Path, until: str, measured: dict[str, Any]) -> dict[str, Any]:
    """One row: the run's summary, what the simulation compared, and where and when."""
    summary = Pipeline(load_recipe(name), runs / name).build(until)
    proof = load_result(SimulateResult, next((runs / name).glob("*-simulate")))
    return {
        "recipe": name,
        "rows": [row.model_dump(mode="json") for row in summary.rows],
        "shown": {row.label: show(row.figure) for row in summary.rows},
        "images": proof.images,
        "compared_values": proof.compared_values,
        "differences": proof.differences,
        "seconds": summary.seconds,
        "reads": reads(name, next((runs / name).glob("*-map"))),
        "until": until,
        "measured": measured,
    }


def reads(name: str, folder: Path) -> dict[str, Any]:
    """The slowest reads of the design that the step `map` left (benchmarks/fmax.py)."""
    work = Workspace(load_recipe(name), no_progress)
    return asdict(reads_of(read_hardware(work, folder)))


def cell(shown: dict[str, str], heading: str) -> str:
    """What stands below a heading; of a metric without the number of inputs, and with its name."""
    label = next((label for label in shown if label.endswith(COLUMNS[heading])), None)
    if label is None:
        return "-"
    if heading not in METRICS:
        return shown[label]
    return f"{label.removesuffix(COLUMNS[heading])} {shown[label].split(',')[0]}"


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    head = ["recipe", *COLUMNS, "RTL = graph: images", "values compared", "differ"]
    head += ["processor", "date"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in rows:
        cells = [cell(row["shown"], heading) for heading in COLUMNS]
        cells += [str(row[key]) for key in ("images", "compared_values", "differences")]
        cells += [row["measured"]["machine"]["cpu"], row["measured"]["date"]]
        lines.append("| " + " | ".join([row["recipe"], *cells]) + " |")
    return "\n".join(lines) + "\n"


def sources(rows: list[dict[str, Any]]) -> str:
    """For each command: its rows, machine and versions."""
    found: dict[str, list[str]] = {}
    for row in rows:
        measured = row["measured"]
        facts = ", ".join(f"{key} {value}" for key, value in measured["machine"].items())
        found.setdefault(f"`{measured['command']}` on {facts}.", []).append(row["recipe"])
    return "\n".join(f"- {', '.join(names)}: {text}" for text, names in found.items()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--until", default="report", choices=STEP_NAMES)
    chosen = parser.parse_args()
    file = RESULTS / "recipes.json"
    kept = json.loads(file.read_text())["rows"] if file.exists() else []
    rows = [row for row in kept if row["recipe"] not in chosen.recipes]
    measured = {
        "command": "python benchmarks/recipes.py "
        + " ".join("RUNS" if text == str(chosen.runs) else text for text in sys.argv[1:]),
        "date": date.today().isoformat(),
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), **versions()},
    }
    rows += [build(name, chosen.runs, chosen.until, measured) for name in chosen.recipes]
    rows.sort(key=lambda row: row["recipe"])
    file.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    note = (
        "LUT and BRAM by place and route where Fmax stands, else by the model. The task's metric "
        "on all test images; RTL compared with the integer graph by `==`, every score and label, "
        "with random stalls and a reset in mid-frame among the runs."
    )
    text = f"# Recipes\n\n{note}\n\n{table(rows)}\n{sources(rows)}"
    (RESULTS / "recipes.md").write_text(text)
    print(table(rows))


if __name__ == "__main__":
    main()
