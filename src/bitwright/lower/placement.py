# SPDX-License-Identifier: Apache-2.0
"""Which nodes of an integer graph an accelerator takes, and why the host does the others.

Whoever builds the accelerator is asked, part by part, until nothing is refused: a refusal names its
node, which goes to the host with that reason. What then runs where are the parts of `split_graph`,
so the whole gives the integers of the graph whatever the accelerator takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from bitwright.base.errors import ModelError, NoHardware
from bitwright.ir import Graph, Node
from bitwright.lower.split import Maker, Part, Parted, split_graph

ACCELERATOR, HOST = "accelerator", "host"
#: Takes a graph, or raises NoHardware.
Accept = Callable[[Graph], object]
_MOST_ASKED = 2_000_000  # nodes that are looked at, all questions together: minutes
_NO_PRODUCT = "nothing is multiplied between what the host does before and after it"


@dataclass(frozen=True)
class Placement:
    """A graph between an accelerator and its host.

    Attributes:
        graph: the whole.
        parts: what runs where, in order.
        reasons: of each node that the host does, why.
    """

    graph: Graph
    parts: tuple[Part, ...] = field(repr=False)
    reasons: Mapping[str, str]

    @property
    def accelerated(self) -> tuple[Part, ...]:
        """The accelerator's parts."""
        return tuple(part for part in self.parts if part.place == ACCELERATOR)

    def runner(self, accelerator: Maker | None = None, threads: int | None = None) -> Parted:
        """What runs all of it.

        Args:
            accelerator: what computes the accelerator's parts, such as a simulation or a board;
                None: the executor, as for the host's.
            threads: of each executor.
        """
        made = {} if accelerator is None else {ACCELERATOR: accelerator}
        return Parted(self.graph, self.parts, made, threads)

    def to_json(self) -> dict[str, object]:
        return {
            "network": self.graph.name,
            "digest": self.graph.digest,
            "parts": [
                {
                    "place": part.place,
                    "inputs": list(part.graph.inputs),
                    "outputs": list(part.graph.outputs),
                    "nodes": [node.name for node in part.graph],
                    "macs": macs_of(part.graph),
                }
                for part in self.parts
            ],
            "reasons": dict(self.reasons),
        }


def place_graph(graph: Graph, accept: Accept, most: int | None = None) -> Placement:
    """Give an accelerator all that it takes.

    Args:
        accept: raises NoHardware where a node cannot be built.
        most: parts on the accelerator; of more, those with the most products. None: any number.

    Raises:
        ModelError: so much is refused that asking would take hours.
    """
    reasons: dict[str, str] = {}
    while True:
        if len(reasons) * len(graph.nodes) > _MOST_ASKED:
            raise ModelError(
                f"{len(reasons)} and more of {len(graph.nodes)} operations are refused",
                where=graph.name,
                hint=f"the last one: {next(reversed(reasons.values()))}",
            )
        parts = _split(graph, reasons)
        refused = _refused(parts, accept) or _idle(parts) or _small(parts, most)
        if not refused:
            return Placement(graph, parts, reasons)
        reasons |= refused


def refusals(graph: Graph, accept: Accept) -> dict[str, str]:
    """Every node that an accelerator refuses, with the reason; not those that it would refuse only
    for what reaches them from a refused one.
    """
    asked: dict[str, str] = {}
    found: dict[str, str] = {}
    while error := _first_refusal(_split(graph, asked), accept):
        asked[error.node] = error.message
        if error.edge is None or error.edge in graph.inputs:
            found[error.node] = error.message
    return found


def _split(graph: Graph, reasons: Mapping[str, str]) -> tuple[Part, ...]:
    return split_graph(graph, {n.name: HOST if n.name in reasons else ACCELERATOR for n in graph})


def _refused(parts: tuple[Part, ...], accept: Accept) -> dict[str, str]:
    """The first node that is refused."""
    error = _first_refusal(parts, accept)
    return {} if error is None else {error.node: error.message}


def _first_refusal(parts: tuple[Part, ...], accept: Accept) -> NoHardware | None:
    for part in parts:
        if part.place == ACCELERATOR:
            try:
                accept(part.graph)
            except NoHardware as error:
                return error
    return None


def _idle(parts: tuple[Part, ...]) -> dict[str, str]:
    """Parts for which the way to the accelerator is not worth while."""
    return {
        node.name: _NO_PRODUCT
        for part in parts
        if part.place == ACCELERATOR and not macs_of(part.graph)
        for node in part.graph
    }


def _small(parts: tuple[Part, ...], most: int | None) -> dict[str, str]:
    """The part with the fewest products, if there are too many."""
    there = [part for part in parts if part.place == ACCELERATOR]
    if most is None or len(there) <= most:
        return {}
    least = min(there, key=lambda part: macs_of(part.graph))
    whole = sum(macs_of(part.graph) for part in there)
    share = macs_of(least.graph) / whole
    why = f"one of {len(there)} parts, of which {most} can be built; it has {share:.1%} of the MACs"
    return {node.name: why for node in least.graph}


def macs_of(graph: Graph) -> int:
    """Products of a frame."""
    return sum(_macs(graph, node) for node in graph if "weight" in node.params)


def _macs(graph: Graph, node: Node) -> int:
    weight = node.params["weight"]
    return int(graph.types[node.output].size * weight[0].size)
