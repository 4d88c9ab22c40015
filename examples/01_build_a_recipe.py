# SPDX-License-Identifier: Apache-2.0
"""Lesson 1: run a recipe from Python, with a few fields changed, and read what came out.

``until="lower"`` stops at the integer graph; without it the RTL is simulated and implemented too.
A second call of this program does nothing: the run directory holds all results.
"""

from bitwright import build_recipe, load_recipe

recipe = load_recipe(
    "digits",
    ["name=lesson-1", "quant.weight=int3", "train.float.epochs=3", "train.quantized.epochs=2"],
)
summary = build_recipe(recipe, "runs/lesson-1", until="lower")

for row in summary.rows:
    if row.figure is not None:
        print(f"{row.label:28} {row.figure.value:10.4g} {row.figure.unit:6} ({row.figure.source})")

accuracy = summary.figure("accuracy, integer graph")
assert accuracy == summary.figure("accuracy, quantized"), "graph and torch model are one network"
