# SPDX-License-Identifier: Apache-2.0
"""The folding chosen by search over all legal foldings of all blocks.

For every block of the unfolded hardware graph, every legal folding is an option with an interval
and a cost; where neighbours differ in lanes, a width converter is paid for. The goal is either the
least hardware that keeps a rate, or the smallest largest interval within a budget (then the least
hardware).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bitwright.errors import TargetError
from bitwright.figures import Resources
from bitwright.hw.blocks import Block, Dwc, blocks_of
from bitwright.hw.cost import block_resources, graph_resources
from bitwright.hw.folding import Folding, NodeFolding
from bitwright.hw.mapping import MapOptions, converter_steps, map_graph
from bitwright.hw.solver import KINDS, FoldingModel, Link, Option, undominated
from bitwright.hw.template import template
from bitwright.ir import Graph, Node, TensorType

_ROUNDS = 6
_FOLLOWERS = ("flatten", "fork", "top_k")  # take the lanes they are given


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


def search_folding(graph: Graph, goal: Goal, *, family: str) -> Folding:
    """The best folding of an integer graph.

    What FIFOs cost is known only after mapping; if they push the design over its limit, the search
    runs again with that much less to spend.

    Raises:
        TargetError: the rate or the budget cannot be met; says what is short and by how much.
        ModelError: a node has no hardware.
    """
    problem = Problem(template(graph), family)
    limit = goal.budget if isinstance(goal, FillGoal) else goal.limit
    allowed = limit
    for attempt in range(_ROUNDS):
        folding = _as_folding(problem.solve(goal, allowed))
        if limit is None or allowed is None:
            return folding
        used = graph_resources(map_graph(graph, folding, MapOptions(family)), family)
        over = {k: getattr(used, k) - getattr(limit, k) for k in KINDS}
        if max(over.values()) <= 0:
            return folding
        # Less by what was too much, and by a little more each time: FIFOs change with the folding.
        margin = 0.01 * (attempt + 1)
        allowed = Resources(
            **{
                k: getattr(allowed, k)
                - (over[k] + margin * getattr(limit, k) if over[k] > 0 else 0)
                for k in KINDS
            }
        )
    raise too_small(problem.hardware.name, limit or Resources(), used)


def _as_folding(chosen: dict[str, Option]) -> Folding:
    return Folding({n: NodeFolding.from_attrs(o.attrs) for n, o in chosen.items() if o.attrs})


def options_of(block: Block, family: str) -> list[Option]:
    """The foldings of a block that are not worse in everything than another with the same lanes."""
    found: list[Option] = []
    for fold in block.foldings():
        folded = block.folded(fold)
        ports = (*folded.inputs, *folded.outputs)
        interval = max(folded.interval, *(port.beats for port in ports))
        cost = block_resources(folded, family)
        found.append(Option(fold.as_dict(), fold.lanes_in, fold.lanes_out, interval, cost))
    return undominated(found)


class Problem:
    """The options of every block of a template, and the links between them."""

    def __init__(self, hardware: Graph, family: str) -> None:
        self.hardware, self.family = hardware, family
        blocks = blocks_of(hardware)
        self.options = {name: options_of(block, family) for name, block in blocks.items()}
        self.links = [self._link(*pair) for pair in _pairs(hardware)]

    def _link(self, producer: Node, consumer: Node, tensor: TensorType) -> Link:
        table: dict[tuple[int, int], tuple[int, Resources]] = {}
        for have in sorted({o.lanes_out for o in self.options[producer.name]}):
            for want in sorted({o.lanes_in for o in self.options[consumer.name]}):
                if have != want:
                    table[have, want] = self._converter(tensor, have, want)
        return Link(producer.name, consumer.name, table)

    def _converter(self, tensor: TensorType, have: int, want: int) -> tuple[int, Resources]:
        interval, cost = 0, Resources()
        for name, before, after in converter_steps("dwc", have, want, tensor.size):
            attrs = {"in_lanes": before, "out_lanes": after}
            block = Dwc(Node(name, "dwc", ("x",), ("y",), attrs), tensor, tensor)
            interval = max(interval, tensor.size // min(before, after))
            cost = cost + block_resources(block, self.family)
        return interval, cost

    def solve(self, goal: Goal, limit: Resources | None) -> dict[str, Option]:
        """The best choice.

        Raises:
            TargetError: there is none.
        """
        if isinstance(goal, RateGoal):
            self._check_rate(goal)
            chosen = FoldingModel(self.options, self.links, limit, goal.cycles).cheapest()
            if chosen is None:
                raise too_small(
                    self.hardware.name, limit or Resources(), self.smallest(goal.cycles)
                )
            return chosen
        # What no budget can beat is often reached, and is tried first: it is the quicker question.
        bound = max(min(o.interval for o in found) for found in self.options.values())
        chosen = FoldingModel(self.options, self.links, limit, bound).cheapest()
        if chosen is not None:
            return chosen
        fastest = FoldingModel(self.options, self.links, limit).fastest()
        if fastest is None:
            raise too_small(self.hardware.name, goal.budget, self.smallest(None))
        cycles = max(option.interval for option in fastest.values())
        return FoldingModel(self.options, self.links, limit, cycles).cheapest() or fastest

    def _check_rate(self, goal: RateGoal) -> None:
        """Every block must be able to keep up, however much hardware it gets."""
        fastest = {n: min(o.interval for o in options) for n, options in self.options.items()}
        worst = max(fastest, key=lambda name: fastest[name])
        if fastest[worst] > goal.cycles:
            raise TargetError(
                f"{goal.fps:g} frames a second at {goal.clock_hz / 1e6:g} MHz leave {goal.cycles} "
                f"cycles a frame; {worst} needs {fastest[worst]}, however much hardware it gets",
                where=worst,
                hint=f"this network reaches {goal.clock_hz / fastest[worst]:.0f} frames a second",
            )

    def smallest(self, cycles: int | None) -> Resources:
        """About what the network takes at least, when nothing is limited."""
        chosen = FoldingModel(self.options, self.links, None, cycles).cheapest() or {}
        result = Resources()
        for option in chosen.values():
            result = result + option.cost
        return result


def _pairs(hardware: Graph) -> Iterator[tuple[Node, Node, TensorType]]:
    """(producer, consumer, tensor) of every stream on which lanes can differ."""
    for node in hardware:
        if node.op in _FOLLOWERS:
            continue
        (edge,) = node.inputs
        producer = hardware.producer(edge)
        while producer is not None and producer.op in _FOLLOWERS:
            (edge,) = producer.inputs
            producer = hardware.producer(edge)
        if producer is not None:
            yield producer, node, hardware.types[edge]


def too_small(name: str, limit: Resources, used: Resources) -> TargetError:
    """The error that says what is short and by how much."""
    words = {"lut": "LUTs", "ff": "flip-flops", "dsp": "DSP blocks", "bram": "block RAMs"}
    short = [
        f"{words[k]}: about {getattr(used, k):.0f} needed at least, {getattr(limit, k):.0f} "
        f"allowed, {getattr(used, k) - getattr(limit, k):.0f} short"
        for k in KINDS
        if getattr(used, k) > getattr(limit, k)
    ]
    return TargetError(
        "no folding fits (model): " + ("; ".join(short) or "the resources compete with each other"),
        where=f"folding of {name}",
        hint="use a larger target or budget, a lower target_fps, fewer bits or a smaller network",
    )


__all__ = ["FillGoal", "Goal", "Problem", "RateGoal", "options_of", "search_folding"]
