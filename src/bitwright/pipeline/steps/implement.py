# SPDX-License-Identifier: Apache-2.0
"""Step `implement`: synthesis, place and route, bitstream, by `bitwright.build.implement`."""

from __future__ import annotations

from bitwright.pipeline.context import StepContext
from bitwright.pipeline.steps.workspace import Workspace


def implement(work: Workspace, context: StepContext) -> None:
    """Make it real for the recipe's target; writes ``implement.json``."""
    from bitwright.build.implement import ImplementOptions, implement_parts
    from bitwright.build.implement import implement as run_tools
    from bitwright.build.target import load_target

    recipe = work.recipe
    options = ImplementOptions(
        clock_mhz=recipe.hardware.clock_mhz,
        seeds=recipe.implement.seeds,
        board=recipe.implement.board,
        timeout_s=recipe.implement.timeout_s,
    )
    target = load_target(recipe.hardware.target)
    parts = (context.inputs["map"] / "devices").glob("part[0-9]*")
    devices = sorted(parts, key=lambda folder: int(folder.name.removeprefix("part")))
    if devices:
        implement_parts(devices, target, context.folder, options, context.progress)
        return
    design = context.inputs["map"] / "rtl"
    run_tools(design, target, context.folder, options, context.progress)
