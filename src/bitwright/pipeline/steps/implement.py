# SPDX-License-Identifier: Apache-2.0
"""Step `implement`: synthesis, place and route, bitstream, by `bitwright.build.implement`."""

from __future__ import annotations

from dataclasses import replace

from bitwright.base.files import atomic_write
from bitwright.data.preprocessing import read_input
from bitwright.host.board_files import complete, export_host
from bitwright.host.description import FILE, read_description
from bitwright.pipeline.context import StepContext
from bitwright.pipeline.steps.lower import INPUT, read_graph
from bitwright.pipeline.steps.workspace import Workspace


def implement(work: Workspace, context: StepContext) -> None:
    """Make it real for the recipe's target; writes ``implement.json``."""
    from bitwright.build.implement import RESULT, ImplementOptions, implement_parts
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
    result = run_tools(design, target, context.folder, options, context.progress)
    if "board_description" in result.files:
        base = read_description(context.folder / FILE)
        lowered = context.inputs["lower"]
        description = complete(base, read_graph(lowered), read_input(lowered / INPUT))
        files = {**result.files, **export_host(description, context.folder)}
        atomic_write(context.folder / RESULT, replace(result, files=files).to_json())
