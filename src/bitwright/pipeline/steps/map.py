# SPDX-License-Identifier: Apache-2.0
"""Step `map`: the folding for the target, FIFO depths, the hardware graph and its RTL."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.errors import MismatchError, RunError, TargetError
from bitwright.base.figures import Resources
from bitwright.base.files import atomic_write, json_text
from bitwright.base.progress import Progress, no_progress
from bitwright.base.records import BlockRow, EdgeRow, FifoRow
from bitwright.base.trust import importable
from bitwright.build.clocks import check_clock, clock_note, reachable_clock
from bitwright.build.fmax import Prediction, predicted_fmax
from bitwright.build.packing import lut_kind
from bitwright.build.rates import LinkRate, Stream, link_of
from bitwright.build.target import Target, list_targets, load_target, smallest_fitting
from bitwright.hw.blocks import Flatten, blocks_of
from bitwright.hw.blocks.base import Port
from bitwright.hw.cost import graph_resources
from bitwright.hw.dataflow import analyse, input_port, readers
from bitwright.hw.describe import describe
from bitwright.hw.devices import partition
from bitwright.hw.dialect import HARDWARE as HARDWARE_DIALECT
from bitwright.hw.external import Outside, WeightMemory
from bitwright.hw.folding import Folding, load_folding
from bitwright.hw.mapping import MapOptions, folding_of, map_graph
from bitwright.hw.names import instance_names
from bitwright.hw.options import FillGoal, Goal, RateGoal
from bitwright.hw.own import register_named
from bitwright.hw.partition import Partition
from bitwright.hw.reads import reads_of
from bitwright.hw.search import search_folding
from bitwright.hw.template import template
from bitwright.hw.tokens import check_tokens_if_fast
from bitwright.hw.weight_image import memory_plan
from bitwright.ir import Graph, IntArray, Node, load_graph, random_feeds, save_graph
from bitwright.ir.footprint import checked_frames
from bitwright.pipeline.context import StepContext
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.steps.levels import read_inputs
from bitwright.pipeline.steps.lower import read_graph
from bitwright.pipeline.steps.map_engine import map_engine
from bitwright.pipeline.steps.results import load_result
from bitwright.pipeline.steps.results_hardware import LinkRow, MapResult
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.rtl.emit import emit
from bitwright.rtl.emit_parts import CHAIN, emit_partition

HARDWARE = "hardware.bwg"
RTL = "rtl"
DEVICES = "devices"  # one design folder a device, where there are several
FOLDING = "final_hw_config.json"
_DEFAULT_FILL = 0.5
_CHECK_IMAGES = 8


def map(work: Workspace, context: StepContext) -> None:  # the verb's name
    """Map, prove the hardware graph equal to the integer graph on some images, write the RTL."""
    graph, wanted = read_graph(context.inputs["lower"]), work.recipe.hardware
    register_blocks(work)
    frames = read_inputs(context.inputs["lower"], graph)
    if wanted.kind == "engine":
        map_engine(graph, wanted, frames, context.folder, context.progress)
        return
    map_network(graph, wanted, frames, context.folder, context.progress)


def map_network(
    graph: Graph,
    wanted: HardwareSection,
    frames: Mapping[str, IntArray],
    folder: Path,
    progress: Progress = no_progress,
) -> MapResult:
    """The hardware graph of an integer graph, proven equal to it on frames, and its RTL.

    Args:
        frames: of each input of the graph, levels (N, ...); the first ones are taken, and as many
            random ones.
        folder: gets hardware graph, folding, RTL and the result.

    Raises:
        TargetError: it does not fit its target, or cannot be as fast as asked.
        RecipeError: the folding file is wrong.
        ModelError: an operation has no hardware.
        MismatchError: the hardware graph gives other integers: a bug.
    """
    target = load_target(wanted.target)
    parts: Partition | None = None
    if wanted.devices > 1:
        parts = choose_partition(graph, wanted, target, progress)
        hardware = parts.whole
    else:
        hardware = choose_mapping(graph, wanted, target, progress)
    progress("checking the hardware graph", 0, 0)
    _check_equal(graph, hardware, frames)
    progress("checking that no beat waits for ever", 0, 0)
    run, unchecked = check_tokens_if_fast(hardware)
    save_graph(hardware, folder / HARDWARE)
    folding_of(hardware).save(folder / FOLDING)
    progress("writing the RTL", 0, 0)
    result = describe_mapping(hardware, target, wanted)
    changes: dict[str, Any] = {
        "checked_cycles": run.cycles if run else 0,
        "unchecked": unchecked,
        "own_blocks": wanted.blocks,
    }
    if parts is None:
        emit(hardware, folder / RTL)
    else:
        changes |= _write_parts(parts, result, target, folder)
    result = result.model_copy(update=changes)
    result.save(folder)
    _finn_files(folder, result)
    return result


def choose_mapping(
    graph: Graph, wanted: HardwareSection, target: Target, progress: Progress
) -> Graph:
    """The hardware graph for what the recipe asks.

    Raises:
        TargetError: it cannot be reached on this target; says what is short and what would fit.
        RecipeError: the folding file is wrong.
        ModelError: an operation has no hardware.
    """
    check_clock(target, wanted.clock_mhz)
    if wanted.devices > 1:
        return choose_partition(graph, wanted, target, progress).whole
    hardware = _folded(graph, wanted, target, progress)
    slower = _for_predicted_clock(hardware, wanted, target)
    if slower is None:
        return hardware
    try:
        return _folded(graph, slower, target, progress)
    except TargetError:  # as fast as it can be: place and route tells what it reaches
        return hardware


def _for_predicted_clock(
    hardware: Graph, wanted: HardwareSection, target: Target
) -> HardwareSection | None:
    """The same rate at the clock that is predicted of a design; None where it is kept there."""
    predicted = predicted_clock(hardware, target)
    found = wanted.rate_clock_mhz is not None or wanted.folding_config_file is not None
    if wanted.target_fps is None or found or predicted is None:
        return None
    if predicted.mhz * 1e6 >= wanted.target_fps * analyse(hardware).interval:
        return None
    return wanted.model_copy(update={"rate_clock_mhz": predicted.mhz})


def _folded(graph: Graph, wanted: HardwareSection, target: Target, progress: Progress) -> Graph:
    """The hardware graph of the folding that a recipe gives, or that is searched."""
    progress("choosing the folding", 0, 0)
    if wanted.folding_config_file is not None:
        folding = load_folding(wanted.folding_config_file)
    else:
        folding = _search(graph, goal_for(wanted, target), target, outside_of(wanted, graph))
    progress("computing FIFO depths", 0, 0)
    memory = weight_memory(wanted)
    hardware = map_graph(
        graph, folding, MapOptions(target.family, memory=memory, clock_mhz=wanted.clock_mhz)
    )
    used = graph_resources(hardware, target.family)
    if not used.fits(target.capacity):
        raise _does_not_fit(used, target)
    return hardware


def choose_partition(
    graph: Graph, wanted: HardwareSection, target: Target, progress: Progress
) -> Partition:
    """The network on several devices, as the recipe asks.

    Raises:
        TargetError: it cannot be done; says which layer or how many devices it would take.
        ModelError: an operation has no hardware.
    """
    check_clock(target, wanted.clock_mhz)
    progress("spreading the network over the devices", 0, 0)
    goal, cycles, device = goal_for(wanted, target), None, target.capacity
    if isinstance(goal, RateGoal):
        cycles = int(goal.clock_hz // goal.fps)
    else:
        device = goal.budget
    return partition(graph, device, family=target.family, cycles=cycles, devices=wanted.devices)


def _write_parts(
    parts: Partition, result: MapResult, target: Target, folder: Path
) -> dict[str, Any]:
    """A design folder a device, and one with all of them wired together, which is simulated.

    Returns:
        what the result says other than that of one device.
    """
    clock_hz = result.rate_clock_mhz * 1e6
    path = emit_partition(parts, folder / DEVICES, family=target.family, clock_hz=clock_hz)
    shutil.copytree(folder / DEVICES / CHAIN, folder / RTL)
    instances = instance_names(parts.whole)
    place = {
        instances[node.name]: f"i_part{number}.{own[node.name]}"
        for number, part in enumerate(parts.parts)
        for own in (instance_names(part),)
        for node in part
    }
    used = parts.resources(target.family)
    return {
        "partition": json.loads(path.read_text(encoding="utf-8")),
        "resources": sum(used, Resources()),
        "capacity": target.capacity * len(used),
        "link": None,  # a chain of devices stands on no board that is known here
        **{
            name: tuple(r.model_copy(update={"instance": place[r.instance]}) for r in rows)
            for name, rows in (("blocks", result.blocks), ("fifos", result.fifos))
        },
    }


def goal_for(wanted: HardwareSection, target: Target) -> Goal:
    """The recipe's wish as a goal of the search, at a clock that the target can reach."""
    if wanted.target_fps is not None:
        clock_mhz = reachable_clock(target, wanted.clock_mhz)
        clock_mhz = min(clock_mhz, wanted.rate_clock_mhz or clock_mhz)
        return RateGoal(wanted.target_fps, clock_mhz * 1e6, target.capacity)
    have = target.capacity
    if wanted.budget is not None:
        asked = wanted.budget.model_dump()
        limits = {k: v if asked[k] is None else min(asked[k], v) for k, v in have.to_json().items()}
        return FillGoal(Resources(**limits))
    share = wanted.fill if wanted.fill is not None else _DEFAULT_FILL
    return FillGoal(Resources(**{key: share * value for key, value in have.to_json().items()}))


