# SPDX-License-Identifier: Apache-2.0
"""Two integer graphs of one network against each other: every common edge, by ``==``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from bitwright.base.errors import MismatchError
from bitwright.ir import Graph, IntArray

Execute = Callable[[Graph, Mapping[str, IntArray]], Mapping[str, IntArray]]


@dataclass(frozen=True)
class Difference:
    """The first differing value, in execution order.

    Attributes:
        edge: name of the edge in the graph.
        source: path of the user's layer.
        position: (image, row, column, channel), or (image, channel) for vectors.
        expected, found: both values.
    """

    edge: str
    source: str
    position: tuple[int, ...]
    expected: int
    found: int

    def __str__(self) -> str:
        return (
            f"{self.edge} ({self.source or 'no layer'}) at {self.position}: expected "
            f"{self.expected}, the graph gives {self.found}"
        )


@dataclass(frozen=True)
class Comparison:
    """What was compared and what differs.

    Attributes:
        images, values: numbers of images and of values compared.
        edges: compared edges in execution order -> number of differing values.
        first: the first difference, or None.
    """

    images: int
    values: int
    edges: Mapping[str, int]
    first: Difference | None

    @property
    def differing(self) -> int:
        """Number of differing values on all edges."""
        return sum(self.edges.values())

    @property
    def equal(self) -> bool:
        return self.first is None

    def require(self) -> None:
        """Raise unless equal.

        Raises:
            MismatchError: with the first difference.
        """
        if self.first is not None:
            raise MismatchError(
                f"{self.differing} of {self.values} values differ on {self.images} images; first: "
                f"{self.first}",
                where="integer graph against the model",
            )


def run_reference(graph: Graph, feeds: Mapping[str, IntArray]) -> Mapping[str, IntArray]:
    """Every edge, by the interpreter that defines them."""
    return graph.run(feeds, edges=True)


def comparable(graph: Graph, edge: str, accumulators: bool = False) -> bool:
    """Whether an edge means the same in every graph of the network: passes move biases and signs
    between a product and its thresholds, so accumulators inside do not.
    """
    if edge not in graph.types:
        return False
    return accumulators or edge in graph.outputs or graph.types[edge].format is not None


def compare_edges(
    graph: Graph,
    expected: Mapping[str, IntArray],
    *,
    accumulators: bool = False,
    execute: Execute = run_reference,
) -> Comparison:
    """Run a graph and compare its edges with those of another of the same network.

    Args:
        expected: edge -> levels (N, ...), the inputs among them.
        accumulators: compare accumulators too; right where no pass has changed the graph.
        execute: runs a graph and returns the edges it knows; `Graph.run` unless told otherwise.
    """
    found = execute(graph, {edge: expected[edge] for edge in graph.inputs})
    counts: dict[str, int] = {}
    first, values = None, 0
    for edge in (*graph.inputs, *(node.output for node in graph)):
        if edge not in found or edge not in expected or not comparable(graph, edge, accumulators):
            continue
        values += expected[edge].size
        differing = np.argwhere(expected[edge] != found[edge])
        counts[edge] = len(differing)
        if len(differing) and first is None:
            at = tuple(int(i) for i in differing[0])
            producer = graph.producer(edge)
            source = "" if producer is None else producer.source
            first = Difference(edge, source, at, int(expected[edge][at]), int(found[edge][at]))
    return Comparison(len(expected[graph.inputs[0]]), values, counts, first)
