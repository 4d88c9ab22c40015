# SPDX-License-Identifier: Apache-2.0
"""Step `implement`: synthesis, place and route, bitstream, by `bitwright.build.implement`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from bitwright.base.files import atomic_write
from bitwright.base.progress import Progress, no_progress
from bitwright.data.preprocessing import HostInput, read_input
from bitwright.host.board_files import complete, export_host
from bitwright.host.description import FILE, read_description
from bitwright.ir import Graph
from bitwright.pipeline.context import StepContext
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.recipe_schema import ImplementSection
from bitwright.pipeline.steps.implement_engine import implement_engine
from bitwright.pipeline.steps.lower import INPUT, read_graph
from bitwright.pipeline.steps.planning import needed_clock
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import MapResult
from bitwright.pipeline.steps.workspace import Workspace

if TYPE_CHECKING:
    from bitwright.build.implement import ImplementResult


def implement(work: Workspace, context: StepContext) -> None:
    """Make it real for the recipe's target; writes ``implement.json``."""
    lowered, recipe = context.inputs["lower"], work.recipe
    implement_network(
        context.inputs["map"],
        read_graph(lowered),
        read_input(lowered / INPUT),
        recipe.hardware,
        recipe.implement,
        context.folder,
        context.progress,
        searching=work.searching,
    )


def implement_network(
    mapped: Path,
    graph: Graph,
    given: HostInput | None,
    hardware: HardwareSection,
    wanted: ImplementSection,
    folder: Path,
    progress: Progress = no_progress,
    *,
    searching: bool = False,
) -> ImplementResult:
    """Make what `map_network` wrote real; beside a bitstream lies what a host needs to know of it.

    Args:
        mapped: what it wrote.
        graph, given: what the host is told of inputs and labels.
        folder: gets ``implement.json``, the bitstream and the host's files.
        searching: a design that misses the rate is folded again (`pipeline.steps.planning`), so no
            bitstream is made of it.

    Raises:
        TargetError: it does not fit.
        ToolError: a tool is missing or failed.
    """
    from bitwright.build.implement import RESULT, ImplementOptions, implement_parts
    from bitwright.build.implement import implement as run_tools
    from bitwright.build.target import load_target

    engine = hardware.kind == "engine"  # whose program takes what it takes, at any clock
    needed = None if engine else needed_clock(load_result(MapResult, mapped))
    options = ImplementOptions(
        clock_mhz=hardware.clock_mhz,
        seeds=wanted.seeds,
        board=wanted.board,
        needed_mhz=needed if searching else None,
        rate_mhz=needed,
        timeout_s=wanted.timeout_s,
    )
    target = load_target(hardware.target)
    if engine:
        return implement_engine(mapped, target, folder, options, run_tools, progress)
    parts = (mapped / "devices").glob("part[0-9]*")
    devices = sorted(parts, key=lambda part: int(part.name.removeprefix("part")))
    if devices:
        return implement_parts(devices, target, folder, options, progress)
    result = run_tools(mapped / "rtl", target, folder, options, progress)
    if "board_description" in result.files:
        description = complete(read_description(folder / FILE), graph, given)
        result = replace(result, files={**result.files, **export_host(description, folder)})
        atomic_write(folder / RESULT, result.to_json())
    return result
