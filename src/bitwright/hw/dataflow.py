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
the depth behind it (the argument is in docs/architecture.md). No block can beat its own interval,
so the pipeline runs at T exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from bitwright.errors import GraphError
from bitwright.hw.blocks import Block, Pad, Times, Window, blocks_of
from bitwright.ir import Graph, Node

_EARLY = -(1 << 40)
DIRECT_BEATS = 2  # what the two-entry register at the end of every block holds
FIFO_LATENCY = 2
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
        intervals: block -> its own interval.
    """

    interval: int
    latency: int
    bottleneck: str
    beats: Mapping[str, int]
    waits: Mapping[str, int]
    intervals: Mapping[str, int]

    def __post_init__(self) -> None:
        for name in ("beats", "waits", "intervals"):
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
    period = intervals[bottleneck]
    schedule = _Schedule(graph, blocks, period, delays or {})
    return Dataflow(
        interval=period,
        latency=_lone_latency(graph, blocks, delays or {}),
        bottleneck=bottleneck,
        beats={e: occupancy(*pair, period) for e, pair in schedule.pairs().items()},
        waits={e: waiting(*pair, period) for e, pair in schedule.pairs().items()},
        intervals=intervals,
    )


class _Schedule:
    """Times of one frame on every edge, in the periodic regime."""

    def __init__(
        self, graph: Graph, blocks: Mapping[str, Block], period: int, delays: Mapping[str, int]
    ) -> None:
        self.graph, self.blocks, self.period, self.delays = graph, blocks, period, delays
        self.made: dict[str, Times] = {}
        self.taken: dict[tuple[str, str], Times] = {}  # (edge, consumer)
        self._lazy: set[str] = set()
        for edge in graph.inputs:
            beats = self._input_beats(edge)
            self.made[edge] = np.arange(beats, dtype=np.int64) * period // beats
        for node in graph:
            self._place(node)

    def _input_beats(self, edge: str) -> int:
        (consumer,) = self.graph.consumers(edge)
        return self.blocks[consumer.name].inputs[0].beats

    def _place(self, node: Node) -> None:
        block, edge = self.blocks[node.name], node.inputs[0]
        arrive = self.made[edge] + self.delays.get(edge, 0)
        follower = self._window_behind(node)
        if follower is not None:
            self._place_pad(node, follower, arrive)
        elif node.name in self._lazy:
            return
        elif isinstance(block, Window):
            times = block.times(arrive, self.period)
            self.taken[edge, node.name], self.made[node.output] = times.consume, times.produce
        else:
            consume, produce = periodic(block, arrive, self.period)
            self.taken[edge, node.name] = consume
            for out in node.outputs:
                self.made[out] = produce

    def _window_behind(self, node: Node) -> Node | None:
        """The window that alone reads a pad, directly: the two are then placed together."""
        if not isinstance(self.blocks[node.name], Pad) or node.output in self.graph.outputs:
            return None
        (consumer,) = self.graph.consumers(node.output)
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
        self.taken[pad.inputs[0], pad.name] = times.consume[firing.consume] - firing.latency
        self.made[pad.output] = times.consume
        self.taken[pad.output, window.name] = times.consume
        self.made[window.output] = times.produce
        self._lazy.add(window.name)

    def pairs(self) -> dict[str, tuple[Times, Times]]:
        """edge -> times at which its beats are made and taken."""
        return {edge: (self.made[edge], taken) for (edge, _), taken in self.taken.items()}


def periodic(block: Block, arrive: Times, period: int) -> tuple[Times, Times]:
    """(consume, produce) times of one frame of a `Firing` block, in the periodic regime.

    Step i cannot come before step i - 1, nor before the beat it takes. With the interval at most
    the period, looking one frame back is enough, so the second of two frames is the periodic one.
    """
    firing = block.firing()
    base = np.concatenate([firing.consume, firing.consume + firing.fires])
    early = np.concatenate([arrive, arrive + period]) - base
    lead = np.maximum.accumulate(early)
    consume = (lead + base)[len(arrive) :] - period
    before = np.searchsorted(base, firing.produce + firing.fires, side="right") - 1
    produce = lead[before] + firing.produce + firing.fires + firing.latency - period
    return consume, produce


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


def _lone_latency(graph: Graph, blocks: Mapping[str, Block], delays: Mapping[str, int]) -> int:
    made: dict[str, Times] = {}
    for edge in graph.inputs:
        (consumer,) = graph.consumers(edge)
        beats = blocks[consumer.name].inputs[0].beats
        made[edge] = np.arange(beats, dtype=np.int64) + _AXIS_LATENCY
    for node in graph:
        block = blocks[node.name]
        arrive = made[node.inputs[0]] + delays.get(node.inputs[0], 0)
        if isinstance(block, Window):
            produce = block.first_frame(arrive)
        else:
            firing = block.firing()
            lead = np.maximum.accumulate(np.maximum(arrive, firing.consume) - firing.consume)
            before = np.searchsorted(firing.consume, firing.produce, side="right") - 1
            start = np.where(before >= 0, lead[np.maximum(before, 0)], 0)
            produce = start + firing.produce + firing.latency
        for out in node.outputs:
            made[out] = produce
    return max(int(made[edge][-1]) for edge in graph.outputs) + _AXIS_LATENCY + 1
