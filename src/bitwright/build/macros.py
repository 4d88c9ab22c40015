# SPDX-License-Identifier: Apache-2.0
"""Places of block RAMs and multipliers ("macros") of a design that fills their columns.

nextpnr's analytic placers spread macros as they spread look-up tables and then move each to the
nearest free place. Where most places are taken that is far away: the 4 block RAMs of one byte of a
feature memory of E256-INT8 lay 40 to 100 columns apart, and each bit of their address had to reach
them all. So such a design is placed twice. Between the two, the macros of the first placement are
exchanged by simulated annealing until the wire is shortest, measured as half the perimeter of each
net's bounding box, the usual estimate; cells a few nets away come along, each to the middle of what
it is connected to, since the second placement will bring them there. The second one begins with the
macros where they are then.

Only places that the first placement took are used, so every one of them is there on any device.
"""

from __future__ import annotations

import math
import random
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwright.build.netlist import edit_modules, read_modules, readable

#: Cells that are exchanged with their like.
MACROS = ("DP16KD", "MULT18X18D")
_SINGLE = ("TRELLIS_FF", "TRELLIS_COMB")  # what may come along: one cell, not a part of a chain
_PLACE = re.compile(r"X(\d+)/Y(\d+)/")
#: Pins from which on a net is a clock or the like: it has wires of its own, or reaches everything.
_MOST_PINS = 3000
#: Nets over which cells come along: how many in a row, and pins of each at most.
_NEAR, _NEAR_PINS = 3, 40
#: Rounds: temperature in units of wire, and columns and rows that a macro may go in one exchange.
_ROUNDS = ((500.0, 130), (250.0, 130), (100.0, 80), (40.0, 60), (15.0, 40))
_TRIES = 600  # exchanges tried in a round, for each macro
_SWEEPS = 2

Point = tuple[int, int]
Cell = dict[str, Any]


@dataclass
class Placement:
    """Cells of a placed design, by number, and the nets between them.

    Attributes:
        names, points: of each cell.
        macros: numbers of block RAMs and multipliers, by type.
        places: nextpnr's name of each macro's place.
        nets: cells of each net, each once.
        of: nets of each cell.
        single: cells that stand alone, so that they can be anywhere.
    """

    names: list[str]
    points: list[Point]
    macros: dict[str, list[int]]
    places: dict[int, str]
    nets: list[list[int]]
    of: list[list[int]]
    single: set[int]

    def wire(self, nets: Iterable[int]) -> int:
        """Half the perimeters of nets' bounding boxes, added up."""
        total = 0
        for net in nets:
            xs, ys = zip(*(self.points[cell] for cell in self.nets[net]), strict=True)
            total += max(xs) - min(xs) + max(ys) - min(ys)
        return total


def read_placement(placed: Path) -> Placement:
    """The design that nextpnr wrote behind its placer (``--write``).

    Raises:
        ToolError: it cannot be read.
    """
    with readable(placed):
        return _placement(next(iter(read_modules(placed).values()))["cells"])


def _placement(table: dict[str, Cell]) -> Placement:
    names: list[str] = []
    points: list[Point] = []
    macros: dict[str, list[int]] = {kind: [] for kind in MACROS}
    places: dict[int, str] = {}
    pins: dict[int, set[int]] = defaultdict(set)
    single: set[int] = set()
    for name, cell in table.items():
        place = cell["attributes"].get("NEXTPNR_BEL", "")
        if (at := _PLACE.match(place)) is None:
            continue
        number, kind = len(names), cell["type"]
        names.append(name)
        points.append((int(at[1]), int(at[2])))
        if kind in macros and "BEL" not in cell["attributes"]:  # a place that is given stays
            macros[kind].append(number)
            places[number] = place
        elif kind in _SINGLE and cell["parameters"].get("MODE") not in ("CCU2", "DPRAM"):
            single.add(number)
        for net in _nets(cell):
            pins[net].add(number)
    nets = [sorted(cells) for cells in pins.values() if 1 < len(cells) <= _MOST_PINS]
    of: list[list[int]] = [[] for _ in names]
    for net, cells in enumerate(nets):
        for number in cells:
            of[number].append(net)
    return Placement(names, points, macros, places, nets, of, single)


def _nets(cell: Cell) -> Iterable[int]:
    """Nets at a cell; those of clocks have wires of their own."""
    for port, bits in cell["connections"].items():
        if not port.startswith("CLK"):
            yield from (bit for bit in bits if isinstance(bit, int))


def better_places(placed: Path, *, seed: int = 1) -> dict[str, str]:
    """Places of the macros of a placed design with less wire: nextpnr's name of each, by cell.

    Args:
        placed: what nextpnr wrote behind its placer.
        seed: of the annealing; one seed gives the same places everywhere.

    Raises:
        ToolError: the file cannot be read.
    """
    placement = read_placement(placed)
    draw = random.Random(seed)
    near = _near(placement)
    exchange = _Exchange(placement, draw)
    for temperature, reach in _ROUNDS:
        _bring_along(placement, near)
        exchange.anneal(temperature, reach)
    return {placement.names[cell]: place for cell, place in placement.places.items()}


