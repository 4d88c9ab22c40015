# SPDX-License-Identifier: Apache-2.0
"""Where a mapped design can be cut into parts, and what the parts cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

from bitwright.base.figures import Resources
from bitwright.hw.blocks import Block, Fifo, Port, blocks_of
from bitwright.hw.cost import block_resources, end_resources
from bitwright.hw.memory import ram_style
from bitwright.ir import Attr, Graph, Node

LINK_LATENCY = 16  # cycles between two devices that a link's FIFO covers
_GRAIN = 16
# What stays with its reader. A pad works ahead, so behind a cut it would send the border of a frame
# that never comes; and what it adds need not travel.
_PLUMBING = ("dwc", "fifo", "pad")


@dataclass(frozen=True)
class Unit:
    """A block with the converters, FIFOs and border in front of it: what is not cut apart.

    Attributes:
        name: of the block.
        nodes: in order, the block last.
    """

    name: str
    nodes: tuple[Node, ...]


def units_of(hardware: Graph) -> tuple[Unit, ...]:
    """The units of a hardware graph, in order; a cut lies between two of them."""
    units: list[Unit] = []
    nodes: list[Node] = []
    for node in hardware:
        nodes.append(node)
        if node.op not in _PLUMBING:
            units.append(Unit(node.name, tuple(nodes)))
            nodes = []
    return tuple(units)


class CutPlan:
    """Costs of all possible parts of a mapped design."""

    def __init__(self, hardware: Graph, family: str, latency: int = LINK_LATENCY) -> None:
        self.hardware, self.family, self.latency = hardware, family, latency
        self.units = units_of(hardware)
        self._blocks = blocks_of(hardware)
        self.costs = [
            sum((block_resources(self._blocks[n.name], family) for n in unit.nodes), Resources())
            for unit in self.units
        ]
        place = {n.name: i for i, unit in enumerate(self.units) for n in unit.nodes}
        self._sums = [Resources()]
        for cost in self.costs:
            self._sums.append(self._sums[-1] + cost)
        # (edge, unit that makes it or -1, unit that reads it or len(units))
        self.streams: list[tuple[str, int, int]] = []
        for edge in hardware.types:
            maker = hardware.producer(edge)
            source = -1 if maker is None else place[maker.name]
            readers = [place[n.name] for n in hardware.consumers(edge)]
            target = readers[0] if readers else len(self.units)
            if source != target:
                self.streams.append((edge, source, target))

    def port(self, edge: str) -> tuple[int, int]:
        """(bits of a beat, beats of a frame) of a stream."""
        port = self._port(edge)
        return port.width, port.beats

    def _port(self, edge: str) -> Port:
        maker = self.hardware.producer(edge)
        if maker is None:
            (reader,) = self.hardware.consumers(edge)
            return self._blocks[reader.name].inputs[reader.inputs.index(edge)]
        return self._blocks[maker.name].outputs[maker.outputs.index(edge)]

    def crossing(self, cut: int) -> list[str]:
        """Edges between the units before a cut and those behind it."""
        return [e for e, source, target in self.streams if 0 <= source < cut <= target < self._end]

    @property
    def _end(self) -> int:
        return len(self.units)

    def traffic(self, cut: int) -> int:
        """Bytes of a frame over a cut."""
        return sum(ceil(w / 8) * beats for w, beats in map(self.port, self.crossing(cut)))

    def part_cost(self, start: int, stop: int) -> Resources:
        """About what the units ``start .. stop - 1`` take as a part; exactly known once cut."""
        cost = self._sums[stop] - self._sums[start]
        for edge, source, target in self.streams:
            enters = source < start <= target < stop
            if not enters and not start <= source < stop <= target:
                continue
            out, into = self._ends[edge]
            cost += into if enters else out
        return cost

    @cached_property
    def _ends(self) -> dict[str, tuple[Resources, Resources]]:
        """edge -> cost of its end in the part that makes it, and in the part that reads it."""
        table: dict[str, tuple[Resources, Resources]] = {}
        for edge, source, target in self.streams:
            port = self._port(edge)
            out, into = (end_resources(port, self.family, kind) for kind in ("axis_out", "axis_in"))
            more = Resources()
            if source >= 0 and target < self._end:
                (reader,) = self.hardware.consumers(edge)
                node = link_fifo(reader, edge, self._blocks, 1, self.family, self.latency)
                kind = self.hardware.types[edge]
                more = block_resources(Fifo(node, kind, kind), self.family)
                if reader.op == "fifo":
                    more -= block_resources(self._blocks[reader.name], self.family)
            table[edge] = out, into + more
        return table

    def best_cuts(self, device: Resources) -> tuple[int, ...] | None:
        """The cuts of the fewest parts that each fit, with the least traffic; None: none fit."""
        best: list[tuple[int, int, tuple[int, ...]] | None] = [(0, 0, ())]
        for stop in range(1, self._end + 1):
            found = None
            for start in range(stop - 1, -1, -1):
                before = best[start]
                if before is None or not self.part_cost(start, stop).fits(device):
                    continue
                cuts = (*before[2], start) if start else ()
                traffic = before[1] + (self.traffic(start) if start else 0)
                option = (before[0] + 1, traffic, cuts)
                found = option if found is None or option < found else found
            best.append(found)
        last = best[-1]
        return None if last is None else last[2]

    def even_cuts(self, parts: int, device: Resources) -> tuple[int, ...]:
        """Cuts into so many parts whose fullest is as empty as possible, fitting or not."""
        end = self._end
        load = [
            [load_of(self.part_cost(a, b), device) if a < b else 0.0 for b in range(end + 1)]
            for a in range(end)
        ]
        table: list[tuple[float, tuple[int, ...]]] = [(load[0][b], ()) for b in range(end + 1)]
        for _ in range(parts - 1):
            table = [table[0]] + [
                min((max(table[a][0], load[a][b]), (*table[a][1], a)) for a in range(1, b))
                if b > 1
                else table[b]
                for b in range(1, end + 1)
            ]
        return table[-1][1]


def load_of(need: Resources, have: Resources) -> float:
    """Share of the scarcest resource."""
    there = have.to_json()
    shares = [used / max(1e-9, there[kind]) for kind, used in need.to_json().items() if used]
    return float(max(shares, default=0.0))


def link_fifo(
    reader: Node,
    edge: str,
    blocks: Mapping[str, Block],
    hops: int,
    family: str,
    latency: int,
) -> Node:
    """The FIFO of a link: the one in front of its reader made deeper, or a new one.

    Twice the way: until a stop is felt at the far end, and until beats come again. A link over
    several cuts also waits for what takes the longer way.
    """
    port = blocks[reader.name].inputs[reader.inputs.index(edge)]
    depth = reader.integer("depth") if reader.op == "fifo" else 0
    depth += 2 * latency + (hops - 1) * (latency + _GRAIN)
    depth = ceil(depth / _GRAIN) * _GRAIN
    style = ram_style(family, depth, port.width)
    attrs: dict[str, Attr] = {"depth": depth, "lanes": port.lanes, "ram_style": style}
    if reader.op == "fifo":
        return replace(reader, attrs=attrs)
    name = f"{edge}_link"
    return Node(name, "fifo", (edge,), (name,), attrs, {}, reader.source)
