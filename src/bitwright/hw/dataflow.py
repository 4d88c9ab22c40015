# SPDX-License-Identifier: Apache-2.0
"""Exact per-beat timing of a hardware graph: its interval, its latency, and how deep its FIFOs
must be.

The schedule. Let T be the largest block interval. A frame enters every T cycles, its beats spread
evenly; every block does its steps as early as its input and its own pace allow (see `Firing` and
`Window`). All times are then exactly periodic with period T, so one frame of times describes the
stream for ever. The depth of an edge is the largest number of beats that have been made and not
yet taken.

Why the hardware then runs at T. Blocks wait for input and for room, nothing else, so a self-timed
pipeline never takes a beat later than any schedule that respects its FIFO depths. A pipeline that
stands still as a whole may hold bubbles; that is at most its latency in beats, which is added to
the depth behind it (the argument is in docs/timing-proof.md). No block can beat its own interval,
so the pipeline runs at T exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from bitwright.base.errors import GraphError
from bitwright.hw.blocks import Block, Fifo, Pad, Port, Times, Window, blocks_of
from bitwright.ir import Graph, Node

_EARLY = -(1 << 40)
DIRECT_BEATS = 2  # what the two-entry register at the end of every block holds
FIFO_LATENCY = Fifo.LATENCY
_AXIS_LATENCY = 1  # the register at either end of the top


@dataclass(frozen=True)
class Dataflow:
    """What the timing model says about a hardware graph.

    Attributes:
        interval: cycles between frames in the steady state: the largest block interval.
        latency: cycles from the first input beat to the last output beat of the first frame, both
            included, as if no FIFO were ever full.
        bottleneck: the block whose interval that is.
        beats: edge -> largest number of beats between producer and consumer in the model's
            schedule.
        waits: edge -> cycles of a frame in which two beats or more are there: without a FIFO, all
            of the producer would stand still then.
        pauses: edge -> how often in a frame its reader lets a beat wait: takes none in a cycle, and
            the next one, which is there, later.
        intervals: block -> its own interval.
        critical: edges whose reader waits for beats in the middle of a frame, and has no time to
            spare because of that: beats that come later than in the schedule make it slower.
    """

    interval: int
    latency: int
    bottleneck: str
    beats: Mapping[str, int]
    waits: Mapping[str, int]
    pauses: Mapping[str, int]
    intervals: Mapping[str, int]
    critical: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for name in ("beats", "waits", "pauses", "intervals"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))


def block_intervals(graph: Graph) -> dict[str, int]:
    """Every block's own cycles per frame: steps, and beats through any of its ports."""
    return {name: _interval(block) for name, block in blocks_of(graph).items()}


def _interval(block: Block) -> int:
    ports = (*block.inputs, *block.outputs)
    return max(block.interval, *(port.beats for port in ports))


def analyse(graph: Graph, delays: Mapping[str, int] | None = None) -> Dataflow:
    """Interval, latency and occupancies of a hardware graph.

    Args:
        delays: edge -> cycles that a beat spends between producer and consumer at least (a FIFO
            that is planned there but is not a node yet).
    """
    blocks = blocks_of(graph)
    intervals = {name: _interval(block) for name, block in blocks.items()}
    if not intervals:
        raise GraphError("a hardware graph needs at least one block", where=graph.name)
    bottleneck = max(intervals, key=lambda name: intervals[name])
    schedule = _Schedule(graph, blocks, intervals[bottleneck], delays or {})
    return Dataflow(
        interval=intervals[bottleneck],
        latency=_lone_latency(graph, blocks, delays or {}),
        bottleneck=bottleneck,
        beats=schedule.beats,
        waits=schedule.waits,
        pauses=schedule.pauses,
        intervals=intervals,
        critical=frozenset(schedule.critical),
    )


def readers(graph: Graph) -> dict[str, Node]:
    """edge -> the node that reads it: a stream has one reader."""
    return {edge: node for node in graph for edge in node.inputs}


