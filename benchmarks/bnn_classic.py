# SPDX-License-Identifier: Apache-2.0
"""Binarized perceptrons of MNIST, trained the classic way (mini-batches, batch norm, Adam, squared
hinge), as the recipes mnist-mlp1024-w1a1 and mnist-mlp4096-w1a1 say.

    python benchmarks/bnn_classic.py mnist-mlp1024-w1a1 --seeds 0 1 2 --runs RUNS
    python benchmarks/bnn_classic.py mnist-mlp4096-w1a1 --seeds 0 --runs RUNS
    python benchmarks/bnn_classic.py mnist-mlp1024-w1a1 --runs RUNS --collect   # runs of `bitwright
        # build NAME --until quantize --run-dir RUNS/NAME-SEED`: no processor minutes

Runs lie under ``--runs`` and are resumed. All choices were made on the training images that the
recipes hold out; the test images are looked at once a run, by the integer graph behind the last
epoch. Weights of 4096 units are 64 MiB, which glibc's allocator gives back to the system and asks
for anew at every step: `MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184` in front of the
command halved the passes over such weights.
Writes docs/results/bnn_classic.json and .md.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from results import command, keep, kept, machine, table

from bitwright.pipeline.api import Pipeline
from bitwright.pipeline.recipe import load_recipe
from bitwright.pipeline.steps.results import QuantizeResult, load_result

NAME = "bnn_classic"
WANTED = {"mnist-mlp1024-w1a1": 0.984, "mnist-mlp4096-w1a1": 0.988}
NOTES = """Made by `benchmarks/bnn_classic.py`; its head says how. Weights, hidden activations and
pixels are one bit. *Test* is the integer graph on MNIST's 10 000 test images, looked at once a run;
*held out* the same network on the training images that it was not trained on; *training* the last
epoch's images as it saw them, moved and turned. Means over seeds with the standard deviation.
"""


def measure(name: str, seed: int, runs: Path, *, collect: bool) -> dict[str, Any]:
    """One run: what its last epoch and its integer graph reached.

    Args:
        collect: only read what a run has left that is there.
    """
    recipe = load_recipe(name, [f"seed={seed}"])
    minutes = None
    if not collect:
        began = time.process_time()
        Pipeline(recipe, runs / f"{name}-{seed}").build("quantize")
        minutes = (time.process_time() - began) / 60
    found = load_result(QuantizeResult, next((runs / f"{name}-{seed}").glob("*-quantize")))
    (phase,) = found.phases
    return {
        "recipe": name,
        "description": recipe.description,
        "seed": seed,
        "epochs": len(phase.history),
        "test": found.metrics["accuracy"].value,
        "held_out": phase.history[-1].validation_metric,
        "training": phase.history[-1].train_metric,
        "cpu_minutes": minutes,
        "machine": machine("torch"),
        "command": command({str(runs): "RUNS"}),
    }


def page(found: dict[str, Any]) -> str:
    """The table of all runs, a line a recipe."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in found["rows"]:
        groups.setdefault(row["recipe"], []).append(row)
    lines = []
    for name, rows in sorted(groups.items()):
        shares = [_percent([row[key] for row in rows]) for key in ("training", "held_out", "test")]
        lines.append((
            f"`{name}`", rows[0]["description"], str(rows[0]["epochs"]), str(len(rows)), *shares,
            f"{100 * WANTED[name]:.1f} %", _minutes(rows),
        ))  # fmt: skip
    head = ("recipe", "network", "epochs", "seeds", "training", "held out", "test", "wanted",
            "processor min a run")  # fmt: skip
    made = sorted({f"- `{row['command']}` on {row['machine']}" for row in found["rows"]})
    parts = ["# Binarized networks, the classic way\n", NOTES, *table(head, lines), "", *made]
    return "\n".join(parts) + "\n"


def _minutes(rows: list[dict[str, Any]]) -> str:
    known = [row["cpu_minutes"] for row in rows if row["cpu_minutes"] is not None]
    return f"{max(known):.0f}" if known else "-"


def _percent(values: list[float]) -> str:
    spread = f" ± {100 * stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.2f}{spread} %"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("recipes", nargs="+", choices=tuple(WANTED))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--collect", action="store_true", help="of runs that are there")
    chosen = parser.parse_args()
    for name in chosen.recipes:
        for seed in chosen.seeds:
            row = measure(name, seed, chosen.runs, collect=chosen.collect)
            rows = kept(NAME).get("rows", [])  # again: others may have written meanwhile
            rows = [old for old in rows if (old["recipe"], old["seed"]) != (name, seed)]
            keep(NAME, {"rows": [*rows, row]}, page)


if __name__ == "__main__":
    main()
