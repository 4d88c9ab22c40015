# SPDX-License-Identifier: Apache-2.0
"""What a layer of the user has become in the integer graph and in hardware."""

from __future__ import annotations

from dataclasses import dataclass

from bitwright.base.errors import BitwrightError
from bitwright.hw.template import template
from bitwright.ir import Graph, Node
from bitwright.pipeline.inspection.results import Problem


@dataclass(frozen=True)
class Become:
    """The nodes that one layer has become.

    Attributes:
        operations, blocks: in order.
        node: the last integer node.
    """

    operations: tuple[str, ...]
    blocks: tuple[str, ...]
    node: Node

    def bits(self, graph: Graph) -> int:
        """Bits of the result on the wire."""
        return graph.types[self.node.output].wire_bits

    def shape(self, graph: Graph) -> tuple[int, ...]:
        """Shape of the result, channels last."""
        return graph.types[self.node.output].shape


def hardware_of(graph: Graph) -> tuple[Graph | None, list[Problem]]:
    """The unfolded hardware graph, or what has no hardware."""
    try:
        return template(graph), []
    except BitwrightError as error:
        return None, [Problem(error.where or graph.name, error.message, error.hint or "")]


def becomes_by_layer(graph: Graph, hardware: Graph | None) -> dict[str, Become]:
    """Path of each layer -> what it has become."""
    nodes: dict[str, list[Node]] = {}
    for node in graph:
        nodes.setdefault(node.source or node.name, []).append(node)
    blocks: dict[str, list[str]] = {}
    for node in hardware or ():
        blocks.setdefault(node.source or node.name, []).append(node.op)
    return {
        layer: Become(tuple(node.op for node in made), tuple(blocks.get(layer, ())), made[-1])
        for layer, made in nodes.items()
    }