def weight_memory(wanted: HardwareSection) -> WeightMemory:
    """The memory of external weights, as the recipe states it."""
    given, clock_hz = wanted.weights, wanted.clock_mhz * 1e6
    gbytes = float("inf") if given.gbytes_per_s is None else given.gbytes_per_s
    return WeightMemory.with_bandwidth(gbytes, clock_hz, given.port_bits, given.latency_cycles)


def outside_of(wanted: HardwareSection, graph: Graph) -> Outside | None:
    """Which weights the recipe wants outside; None for none."""
    names = wanted.weights.external
    if names == "all":
        names = tuple(node.name for node in template(graph) if node.op == "matvec")
    return Outside(tuple(names), weight_memory(wanted)) if names else None


def register_blocks(work: Workspace) -> None:
    """Let mapping know the hardware blocks of the user's own that the recipe names."""
    with importable(work.recipe.base_dir):
        register_named(work.recipe.hardware.blocks)


def read_hardware(work: Workspace, folder: Path) -> Graph:
    """The hardware graph as the step left it.

    Raises:
        ModelError: a block of the user's own is in it, and cannot be imported from here.
        RunError: it is one that the recipe does not name: a result names no code.
    """
    named = load_result(MapResult, folder).own_blocks
    if others := sorted(set(named) - set(work.recipe.hardware.blocks)):
        raise RunError(
            f"was made with {', '.join(others)}, which the recipe does not name",
            where=str(folder),
            hint="name them in hardware.blocks, or run the step map again",
        )
    with importable(work.recipe.base_dir):
        register_named(named)
    return load_graph(folder / HARDWARE, {"hardware": HARDWARE_DIALECT}, chosen=True)


