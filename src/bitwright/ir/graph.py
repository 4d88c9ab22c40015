# SPDX-License-Identifier: Apache-2.0
"""The immutable graph: nodes in topological order, one type per edge, read-only parameters."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError
from bitwright.ir.types import TensorType

if TYPE_CHECKING:
    from bitwright.ir.dialect import Dialect

Attr = int | float | str | bool | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
IntArray = NDArray[np.int64]


def array_digest(array: IntArray) -> str:
    """Content hash of a parameter: shape and values."""
    digest = hashlib.sha256(repr(array.shape).encode())
    digest.update(np.ascontiguousarray(array).astype("<i8").tobytes())
    return digest.hexdigest()[:16]


def _frozen(array: IntArray) -> IntArray:
    copy = np.array(array, dtype=np.int64)
    copy.setflags(write=False)
    return copy


@dataclass(frozen=True, eq=False)
class Node:
    """One operation.

    Attributes:
        name: unique in the graph.
        op: a name in the dialect's table.
        inputs, outputs: names of edges.
        attrs: small values, checked against the dialect's table.
        params: integer arrays (weights, thresholds), read-only int64.
        source: path of the user's layer that this node came from, or "".
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    params: Mapping[str, IntArray] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))
        frozen = {name: _frozen(value) for name, value in self.params.items()}
        object.__setattr__(self, "params", MappingProxyType(frozen))

    @property
    def output(self) -> str:
        """The only output edge."""
        (name,) = self.outputs
        return name

    def ints(self, attr: str) -> tuple[int, ...]:
        """An attribute that is a tuple of integers."""
        value = self.attrs[attr]
        if not isinstance(value, tuple):
            raise GraphError(f"attribute {attr} must be a tuple, got {value!r}", where=self.name)
        return tuple(int(v) for v in value)

    def floats(self, attr: str) -> tuple[float, ...]:
        """An attribute that is a tuple of reals."""
        value = self.attrs[attr]
        if not isinstance(value, tuple):
            raise GraphError(f"attribute {attr} must be a tuple, got {value!r}", where=self.name)
        return tuple(float(v) for v in value)

    def integer(self, attr: str) -> int:
        """An attribute that is one integer."""
        value = self.attrs[attr]
        if not isinstance(value, int):
            raise GraphError(f"attribute {attr} must be an integer, got {value!r}", where=self.name)
        return value

    def string(self, attr: str) -> str:
        """An attribute that is a string."""
        value = self.attrs[attr]
        if not isinstance(value, str):
            raise GraphError(f"attribute {attr} must be a string, got {value!r}", where=self.name)
        return value

    @cached_property
    def digests(self) -> dict[str, str]:
        """Content hash of every parameter."""
        return {name: array_digest(value) for name, value in sorted(self.params.items())}

    def key(self) -> tuple[object, ...]:
        """Everything that makes two nodes equal."""
        return (
            self.name,
            self.op,
            self.inputs,
            self.outputs,
            tuple(sorted(self.attrs.items(), key=lambda item: item[0])),
            tuple(self.digests.items()),
            self.source,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())


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
        for node in self.nodes:
            if node.name == name:
                return node
        raise GraphError(f"no node named {name!r}; the graph has {[n.name for n in self.nodes]}")

    def producer(self, edge: str) -> Node | None:
        """The node that makes an edge, or None for a graph input."""
        return self._producers.get(edge)

    def consumers(self, edge: str) -> tuple[Node, ...]:
        """The nodes that read an edge, in order."""
        return tuple(node for node in self.nodes if edge in node.inputs)

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
        from bitwright.ir.reference import run

        return run(self, feeds, edges=edges)

    @cached_property
    def digest(self) -> str:
        """Content hash: equal graphs have equal digests, on every machine."""
        from bitwright.ir.text import print_graph

        return hashlib.sha256(print_graph(self).encode()).hexdigest()[:16]


class GraphBuilder:
    """Appends nodes one after the other, inferring the type of every edge.

    ``edge = builder.add("conv", (x,), name="conv1", attrs={...}, params={...})``
    """

    def __init__(self, name: str, dialect: Dialect) -> None:
        self.name = name
        self.dialect = dialect
        self.types: dict[str, TensorType] = {}
        self._inputs: list[str] = []
        self._nodes: list[Node] = []
        self._names: set[str] = set()

    def input(self, name: str, tensor_type: TensorType) -> str:
        """Declare a graph input; returns the edge's name."""
        self._inputs.append(name)
        self.types[name] = tensor_type
        return name

    def unique(self, stem: str) -> str:
        """A node name that is not taken yet."""
        name, count = stem, 1
        while name in self._names or name in self.types:
            count += 1
            name = f"{stem}_{count}"
        return name

    def add(
        self,
        op: str,
        inputs: tuple[str, ...],
        *,
        name: str | None = None,
        outputs: tuple[str, ...] | None = None,
        attrs: Mapping[str, Attr] | None = None,
        params: Mapping[str, IntArray] | None = None,
        source: str = "",
    ) -> str:
        """Append a node with one or more outputs; returns the first output edge.

        Raises:
            GraphError: the dialect's rules forbid it.
        """
        name = self.unique(op) if name is None else name
        node = Node(name, op, inputs, outputs or (name,), attrs or {}, params or {}, source)
        return self.append(node)

    def append(self, node: Node) -> str:
        """Append a ready node, completing its attributes with the dialect's defaults."""
        node = self.dialect.complete(node)
        if node.name in self._names:
            raise GraphError(f"node name {node.name!r} is taken")
        known = [self.types[edge] for edge in node.inputs if edge in self.types]
        if len(known) != len(node.inputs):
            missing = [edge for edge in node.inputs if edge not in self.types]
            raise GraphError(f"unknown input edges {missing}", where=node.name)
        for edge, edge_type in zip(
            node.outputs, self.dialect.infer(node, tuple(known)), strict=True
        ):
            if edge in self.types:
                raise GraphError(f"edge {edge!r} is defined twice", where=node.name)
            self.types[edge] = edge_type
        self._names.add(node.name)
        self._nodes.append(node)
        return node.outputs[0]

    def rename(self, edge: str, name: str) -> str:
        """Give an edge another name, wherever it is made and read; returns it."""
        if name in self.types:
            raise GraphError(f"edge {name!r} is defined twice")
        self.types = {name if e == edge else e: kind for e, kind in self.types.items()}
        self._inputs = [name if e == edge else e for e in self._inputs]
        for index, node in enumerate(self._nodes):
            if edge in (*node.inputs, *node.outputs):
                inputs = tuple(name if e == edge else e for e in node.inputs)
                outputs = tuple(name if e == edge else e for e in node.outputs)
                self._nodes[index] = replace(node, inputs=inputs, outputs=outputs)
        return name

    def finish(self, *outputs: str) -> Graph:
        """The finished, verified graph."""
        from bitwright.ir.dialect import verify

        graph = Graph(
            self.name, self.dialect, tuple(self._inputs), outputs, tuple(self._nodes), self.types
        )
        verify(graph)
        return graph


def rebuild(graph: Graph, nodes: tuple[Node, ...], outputs: tuple[str, ...] | None = None) -> Graph:
    """A graph with the same inputs and new nodes; types are inferred afresh and verified."""
    builder = GraphBuilder(graph.name, graph.dialect)
    for edge in graph.inputs:
        builder.input(edge, graph.types[edge])
    for node in nodes:
        builder.append(node)
    return builder.finish(*(graph.outputs if outputs is None else outputs))


__all__ = ["Attr", "Graph", "GraphBuilder", "IntArray", "Node", "array_digest", "rebuild"]
