# SPDX-License-Identifier: Apache-2.0
"""What a folding is chosen from: the options of every block, and the links between blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from bitwright.base.errors import ModelError, TargetError
from bitwright.base.figures import Resources
from bitwright.hw.blocks import Block, Dwc, Fold, MatVec, Port, blocks_of
from bitwright.hw.cost import block_resources, end_resources
from bitwright.hw.external import Outside, WeightMemory, demand_of
from bitwright.hw.mapping import UNFOLDED, converter_steps, folded_maker, folded_reader
from bitwright.hw.solver import (
    Chosen,
    End,
    FoldingModel,
    Link,
    Option,
    Timings,
    cost_of,
    undominated,
)
from bitwright.ir import Graph, Node, TensorType

_MANY = 64  # options of one block
_TOO_FAST = 4


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
        pixels = folded.in_pixels, folded.out_pixels
        lanes = fold.lanes_in, fold.lanes_out
        found.append(Option(fold.as_dict(), *lanes, interval, cost, demand, *pixels))
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
            if block.node.op not in UNFOLDED
        }
        for node in self.hardware:
            if node.op in UNFOLDED:
                self._add_follower(blocks[node.name])
        for edge in self.hardware.inputs:
            self._add_end(edge, "axis_in")
        for edge in self.hardware.outputs:
            self._add_end(edge, "axis_out")
        self._converters: dict[tuple[int, int, int, int], tuple[int, Resources]] = {}
        self.links = list(self._all_links())

    def _add_follower(self, block: Block) -> None:
        """What a fork takes is paid by the block whose lanes it has."""
        self._add_cost(
            block.node.inputs[0],
            lambda lanes: block_resources(replace(block, choices=(("lanes", lanes),)), self.family),
        )

    def _add_end(self, edge: str, kind: str) -> None:
        """What an AXI end takes, too."""
        tensor = self.hardware.types[edge]
        self._add_cost(
            edge, lambda lanes: end_resources(Port(edge, tensor, lanes), self.family, kind)
        )

    def _add_cost(self, edge: str, cost: Callable[[int], Resources]) -> None:
        """Have the block that says the lanes of an edge pay what depends on them."""
        name, side = _lanes_of(self.hardware, edge)
        costs = {
            lanes: cost(lanes) for lanes in {getattr(option, side) for option in self.options[name]}
        }
        self.options[name] = [
            replace(option, cost=option.cost + costs[getattr(option, side)])
            for option in self.options[name]
        ]

    def _all_links(self) -> Iterator[Link]:
        """One for every stream on which lanes can differ."""
        for consumer in self.hardware:
            for edge in consumer.inputs if consumer.op not in UNFOLDED else ():
                name, side = _lanes_of(self.hardware, edge)
                if name != consumer.name:
                    yield self._link(name, side, consumer, self.hardware.types[edge])

    def _link(self, name: str, side: str, consumer: Node, tensor: TensorType) -> Link:
        """Converters between all lanes of two blocks.

        None can restore the order of a window whose beats are its groups. And none stands between
        a pad and its window: a pad directly in front makes its border when the window has room,
        one behind a converter needs a FIFO of a row or two.
        """
        fixed = side == "lanes_out" and self.hardware.node(name).op == "pad"
        table: dict[tuple[End, End], tuple[int, Resources] | None] = {}
        for have in sorted({o.end(side) for o in self.options[name]}):
            for want in sorted({o.end("lanes_in") for o in self.options[consumer.name]}):
                if have != want:
                    never = fixed or have[1] or want[1]
                    found = None if never else self._converter(tensor, have[0], want[0])
                    table[have, want] = found
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
        self, most_cycles: int | None, fifos: Mapping[Timings, Resources | None] | None = None
    ) -> FoldingModel:
        options = {name: near(found, most_cycles) for name, found in self.options.items()}
        demand = self.memory.beats_per_cycle if self.memory else 0.0
        return FoldingModel(options, self.links, most_cycles, demand, fifos)

    def cheapest(
        self,
        limit: Resources | None,
        most_cycles: int | None,
        fifos: Mapping[Timings, Resources | None] | None = None,
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
                f"cycles a frame; {worst} needs {fastest[worst]} with as many lanes as it can have",
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
    maker = folded_maker(hardware, edge)
    if maker is not None:
        return maker.name, "lanes_out"
    while (producer := hardware.producer(edge)) is not None:
        edge = producer.inputs[0]
    reader = folded_reader(hardware, edge)
    if reader is None:
        raise ModelError(
            "it becomes an output as it is: there is no block to build",
            where=edge,
            hint="leave out what only gives its input another shape",
        )
    return reader.name, "lanes_in"
