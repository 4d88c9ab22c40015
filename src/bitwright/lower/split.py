# SPDX-License-Identifier: Apache-2.0
"""An integer graph in parts that run at different places, one after the other.

Every node has a place (an engine, the processor). Parts are as few as this rule finds: a node
belongs to the part of its inputs if it runs where they do, else to the next one. What one part
gives to another are edges of the whole graph with their types, so the parts together are the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bitwright.base.errors import GraphError
from bitwright.ir import Graph, GraphBuilder, IntArray, Node
from bitwright.ir.executor import Executor

#: Levels of a batch by edge -> levels of a batch by edge.
Run = Callable[[Mapping[str, IntArray]], dict[str, IntArray]]
#: What computes the levels of a part.
Maker = Callable[[Graph], Run]


@dataclass(frozen=True)
class Part:
    """What runs at one place at one time.

    Attributes:
        place: as the caller calls it.
        graph: its inputs are edges of the whole graph that other parts or nobody makes, its outputs
            edges that other parts or the user read.
    """

    place: str
    graph: Graph


def split_graph(graph: Graph, places: Mapping[str, str]) -> tuple[Part, ...]:
    """The parts of a graph, each behind those that it reads from.

    Args:
        places: of every node, by its name.

    Raises:
        GraphError: a node has no place.
    """
    absent = [node.name for node in graph if node.name not in places]
    if absent:
        raise GraphError(f"no place for {', '.join(absent[:4])}", where=graph.name)
    stages: dict[str, int] = {}
    parts: dict[tuple[int, str], list[Node]] = {}
    for node in graph:
        place = places[node.name]
        makers = [m for edge in node.inputs if (m := graph.producer(edge)) is not None]
        later = (stages[m.name] + (places[m.name] != place) for m in makers)
        stages[node.name] = max(later, default=0)
        parts.setdefault((stages[node.name], place), []).append(node)
    ordered = sorted(parts.items(), key=lambda item: item[0][0])
    return tuple(
        Part(place, _part(graph, nodes, f"{graph.name}-{index}"))
        for index, ((_, place), nodes) in enumerate(ordered)
    )


def _part(graph: Graph, nodes: list[Node], name: str) -> Graph:
    made = {edge for node in nodes for edge in node.outputs}
    inside = {node.name for node in nodes}
    given = frozenset(graph.outputs)
    builder = GraphBuilder(name, graph.dialect)
    for edge in dict.fromkeys(edge for node in nodes for edge in node.inputs):
        if edge not in made:
            builder.input(edge, graph.types[edge])
    for node in nodes:
        builder.append(node)
    read = [
        edge
        for edge in (e for node in nodes for e in node.outputs)
        if edge in given or any(c.name not in inside for c in graph.consumers(edge))
    ]
    return builder.finish(*read)


def run_parts(
    graph: Graph, parts: tuple[Part, ...], runs: tuple[Run, ...], feeds: Mapping[str, IntArray]
) -> dict[str, IntArray]:
    """The outputs of a graph, part by part.

    Args:
        graph: the whole.
        parts: of `split_graph`.
        runs: what computes each of them.
        feeds: input name -> levels ``(N, *shape)``.
    """
    absent = [edge for edge in graph.inputs if edge not in feeds]
    if absent:
        raise GraphError(f"no value for inputs {absent}", where=graph.name)
    values = dict(feeds)
    for part, run in zip(parts, runs, strict=True):
        values |= run({edge: values[edge] for edge in part.graph.inputs})
    return {edge: values[edge] for edge in graph.outputs}


class Parted:
    """Runs a graph in parts, one after the other, from any thread.

    Args:
        graph: the whole.
        parts: of `split_graph`.
        makers: by place, what computes the parts there; those of other places run in the executor.
        threads: of each executor.
    """

    def __init__(
        self,
        graph: Graph,
        parts: tuple[Part, ...],
        makers: Mapping[str, Maker],
        threads: int | None = None,
    ) -> None:
        def executor(graph: Graph) -> Run:
            return Executor(graph, threads).run

        self.graph, self.parts = graph, parts
        self._runs = tuple(makers.get(part.place, executor)(part.graph) for part in parts)

    def run(self, feeds: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Levels of the outputs, as `Graph.run` of the whole gives them."""
        return run_parts(self.graph, self.parts, self._runs, feeds)

    def __call__(self, images: IntArray) -> dict[str, IntArray]:
        """The same of a network with one input: levels ``(N, *shape)``.

        Raises:
            GraphError: images of another size than the network's, or it has several inputs.
        """
        edge = self.graph.only_input
        wanted = self.graph.types[edge].shape
        if images.shape[1:] != wanted:
            raise GraphError(
                f"the network takes images of {wanted}, these are of {images.shape[1:]}",
                where=self.graph.name,
                hint="compile the network for this size",
            )
        return self.run({edge: images})
