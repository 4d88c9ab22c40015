# SPDX-License-Identifier: Apache-2.0
"""The choice of one option per block as a mixed-integer program; knows nothing of graphs.

One binary variable an option. A link whose ends differ in lanes pays for a converter: how much goes
from each number of lanes to each other is a transport problem, whose relaxation is tight, so that
HiGHS, which `scipy.optimize.milp` runs, ends after a few nodes (measured: 104 blocks with 7 000
variables in about a second, also where two resources are short at once).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import ToolError
from bitwright.base.figures import Resources

# What one unit of each resource is worth in LUTs when there is no limit to compare with: about the
# ratio of the counts on mid-sized devices.
_WORTH = {"lut": 1.0, "ff": 0.1, "dsp": 150.0, "bram": 200.0}
# Nodes, not seconds: the same network gives the same design on every machine.
_MOST_NODES = 400
_MOST_COLUMNS = 8_000_000  # of the problems of all nodes together: fewer nodes of a very large one
_GAP, _ROUGH = 1e-3, 1e-2  # of the least cost, by which what is found may be more
_CLOSE = 1e-6
_LEAST = 0.5  # of a resource: less is none
_INFEASIBLE = 2  # of `scipy.optimize.milp`

Floats = NDArray[np.float64]


#: Of a stream at a block: elements a beat, and whether their order depends on that number.
End = tuple[int, bool]


@dataclass(frozen=True)
class Option:
    """One folding of one block, with what it means."""

    attrs: Mapping[str, int | str]
    lanes_in: int
    lanes_out: int
    interval: int
    cost: Resources
    demand: float = 0.0  # of what all blocks share beside resources: words a cycle of a memory
    in_pixels: bool = False  # see `Block.in_pixels`
    out_pixels: bool = False

    def end(self, side: str) -> End:
        """What a stream has at this end; streams of equal ends need no converter.

        Args:
            side: ``lanes_in`` or ``lanes_out``.
        """
        lanes: int = getattr(self, side)
        return lanes, self.in_pixels if side == "lanes_in" else self.out_pixels

    @property
    def timing(self) -> tuple[tuple[str, int], ...]:
        """The numbers among the attributes: options that agree in them take and give beats at the
        same times, wherever their memories are.
        """
        return tuple((k, v) for k, v in sorted(self.attrs.items()) if isinstance(v, int))


@dataclass(frozen=True)
class Link:
    """A stream between two blocks, and what it costs when their lanes differ.

    `converters` maps (end there, end here) to (interval, cost), or to None where no converter can
    help; equal ends are free.

    Attributes:
        side: the option's field with the producer's lanes. A fork at an input of the graph has the
            lanes of its first reader, which then stands for the producer, with ``lanes_in``.
    """

    producer: str
    consumer: str
    converters: Mapping[tuple[End, End], tuple[int, Resources] | None]
    side: str = "lanes_out"

    def ends(self, chosen: Mapping[str, Option]) -> tuple[End, End]:
        """(end there, end here) of a choice."""
        return chosen[self.producer].end(self.side), chosen[self.consumer].end("lanes_in")


#: Blocks with the timing each of them has: what a FIFO between them depends on.
Timings = frozenset[tuple[str, tuple[tuple[str, int], ...]]]
#: One option of every block, by its name.
Chosen = dict[str, Option]


def cost_of(chosen: Mapping[str, Option], links: Sequence[Link]) -> Resources:
    """What a choice takes, converters included."""
    total = sum((option.cost for option in chosen.values()), Resources())
    for link in links:
        converter = link.converters.get(link.ends(chosen))
        total = total if converter is None else total + converter[1]
    return total


def undominated(options: Sequence[Option], most_cycles: int | None = None) -> list[Option]:
    """The options that are not worse in everything than another with the same lanes.

    Args:
        most_cycles: leave out slower options; among the others the interval no longer matters.
    """
    legal = [o for o in options if most_cycles is None or o.interval <= most_cycles]
    legal.sort(key=lambda o: (0 if most_cycles else o.interval, *o.cost.to_json().values()))
    kept: dict[tuple[End, End], list[Option]] = {}
    for option in legal:
        rivals = kept.setdefault((option.end("lanes_in"), option.end("lanes_out")), [])
        if not any(rival.cost.fits(option.cost) for rival in rivals):
            rivals.append(option)
    return [option for rivals in kept.values() for option in rivals]


def nodes_for(columns: int) -> int:
    """Nodes that the solver may look at, in a problem of so many columns: at least one."""
    return max(1, min(_MOST_NODES, _MOST_COLUMNS // columns))


class FoldingModel:
    """One option per block, converters where lanes differ, and a largest interval."""

    def __init__(
        self,
        options: Mapping[str, Sequence[Option]],
        links: Sequence[Link],
        most_cycles: int | None = None,
        most_demand: float = 0.0,
        fifos: Mapping[Timings, Resources | None] | None = None,
    ) -> None:
        """Args:
        most_cycles: largest interval, or None.
        most_demand: what the demands of all options together may be.
        fifos: what is known of them: costs that are there where these blocks have these timings;
            None: they must not all have them.
        """
        self._options = {name: undominated(found, most_cycles) for name, found in options.items()}
        self._links, self._most_cycles = links, most_cycles
        self._costs: list[Resources] = []
        self._rows: list[tuple[dict[int, float], float, float]] = []  # terms, least, most
        self._first: dict[str, int] = {}
        demands: dict[int, float] = {}
        for name, found in self._options.items():
            self._first[name] = len(self._costs)
            columns = range(len(self._costs), len(self._costs) + len(found))
            self._costs += [option.cost for option in found]
            self._rows.append((dict.fromkeys(columns, 1.0), 1.0, 1.0))
            demands |= {k: o.demand for k, o in zip(columns, found, strict=True) if o.demand}
        self._choices = len(self._costs)
        for link in links:
            self._add_link(link)
        for timings, cost in (fifos or {}).items():
            self._add_fifo(timings, cost)
        if demands:  # of what there is: a sum that is exactly the limit must not fail by rounding
            shares = {column: demand / most_demand for column, demand in demands.items()}
            self._rows.append((shares, -np.inf, 1.0 + _CLOSE))

    def _add_link(self, link: Link) -> None:
        """What the producer gives in some lanes goes to the consumer, through converters."""
        given = self._by_end(link.producer, link.side)
        taken = self._by_end(link.consumer, "lanes_in")
        sides: list[dict[End, dict[int, float]]] = [
            {end: dict.fromkeys(columns, -1.0) for end, columns in side.items()}
            for side in (given, taken)
        ]
        for have in given:
            for want in taken:
                cost = Resources()
                if have != want:
                    converter = link.converters[have, want]
                    if converter is None or self._too_slow(converter[0]):
                        continue
                    cost = converter[1]
                for side, end in zip(sides, (have, want), strict=True):
                    side[end][len(self._costs)] = 1.0
                self._costs.append(cost)
        self._rows += [(terms, 0.0, 0.0) for side in sides for terms in side.values()]

    def _add_fifo(self, timings: Timings, cost: Resources | None) -> None:
        terms = {
            self._first[name] + number: 1.0
            for name, timing in timings
            for number, option in enumerate(self._options[name])
            if option.timing == timing
        }
        if cost is not None:
            terms[len(self._costs)] = -1.0
            self._costs.append(cost)
        self._rows.append((terms, -np.inf, len(timings) - 1.0))

    def _too_slow(self, interval: int) -> bool:
        return self._most_cycles is not None and interval > self._most_cycles

    def _by_end(self, name: str, side: str) -> dict[End, list[int]]:
        groups: dict[End, list[int]] = {}
        for number, option in enumerate(self._options[name]):
            groups.setdefault(option.end(side), []).append(self._first[name] + number)
        return groups

    def smallest(self, measure: Resources | None = None) -> Chosen | None:
        """The choice with the least hardware, or None if none is legal.

        Args:
            measure: what resources are shares of; None: what they are worth in LUTs.

        Raises:
            ToolError: the solver gave no answer.
        """
        chosen, answered = self._solve(self._prices(measure))
        if not answered:
            raise ToolError(
                "the search for a folding ended without an answer",
                hint="give a folding file instead",
            )
        return chosen

    def cheapest(self, limit: Resources, gap: float = _GAP) -> Chosen | None:
        """The choice with the least shares of a limit, within it, or None if none was found.

        Args:
            gap: part of the least by which it may be more.
        """
        chosen, answered = self._solve(self._prices(limit), limit, gap)
        if chosen is not None or answered:
            return chosen
        # Where hardly anything fits, the way to it is easier without the wall.
        chosen, _ = self._solve(None, limit, _ROUGH)
        if chosen is None or not cost_of(chosen, self._links).fits(limit * (1 + _CLOSE)):
            return None
        return chosen

    def any(self, limit: Resources) -> Chosen | None:
        """A choice within a limit, or None if none was found."""
        return self.cheapest(limit, _ROUGH)

    def _prices(self, measure: Resources | None) -> Floats:
        """What each column costs, as one number."""
        if measure is None:
            worth = _WORTH
        else:
            worth = {kind: 1 / max(1.0, getattr(measure, kind)) for kind in _WORTH}
        return np.asarray(sum(worth[kind] * self._use(kind) for kind in _WORTH))

    def _use(self, kind: str) -> Floats:
        return np.array([getattr(cost, kind) for cost in self._costs], np.float64)

    def _solve(
        self, prices: Floats | None, limit: Resources | None = None, gap: float = _GAP
    ) -> tuple[Chosen | None, bool]:
        """The best choice by prices within a limit; without prices, by its largest share of it.

        Returns:
            The choice, and whether its being there or not is certain.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csc_array

        if not all(self._options.values()):
            return None, True
        rows = list(self._rows)
        count = len(self._costs) + 1  # the last column: the largest share
        for kind in _WORTH if limit is not None else ():
            shares = self._use(kind) / max(getattr(limit, kind), _LEAST)
            terms = {int(column): float(shares[column]) for column in np.flatnonzero(shares)}
            most = min(getattr(limit, kind) / _LEAST, 1.0)  # none where there is none
            if prices is None:
                terms[count - 1] = -1.0
                most -= 1.0
            rows.append((terms, -np.inf, most))
        places = [(row, column) for row, (terms, _, _) in enumerate(rows) for column in terms]
        values = [value for terms, _, _ in rows for value in terms.values()]
        table = csc_array((values, tuple(zip(*places, strict=True))), (len(rows), count))
        result: Any = milp(
            np.append(np.zeros(count - 1), 1.0) if prices is None else np.append(prices, 0.0),
            integrality=np.arange(count) < self._choices,
            bounds=Bounds(0.0, np.where(np.arange(count) < count - 1, 1.0, np.inf)),
            constraints=LinearConstraint(table, *zip(*(row[1:] for row in rows), strict=True)),
            options={"node_limit": nodes_for(count), "mip_rel_gap": gap},
        )
        if result.x is None:
            return None, result.status == _INFEASIBLE
        chosen = {
            name: found[int(result.x[self._first[name] :][: len(found)].argmax())]
            for name, found in self._options.items()
        }
        return chosen, True