def fix_places(netlist: Path, places: dict[str, str]) -> int:
    """Write places into a netlist of Yosys, where nextpnr keeps to them.

    Returns:
        cells that have one now.

    Raises:
        ToolError: the netlist cannot be read.
    """

    def edit(module: dict[str, Any]) -> int:
        found = [(cell, places[n]) for n, cell in module["cells"].items() if n in places]
        for cell, place in found:
            cell.setdefault("attributes", {})["BEL"] = place
        return len(found)

    return edit_modules(netlist, edit)


def _near(placement: Placement) -> list[int]:
    """Single cells that are a few nets away from a macro."""
    front = {cell for cells in placement.macros.values() for cell in cells}
    near: set[int] = set()
    for _ in range(_NEAR):
        nets = {net for cell in front for net in placement.of[cell]}
        reached = {
            cell
            for net in nets
            if len(placement.nets[net]) <= _NEAR_PINS
            for cell in placement.nets[net]
        }
        front = (reached & placement.single) - near
        near |= front
    return sorted(near)


def _bring_along(placement: Placement, near: list[int]) -> None:
    """Move cells to where their nets are shortest, as if there were room for all of them.

    Of several such points that next to what is no macro: a register between a macro and a far cell
    stands at the cell, so that the macro is drawn there.
    """
    macros = {cell for cells in placement.macros.values() for cell in cells}
    touched = {net for cell in macros for net in placement.of[cell]}
    points = placement.points
    for cell in near * _SWEEPS:
        ends: tuple[list[int], list[int]] = ([], [])
        calm: tuple[list[int], list[int]] = ([], [])  # of nets without a macro
        for net in placement.of[cell]:
            others = [points[other] for other in placement.nets[net] if other != cell]
            if len(others) > _NEAR_PINS:
                continue
            for axis, values in enumerate(zip(*others, strict=True)):
                both = (min(values), max(values))
                ends[axis].extend(both)
                if net not in touched:
                    calm[axis].extend(both)
        if ends[0]:
            x, y = (
                _between(_between(now, there), all_ends)
                for now, there, all_ends in zip(points[cell], calm, ends, strict=True)
            )
            points[cell] = (x, y)


def _between(now: int, ends: list[int]) -> int:
    """The point next to `now` at which the distances to all ends are least together."""
    if not ends:
        return now
    ends.sort()
    half = len(ends) // 2
    return min(max(now, ends[half - 1]), ends[half])


class _Exchange:
    """Simulated annealing by exchanges of two macros of a type."""

    def __init__(self, placement: Placement, draw: random.Random) -> None:
        self.placement, self.draw = placement, draw
        self.like = {cell: cells for cells in placement.macros.values() for cell in cells}
        self.cells = sorted(self.like)
        self.nets = sorted({net for cell in self.cells for net in placement.of[cell]})
        self.ends = {net: [c for c in placement.nets[net] if c in self.like] for net in self.nets}
        self.rest: dict[int, tuple[int, int, int, int]] = {}

    def anneal(self, temperature: float, reach: int) -> None:
        """Try exchanges over shorter and shorter ways while it cools down to nothing."""
        self.rest = {net: self._rest(net) for net in self.nets}
        wire = {net: self._wire(net) for net in self.nets}
        tries = _TRIES * len(self.cells)
        for n in range(tries):
            left = 1 - n / tries
            one, other = self._pair(max(12.0, reach * left))
            if one == other:
                continue
            nets = set(self.placement.of[one]).symmetric_difference(self.placement.of[other])
            self._swap(one, other)
            changed = {net: self._wire(net) for net in nets}
            more = sum(changed.values()) - sum(wire[net] for net in nets)
            if more <= 0 or self.draw.random() < math.exp(-more / (temperature * left**2)):
                wire.update(changed)
            else:
                self._swap(one, other)

    def _pair(self, reach: float) -> tuple[int, int]:
        """Two macros of a type that are not further apart; twice the same if none was found."""
        one = self.draw.choice(self.cells)
        x, y = self.placement.points[one]
        for _ in range(20):
            other = self.draw.choice(self.like[one])
            to_x, to_y = self.placement.points[other]
            if other != one and abs(to_x - x) <= reach and abs(to_y - y) <= reach:
                return one, other
        return one, one

    def _swap(self, one: int, other: int) -> None:
        points, places = self.placement.points, self.placement.places
        points[one], points[other] = points[other], points[one]
        places[one], places[other] = places[other], places[one]

    def _rest(self, net: int) -> tuple[int, int, int, int]:
        """The box around what is no macro; none at all is an empty one."""
        cells = [c for c in self.placement.nets[net] if c not in self.like]
        if not cells:
            return (1 << 20, -1, 1 << 20, -1)
        xs, ys = zip(*(self.placement.points[cell] for cell in cells), strict=True)
        return (min(xs), max(xs), min(ys), max(ys))

    def _wire(self, net: int) -> int:
        left, right, top, bottom = self.rest[net]
        for cell in self.ends[net]:
            x, y = self.placement.points[cell]
            left, right = min(x, left), max(x, right)
            top, bottom = min(y, top), max(y, bottom)
        return right - left + bottom - top