class _Schedule:
    """Times of one frame on every edge, in the periodic regime.

    Times are absolute: those of a join are later than its earlier branch by what the other branch
    takes, so the occupancy of a bypass counts beats of several frames where it must.
    """

    def __init__(
        self, graph: Graph, blocks: Mapping[str, Block], period: int, delays: Mapping[str, int]
    ) -> None:
        self.graph, self.blocks, self.period, self.delays = graph, blocks, period, delays
        self.beats: dict[str, int] = {}
        self.waits: dict[str, int] = {}
        self.pauses: dict[str, int] = {}
        self.critical: set[str] = set()
        self._made: dict[str, Times] = {}  # edges that are not taken yet
        self._placed: set[str] = set()  # windows placed together with their pad
        self._readers = readers(graph)
        for edge in graph.inputs:
            beats = input_port(self._readers[edge], edge, blocks).beats
            self._made[edge] = np.arange(beats, dtype=np.int64) * period // beats
        for node in graph:
            if node.name not in self._placed:
                self._place(node)

    def _place(self, node: Node) -> None:
        block = self.blocks[node.name]
        arrive = [self._made[edge] + self.delays.get(edge, 0) for edge in node.inputs]
        follower = self._window_behind(node)
        if follower is not None:
            self._place_pad(node, follower, arrive[0])
        elif isinstance(block, Window):
            times = block.times(arrive[0], self.period)
            self._made[node.output] = times.produce
            self._take(node.inputs[0], times.consume)
        else:
            taken, produce = periodic(block, arrive, self.period)
            self._made.update(dict.fromkeys(node.outputs, produce))
            for edge, times_in in zip(node.inputs, taken, strict=True):
                self._take(edge, times_in)
            if _has_no_spare(block, taken, self.period):
                self.critical.update(node.inputs)

    def _take(self, edge: str, taken: Times) -> None:
        made = self._made.pop(edge)
        self.beats[edge] = occupancy(made, taken, self.period)
        self.waits[edge] = waiting(made, taken, self.period)
        self.pauses[edge] = pauses(made, taken, self.period)

    def _window_behind(self, node: Node) -> Node | None:
        """The window that alone reads a pad, directly: the two are then placed together."""
        if not isinstance(self.blocks[node.name], Pad) or node.output in self.graph.outputs:
            return None
        consumer = self._readers[node.output]
        direct = not self.delays.get(node.output, 0)
        return consumer if direct and isinstance(self.blocks[consumer.name], Window) else None

    def _place_pad(self, pad: Node, window: Node, arrive: Times) -> None:
        """A pad makes its border only when the window has room: no FIFO holds border beats."""
        block, reader = self.blocks[pad.name], self.blocks[window.name]
        assert isinstance(reader, Window)
        firing = block.firing()
        ready = np.full(firing.fires, _EARLY, dtype=np.int64)
        ready[firing.consume] = arrive + firing.latency
        times = reader.times(ready, self.period)
        self._take(pad.inputs[0], times.consume[firing.consume] - firing.latency)
        self._made[pad.output] = times.consume
        self._take(pad.output, times.consume)
        self._made[window.output] = times.produce
        self._placed.add(window.name)


def input_port(node: Node, edge: str, blocks: Mapping[str, Block]) -> Port:
    """The port at which a node reads an edge."""
    return blocks[node.name].inputs[node.inputs.index(edge)]


