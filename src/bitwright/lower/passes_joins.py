# SPDX-License-Identifier: Apache-2.0
"""Passes on graphs that fork and join: what nobody reads, what is there twice, nested joins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bitwright.ir import Graph, Node
from bitwright.lower.pass_tools import rebuild_fitted, sole_consumer, without_edges


def remove_dead(graph: Graph) -> Graph:
    """Remove nodes whose results nobody reads."""
    needed = set(graph.outputs)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if needed & set(node.outputs):
            needed |= set(node.inputs)
            kept.append(node)
    if len(kept) == len(graph.nodes):
        return graph
    return rebuild_fitted(graph, tuple(reversed(kept)))


def merge_duplicates(graph: Graph) -> Graph:
    """Of several nodes that compute the same from the same edges, keep the first.

    A node that makes an output stays.
    """
    replaced: dict[str, str] = {}
    first: dict[object, Node] = {}
    for node in graph:
        inputs = tuple(replaced.get(edge, edge) for edge in node.inputs)
        key = (node.op, inputs, tuple(sorted(node.attrs.items())), tuple(node.digests.items()))
        kept = first.setdefault(key, node)
        if kept is not node and not set(node.outputs) & set(graph.outputs):
            replaced |= dict(zip(node.outputs, kept.outputs, strict=True))
    return without_edges(graph, replaced, {})


def flatten_concats(graph: Graph) -> Graph:
    """A concatenation read by another one alone, and once, becomes part of it."""
    parts: dict[str, tuple[str, ...]] = {}  # of those that are part of another
    kept: list[Node] = []
    for node in graph:
        outer = sole_consumer(graph, node.output) if node.op == "concat" else None
        if outer is None or outer.op != "concat" or outer.inputs.count(node.output) > 1:
            kept.append(node)
        else:
            parts[node.output] = node.inputs
    if not parts:
        return graph
    return rebuild_fitted(graph, tuple(_whole(node, parts) for node in kept))


def _whole(node: Node, parts: Mapping[str, tuple[str, ...]]) -> Node:
    """A node with the inputs of what became part of it, of its parts, and so on."""
    if parts.keys().isdisjoint(node.inputs):
        return node
    inputs: list[str] = []
    left = [*reversed(node.inputs)]
    while left:
        edge = left.pop()
        if edge in parts:
            left += reversed(parts[edge])
        else:
            inputs.append(edge)
    return replace(node, inputs=tuple(inputs))
