# SPDX-License-Identifier: Apache-2.0
"""The reference interpreter: the definition of what a graph means."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bitwright.base.errors import GraphError
from bitwright.ir.graph import Graph, IntArray
from bitwright.ir.types import TensorType


def check_levels(name: str, tensor_type: TensorType, levels: IntArray) -> IntArray:
    """Levels as int64 ``(N, *shape)``, checked against the type.

    Raises:
        GraphError: wrong shape, not integers, outside the interval, or no level of the format (0 in
            a bipolar tensor, a number between two minifloats).
    """
    array = np.asarray(levels)
    if not np.issubdtype(array.dtype, np.integer):
        raise GraphError(f"expected integers, got {array.dtype}", where=name)
    if array.shape[1:] != tensor_type.shape:
        raise GraphError(
            f"expected shape (N, {', '.join(map(str, tensor_type.shape))}), got {array.shape}",
            where=name,
        )
    array = array.astype(np.int64)
    if array.size and (array.min() < tensor_type.lo or array.max() > tensor_type.hi):
        raise GraphError(
            f"levels [{array.min()}, {array.max()}] leave the interval "
            f"[{tensor_type.lo}, {tensor_type.hi}]",
            where=name,
        )
    if tensor_type.is_bipolar and not bool((array != 0).all()):
        raise GraphError("a bipolar tensor holds -1 and +1 only, got 0", where=name)
    if tensor_type.code_format is not None:
        known = tensor_type.code_format.contains(array)
        if not known.all():
            raise GraphError(
                f"{array[~known].flat[0]} is no level of {tensor_type.code_format.name}", where=name
            )
    return array


def run(graph: Graph, feeds: Mapping[str, IntArray], *, edges: bool = False) -> dict[str, IntArray]:
    """Execute a graph on levels; see `Graph.run`.

    Every edge is checked against its type, so a wrong interval cannot pass unseen.
    """
    absent = sorted(set(graph.inputs) - set(feeds))
    if absent:
        raise GraphError(f"no value for inputs {absent}", where=graph.name)
    values = {e: check_levels(e, graph.types[e], feeds[e]) for e in graph.inputs}
    for node in graph.nodes:
        spec = graph.dialect.spec(node)
        types = tuple(graph.types[edge] for edge in node.inputs)
        results = spec.reference(node, types, tuple(values[edge] for edge in node.inputs))
        for edge, result in zip(node.outputs, results, strict=True):
            values[edge] = check_levels(edge, graph.types[edge], result)
    return values if edges else {edge: values[edge] for edge in graph.outputs}


def random_feeds(graph: Graph, count: int, rng: np.random.Generator) -> dict[str, IntArray]:
    """Uniform random levels for every input, ``count`` frames each."""
    feeds: dict[str, IntArray] = {}
    for edge in graph.inputs:
        kind = graph.types[edge]
        if kind.is_bipolar:
            feeds[edge] = rng.integers(0, 2, (count, *kind.shape)) * 2 - 1
        elif kind.code_format is not None:
            grid = kind.code_format.grid()
            inside = grid[(grid >= kind.lo) & (grid <= kind.hi)]
            feeds[edge] = rng.choice(inside, (count, *kind.shape))
        else:
            feeds[edge] = rng.integers(kind.lo, kind.hi + 1, (count, *kind.shape))
    return feeds
