# SPDX-License-Identifier: Apache-2.0
"""The folding chosen by search over all legal foldings of all blocks.

For every block of the unfolded hardware graph, every legal folding is an option with an interval
and a cost; where neighbours differ in lanes, a width converter is paid for. The goal is either the
least hardware that keeps a rate, or the smallest largest interval within a budget (then the least
hardware).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bitwright.base.errors import TargetError
from bitwright.base.figures import RESOURCE_WORDS, Resources
from bitwright.hw.blocks import Block, Dwc, Fold, MatVec, blocks_of
from bitwright.hw.cost import block_resources, graph_resources
from bitwright.hw.external import Outside, WeightMemory, demand_of
from bitwright.hw.folding import Folding, NodeFolding
from bitwright.hw.mapping import MapOptions, converter_steps, map_graph
from bitwright.hw.solver import Chosen, FoldingModel, Link, Meeting, Option, cost_of, undominated
from bitwright.hw.template import template
from bitwright.ir import Graph, Node, TensorType

_ROUNDS = 6
_MARGIN = 0.05  # more of what mapping adds, each round
_MANY = 64  # options of one block
_TOO_FAST = 4
_MOST_OPTIONS = 1000  # of all rounds together in which FIFOs are got to know
_FOLLOWERS = ("flatten", "fork")  # have the lanes of the stream they pass on
_PLUMBING = ("dwc", "fifo", *_FOLLOWERS)


@dataclass(frozen=True)
class RateGoal:
    """At least `fps` frames a second at `clock_hz`, with as little hardware as possible.

    `limit` is what there is (a device); None for no limit.
    """

    fps: float
    clock_hz: float
    limit: Resources | None = None

    @property
    def cycles(self) -> int:
        """The largest interval allowed."""
        return int(self.clock_hz / self.fps)


@dataclass(frozen=True)
class FillGoal:
    """As fast as possible within a budget."""

    budget: Resources


Goal = RateGoal | FillGoal


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
    problem = Problem(template(graph), family, outside)
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
    if used.fits(limit):
        return folding
    raise too_small(problem.hardware.name, limit, used)


@dataclass
class _Fitting:
    """Foldings that fit a limit when they are mapped.

    Attributes:
        aside: what mapping added to the model of the search, the last time.
    """

    graph: Graph
    problem: Problem
    options: MapOptions
    limit: Resources
    aside: Resources = field(default_factory=Resources)

    def within(self, cycles: int) -> Folding | None:
        """The least hardware that keeps an interval; None where none was found that fits.

        First as if there were no FIFOs but those that were seen between blocks of such timings, and
        when nothing fits with these, which may need less elsewhere, as if there were none: a small
        network is soon known. Then with as much set aside as they took.
        """
        fifos: dict[Meeting, Resources] = {}
        tried: dict[Meeting, None] = {}
        for _ in range(_MOST_OPTIONS // sum(map(len, self.problem.options.values()))):
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
            left = (self.limit - aside * (1 + _MARGIN * attempt)).most(Resources())
            chosen = self.problem.cheapest(left, cycles)
            if chosen is None:
                return None
            folding, _ = self._mapped(chosen)
            if folding is not None:
                return folding
            aside = aside.most(self.aside)  # FIFOs change with the folding: the most that was seen
        return None

    def _mapped(self, chosen: Chosen) -> tuple[Folding | None, dict[Meeting, Resources]]:
        """The folding if it fits, and what its FIFOs cost."""
        folding, hardware, used = _mapped(self.graph, _as_folding(chosen), self.options, self.limit)
        self.aside = used - self.problem.cost(chosen)
        seen = _fifos_of(hardware, chosen, self.options.family)
        return (folding if used.fits(self.limit) else None), seen

    def fastest(self) -> Folding | None:
        """The smallest interval of a folding that fits; None where none was found."""
        intervals = self.problem.intervals()
        least = self.problem.fastest(self.limit)
        low = len(intervals) if least is None else intervals.index(least)
        high, best = len(intervals), None
        while low < high:
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


def _fifos_of(hardware: Graph, chosen: Chosen, family: str) -> dict[Meeting, Resources]:
    """What the FIFOs between blocks of these timings cost."""
    found: dict[Meeting, Resources] = {}
    for name, block in blocks_of(hardware).items():
        if block.node.op == "fifo":
            ends = _before(hardware, hardware.node(name)), _behind(hardware, block.node)
            meeting = frozenset((end, chosen[end].timing) for end in ends if end in chosen)
            cost = block_resources(block, family)
            found[meeting] = found[meeting] + cost if meeting in found else cost
    return found


def _before(hardware: Graph, node: Node) -> str:
    """The folded block whose beats a node gets; "" at an input of the graph."""
    producer = hardware.producer(node.inputs[0])
    if producer is None or producer.op not in _PLUMBING:
        return "" if producer is None else producer.name
    return _before(hardware, producer)


def _behind(hardware: Graph, node: Node) -> str:
    """The (first) folded block that reads what a node gives; "" at an output of the graph."""
    readers = hardware.consumers(node.outputs[0])
    if not readers or readers[0].op not in _PLUMBING:
        return readers[0].name if readers else ""
    return _behind(hardware, readers[0])


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


def options_of(block: Block, family: str, memory: WeightMemory | None = None) -> list[Option]:
    """The foldings of a block that are not worse in everything than another with the same lanes.

    Args:
        memory: what external weights are read from.
    """
    found: list[Option] = []
    outside = isinstance(block, MatVec) and block.external and memory is not None
    for fold in _with_styles(block):
        folded = block.folded(fold)
        ports = (*folded.inputs, *folded.outputs)
        interval = max(folded.interval, *(port.beats for port in ports))
        cost = block_resources(folded, family)
        demand = 0.0
        if outside and isinstance(folded, MatVec) and memory is not None:
            demand = demand_of(folded, memory.data_bits)
        choice = Option(fold.as_dict(), fold.lanes_in, fold.lanes_out, interval, cost, demand)
        found.append(choice)
    return undominated(found)


def _with_styles(block: Block) -> Iterator[Fold]:
    """All foldings, each with both kinds of memory where the block has one."""
    for fold in block.foldings():
        if "ram_style" not in block.node.attrs or "ram_style" in fold.as_dict():
            yield fold
            continue
        for style in ("distributed", "block"):
            yield replace(fold, attrs=(*fold.attrs, ("ram_style", style)))


class Problem:
    """The options of every block of a template, and the links between them."""

    memory: WeightMemory | None = None

    def __init__(self, hardware: Graph, family: str, outside: Outside | None = None) -> None:
        self.hardware = hardware if outside is None else outside.move(hardware)
        self.family, self.memory = family, outside.memory if outside else None
        blocks = blocks_of(self.hardware)
        self.options = {
            name: options_of(block, family, self.memory)
            for name, block in blocks.items()
            if block.node.op not in _FOLLOWERS
        }
        for node in self.hardware:
            if node.op in _FOLLOWERS:
                self._add_follower(blocks[node.name])
        self._converters: dict[tuple[int, int, int, int], tuple[int, Resources]] = {}
        self.links = list(self._all_links())

    def _add_follower(self, block: Block) -> None:
        """What a fork takes is paid by the block whose lanes it has."""
        name, side = _lanes_of(self.hardware, block.node.inputs[0])
        costs = {
            lanes: block_resources(replace(block, choices=(("lanes", lanes),)), self.family)
            for lanes in {getattr(option, side) for option in self.options[name]}
        }
        self.options[name] = [
            replace(option, cost=option.cost + costs[getattr(option, side)])
            for option in self.options[name]
        ]

    def _all_links(self) -> Iterator[Link]:
        """One for every stream on which lanes can differ."""
        for consumer in self.hardware:
            for edge in consumer.inputs if consumer.op not in _FOLLOWERS else ():
                name, side = _lanes_of(self.hardware, edge)
                if name != consumer.name:
                    yield self._link(name, side, consumer, self.hardware.types[edge])

    def _link(self, name: str, side: str, consumer: Node, tensor: TensorType) -> Link:
        """Converters between all lanes of two blocks.

        None can restore the order of a window whose beats are its groups. And none stands between
        a pad and its window: a pad directly in front makes its border when the window has room,
        one behind a converter needs a FIFO of a row or two.
        """
        maker = self.hardware.node(name) if side == "lanes_out" else None
        fixed = maker is not None and (
            maker.op == "pad" or (maker.op == "window" and maker.integer("groups") == 0)
        )
        table: dict[tuple[int, int], tuple[int, Resources] | None] = {}
        for have in sorted({getattr(o, side) for o in self.options[name]}):
            for want in sorted({o.lanes_in for o in self.options[consumer.name]}):
                if have != want:
                    table[have, want] = None if fixed else self._converter(tensor, have, want)
        return Link(name, consumer.name, table, side)

    def _converter(self, tensor: TensorType, have: int, want: int) -> tuple[int, Resources]:
        key = (tensor.size, tensor.wire_bits, have, want)
        if key not in self._converters:
            interval, cost = 0, Resources()
            for name, before, after in converter_steps("dwc", have, want, tensor.size):
                attrs = {"in_lanes": before, "out_lanes": after}
                block = Dwc(Node(name, "dwc", ("x",), ("y",), attrs), tensor, tensor)
                interval = max(interval, tensor.size // min(before, after))
                cost = cost + block_resources(block, self.family)
            self._converters[key] = interval, cost
        return self._converters[key]

    def _model(
        self, most_cycles: int | None, fifos: Mapping[Meeting, Resources | None] | None = None
    ) -> FoldingModel:
        options = {name: near(found, most_cycles) for name, found in self.options.items()}
        demand = self.memory.beats_per_cycle if self.memory else 0.0
        return FoldingModel(options, self.links, most_cycles, demand, fifos)

    def cheapest(
        self,
        limit: Resources | None,
        most_cycles: int | None,
        fifos: Mapping[Meeting, Resources | None] | None = None,
    ) -> Chosen | None:
        """The least hardware within a limit on resources and on the interval.

        Args:
            fifos: see `FoldingModel`.
        """
        model = self._model(most_cycles, fifos)
        return model.smallest() if limit is None else model.cheapest(limit)

    def intervals(self) -> list[int]:
        """Every interval that a choice can have, ascending."""
        found = {o.interval for options in self.options.values() for o in options}
        converters = (c for link in self.links for c in link.converters.values())
        found |= {converter[0] for converter in converters if converter is not None}
        least = max(min(o.interval for o in options) for options in self.options.values())
        return sorted(cycles for cycles in found if cycles >= least)

    def fastest(self, limit: Resources | None) -> int | None:
        """The smallest interval that is possible within a limit; None if none is."""
        steps = self.intervals()
        low, high = 0, len(steps)  # steps[high] works, or high is the end
        while low < high:
            middle = (low + high) // 2
            model = self._model(steps[middle])
            if (model.smallest() if limit is None else model.any(limit)) is None:
                low = middle + 1
            else:
                high = middle
        return steps[high] if high < len(steps) else None

    def check_rate(self, goal: RateGoal) -> None:
        """Make sure that hardware, however much, reaches the rate.

        Raises:
            TargetError: it does not; names the block, and the rate that can be reached.
        """
        fastest = {name: min(o.interval for o in found) for name, found in self.options.items()}
        worst = max(fastest, key=lambda name: fastest[name])
        if fastest[worst] > goal.cycles:
            raise TargetError(
                f"{goal.fps:g} frames a second at {goal.clock_hz / 1e6:g} MHz leave {goal.cycles} "
                f"cycles a frame; {worst} needs {fastest[worst]}, however much hardware it gets",
                where=worst,
                hint=f"this network reaches {goal.clock_hz / fastest[worst]:.0f} frames a second",
            )

    def smallest(self, limit: Resources | None, most_cycles: int | None) -> Chosen:
        """The least hardware, measured by what is limited, whether it fits or not.

        Raises:
            TargetError: no converters between the blocks are fast enough.
        """
        chosen = self._model(most_cycles).smallest(limit)
        if chosen is None and self.memory is not None:
            raise self._starved(self.memory, most_cycles)
        if chosen is None:
            raise TargetError(
                f"no converters between its blocks keep an interval of {most_cycles} cycles",
                where=f"folding of {self.hardware.name}",
                hint="use a lower target_fps",
            )
        return chosen

    def _starved(self, memory: WeightMemory, most_cycles: int | None) -> TargetError:
        """The units with external weights need more than the memory gives."""
        least = {
            name: min(o.demand for o in found if most_cycles is None or o.interval <= most_cycles)
            for name, found in self.options.items()
            if found[0].demand
        }
        word = memory.data_bits / 8
        listed = ", ".join(f"{name} {demand * word:g}" for name, demand in least.items())
        rate = "" if most_cycles is None else f" at {most_cycles} cycles a frame"
        return TargetError(
            f"the weights from outside need at least {sum(least.values()) * word:g} bytes a cycle"
            f"{rate} ({listed}); the memory gives {memory.beats_per_cycle * word:g}",
            where=f"folding of {self.hardware.name}",
            hint="use a lower target_fps, a wider port or a faster memory, or keep some of them "
            "internal",
        )

    def cost(self, chosen: Mapping[str, Option]) -> Resources:
        """What a choice takes, converters included."""
        return cost_of(chosen, self.links)


def near(options: Sequence[Option], most_cycles: int | None) -> list[Option]:
    """The options that are fast enough, and where there are many, not far too fast.

    A matrix unit of many rows and columns has thousands of foldings; one several times faster than
    needed costs several times as much and is never the best.
    """
    if most_cycles is None or len(options) <= _MANY:
        return list(options)
    legal = [o for o in options if o.interval <= most_cycles]
    slowest = max((o.interval for o in legal), default=0)
    return [o for o in legal if o.interval * _TOO_FAST >= slowest]


def _lanes_of(hardware: Graph, edge: str) -> tuple[str, str]:
    """The block that says how many lanes an edge has before converters, and its option's field.

    That is who makes it, behind forks and renamings; at an input of the graph the first reader.
    """
    producer = hardware.producer(edge)
    while producer is not None and producer.op in _FOLLOWERS:
        (edge,) = producer.inputs
        producer = hardware.producer(edge)
    if producer is not None:
        return producer.name, "lanes_out"
    reader = hardware.consumers(edge)[0]
    while reader.op in _FOLLOWERS:
        reader = hardware.consumers(reader.outputs[0])[0]
    return reader.name, "lanes_in"


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