def periodic(block: Block, arrive: Sequence[Times], period: int) -> tuple[tuple[Times, ...], Times]:
    """(consume of every input, produce) times of one frame of a `Firing` block, in the periodic
    regime.

    Step i cannot come before step i - 1, nor before the beats it takes. With the interval at most
    the period, looking one frame back is enough, so the second of two frames is the periodic one.
    """
    firing = block.firing()
    steps, lead = _leads(firing.consumes, arrive)
    # What the frame before holds up, the last of its beats decides.
    lead = np.maximum(lead, lead[-1] + firing.fires - period)
    if len(firing.consumes) == 1:
        taken: tuple[Times, ...] = (lead + steps,)
    else:
        taken = tuple(
            lead[np.searchsorted(steps, consume, side="right") - 1] + consume
            for consume in firing.consumes
        )
    before = np.searchsorted(steps, firing.produce, side="right") - 1
    early = lead[-1] + firing.fires - period  # steps before the first beat follow the last frame
    start = np.where(before >= 0, lead[np.maximum(before, 0)], early)
    return taken, start + firing.produce + firing.latency


def _has_no_spare(block: Block, taken: Sequence[Times], period: int) -> bool:
    """Whether a block that had to wait within a frame begins the next one right behind it."""
    firing = block.firing()
    lead = [times - consume for times, consume in zip(taken, firing.consumes, strict=True)]
    first, last = min(int(one.min()) for one in lead), max(int(one.max()) for one in lead)
    return first < last and first + period <= last + firing.fires


def _leads(consumes: Sequence[Times], arrive: Sequence[Times]) -> tuple[Times, Times]:
    """The steps that take beats, and for each by how much it comes later than its number at
    least: no step overtakes one before it.
    """
    if len(consumes) == 1:
        steps, early = consumes[0], arrive[0] - consumes[0]
    else:
        steps = np.concatenate(consumes)
        early = np.concatenate([a - c for a, c in zip(arrive, consumes, strict=True)])
        order = np.argsort(steps, kind="stable")
        steps, early = steps[order], early[order]
    return steps, np.maximum.accumulate(early)


def occupancy(made: Times, taken: Times, period: int) -> int:
    """Largest number of beats made and not yet taken; one taken in cycle t is gone in t + 1."""
    frames = int((taken - made).max()) // period + 1
    ends = np.concatenate([taken - k * period for k in range(frames, -1, -1)])
    gone = np.searchsorted(ends, made, side="left") - frames * len(taken)
    return int((np.arange(len(made)) + 1 - gone).max())


def waiting(made: Times, taken: Times, period: int) -> int:
    """Cycles of a frame in which at least two beats are made and not yet taken."""
    following = np.concatenate([made[1:], made[:1] + period])
    return int(np.maximum(0, taken - following + 1).sum())


def pauses(made: Times, taken: Times, period: int) -> int:
    """How often in a frame a beat waits though the cycle before its own takes none."""
    came, then = (np.concatenate([times[1:], times[:1] + period]) for times in (made, taken))
    return int(((then - taken > 1) & (came < then)).sum())


def _lone_latency(graph: Graph, blocks: Mapping[str, Block], delays: Mapping[str, int]) -> int:
    made: dict[str, Times] = {}
    for node in graph:
        block = blocks[node.name]
        arrive = [
            _arrival(made, edge, port.beats) + delays.get(edge, 0)
            for edge, port in zip(node.inputs, block.inputs, strict=True)
        ]
        if isinstance(block, Window):
            produce = block.first_frame(arrive[0])
        else:
            firing = block.firing()
            steps, lead = _leads(firing.consumes, arrive)
            lead = np.maximum(lead, 0)  # no step before the reset
            before = np.searchsorted(steps, firing.produce, side="right") - 1
            start = np.where(before >= 0, lead[np.maximum(before, 0)], 0)
            produce = start + firing.produce + firing.latency
        made.update(dict.fromkeys(node.outputs, produce))
    return max(int(made[edge][-1]) for edge in graph.outputs) + _AXIS_LATENCY + 1


def _arrival(made: dict[str, Times], edge: str, beats: int) -> Times:
    """Times of the beats of an edge, which are then forgotten; an input gives one a cycle."""
    if edge in made:
        return made.pop(edge)
    return np.arange(beats, dtype=np.int64) + _AXIS_LATENCY
