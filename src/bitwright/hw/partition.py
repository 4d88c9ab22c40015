# SPDX-License-Identifier: Apache-2.0
"""One network on several devices: the hardware graph cut into consecutive parts.

The whole design is folded and mapped first, with its FIFOs; then it is cut. An edge over a cut is
a link: an AXI stream out of one part and into another, whose FIFO stands on the receiving side,
deep enough for what the whole design needs there and for the way between the devices. So the parts
together are the whole design with some registers more on some streams: as free of deadlock, and as
fast. Each part is an ordinary hardware graph.

A bypass that crosses a cut is a link of its own; one that crosses several cuts goes directly from
the part that makes it to the part that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil

from bitwright.base.errors import RecipeError
from bitwright.base.figures import Resources
from bitwright.hw.blocks import blocks_of
from bitwright.hw.cost import graph_resources
from bitwright.hw.cuts import LINK_LATENCY, CutPlan, link_fifo, units_of
from bitwright.hw.dataflow import block_intervals
from bitwright.ir import Graph, GraphBuilder, IntArray, Node, rebuild


@dataclass(frozen=True)
class DeviceLink:
    """A stream between two devices.

    Attributes:
        edge: edge of the hardware graph, and name of the tensor at both ends.
        source, target: number of the part that makes it and of the one that reads it.
        width: bits of a beat.
        beats: of a frame.
    """

    edge: str
    source: int
    target: int
    width: int
    beats: int

    @property
    def tdata_width(self) -> int:
        """Whole bytes."""
        return 8 * ceil(self.width / 8)

    def bits_per_s(self, interval: int, clock_hz: float) -> float:
        """Bandwidth in whole bytes a beat, at a frame every `interval` cycles."""
        return self.tdata_width * self.beats * clock_hz / interval

    def to_json(self, interval: int, clock_hz: float) -> dict[str, object]:
        return {
            "edge": self.edge,
            "source": self.source,
            "target": self.target,
            "tdata_width": self.tdata_width,
            "beats_per_frame": self.beats,
            "bytes_per_frame": self.tdata_width // 8 * self.beats,
            "mbits_per_s": self.bits_per_s(interval, clock_hz) / 1e6,
        }


@dataclass(frozen=True)
class Partition:
    """A design on several devices.

    Attributes:
        whole: the hardware graph before the cut, with the FIFOs of the links.
        parts: hardware graphs, in order.
        links: streams between them.
        interval: cycles a frame of the slowest block of all parts.
    """

    whole: Graph
    parts: tuple[Graph, ...]
    links: tuple[DeviceLink, ...]
    interval: int

    def run(self, feeds: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Run part after part by their reference functions: the outputs of the whole."""
        values = dict(feeds)
        for part in self.parts:
            values |= part.run({edge: values[edge] for edge in part.inputs})
        return {edge: values[edge] for edge in self.whole.outputs}

    def resources(self, family: str) -> tuple[Resources, ...]:
        """Predicted resources of each part."""
        return tuple(graph_resources(part, family) for part in self.parts)


def cut_graph(
    hardware: Graph, cuts: Sequence[int], family: str, latency: int = LINK_LATENCY
) -> Partition:
    """Cut a mapped design between its units.

    Args:
        cuts: ascending positions in `units_of`: a part begins at each.
        latency: cycles of a link that its FIFO covers.

    Raises:
        RecipeError: a cut is not between two units.
    """
    units = units_of(hardware)
    bounds = (0, *cuts, len(units))
    if any(a >= b for a, b in pairwise(bounds)):
        raise RecipeError(
            f"cuts must ascend and lie in 1 .. {len(units) - 1}, got {tuple(cuts)}",
            where=f"partition of {hardware.name}",
        )
    names = [{n.name for u in units[a:b] for n in u.nodes}
             for a, b in pairwise(bounds)]  # fmt: skip
    part_of = {name: number for number, group in enumerate(names) for name in group}
    whole, links = _with_links(hardware, part_of, family, latency)
    parts = tuple(_part(whole, number, part_of, links, len(names)) for number in range(len(names)))
    return Partition(whole, parts, links, max(block_intervals(whole).values()))


def _with_links(
    hardware: Graph, part_of: dict[str, int], family: str, latency: int
) -> tuple[Graph, tuple[DeviceLink, ...]]:
    """The graph with the FIFOs of the links; `part_of` learns the new nodes."""
    plan = CutPlan(hardware, family, latency)
    blocks = blocks_of(hardware)
    links: list[DeviceLink] = []
    nodes: list[Node] = []
    for node in hardware:
        target = part_of[node.name]
        renamed: dict[str, str] = {}
        for edge in node.inputs:
            maker = hardware.producer(edge)
            if maker is None or part_of[maker.name] == target:
                continue
            source = part_of[maker.name]
            links.append(DeviceLink(edge, source, target, *plan.port(edge)))
            fifo = link_fifo(node, edge, blocks, target - source, family, latency)
            if node.op == "fifo":
                node = fifo  # noqa: PLW2901 - the same node, deeper
                continue
            nodes.append(fifo)
            part_of[fifo.name] = target
            renamed[edge] = fifo.output
        nodes.append(replace(node, inputs=tuple(renamed.get(e, e) for e in node.inputs)))
    return rebuild(hardware, tuple(nodes)), tuple(links)


def _part(
    whole: Graph, number: int, part_of: Mapping[str, int], links: Sequence[DeviceLink], count: int
) -> Graph:
    builder = GraphBuilder(f"{whole.name}_part{number}", whole.dialect)
    mine = [node for node in whole if part_of[node.name] == number]
    made = {edge for node in mine for edge in node.outputs}
    for edge in whole.inputs:
        if any(edge in node.inputs for node in mine):
            builder.input(edge, whole.types[edge])
    for link in links:
        if link.target == number:
            builder.input(link.edge, whole.types[link.edge])
    for node in mine:
        builder.append(node)
    outputs = [edge for edge in whole.outputs if edge in made]
    return builder.finish(*outputs, *(link.edge for link in links if link.source == number))