def _search(graph: Graph, goal: Goal, target: Target, outside: Outside | None) -> Folding:
    try:
        return search_folding(graph, goal, family=target.family, outside=outside)
    except TargetError as error:
        hint = error.hint if outside else _advice(graph, goal, target) or error.hint
        raise TargetError(error.message, where=f"target {target.name}", hint=hint) from error


def _advice(graph: Graph, goal: Goal, target: Target) -> str | None:
    """What would be enough: more of this target, or the smallest target of its family that fits."""
    if isinstance(goal, FillGoal) and _is_enough(graph, FillGoal(target.capacity), target):
        return f"{target.name} itself is large enough: raise the budget or fill"
    larger = [
        other
        for other in list_targets()
        if other.family == target.family and other.resources.lut > target.resources.lut
    ]
    for other in sorted(larger, key=lambda t: t.resources.lut):
        wanted: Goal = FillGoal(other.capacity)
        if isinstance(goal, RateGoal):
            wanted = RateGoal(goal.fps, goal.clock_hz, other.capacity)
        if _is_enough(graph, wanted, other):
            return f"the smallest target that fits is {other.name}"
    return None


def _is_enough(graph: Graph, goal: Goal, target: Target) -> bool:
    try:
        search_folding(graph, goal, family=target.family)
    except TargetError:
        return False
    return True


