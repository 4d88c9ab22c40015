# SPDX-License-Identifier: Apache-2.0
"""The immutable graph: nodes in topological order, one type per edge, read-only parameters.

What makes it a graph is here too: its rules (`verify`), its meaning (`run`, the reference
interpreter) and its canonical text (`print_graph`), of which the digest is made.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from bitwright.base.errors import GraphError
from bitwright.base.memory import check_room
from bitwright.ir.dialect import Dialect
from bitwright.ir.levels import check_levels, random_levels
from bitwright.ir.node import IntArray, Node
from bitwright.ir.types import TensorType

#: What nodes and edges are called: files are written (C, SystemVerilog, ONNX) in which they stand.
_NAME = re.compile(r"[\w.]+")
_GRAPH_NAME = re.compile(r"[\w.-]+")
#: Inputs and outputs: each is a stream, a port, an array of its own, and looked up by its name.
MAX_PORTS = 1024
_SHOWN = 20


@dataclass(frozen=True)
class Graph:
    """An immutable graph of one dialect; build it with `GraphBuilder`, change it with passes.

    Attributes:
        name: what it computes.
        dialect: the table of its operations.
        inputs, outputs: names of edges, in order.
        nodes: in topological order.
        types: the type of every edge.
    """

    name: str
    dialect: Dialect
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    types: Mapping[str, TensorType]

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", MappingProxyType(dict(self.types)))

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __hash__(self) -> int:
        return hash((self.name, self.inputs, self.outputs, self.nodes))

    def node(self, name: str) -> Node:
        """The node of that name.

        Raises:
            GraphError: there is none.
        """
        found = self._named.get(name)
        if found is None:
            names = [node.name for node in self.nodes[:_SHOWN]]
            more = ", .." if len(self.nodes) > _SHOWN else ""
            raise GraphError(f"no node named {name!r}; the graph has {', '.join(names)}{more}")
        return found

    @property
    def only_input(self) -> str:
        """The input of a graph that has one, for what can tell no other where it belongs.

        Raises:
            GraphError: it has another number of them; any file may say so.
        """
        if len(self.inputs) != 1:
            said = f"the graph has {len(self.inputs)} inputs; what is given here is of one alone"
            raise GraphError(said, where=self.name)
        return self.inputs[0]

    def producer(self, edge: str) -> Node | None:
        """The node that makes an edge, or None for a graph input."""
        return self._producers.get(edge)

    def consumers(self, edge: str) -> tuple[Node, ...]:
        """The nodes that read an edge, in order."""
        return self._consumers.get(edge, ())

    @cached_property
    def _named(self) -> dict[str, Node]:
        return {node.name: node for node in self.nodes}

    @cached_property
    def _consumers(self) -> dict[str, tuple[Node, ...]]:
        found: dict[str, list[Node]] = {}
        for node in self.nodes:
            for edge in dict.fromkeys(node.inputs):
                found.setdefault(edge, []).append(node)
        return {edge: tuple(nodes) for edge, nodes in found.items()}

    @cached_property
    def _producers(self) -> dict[str, Node]:
        return {edge: node for node in self.nodes for edge in node.outputs}

    def run(self, feeds: Mapping[str, IntArray], *, edges: bool = False) -> dict[str, IntArray]:
        """Execute by the reference interpreter: the definition of what the graph means.

        Args:
            feeds: input name -> levels ``(N, *shape)``.
            edges: return every edge, not only the outputs.

        Returns:
            edge name -> int64 levels ``(N, *shape)``.
        """
        return run(self, feeds, edges=edges)

    @cached_property
    def digest(self) -> str:
        """Content hash: equal graphs have equal digests, on every machine, and nobody can make two
        graphs of one: the whole of SHA-256 (of half of it, two took minutes).
        """
        return hashlib.sha256(print_graph(self).encode()).hexdigest()


def verify(graph: Graph) -> None:
    """Check a whole graph against its dialect.

    Raises:
        GraphError: names the first node that breaks a rule.
    """
    known: dict[str, TensorType] = {}
    _check_names(graph)
    for edge in graph.inputs:
        if edge not in graph.types:
            raise GraphError(f"input {edge!r} has no type", where=graph.name)
        if edge in known:
            raise GraphError(f"input {edge!r} is named twice", where=graph.name)
        _check_input(edge, graph.types[edge])
        known[edge] = graph.types[edge]
    names: set[str] = set()
    for node in graph.nodes:
        if node.name in names:
            raise GraphError(f"two nodes are named {node.name!r}", where=graph.name)
        names.add(node.name)
        undefined = [edge for edge in node.inputs if edge not in known]
        if undefined:
            raise GraphError(
                f"reads {undefined} before they are defined (nodes must be in topological order)",
                where=node.name,
            )
        inferred = graph.dialect.infer(node, tuple(known[edge] for edge in node.inputs))
        for edge, edge_type in zip(node.outputs, inferred, strict=True):
            if edge in known:
                raise GraphError(f"edge {edge!r} is defined twice", where=node.name)
            if graph.types.get(edge) != edge_type:
                raise GraphError(
                    f"edge {edge!r} says {_short(graph.types.get(edge))}, the rule of {node.op} "
                    f"gives {_short(edge_type)}",
                    where=node.name,
                )
            known[edge] = edge_type
    missing = [edge for edge in graph.outputs if edge not in known]
    if missing or not graph.outputs:
        raise GraphError(f"outputs {missing or '()'} are not defined", where=graph.name)
    stray = sorted(set(graph.types) - set(known))
    if stray:
        raise GraphError(f"types are given for edges that do not exist: {stray}", where=graph.name)


def _short(kind: TensorType | None) -> str:
    """A type as messages say it: of millions of scales the first is enough."""
    if kind is None or len(kind.scale) <= _SHOWN:
        return str(kind)
    return f"{replace(kind, scale=kind.scale[:1])} (the first of {len(kind.scale)} scales)"


def _check_names(graph: Graph) -> None:
    for what, edges in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        if len(edges) > MAX_PORTS:
            said = f"{len(edges)} {what}; at most {MAX_PORTS} are supported"
            raise GraphError(said, where=graph.name)
    if not _GRAPH_NAME.fullmatch(graph.name):
        raise GraphError(
            f"{graph.name!r} is no name of a graph: letters, digits, '_', '.' and '-' are expected"
        )
    for name in (*graph.inputs, *(n for node in graph.nodes for n in (node.name, *node.outputs))):
        if not _NAME.fullmatch(name):
            raise GraphError(
                f"{name!r} is no name: letters, digits, '_' and '.' are expected", where=graph.name
            )


def _check_input(edge: str, kind: TensorType) -> None:
    """What holds of every other edge by the rule of its operation."""
    levels = kind.format
    if levels is not None and not levels.min_level <= kind.lo <= kind.hi <= levels.max_level:
        raise GraphError(
            f"the interval [{kind.lo}, {kind.hi}] leaves that of {levels.name}, "
            f"[{levels.min_level}, {levels.max_level}]",
            where=edge,
        )
    if any(scale <= 0 for scale in kind.scale):
        raise GraphError("the scale of an input must be positive", where=edge)


def run(graph: Graph, feeds: Mapping[str, IntArray], *, edges: bool = False) -> dict[str, IntArray]:
    """Execute a graph on levels; see `Graph.run`.

    Every edge is checked against its type, so a wrong interval cannot pass unseen; it is let go
    behind its last reader, unless it is an output or all are asked for.
    """
    absent = sorted(set(graph.inputs) - set(feeds))
    if absent:
        raise GraphError(f"no value for inputs {absent}", where=graph.name)
    values = {e: check_levels(e, graph.types[e], feeds[e]) for e in graph.inputs}
    if edges:
        frames = len(next(iter(values.values()), ()))
        size = 8 * frames * sum(kind.size for kind in graph.types.values())
        check_room(size, f"all edges of {frames} frames", graph.name, "run fewer at a time")
    left = Counter(edge for node in graph.nodes for edge in {*node.inputs})
    kept = {*graph.types} if edges else {*graph.outputs}
    for node in graph.nodes:
        spec = graph.dialect.spec(node)
        types = tuple(graph.types[edge] for edge in node.inputs)
        results = spec.reference(node, types, tuple(values[edge] for edge in node.inputs))
        for edge, result in zip(node.outputs, results, strict=True):
            values[edge] = check_levels(edge, graph.types[edge], result)
        left.subtract({*node.inputs})
        for edge in {*node.inputs, *node.outputs}:
            if not left[edge] and edge not in kept:
                values.pop(edge, None)
    return values if edges else {edge: values[edge] for edge in graph.outputs}


def random_feeds(graph: Graph, count: int, rng: np.random.Generator) -> dict[str, IntArray]:
    """Uniform random levels for every input, ``count`` frames each."""
    return {edge: random_levels(graph.types[edge], count, rng) for edge in graph.inputs}


def print_graph(graph: Graph) -> str:
    """The canonical text of a graph; parameters appear as content hashes.

    `text` has an example of it, and reads it back.
    """
    lines = [f"graph {graph.name} {graph.dialect.name}"]
    lines += [f"input {edge} : {graph.types[edge]}" for edge in graph.inputs]
    for node in graph.nodes:
        attrs = json.dumps(dict(sorted(node.attrs.items())))
        params = " ".join(f"{name}={digest}" for name, digest in node.digests.items())
        types = " ; ".join(str(graph.types[edge]) for edge in node.outputs)
        lines.append(
            f"{', '.join(node.outputs)} = {node.name}:{node.op}({', '.join(node.inputs)}) "
            f"{attrs} <{params}> @{node.source} : {types}"
        )
    lines.append(f"output {' '.join(graph.outputs)}")
    return "\n".join(lines) + "\n"
