# SPDX-License-Identifier: Apache-2.0
"""How many devices a network needs for a rate, and how fast it is on a number of devices.

The folding is searched with all devices' resources together, the design is mapped, and dynamic
programming over all cuts finds the fewest parts that each fit their device (of those, the ones
with the least traffic between them). Where that fails although the sum would fit, the parts are
made as even as possible and each is folded again with one device as its limit. The result fits by
the model of the mapped parts themselves. It is the best that this search finds, not a proof that
fewer devices cannot do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from bitwright.base.errors import RecipeError, TargetError
from bitwright.base.figures import Resources
from bitwright.hw.blocks import blocks_of
from bitwright.hw.cuts import LINK_LATENCY, CutPlan, load_of
from bitwright.hw.dataflow import block_intervals
from bitwright.hw.external import Outside, WeightMemory
from bitwright.hw.folding import Folding, NodeFolding
from bitwright.hw.mapping import MapOptions, map_graph
from bitwright.hw.options import FillGoal, Goal, Problem, RateGoal
from bitwright.hw.partition import Partition, cut_graph
from bitwright.hw.search import search_folding
from bitwright.hw.solver import FoldingModel
from bitwright.hw.template import template
from bitwright.ir import Graph

_SHARES = (1.0, 0.9, 0.8)  # of a device that a part's own folding may plan with: FIFOs come on top
_STEPS = 5  # of the bisection of the rate
_SLOWER = 1.25
_LIMIT = 64  # devices


def partition(
    graph: Graph,
    device: Resources,
    *,
    family: str,
    cycles: int | None = None,
    devices: int | None = None,
    latency: int = LINK_LATENCY,
    outside: Outside | None = None,
) -> Partition:
    """An integer graph on several equal devices.

    Args:
        device: what one device has for the design.
        cycles: largest interval allowed: then the fewest devices that keep it.
        devices: number of devices: with `cycles` the most that may be used, else all of them are
            used for the best rate.
        latency: cycles of a link between two devices.
        outside: units with external weights; every device has such a memory, and what all units
            read together is kept within what one gives.

    Raises:
        RecipeError: neither `cycles` nor `devices` is given, or one is less than 1.
        TargetError: it is not possible; names the layer that is too large or too slow, or says how
            many devices it would take.
        ModelError: a node has no hardware.
    """
    if cycles is None and devices is None:
        raise RecipeError("give cycles (a rate), devices, or both", where="partition")
    for name, value in (("cycles", cycles), ("devices", devices)):
        if value is not None and value < 1:
            raise RecipeError(f"{name} must be at least 1, got {value}", where="partition")
    search = _Search(graph, device, family, latency, outside)
    search.check_layers(cycles)
    if cycles is not None:
        return search.fewest(cycles, devices)
    assert devices is not None
    return search.fastest(devices)


class _Search:
    """The options of every block, worked out once."""

    def __init__(
        self,
        graph: Graph,
        device: Resources,
        family: str,
        latency: int,
        outside: Outside | None,
    ) -> None:
        self.graph, self.device, self.family, self.latency = graph, device, family, latency
        self.outside = outside
        memory = outside.memory if outside else WeightMemory()
        self.options = MapOptions(family, memory=memory)
        self.problem = Problem(template(graph), family, outside)

    def _folding(self, goal: Goal) -> Folding:
        return search_folding(self.graph, goal, family=self.family, outside=self.outside)

    def check_layers(self, cycles: int | None) -> None:
        """Every block must fit a device alone, and be fast enough.

        Raises:
            TargetError: one does not; names it, the layer, and what it needs.
        """
        blocks = blocks_of(self.problem.hardware)
        for name, options in self.problem.options.items():
            source = blocks[name].node.source
            where = f"{name} ({source})" if source and source != name else name
            legal = [o for o in options if cycles is None or o.interval <= cycles]
            if not legal:
                fastest = min(o.interval for o in options)
                raise TargetError(
                    f"needs {fastest} cycles a frame, with as many lanes as it can have; "
                    f"{cycles} are allowed",
                    where=where,
                    hint="a layer is not cut apart: use a lower rate, or make this layer smaller",
                )
            if any(o.cost.fits(self.device) for o in legal):
                continue
            least = min(legal, key=lambda o: load_of(o.cost, self.device))
            need, there = least.cost.to_json(), self.device.to_json()
            short = ", ".join(
                f"{kind.upper()} {need[kind]:.0f} of {there[kind]:.0f}"
                for kind in least.cost.shortage(self.device)
            )
            rate = "" if cycles is None else f" at {cycles} cycles a frame"
            raise TargetError(
                f"does not fit one device alone{rate} (model): {short}",
                where=where,
                hint="a layer is not cut apart: use a larger device, a lower rate, fewer bits, or "
                "external weights",
            )

    def fewest(self, cycles: int, most: int | None) -> Partition:
        """The fewest devices that keep an interval."""
        folding = self._folding(RateGoal(1.0, cycles))
        plan = self._plan(folding)
        least = max(1, ceil(load_of(plan.part_cost(0, len(plan.units)), self.device) * 0.5))
        for count in range(least, (most or min(_LIMIT, len(plan.units))) + 1):
            found = self.on(count, cycles)
            if found is not None:
                return found
        if most is None:
            raise TargetError(
                f"no number of devices up to {_LIMIT} was found for {cycles} cycles a frame",
                where=f"partition of {self.graph.name}",
                hint="use a larger device or a lower rate",
            )
        need = load_of(plan.part_cost(0, len(plan.units)), self.device)
        raise TargetError(
            f"{cycles} cycles a frame need about {need:.1f} devices (model), {most} are allowed",
            where=f"partition of {self.graph.name}",
            hint="allow more devices, use a larger device or a lower rate",
        )

    def fastest(self, count: int) -> Partition:
        """The shortest interval on a number of devices."""
        try:
            folding = self._folding(FillGoal(self.device * count))
        except TargetError as error:
            raise TargetError(
                f"on {count} devices together {error.message}",
                where=f"partition of {self.graph.name}",
                hint="use more devices or a larger one, fewer bits or a smaller network",
            ) from error
        plan = self._plan(folding)
        best = self._cut(plan, count)
        if best is not None:
            return best
        low = max(block_intervals(plan.hardware).values())
        slowest = max(max(o.interval for o in found) for found in self.problem.options.values())
        high = low
        while best is None and high < slowest:
            high = min(ceil(high * _SLOWER), slowest)
            best = self.on(count, high)
            low = low if best else high
        if best is None:
            raise TargetError(
                f"no folding was found for which {count} devices are enough",
                where=f"partition of {self.graph.name}",
                hint="use more devices or a larger one",
            )
        for _ in range(_STEPS):
            middle = (low + high) // 2
            found = self.on(count, middle) if low < middle < high else None
            best, high, low = (found, middle, low) if found else (best, high, middle)
        return best

    def on(self, count: int, cycles: int) -> Partition | None:
        """A partition on at most so many devices with at most this interval; None: none found."""
        try:
            folding = self._folding(RateGoal(1.0, cycles, self.device * count))
        except TargetError:
            return None
        plan = self._plan(folding)
        found = self._cut(plan, count)
        if found is not None or count == 1:
            return found
        for share in _SHARES:
            again = self._fold_parts(plan, plan.even_cuts(count, self.device), cycles, share)
            if again is None:
                return None
            found = self._cut(self._plan(again), count)
            if found is not None:
                return found
        return None

    def _plan(self, folding: Folding) -> CutPlan:
        mapped = map_graph(self.graph, folding, self.options)
        return CutPlan(mapped, self.family, self.latency)

    def _cut(self, plan: CutPlan, count: int) -> Partition | None:
        """The design cut into at most `count` parts that fit; None if there are none."""
        device = self.device
        for _ in range(3):
            cuts = plan.best_cuts(device)
            if cuts is None or len(cuts) + 1 > count:
                return None
            found = cut_graph(plan.hardware, cuts, self.family, self.latency)
            if all(used.fits(self.device) for used in found.resources(self.family)):
                return found
            device *= 0.97
        return None

    def _fold_parts(
        self, plan: CutPlan, cuts: Sequence[int], cycles: int, share: float
    ) -> Folding | None:
        """Each part folded on its own, with this share of a device as its limit."""
        bounds = (0, *cuts, len(plan.units))
        chosen: dict[str, NodeFolding] = {}
        for start, stop in pairwise(bounds):
            names = {unit.name for unit in plan.units[start:stop]}
            options = {n: o for n, o in self.problem.options.items() if n in names}
            links = [k for k in self.problem.links if {k.producer, k.consumer} <= names]
            demand = self.options.memory.beats_per_cycle
            model = FoldingModel(options, links, cycles, demand)
            found = model.cheapest(self.device * share) if options else {}
            if found is None:
                return None
            chosen |= {n: NodeFolding.from_attrs(o.attrs) for n, o in found.items() if o.attrs}
        return Folding(chosen)