def _does_not_fit(used: Resources, target: Target) -> TargetError:
    have, need = target.capacity.to_json(), used.to_json()
    short = "; ".join(
        f"{key.upper()}: {need[key]:.0f} needed, {have[key]:.0f} there, "
        f"{need[key] - have[key]:.0f} short"
        for key in have
        if need[key] > have[key]
    )
    bigger = smallest_fitting(used, target.family)
    hint = (
        f"the smallest {target.family} target that fits is {bigger.name}"
        if bigger
        else f"no known {target.family} target is large enough"
    )
    return TargetError(
        f"the design does not fit (model): {short}", where=f"target {target.name}", hint=hint
    )


def _check_equal(graph: Graph, hardware: Graph, frames: Mapping[str, IntArray]) -> None:
    """The hardware graph's own reference gives the integer graph's outputs."""
    count = min(checked_frames(part, _CHECK_IMAGES) for part in (graph, hardware))
    first = {edge: levels[:count] for edge, levels in frames.items()}
    random = random_feeds(graph, count, np.random.default_rng(0))
    for feeds in (first, random):
        expected, found = graph.run(feeds), hardware.run(feeds)
        for edge in graph.outputs:
            if not np.array_equal(expected[edge], found[edge]):
                raise MismatchError(
                    "the hardware graph gives other integers than the integer graph",
                    where=f"edge {edge}",
                )


def predicted_clock(hardware: Graph, target: Target) -> Prediction | None:
    """Fmax of a design on its target, in the serial shell where its board has one."""
    used, shell = graph_resources(hardware, target.family), _link(hardware, target) is not None
    adders = max((node.integer("adders") for node in hardware if "adders" in node.attrs), default=1)
    reads = reads_of(hardware)
    return predicted_fmax(target, used.lut, shell=shell, adders=adders, dsp=used.dsp, reads=reads)


def describe_mapping(hardware: Graph, target: Target, wanted: HardwareSection) -> MapResult:
    """Every block by the models; rates at a clock that the target can reach."""
    flow = analyse(hardware)
    clock_mhz, predicted = wanted.clock_mhz, predicted_clock(hardware, target)
    rated = reachable_clock(target, clock_mhz, predicted)
    link = _link(hardware, target)
    plan = memory_plan(hardware)
    blocks = blocks_of(hardware)
    rows = describe(hardware, target.family)
    return MapResult(
        target=target.name,
        clock_mhz=clock_mhz,
        rated_mhz=rated,
        clock_note=clock_note(target, clock_mhz, predicted),
        wanted_fps=wanted.target_fps,
        link=None if link is None else LinkRow(**vars(link), images_per_s=link.images_per_s),
        lut_kind=lut_kind(target.family),
        interval=flow.interval,
        latency=flow.latency,
        bottleneck=flow.bottleneck,
        resources=graph_resources(hardware, target.family),
        capacity=target.capacity,
        blocks=tuple(
            BlockRow(
                name=row.layer,
                instance=row.instance,
                kind=row.op,
                layer=row.source,
                pe=row.pe,
                simd=row.simd,
                cycles=row.cycles,
                latency=blocks[row.layer].latency,
                predicted=row.predicted,
            )
            for row in rows
        ),
        fifos=tuple(
            FifoRow(instance=row.instance, depth=row.depth, width=blocks[row.layer].inputs[0].width)
            for row in rows
            if row.depth is not None
        ),
        edges=tuple(_edges(hardware)),
        weight_memory=plan.bandwidth(flow.interval, rated * 1e6) if plan else None,
    )


