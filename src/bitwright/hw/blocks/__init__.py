# SPDX-License-Identifier: Apache-2.0
"""The building blocks of the streaming architecture, one class per hardware operation."""

from __future__ import annotations

from bitwright.hw.blocks.base import (
    Block,
    Firing,
    Fold,
    Instance,
    Port,
    Times,
    divisors,
    one_to_one,
    pe_foldings,
)
from bitwright.hw.blocks.depthwise import Depthwise
from bitwright.hw.blocks.join import Add, Concat
from bitwright.hw.blocks.lookup import Lookup
from bitwright.hw.blocks.matvec import MatVec
from bitwright.hw.blocks.pad import Pad
from bitwright.hw.blocks.plumbing import Dwc, Fifo, Flatten, Fork
from bitwright.hw.blocks.pool import PoolMax, PoolSum
from bitwright.hw.blocks.requant import Requant, RequantFloat
from bitwright.hw.blocks.threshold import Threshold
from bitwright.hw.blocks.top_k import TopK
from bitwright.hw.blocks.upsample import Upsample
from bitwright.hw.blocks.window import ParallelWindow, Window
from bitwright.ir import Graph, Node

BLOCKS: dict[str, type[Block]] = {
    "pad": Pad,
    "window": Window,
    "matvec": MatVec,
    "depthwise": Depthwise,
    "threshold": Threshold,
    "requant": Requant,
    "requant_float": RequantFloat,
    "pool_max": PoolMax,
    "pool_sum": PoolSum,
    "lookup": Lookup,
    "add": Add,
    "concat": Concat,
    "upsample": Upsample,
    "top_k": TopK,
    "flatten": Flatten,
    "fork": Fork,
    "dwc": Dwc,
    "fifo": Fifo,
}


def block_of(graph: Graph, node: Node) -> Block:
    """The block that a node of a hardware graph stands for."""
    first, *others = (graph.types[edge] for edge in node.inputs)
    output = graph.types[node.outputs[0]]
    kind = BLOCKS[node.op].chosen(node)
    return kind(node, first, output, other_types=tuple(others))


def blocks_of(graph: Graph) -> dict[str, Block]:
    """All blocks of a hardware graph, by node name, in topological order."""
    return {node.name: block_of(graph, node) for node in graph}


__all__ = [
    "BLOCKS",
    "Add",
    "Block",
    "Concat",
    "Depthwise",
    "Dwc",
    "Fifo",
    "Firing",
    "Flatten",
    "Fold",
    "Fork",
    "Instance",
    "Lookup",
    "MatVec",
    "Pad",
    "ParallelWindow",
    "PoolMax",
    "PoolSum",
    "Port",
    "Requant",
    "RequantFloat",
    "Threshold",
    "Times",
    "TopK",
    "Upsample",
    "Window",
    "block_of",
    "blocks_of",
    "divisors",
    "one_to_one",
    "pe_foldings",
]
