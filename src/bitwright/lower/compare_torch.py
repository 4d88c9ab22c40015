# SPDX-License-Identifier: Apache-2.0
"""Frozen torch model against integer graph: every value of every common edge, by ``==``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, fx

from bitwright.base.errors import MismatchError
from bitwright.ir import Graph, IntArray
from bitwright.lower.torch_orders import Order, place
from bitwright.lower.torch_walk import SCORES, node_name
from bitwright.quantize.frozen import Dequantize, FrozenModel, QuantizeInput

Execute = Callable[[Graph, Mapping[str, IntArray]], Mapping[str, IntArray]]


@dataclass(frozen=True)
class Difference:
    """The first differing value, in execution order.

    Attributes:
        edge: name of the edge in the graph.
        source: path of the user's layer.
        position: (image, row, column, channel), or (image, channel) for vectors.
        frozen, graph: both values.
    """

    edge: str
    source: str
    position: tuple[int, ...]
    frozen: int
    graph: int

    def __str__(self) -> str:
        return (
            f"{self.edge} ({self.source or 'no layer'}) at {self.position}: the frozen model gives "
            f"{self.frozen}, the graph {self.graph}"
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
                where="integer graph against frozen model",
            )


def _reference(graph: Graph, feeds: Mapping[str, IntArray]) -> Mapping[str, IntArray]:
    return graph.run(feeds, edges=True)


def _to_graph_layout(levels: Tensor, order: IntArray | None) -> IntArray:
    """NCHW -> NHWC, the last axis from torch's order into ours."""
    array = levels.detach().cpu().to(torch.float64).numpy()
    array = np.moveaxis(array, 1, -1) if array.ndim == 4 else array
    return np.asarray(array if order is None else array[..., order]).astype(np.int64)


def frozen_levels(frozen: FrozenModel, images: Tensor) -> dict[str, IntArray]:
    """The levels on every edge of a frozen model, in the graph's names and layout.

    Args:
        images: reals as the model takes them, (N, C, H, W) or (N, C).
    """
    values = frozen.intermediates(images)
    orders: dict[fx.Node, Order] = {}
    found: dict[str, IntArray] = {}
    for node in frozen.graph.nodes:
        module = frozen.get_submodule(str(node.target)) if node.op == "call_module" else None
        if module is None or isinstance(module, Dequantize):
            continue
        given = [orders.get(source) for source in node.args]
        shapes = [tuple(values[source.name].shape[1:]) for source in node.args]
        orders[node] = place(module, given, shapes).order
        name = "x" if isinstance(module, QuantizeInput) else node_name(node)
        found[name] = _to_graph_layout(values[node.name], orders[node])
    last = frozen.graph.output_node().args[0].args[0]
    found[SCORES] = _to_graph_layout(values[last.name], None)
    return found


def _comparable(graph: Graph, edge: str, accumulators: bool) -> bool:
    if edge not in graph.types:
        return False
    return accumulators or edge in graph.outputs or graph.types[edge].format is not None


def compare_torch_graph(
    frozen: FrozenModel,
    graph: Graph,
    images: Tensor,
    *,
    accumulators: bool = False,
    batch: int = 100,
    execute: Execute = _reference,
) -> Comparison:
    """Compare a frozen model with a graph lowered from it, optimised or not.

    Args:
        images: reals as the model takes them, (N, C, H, W) or (N, C).
        accumulators: compare accumulators too; right for a graph straight from `lower`, whose
            biases and signs no pass has moved.
        batch: images at a time.
        execute: runs a graph and returns the edges it knows; `Graph.run` unless told otherwise.

    Returns:
        Counts of differing values for every edge both sides have, and the first difference.
    """
    edges: dict[str, int] = {}
    first: tuple[int, Difference] | None = None
    values = 0
    place = {edge: i for i, edge in enumerate((*graph.inputs, *(n.output for n in graph)))}
    for start in range(0, len(images), batch):
        expected = frozen_levels(frozen, images[start : start + batch])
        found = execute(graph, {edge: expected[edge] for edge in graph.inputs})
        common = [e for e in place if e in expected and _comparable(graph, e, accumulators)]
        for edge in common:
            if edge not in found:
                continue
            values += expected[edge].size
            differing = np.argwhere(expected[edge] != found[edge])
            edges[edge] = edges.get(edge, 0) + len(differing)
            if len(differing) and (first is None or place[edge] < first[0]):
                at = tuple(int(i) for i in differing[0])
                first = place[edge], _difference(graph, edge, at, start, expected, found)
    return Comparison(len(images), values, edges, None if first is None else first[1])


def _difference(
    graph: Graph,
    edge: str,
    at: tuple[int, ...],
    start: int,
    expected: Mapping[str, IntArray],
    found: Mapping[str, IntArray],
) -> Difference:
    producer = graph.producer(edge)
    return Difference(
        edge=edge,
        source="" if producer is None else producer.source,
        position=(start + at[0], *at[1:]),
        frozen=int(expected[edge][at]),
        graph=int(found[edge][at]),
    )
