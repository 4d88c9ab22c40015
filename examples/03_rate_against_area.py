# SPDX-License-Identifier: Apache-2.0
"""Lesson 3: one network at several frame rates: what it costs, by the models, in seconds.

It takes the untrained network through calibration, freezing, lowering and mapping: the
figures are the models'. Folding (PE and SIMD of each layer) is searched anew for every rate.
"""

from bitwright.pipeline.api import estimate_recipe
from bitwright.pipeline.recipe import load_recipe

print(f"{'wanted':>10} {'cycles':>8} {'images/s':>10} {'LUT':>7} {'FF':>7} {'BRAM':>5}")
before = 0.0
for rate in (2_000, 20_000, 100_000):
    recipe = load_recipe("digits", [f"hardware={{target: ecp5-45k, target_fps: {rate}}}"])
    found = estimate_recipe(recipe)
    used, reached = found["resources"], found["clock_mhz"] * 1e6 / found["interval"]
    print(
        f"{rate:10,} {found['interval']:8,} {reached:10,.0f} "
        f"{used['lut']:7,.0f} {used['ff']:7,.0f} {used['bram']:5.0f}"
    )
    assert reached >= rate, "the search keeps its promise"
    assert used["lut"] >= before, "more images a second never cost less"
    before = used["lut"]
