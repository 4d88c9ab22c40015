# SPDX-License-Identifier: Apache-2.0
"""Which edges can lie in lanes of 4 bits: all that concatenations join, or none of them."""

from __future__ import annotations

from bitwright.ir import Graph, Node, TensorType

#: What only gives the words of others another name.
_NAMES = ("concat", "flatten")
_POOLS = ("max_pool", "sum_pool")


class Families:
    """Edges whose words lie side by side, as concatenations and flattenings join them.

    Attributes:
        refused: families that have 8-bit lanes whatever their levels are; whoever finds out that an
            edge cannot be made with lanes of 4 bits says so here, and begins again.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._heads: dict[str, str] = {}
        for node in graph:
            if node.op in _NAMES:
                for edge in node.inputs:
                    self._heads[self.head(edge)] = self.head(node.output)
        members: dict[str, list[str]] = {}
        for edge in [*graph.inputs, *(node.output for node in graph)]:
            members.setdefault(self.head(edge), []).append(edge)
        self._narrow = {head for head, edges in members.items() if self._fits(edges)}
        self.refused: set[str] = set()

    def head(self, edge: str) -> str:
        """The edge that a family is known by."""
        way = [edge]
        while way[-1] in self._heads and self._heads[way[-1]] != way[-1]:
            way.append(self._heads[way[-1]])
        for passed in way[:-1]:
            self._heads[passed] = way[-1]
        return way[-1]

    def narrow(self, edge: str) -> bool:
        """Whether the edge's family fits into 4 bits, and products with weights of 4 bits read it,
        and nothing but them and pools.
        """
        head = self.head(edge)
        return head in self._narrow and head not in self.refused

    def refuse(self, edge: str) -> None:
        self.refused.add(self.head(edge))

    def refuse_all(self) -> None:
        """No family has lanes of 4 bits."""
        self.refused |= self._narrow

    def _fits(self, edges: list[str]) -> bool:
        readers = [node for edge in edges for node in self._graph.consumers(edge)]
        return all(map(self._takes, edges)) and any(map(_multiplies, readers))

    def _takes(self, edge: str) -> bool:
        graph = self._graph
        readers, producer = graph.consumers(edge), graph.producer(edge)
        joined = producer is not None and producer.op == "concat"  # planes keep their own signs
        return (
            (joined or _is_narrow(graph.types[edge]))
            and bool(readers)
            and edge not in graph.outputs
            and edge not in graph.inputs
            and all(node.op in (*_NAMES, *_POOLS) or _multiplies(node) for node in readers)
        )


def _is_narrow(kind: TensorType) -> bool:
    return (kind.lo >= 0 or kind.hi <= 7) and -8 <= kind.lo <= kind.hi <= 15


def _multiplies(node: Node) -> bool:
    """Whether a node is a product whose weights have four bits."""
    return (
        node.op in ("conv", "dense")
        and node.attrs.get("groups", 1) == 1
        and -8 <= node.params["weight"].min()
        and node.params["weight"].max() <= 7
    )
