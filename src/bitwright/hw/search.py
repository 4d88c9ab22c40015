# SPDX-License-Identifier: Apache-2.0
"""The folding chosen by search over all legal foldings of all blocks.

For every block of the unfolded hardware graph, every legal folding is an option with an interval
and a cost; where neighbours differ in lanes, a width converter is paid for. The goal is either the
least hardware that keeps a rate, or the smallest largest interval within a budget (then the least
hardware).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bitwright.base.errors import TargetError
from bitwright.base.figures import RESOURCE_WORDS, Resources
from bitwright.hw.blocks import blocks_of
from bitwright.hw.cost import block_resources, graph_resources
from bitwright.hw.external import Outside
from bitwright.hw.folding import Folding, NodeFolding
from bitwright.hw.mapping import MapOptions, folded_maker, folded_reader, map_graph
from bitwright.hw.options import FillGoal, Goal, Problem, RateGoal
from bitwright.hw.solver import Chosen, Timings
from bitwright.hw.template import template
from bitwright.ir import Graph

_ROUNDS = 6
_MARGIN = 0.05  # more of what mapping adds, each round
_SMALLER, _LESS = 12, 0.995  # how often a smaller design is looked for, and by what share
#: Blocks of a network: no device has room for as many.
_MOST_BLOCKS = 5000
#: Blocks, FIFOs and converters of all foldings that are mapped in a search: counted, not timed, so
#: that the same network gives the same design on every machine; some minutes.
_MOST_MAPPED = 150_000
_MOST_OPTIONS = 3000  # of all rounds together in which FIFOs are got to know


def search_folding(
    graph: Graph, goal: Goal, *, family: str, outside: Outside | None = None
) -> Folding:
    """The best folding of an integer graph.

    What FIFOs cost is known only after mapping. If they push the design over its limit, the search
    runs again with what they took set aside; if that leaves nothing, a slower design is looked for,
    or the smallest one that keeps the rate is taken, if it fits.

    Args:
        outside: units with external weights; what they read together is limited, too.

    Raises:
        TargetError: the rate or the budget cannot be met; says what is short and by how much.
        ModelError: a node has no hardware.
    """
    blocks = template(graph)
    if len(blocks.nodes) > _MOST_BLOCKS:
        raise TargetError(
            f"{len(blocks.nodes)} blocks; a folding is searched for at most {_MOST_BLOCKS}",
            where=f"folding of {graph.name}",
            hint="use a smaller network, or give a folding file",
        )
    problem = Problem(blocks, family, outside)
    options = MapOptions(family) if outside is None else MapOptions(family, memory=outside.memory)
    limit = goal.budget if isinstance(goal, FillGoal) else goal.limit
    most_cycles = None
    if isinstance(goal, RateGoal):
        problem.check_rate(goal)
        most_cycles = goal.cycles
    if limit is None:
        return _as_folding(problem.smallest(None, most_cycles))
    search = _Fitting(graph, problem, options, limit)
    folding = search.fastest() if most_cycles is None else search.within(most_cycles)
    if folding is not None:
        return folding
    found = [
        _mapped(graph, _as_folding(problem.smallest(measure, most_cycles)), options, limit)
        for measure in _measures(limit)
    ]
    folding, _, used = min(found, key=lambda mapped: _excess(mapped[2], limit))
    cycles = problem.intervals()[-1] if most_cycles is None else most_cycles
    for _ in range(_SMALLER):  # the model knows no FIFOs: what it finds smallest may not be
        if used.fits(limit):
            return folding
        smaller = _Fitting(graph, problem, options, _less(used, limit)).within(cycles)
        if smaller is None:
            break
        folding, _, used = _mapped(graph, smaller, options, limit)
    raise too_small(problem.hardware.name, limit, used)


def _less(used: Resources, limit: Resources) -> Resources:
    """A limit for a design that is nearer to a limit than one that takes so much."""
    have, need = limit.to_json(), used.to_json()
    return Resources(**{kind: max(have[kind], _LESS * need[kind]) for kind in have})


@dataclass
class _Fitting:
    """Foldings that fit a limit when they are mapped.

    Attributes:
        aside: what mapping added to the model of the search, the last time.
        mapped: nodes of all that has been mapped; beyond `_MOST_MAPPED` the best is kept that was
            found until then.
    """

    graph: Graph
    problem: Problem
    options: MapOptions
    limit: Resources
    aside: Resources = field(default_factory=Resources)
    mapped: int = 0

    @property
    def is_over(self) -> bool:
        """Whether enough has been tried."""
        return self.mapped > _MOST_MAPPED

    def within(self, cycles: int) -> Folding | None:
        """The least hardware that keeps an interval; None where none was found that fits.

        First as if there were no FIFOs but those that were seen between blocks of such timings, and
        when nothing fits with these, which may need less elsewhere, as if there were none: a small
        network is soon known. Then with as much set aside as they took.
        """
        fifos: dict[Timings, Resources] = {}
        tried: dict[Timings, None] = {}
        legal = sum(o.cost.fits(self.limit) for each in self.problem.options.values() for o in each)
        for _ in range(_MOST_OPTIONS // max(1, legal)):
            if self.is_over:
                return None
            chosen = self.problem.cheapest(self.limit, cycles, {**tried, **fifos})
            if chosen is None and fifos:
                fifos.clear()
                chosen = self.problem.cheapest(self.limit, cycles, tried)
            if chosen is None:
                return None
            folding, seen = self._mapped(chosen)
            if folding is not None:
                return folding
            fifos |= seen if fifos or not tried else {}
            tried[frozenset((name, option.timing) for name, option in chosen.items())] = None
        aside = self.aside
        for attempt in range(_ROUNDS):
            if self.is_over:
                return None
            left = (self.limit - aside * (1 + _MARGIN * attempt)).most(Resources())
            chosen = self.problem.cheapest(left, cycles)
            if chosen is None:
                return None
            folding, _ = self._mapped(chosen)
            if folding is not None:
                return folding
            aside = aside.most(self.aside)  # FIFOs change with the folding: the most that was seen
        return None

    def _mapped(self, chosen: Chosen) -> tuple[Folding | None, dict[Timings, Resources]]:
        """The folding if it fits, and what its FIFOs cost."""
        folding, hardware, used = _mapped(self.graph, _as_folding(chosen), self.options, self.limit)
        self.mapped += len(hardware.nodes)
        self.aside = used - self.problem.cost(chosen)
        seen = _fifos_of(hardware, chosen, self.options.family)
        return (folding if used.fits(self.limit) else None), seen

    def fastest(self) -> Folding | None:
        """The smallest interval of a folding that fits; None where none was found."""
        intervals = self.problem.intervals()
        least = self.problem.fastest(self.limit)
        low = len(intervals) if least is None else intervals.index(least)
        high, best = len(intervals), None
        while low < high and not self.is_over:
            middle = (low + high) // 2 if best is not None or self.aside != Resources() else low
            found = self.within(intervals[middle])
            if found is None:
                low = middle + 1
            else:
                high, best = middle, found
        return best


def _measures(limit: Resources) -> list[Resources | None]:
    """By what to measure the smallest design: what is limited, about LUTs, above all LUTs, above
    all block RAMs.
    """
    lut, bram = replace(limit, lut=limit.lut / 20), replace(limit, bram=limit.bram / 20)
    return [limit, None, lut, bram]


def _excess(used: Resources, limit: Resources) -> float:
    """The largest share of a limit that is used."""
    there = limit.to_json()
    return max(need / max(there[kind], 0.5) for kind, need in used.to_json().items())


def _mapped(
    graph: Graph, folding: Folding, options: MapOptions, limit: Resources
) -> tuple[Folding, Graph, Resources]:
    """A folding as hardware, and what it takes with its FIFOs; where that is too much, with other
    memories.
    """
    hardware = map_graph(graph, folding, options)
    used = graph_resources(hardware, options.family)
    if used.fits(limit):
        return folding, hardware, used
    styles = memory_styles(hardware, options.family, limit)
    named = {
        name: replace(folding.nodes.get(name, NodeFolding()), ram_style=style)
        for name, style in styles.items()
    }
    folding = replace(folding, nodes={**folding.nodes, **named})
    hardware = map_graph(graph, folding, options)
    return folding, hardware, graph_resources(hardware, options.family)


def _fifos_of(hardware: Graph, chosen: Chosen, family: str) -> dict[Timings, Resources]:
    """What the FIFOs between blocks of these timings cost."""
    found: dict[Timings, Resources] = {}
    for block in blocks_of(hardware).values():
        if block.node.op == "fifo":
            edges = block.node.inputs[0], block.node.output
            ends = folded_maker(hardware, edges[0]), folded_reader(hardware, edges[1])
            names = (end.name for end in ends if end is not None)
            timings = frozenset((name, chosen[name].timing) for name in names)
            found[timings] = found.get(timings, Resources()) + block_resources(block, family)
    return found


# Blocks whose timing is the same with either kind of memory.
_MOVABLE = (
    "fifo", "matvec", "depthwise", "window", "pool_max", "pool_sum", "upsample", "requant",
    "requant_float",
)  # fmt: skip


def memory_styles(hardware: Graph, family: str, limit: Resources) -> dict[str, str]:
    """LUT or block memory of blocks and FIFOs, so that a design fits its limit.

    Of the kind that is short, the memories that give most of it for least of the other change
    over, until the design fits or nothing is left to change.

    Returns:
        name -> style of those that change.
    """
    used = graph_resources(hardware, family)
    short, other, style = "bram", "lut", "distributed"
    if used.bram <= limit.bram:
        short, other, style = "lut", "bram", "block"
    moves: list[tuple[float, str, Resources]] = []
    for block in blocks_of(hardware).values():
        if block.node.op not in _MOVABLE or block.node.string("ram_style") == style:
            continue
        now = block_resources(block, family)
        then = block_resources(replace(block, choices=(("ram_style", style),)), family)
        change = then - now
        gain = -getattr(change, short)
        if gain > 0:
            moves.append((getattr(change, other) / gain, block.name, change))
    styles: dict[str, str] = {}
    for _, name, change in sorted(moves, key=lambda move: move[:2]):
        if getattr(used, short) <= getattr(limit, short):
            break
        if getattr(used + change, other) <= getattr(limit, other):
            styles[name], used = style, used + change
    return styles


def _as_folding(chosen: Chosen) -> Folding:
    return Folding({n: NodeFolding.from_attrs(o.attrs) for n, o in chosen.items() if o.attrs})


def too_small(name: str, limit: Resources, used: Resources) -> TargetError:
    """The error that says what is short and by how much."""
    short = [
        f"{RESOURCE_WORDS[kind]}: about {getattr(used, kind):.0f} needed at least, "
        f"{getattr(limit, kind):.0f} allowed, {missing:.0f} short"
        for kind, missing in used.shortage(limit).items()
    ]
    return TargetError(
        "no folding fits (model): " + ("; ".join(short) or "the resources compete with each other"),
        where=f"folding of {name}",
        hint="use a larger target or budget, a lower target_fps, fewer bits or a smaller network",
    )
