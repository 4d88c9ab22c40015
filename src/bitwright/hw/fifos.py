# SPDX-License-Identifier: Apache-2.0
"""FIFOs: where the timing model needs them, as deep as it says."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import replace

from bitwright.base.errors import RecipeError
from bitwright.hw.blocks import Block, block_of, blocks_of
from bitwright.hw.dataflow import DIRECT_BEATS, FIFO_LATENCY, Dataflow, analyse
from bitwright.hw.folding import Folding
from bitwright.hw.memory import ram_style
from bitwright.ir import Attr, Graph, Node, rebuild

_GRAIN = 16  # LUT RAM comes in units of 16 or 32 words


def insert_fifos(hardware: Graph, folding: Folding, family: str) -> Graph:
    """FIFOs as deep as the timing model says; see `hw.dataflow`."""
    depths = fifo_depths(hardware)
    depths.update(_given_depths(hardware, folding))
    nodes: list[Node] = []
    for node in hardware:
        block = block_of(hardware, node)
        inputs = list(node.inputs)
        for number, edge in enumerate(node.inputs):
            depth = depths.get(edge, 0)
            if depth <= DIRECT_BEATS:
                continue
            port = block.inputs[number]
            name = fifo_name(node, number)
            asked = folding.of(name, "fifo").ram_style or "auto"
            style = ram_style(family, depth, port.width, asked)
            attrs: dict[str, Attr] = {"depth": depth, "lanes": port.lanes, "ram_style": style}
            nodes.append(Node(name, "fifo", (edge,), (name,), attrs, {}, node.source))
            inputs[number] = name
        nodes.append(replace(node, inputs=tuple(inputs)))
    return rebuild(hardware, tuple(nodes))


def fifo_name(node: Node, number: int) -> str:
    """Name of the FIFO in front of an input of a node."""
    return f"{node.name}_fifo" if len(node.inputs) == 1 else f"{node.name}_fifo{number}"


def is_fifo_name(name: str, nodes: Container[str]) -> bool:
    """Whether there may be a FIFO of that name in front of one of these nodes of a template, or of
    a width converter in front of it.
    """
    match = _FIFO_NAME.fullmatch(name)
    return match is not None and match["node"] in nodes


_FIFO_NAME = re.compile(r"(?P<node>.+?)(_in\d+)?(_dwc\d?)?_fifo\d?")


def _given_depths(hardware: Graph, folding: Folding) -> dict[str, int]:
    """The depths that a folding gives, by edge.

    Raises:
        RecipeError: a list of depths has another length than the node has inputs.
    """
    given: dict[str, int] = {}
    for node in hardware:
        depth = folding.of(node.name, node.op).depth
        if depth is None:
            continue
        each = (depth,) * len(node.inputs) if isinstance(depth, int) else depth
        if len(each) != len(node.inputs):
            raise RecipeError(
                f"depth has {len(each)} entries for {len(node.inputs)} inputs",
                where=f"folding, {node.name}",
                hint="give one depth for each input of the node",
            )
        given.update((e, d) for e, d in zip(node.inputs, each, strict=True))
    return {edge: depth for edge, depth in given.items() if edge not in hardware.inputs}


def fifo_depths(hardware: Graph) -> dict[str, int]:
    """Depth of every edge that needs a FIFO."""
    blocks = blocks_of(hardware)
    delays: dict[str, int] = {}
    while True:
        flow = analyse(hardware, delays)
        needed = {edge for edge, beats in flow.beats.items() if beats > DIRECT_BEATS}
        needed |= _tight_edges(hardware, blocks, flow, delays)
        new = needed - set(delays) - set(hardware.inputs)
        if not new:
            break
        delays.update(dict.fromkeys(new, FIFO_LATENCY))
    slack = _pipeline_latency(hardware, blocks, set(delays))
    return {edge: _round_depth(flow.beats[edge] + slack[edge]) for edge in delays}


def _tight_edges(
    hardware: Graph, blocks: dict[str, Block], flow: Dataflow, buffered: Container[str]
) -> set[str]:
    """Edges on which two places are not enough although the schedule never has more than two beats.

    Two beats at the end of a block make all of it stand still, and all in front of it, back to the
    last FIFO: not affordable where one of these has less time to spare, nor where the reader waits
    for beats in the middle of a frame and has no time to spare because it waits. And what stood
    still may hold bubbles, one a register stage: not affordable where the reader, whatever it is,
    cannot wait for them behind each of its pauses.
    """
    tight: set[str] = set()
    stages = _pipeline_latency(hardware, blocks, buffered)
    spare: dict[str, int] = dict.fromkeys(hardware.inputs, flow.interval)
    for node in hardware:
        own = flow.interval - flow.intervals[node.name]
        before = own
        for edge in node.inputs:
            waits = 0 if edge in hardware.inputs else flow.waits[edge]
            bubbles = flow.pauses[edge] * stages[edge]
            if waits and (spare[edge] < waits or edge in flow.critical or own < bubbles):
                tight.add(edge)
            if edge not in buffered and edge not in tight:
                before = min(before, spare[edge])
        spare.update(dict.fromkeys(node.outputs, before))
    return tight


def _pipeline_latency(
    hardware: Graph, blocks: dict[str, Block], buffered: Container[str]
) -> dict[str, int]:
    """Register stages from the last FIFO to an edge: bubbles, when all of it stands still."""
    total: dict[str, int] = dict.fromkeys(hardware.inputs, 0)
    for node in hardware:
        before = max(0 if edge in buffered else total[edge] for edge in node.inputs)
        for out in node.outputs:
            total[out] = before + blocks[node.name].pipeline
    return total


def _round_depth(depth: int) -> int:
    """The next size that costs no more."""
    return -(-depth // _GRAIN) * _GRAIN
