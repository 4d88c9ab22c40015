# SPDX-License-Identifier: Apache-2.0
"""Passes on graphs that fork and join: what nobody reads, what is there twice, nested joins."""

from __future__ import annotations

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
    """A concatenation read by another one alone becomes part of it."""
    for node in graph:
        outer = sole_consumer(graph, node.output) if node.op == "concat" else None
        if outer is None or outer.op != "concat":
            continue
        inputs: list[str] = []
        for edge in outer.inputs:
            inputs += node.inputs if edge == node.output else (edge,)
        joined = replace(outer, inputs=tuple(inputs))
        nodes = (joined if n is outer else n for n in graph if n is not node)
        return flatten_concats(rebuild_fitted(graph, tuple(nodes)))
    return graph
