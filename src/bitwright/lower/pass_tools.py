# SPDX-License-Identifier: Apache-2.0
"""How passes rewrite a graph: nodes replaced or removed, tables fitted to what is left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from bitwright.ir import Graph, GraphBuilder, Node


def sole_consumer(graph: Graph, edge: str) -> Node | None:
    """The only reader of an edge, or None if others (or the outside) see it too."""
    readers = graph.consumers(edge)
    return readers[0] if len(readers) == 1 and edge not in graph.outputs else None


def rebuild_fitted(graph: Graph, nodes: tuple[Node, ...]) -> Graph:
    """`rebuild`, with every table fitted to the interval that its input has by now.

    Entries of levels that cannot occur (any more) are dropped or filled with a neighbour.
    """
    builder = GraphBuilder(graph.name, graph.dialect)
    for edge in graph.inputs:
        builder.input(edge, graph.types[edge])
    for node in nodes:
        builder.append(_fitted(graph, node, builder) if node.op == "lookup" else node)
    return builder.finish(*graph.outputs)


def _fitted(graph: Graph, node: Node, builder: GraphBuilder) -> Node:
    old, new = graph.types[graph.node(node.name).inputs[0]], builder.types[node.inputs[0]]
    if (old.lo, old.hi) == (new.lo, new.hi):
        return node
    levels = np.clip(np.arange(new.lo, new.hi + 1), old.lo, old.hi)
    return replace(node, params={"table": node.params["table"][:, levels - old.lo]})


def with_nodes(graph: Graph, changed: Mapping[str, Node]) -> Graph:
    """The graph with some nodes replaced, by name."""
    if not changed:
        return graph
    return rebuild_fitted(graph, tuple(changed.get(node.name, node) for node in graph))


def without_edges(graph: Graph, removed: Mapping[str, str], changed: Mapping[str, Node]) -> Graph:
    """The graph without some nodes; ``removed`` maps their output edge to the edge to read."""
    if not removed and not changed:
        return graph

    ends = _ends(removed)
    kept = [changed.get(n.name, n) for n in graph if removed.keys().isdisjoint(n.outputs)]
    return rebuild_fitted(
        graph, tuple(replace(n, inputs=tuple(ends.get(e, e) for e in n.inputs)) for n in kept)
    )


def _ends(removed: Mapping[str, str]) -> dict[str, str]:
    """For each removed edge the one that is there; each way is followed once."""
    ends: dict[str, str] = {}
    for edge in removed:
        way = [edge]
        while (following := removed[way[-1]]) in removed and following not in ends:
            way.append(following)
        ends |= dict.fromkeys(way, ends.get(following, following))
    return ends
