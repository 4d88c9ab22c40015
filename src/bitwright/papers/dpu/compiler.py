# SPDX-License-Identifier: Apache-2.0
"""A network for a DPUCZDX8G: fused nodes, where each runs and why, and the parts that follow.

Nothing is refused: what the engine cannot do is run by the processor, in the exact executor, and
told with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from bitwright.base.errors import GraphError
from bitwright.base.files import atomic_write, json_text
from bitwright.ir import Graph, save_graph
from bitwright.lower.split import Maker, Part, Parted, split_graph
from bitwright.papers.dpu.architecture import Architecture
from bitwright.papers.dpu.nodes import FREE, FusedNode, Kind, fuse
from bitwright.papers.dpu.reasons import reasons

#: Parts that are written, each to a file: large networks have some tens.
MOST_PARTS = 1000

ENGINE, CPU = "dpu", "cpu"


@dataclass(frozen=True)
class PlacedNode:
    """A fused node and where it runs.

    Attributes:
        reasons: why not on the engine.
        part: number of its part.
    """

    node: FusedNode
    place: str
    reasons: tuple[str, ...]
    part: int = -1

    def to_json(self) -> dict[str, Any]:
        node = self.node
        return {
            "name": node.name,
            "layer": node.source,
            "kind": str(node.kind),
            "operations": [one.name for one in node.nodes],
            "activation": node.activation,
            "inputs": [list(kind.shape) for kind in node.inputs],
            "output": list(node.output.shape),
            "kernel": list(node.window),
            "macs": node.macs,
            "weights": node.weights,
            "place": self.place,
            "part": self.part,
            "reasons": list(self.reasons),
        }


@dataclass(frozen=True)
class Compiled:
    """A network on an architecture.

    Attributes:
        graph: the whole, as it came.
        nodes: in its order.
        parts: what runs where, in order.
    """

    graph: Graph
    architecture: Architecture
    nodes: tuple[PlacedNode, ...]
    parts: tuple[Part, ...] = field(repr=False)

    def count(self, place: str) -> int:
        """Parts at a place; of the processor without those that only find the label."""
        return sum(
            part.place == place
            and (place == ENGINE or any(node.op != "top_k" for node in part.graph))
            for part in self.parts
        )

    @property
    def outside(self) -> tuple[PlacedNode, ...]:
        """What the processor does, the label left out."""
        return tuple(n for n in self.nodes if n.place == CPU and n.node.kind is not Kind.TOP_K)

    @cached_property
    def on_engine(self) -> tuple[FusedNode, ...]:
        """What the engine does."""
        return tuple(n.node for n in self.nodes if n.place == ENGINE)

    def runner(self, engine: Maker | None = None, threads: int | None = None) -> Parted:
        """What runs all of it.

        Args:
            engine: what computes the engine's parts; None: the executor, as for the others.
            threads: of each executor.
        """
        makers = {} if engine is None else {ENGINE: engine}
        return Parted(self.graph, self.parts, makers, threads)

    def to_json(self) -> dict[str, Any]:
        inside: list[list[str]] = [[] for _ in self.parts]
        for node in self.nodes:
            inside[node.part].append(node.node.name)
        return {
            "network": self.graph.name,
            "digest": self.graph.digest,
            "architecture": self.architecture.model_dump(mode="json"),
            "parts": [
                {
                    "place": part.place,
                    "inputs": list(part.graph.inputs),
                    "outputs": list(part.graph.outputs),
                    "nodes": names,
                }
                for part, names in zip(self.parts, inside, strict=True)
            ],
            "nodes": [node.to_json() for node in self.nodes],
        }

    def files(self) -> list[str]:
        """Names of what `save` writes: of each part, and last the description."""
        parts = (f"part-{index}-{part.place}.bwg" for index, part in enumerate(self.parts))
        return [*parts, "compiled.json"]

    def save(self, folder: Path) -> None:
        """Write ``compiled.json``, and each part as an integer graph, ``part-N-PLACE.bwg``.

        Raises:
            GraphError: it has more than `MOST_PARTS`; nothing is written.
        """
        if len(self.parts) > MOST_PARTS:
            raise GraphError(
                f"{len(self.parts)} parts would be as many files, at most {MOST_PARTS} are written",
                where=self.graph.name,
                hint="compile it without --out",
            )
        graphs = self.files()
        for name, part in zip(graphs, self.parts, strict=False):
            save_graph(part.graph, folder / name)
        atomic_write(folder / graphs[-1], json_text(self.to_json(), indent=1) + "\n")


def compile_graph(graph: Graph, architecture: Architecture) -> Compiled:
    """Fuse, place and split an integer graph.

    Raises:
        GraphError: it is not of the integer dialect.
    """
    if graph.dialect.name != "integer":
        raise GraphError(
            f"expected a graph of the dialect integer, got {graph.dialect.name}", where=graph.name
        )
    fused = fuse(graph)
    placed = [_placed(node, architecture) for node in fused]
    places = {one.name: p.place for p in placed for one in p.node.nodes}
    # What only moves addresses stays where its input is: it is no reason to change places.
    for index, item in enumerate(placed):
        maker = graph.producer(item.node.first.inputs[0])
        follows = item.node.kind in FREE and maker is not None and places[maker.name] == CPU
        alone = len(item.node.inputs) == 1
        if follows and alone and item.place == ENGINE:
            why = ("moves what the processor has made",)
            placed[index] = PlacedNode(item.node, CPU, why)
            places[item.node.name] = CPU
    parts = split_graph(graph, places)
    number = {node.name: index for index, part in enumerate(parts) for node in part.graph}
    nodes = tuple(PlacedNode(p.node, p.place, p.reasons, number[p.node.name]) for p in placed)
    return Compiled(graph, architecture, nodes, parts)


def _placed(node: FusedNode, architecture: Architecture) -> PlacedNode:
    why = reasons(node, architecture)
    return PlacedNode(node, CPU if why else ENGINE, why)