def _edges(hardware: Graph) -> Iterator[EdgeRow]:
    """Every stream, in the order of the blocks that read it; the outputs last. Renamings, which
    are no blocks, are passed over.
    """
    blocks = blocks_of(hardware)
    for node in hardware:
        for edge in () if isinstance(blocks[node.name], Flatten) else node.inputs:
            maker, port = _maker(hardware, edge), input_port(node, edge, blocks)
            source = "" if maker is None else maker.name
            yield EdgeRow(source=source, target=node.name, beats=port.beats, width=port.width)
    for maker_name, port in _outputs(hardware):
        yield EdgeRow(source=maker_name, target="", beats=port.beats, width=port.width)


def _outputs(hardware: Graph) -> Iterator[tuple[str, Port]]:
    """Who makes each output of the graph, and its stream."""
    blocks = blocks_of(hardware)
    for edge in hardware.outputs:
        maker, producer = _maker(hardware, edge), hardware.producer(edge)
        if maker is not None and producer is not None:
            yield maker.name, blocks[producer.name].outputs[producer.outputs.index(edge)]


def _maker(hardware: Graph, edge: str) -> Node | None:
    """The block that makes an edge, behind renamings; None for an input of the graph."""
    blocks = blocks_of(hardware)
    maker = hardware.producer(edge)
    while maker is not None and isinstance(blocks[maker.name], Flatten):
        maker = hardware.producer(maker.inputs[0])
    return maker


def _link(hardware: Graph, target: Target) -> LinkRate | None:
    """The serial link under the design; it has no memory for weights from outside."""
    blocks = blocks_of(hardware)
    if memory_plan(hardware) is not None:
        return None
    read = readers(hardware)
    inputs = [input_port(read[edge], edge, blocks) for edge in hardware.inputs]
    outputs = [port for _, port in _outputs(hardware)]
    ways = [
        tuple(Stream(port.beats, port.width, port.lanes) for port in ports)
        for ports in (inputs, outputs)
    ]
    return link_of(target, ways[0], ways[1])


def _finn_files(folder: Path, result: MapResult) -> None:
    """The same figures under FINN's file names."""
    cycles = {block.name: block.cycles for block in result.blocks}
    resources = {block.name: block.predicted.to_json() for block in result.blocks}
    rate = result.rate_clock_mhz * 1e6 / result.interval
    network = {
        "critical_path_cycles": result.latency,
        "max_cycles": result.interval,
        "max_cycles_node_name": result.bottleneck,
        "estimated_throughput_fps": rate,
        "estimated_latency_ns": result.latency * 1000 / result.rate_clock_mhz,
        "clock_mhz": result.rate_clock_mhz,
        "clock": result.clock_note,
        "link": result.link and result.link.model_dump(),
        "source": "model",
    }
    for name, table in (
        ("layer_cycles", cycles),
        ("layer_resources", {**resources, "total": result.resources.to_json()}),
        ("network_performance", network),
        ("weight_memory", result.weight_memory),
    ):
        if table is not None:
            text = json_text(table, indent=2) + "\n"
            atomic_write(folder / f"estimate_{name}.json", text)
