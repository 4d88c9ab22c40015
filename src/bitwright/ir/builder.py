# SPDX-License-Identifier: Apache-2.0
"""Building a graph node by node; every type is inferred, the result is verified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bitwright.base.errors import GraphError
from bitwright.base.names import NameCounter
from bitwright.ir.dialect import Dialect
from bitwright.ir.graph import Graph, verify
from bitwright.ir.node import Attr, IntArray, Node
from bitwright.ir.types import TensorType


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
        self._counter = NameCounter()

    def input(self, name: str, tensor_type: TensorType) -> str:
        """Declare a graph input; returns the edge's name."""
        self._inputs.append(name)
        self.types[name] = tensor_type
        return name

    def unique(self, stem: str) -> str:
        """A node name that is not taken yet."""
        return self._counter.free(stem, self._names, self.types)

    def __contains__(self, name: object) -> bool:
        return name in self._names or name in self.types

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
        self._counter = NameCounter()  # the edge's old name is free now
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
