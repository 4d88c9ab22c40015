# SPDX-License-Identifier: Apache-2.0
"""The choice of one option per block as a CP-SAT model; knows nothing of graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from bitwright.base.errors import ToolError
from bitwright.base.figures import Resources
from bitwright.base.solver import deterministic_solver

# What one unit of each resource is worth in LUTs when there is no limit to compare with: about the
# ratio of the counts on mid-sized devices.
_WORTH = {"lut": 1.0, "ff": 0.1, "dsp": 150.0, "bram": 200.0}
_SCALE = 16  # resources are counted in sixteenths: CP-SAT takes integers
_WORTH_SCALE = 1_000_000
_DEMAND_SCALE = 10**12
# Deterministic time, so that the same network gives the same design on every machine.
_EFFORT = 30.0
_QUICK = 3.0


@dataclass(frozen=True)
class Option:
    """One folding of one block, with what it means."""

    attrs: Mapping[str, int | str]
    lanes_in: int
    lanes_out: int
    interval: int
    cost: Resources
    demand: float = 0.0  # of what all blocks share beside resources: words a cycle of a memory


@dataclass(frozen=True)
class Link:
    """A stream between two blocks, and what it costs when their lanes differ.

    `converters` maps (lanes out, lanes in) to (interval, cost), or to None where no converter can
    help; equal lanes are free.
    """

    producer: str
    consumer: str
    converters: Mapping[tuple[int, int], tuple[int, Resources] | None]


def undominated(options: Sequence[Option], most_cycles: int | None = None) -> list[Option]:
    """The options that are not worse in everything than another with the same lanes.

    Args:
        most_cycles: leave out slower options; among the others the interval no longer matters.
    """
    legal = [o for o in options if most_cycles is None or o.interval <= most_cycles]
    legal.sort(key=lambda o: (0 if most_cycles else o.interval, *o.cost.to_json().values()))
    kept: dict[tuple[int, int], list[Option]] = {}
    for option in legal:
        rivals = kept.setdefault((option.lanes_in, option.lanes_out), [])
        if not any(rival.cost.fits(option.cost) for rival in rivals):
            rivals.append(option)
    return [option for rivals in kept.values() for option in rivals]


class FoldingModel:
    """One option per block, converters where lanes differ, a limit on resources and an interval."""

    def __init__(
        self,
        options: Mapping[str, Sequence[Option]],
        links: Sequence[Link],
        limit: Resources | None,
        most_cycles: int | None = None,
        most_demand: float = 0.0,
    ) -> None:
        """Args:
        limit: most of each resource, or None.
        most_cycles: largest interval, or None.
        most_demand: what the demands of all options together may be.
        """
        from ortools.sat.python import cp_model

        self._cp: Any = cp_model
        self._model: Any = cp_model.CpModel()
        self._options: dict[str, list[Option]] = {
            name: undominated(found, most_cycles) for name, found in options.items()
        }
        self._limit = limit
        self._most_cycles = most_cycles
        self._terms: list[tuple[Any, Resources]] = []
        self._picked: dict[str, list[Any]] = {}
        for name, found in self._options.items():
            self._add_block(name, found)
        for link in links:
            self._add_link(link)
        demands = [
            round(option.demand * _DEMAND_SCALE) * pick
            for name, found in self._options.items()
            for option, pick in zip(found, self._picked[name], strict=True)
            if option.demand
        ]
        if demands:  # a sum that is exactly the limit must not fail by rounding
            most = round(most_demand * _DEMAND_SCALE) + len(self._options)
            self._model.add(sum(demands) <= most)
        self._usage = {kind: self._use(kind) for kind in _WORTH}
        for kind in _WORTH if limit is not None else ():
            self._model.add(self._usage[kind] <= int(getattr(limit, kind) * _SCALE))

    def _add_block(self, name: str, found: Sequence[Option]) -> None:
        picks = [self._model.new_bool_var(f"{name}_{i}") for i in range(len(found))]
        self._model.add_exactly_one(picks)
        self._picked[name] = picks
        self._terms += list(zip(picks, (o.cost for o in found), strict=True))

    def _too_slow(self, interval: int) -> bool:
        return self._most_cycles is not None and interval > self._most_cycles

    def _add_link(self, link: Link) -> None:
        """A converter is there if producer and consumer take lanes that differ."""
        outs = self._by_lanes(link.producer, "lanes_out")
        ins = self._by_lanes(link.consumer, "lanes_in")
        for (a, b), converter in link.converters.items():
            if a not in outs or b not in ins:
                continue
            if converter is None or self._too_slow(converter[0]):
                self._model.add(sum(outs[a]) + sum(ins[b]) <= 1)
                continue
            there = self._model.new_bool_var(f"{link.consumer}_{a}_{b}")
            self._model.add(there >= sum(outs[a]) + sum(ins[b]) - 1)
            self._terms.append((there, converter[1]))

    def _by_lanes(self, name: str, side: str) -> dict[int, list[Any]]:
        groups: dict[int, list[Any]] = {}
        for option, pick in zip(self._options[name], self._picked[name], strict=True):
            groups.setdefault(getattr(option, side), []).append(pick)
        return groups

    def _use(self, kind: str) -> Any:
        return sum(ceil(getattr(cost, kind) * _SCALE) * x for x, cost in self._terms)

    def _worth(self, measure: Resources | None) -> Any:
        """Resources as one number: shares of a limit, or about LUTs."""

        def per_unit(kind: str) -> int:
            if measure is None:
                return int(_WORTH[kind] * 1000)
            return int(_WORTH_SCALE / max(1.0, getattr(measure, kind)))

        return sum(per_unit(kind) * self._usage[kind] for kind in _WORTH)

    def cheapest(
        self, effort: float = _EFFORT, measure: Resources | None = None
    ) -> dict[str, Option] | None:
        """The choice with the least hardware, or None if none is legal.

        Args:
            effort: deterministic time; the best choice found by then.
            measure: what resources are shares of; the limit, if there is one.
        """
        self._model.minimize(self._worth(self._limit if measure is None else measure))
        return self._solve(effort, first=False)

    def any(self, effort: float = _QUICK) -> dict[str, Option] | None:
        """A legal choice, or None if there is none or none was found with this effort."""
        return self._solve(effort, first=True)

    def _solve(self, effort: float, *, first: bool) -> dict[str, Option] | None:
        if any(not picks for picks in self._picked.values()):
            return None
        solver = deterministic_solver()
        solver.parameters.linearization_level = 2
        solver.parameters.max_deterministic_time = effort
        solver.parameters.stop_after_first_solution = first
        status = solver.solve(self._model)
        if status == self._cp.INFEASIBLE or (first and status == self._cp.UNKNOWN):
            return None
        if status not in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            raise ToolError(
                f"the search for a folding ended without an answer ({solver.status_name(status)})",
                hint="give a folding file instead",
            )
        return {
            name: next(
                option
                for option, pick in zip(self._options[name], picks, strict=True)
                if solver.value(pick)
            )
            for name, picks in self._picked.items()
        }
