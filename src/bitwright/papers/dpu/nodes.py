# SPDX-License-Identifier: Apache-2.0
"""Fused nodes: what the engine does in one go, made from the operations of an integer graph.

A product, a sum over windows or an addition takes the requantization behind it along; bias, shift,
rounding and ReLU are in that.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from bitwright.ir import Graph, Node, TensorType

_PRODUCTS = ("conv", "dense")
_TAKE_ALONG = (*_PRODUCTS, "sum_pool", "add")


class Kind(StrEnum):
    """What a fused node does."""

    CONV = "conv"
    DEPTHWISE = "depthwise conv"
    DENSE = "dense"
    AVERAGE_POOL = "average pool"
    MAX_POOL = "max pool"
    ADD = "add"
    CONCAT = "concat"
    RESHAPE = "reshape"
    SCALE = "batch norm or activation alone"
    LOOKUP = "lookup"
    THRESHOLD = "threshold"
    TOP_K = "top k"
    OTHER = "other"


_KINDS = {
    "dense": Kind.DENSE,
    "sum_pool": Kind.AVERAGE_POOL,
    "max_pool": Kind.MAX_POOL,
    "add": Kind.ADD,
    "concat": Kind.CONCAT,
    "flatten": Kind.RESHAPE,
    "requant": Kind.SCALE,
    "lookup": Kind.LOOKUP,
    "threshold": Kind.THRESHOLD,
    "top_k": Kind.TOP_K,
}
#: Kinds that are a matter of addresses.
FREE = (Kind.CONCAT, Kind.RESHAPE)


@dataclass(frozen=True)
class FusedNode:
    """One or two operations of the graph.

    Attributes:
        kind: what it does.
        nodes: the operation, and its requantization if it has one.
        inputs: types of what the operation reads.
        output: type of what the last of them gives.
    """

    kind: Kind
    nodes: tuple[Node, ...]
    inputs: tuple[TensorType, ...]
    output: TensorType

    @property
    def first(self) -> Node:
        """The operation."""
        return self.nodes[0]

    @property
    def name(self) -> str:
        """That of the operation."""
        return self.first.name

    @property
    def source(self) -> str:
        """Path of the user's layer, or its name in the graph."""
        return self.first.source or self.name

    @property
    def requant(self) -> Node | None:
        """What brings the sums to eight bits; None: they are given as they are."""
        last = self.nodes[-1]
        return last if last.op == "requant" else None

    @property
    def window(self) -> tuple[int, int]:
        """Height and width of the kernel or window."""
        if self.kind in (Kind.CONV, Kind.DEPTHWISE):
            _, height, width, _ = self.first.params["weight"].shape
            return int(height), int(width)
        if "kernel" in self.first.attrs:
            height, width = self.first.ints("kernel")
            return height, width
        return 1, 1

    @property
    def stride(self) -> tuple[int, int]:
        """Vertical and horizontal step."""
        if "stride" not in self.first.attrs:
            return 1, 1
        vertical, horizontal = self.first.ints("stride")
        return vertical, horizontal

    @property
    def weights(self) -> int:
        """Numbers of weights and biases that it reads; each is a byte."""
        if self.kind not in (Kind.CONV, Kind.DEPTHWISE, Kind.DENSE):
            return 0
        weight = self.first.params["weight"]
        return int(weight.size + weight.shape[0])

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one image."""
        if self.kind not in (Kind.CONV, Kind.DEPTHWISE, Kind.DENSE):
            return 0
        weight = self.first.params["weight"]
        return int(weight.size) * image_of(self.output)[0] * image_of(self.output)[1]

    @property
    def activation(self) -> str:
        """``relu``, ``relu6`` (any upper bound below the largest level), or nothing."""
        requant = self.requant
        if requant is None or requant.integer("lo") < 0:
            return ""
        return "relu" if requant.integer("hi") >= np.iinfo(np.int8).max else "relu6"


def image_of(kind: TensorType) -> tuple[int, int, int]:
    """Height, width and channels; of a vector one pixel."""
    if len(kind.shape) == 1:
        return 1, 1, kind.shape[0]
    height, width, channels = kind.shape
    return height, width, channels


def fuse(graph: Graph) -> tuple[FusedNode, ...]:
    """The fused nodes of an integer graph, in its order."""
    taken: set[str] = set()
    found = []
    for node in graph:
        if node.name in taken:
            continue
        nodes = (node,)
        behind = graph.consumers(node.output) if node.op in _TAKE_ALONG else ()
        if len(behind) == 1 and behind[0].op == "requant" and node.output not in graph.outputs:
            nodes = (node, behind[0])
            taken.add(behind[0].name)
        inputs = tuple(graph.types[edge] for edge in node.inputs)
        found.append(FusedNode(_kind_of(node), nodes, inputs, graph.types[nodes[-1].output]))
    return tuple(found)


def _kind_of(node: Node) -> Kind:
    if node.op != "conv":
        return _KINDS.get(node.op, Kind.OTHER)
    groups = node.integer("groups")
    _, height, width, columns = node.params["weight"].shape
    if groups == 1 or columns > 1:
        return Kind.CONV
    # A batch norm without a layer in front is folded into a diagonal 1 x 1 convolution.
    return Kind.SCALE if height == width == 1 else Kind.DEPTHWISE
