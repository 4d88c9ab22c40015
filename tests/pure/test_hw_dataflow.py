# SPDX-License-Identifier: Apache-2.0
"""The timing model against naive machines that step cycle by cycle, and its own laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.hw_networks import Net, digits_like, levels, mapped_networks

from bitwright.base.errors import GraphError
from bitwright.hw import Folding, NodeFolding, analyse, blocks_of, map_graph
from bitwright.hw.blocks import Block, Fifo, Window, block_of
from bitwright.hw.dataflow import block_intervals, occupancy, periodic, waiting
from bitwright.hw.dialect import HARDWARE
from bitwright.ir import Graph, GraphBuilder

_FRAMES = 9


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """A window block of any legal shape."""
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    span = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    size = tuple(s + draw(st.integers(0, 4)) for s in span)
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    builder = GraphBuilder("one", HARDWARE)
    channels = draw(st.integers(1, 3))
    edge = builder.input("x", levels((*size, channels), "uint4"))
    attrs = {"kernel": kernel, "stride": stride, "dilation": dilation}
    attrs["pixels"] = (span[0] - 1) * size[1] + span[1] + draw(st.integers(0, 3 * size[1]))
    builder.add("window", (edge,), name="w", attrs=attrs)
    graph = builder.finish("w")
    block = block_of(graph, graph.node("w"))
    assert isinstance(block, Window)
    return block


def window_machine(block: Window, arrive: np.ndarray, frames: int) -> tuple[list[int], list[int]]:
    """The rules in the header of stream_window, one cycle after the other."""
    words, span = len(arrive), block.span * block.fold
    places = [int(f) + n * words for n in range(frames) for f in block.first_words]
    drops = np.diff([*places, frames * words])
    total_in, total_out = frames * words, len(places) * block.pixel_out
    taken: list[int] = []
    made: list[int] = []
    used = ready = pixel = word = 0
    pending: list[tuple[int, int]] = []  # (cycle from which it counts, change of used)
    cycle = 0
    while len(made) < total_out or len(taken) < total_in:
        used += sum(change for when, change in pending if when == cycle)
        pending = [p for p in pending if p[0] > cycle]
        now_ready = ready
        if len(taken) < total_in and arrive[len(taken) % words] <= cycle and used < block.depth:
            taken.append(cycle)
            pending.append((cycle + 1, 1))
            ready += 1
        if len(made) < total_out and (word > 0 or now_ready >= span):
            made.append(cycle + 4)
            word = (word + 1) % block.pixel_out
            if word == 0:
                ready -= int(drops[pixel])
                pending.append((cycle + 2, -int(drops[pixel])))
                pixel += 1
        cycle += 1
    return taken, made


@given(windows(), st.integers(0, 2**32 - 1))
def test_window_times_are_those_of_its_rule(block: Window, seed: int) -> None:
    beats = block.inputs[0].beats
    gaps = np.random.default_rng(seed).integers(0, 3, beats)
    arrive = np.cumsum(gaps) - gaps[0]
    taken, made = window_machine(block, arrive, 1)
    ((consume, produce),) = block._run(arrive, 0, 0, 1)
    assert consume.tolist() == taken
    assert produce.tolist() == made


@given(windows())
def test_window_interval_is_that_of_its_rule(block: Window) -> None:
    _, made = window_machine(block, np.zeros(block.inputs[0].beats, dtype=np.int64), _FRAMES)
    ends = made[block.outputs[0].beats - 1 :: block.outputs[0].beats]
    assert ends[-1] - ends[-5] <= 4 * block.interval
    assert block.interval == max(block.inputs[0].beats, -((ends[-5] - ends[-1]) // 4))


@given(windows(), st.integers(0, 50), st.integers(0, 2**32 - 1))
def test_periodic_window_schedule_keeps_its_rule(block: Window, extra: int, seed: int) -> None:
    period = block.interval + extra
    beats = block.inputs[0].beats
    jitter = np.random.default_rng(seed).integers(0, 3, beats)
    arrive = np.sort(np.arange(beats) * period // beats + jitter)
    times = block.times(arrive, period)
    assert (times.consume >= arrive).all()
    assert (np.diff(np.concatenate([times.consume, times.consume[:1] + period])) >= 1).all()
    assert (np.diff(np.concatenate([times.produce, times.produce[:1] + period])) >= 1).all()
    starts = times.produce.reshape(-1, block.pixel_out)[:, 0] - 4
    written = np.concatenate([times.consume, times.consume + period])
    for start, first in zip(starts, block.first_words, strict=True):
        assert start >= written[first + block.span * block.fold - 1] + 1
    # A word is overwritten only after its release: look at two frames of words.
    ends = starts + block.pixel_out - 1
    ends, places = np.concatenate([ends, ends + period]), block.first_words
    released = np.concatenate([places[1:], [beats], places[1:] + beats, [2 * beats]])
    for word in range(block.depth, 2 * beats):
        pixel = np.searchsorted(released, word - block.depth + 1)
        assert written[word] >= ends[pixel] + 2


@given(windows(), st.integers(0, 2**32 - 1))
def test_window_schedule_found_in_rounds_is_the_one_found_in_order(
    block: Window, seed: int
) -> None:
    gaps = np.random.default_rng(seed).integers(0, 3, block.inputs[0].beats)
    found = {}
    for rounds in (0, 10**6):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("bitwright.hw.blocks.window._ROUNDS", rounds)
            found[rounds] = block._run(np.cumsum(gaps), int(gaps.sum()), 2, 3)
    for one, other in zip(found[0], found[10**6], strict=True):
        assert (one[0] == other[0]).all() and (one[1] == other[1]).all()


def firing_machine(
    block: Block, arrive: np.ndarray, period: int, frames: int
) -> tuple[list[int], list[int]]:
    """Steps in order, at most one a cycle, each waiting for the beat it takes."""
    firing = block.firing()
    takes = {int(step): beat for beat, step in enumerate(firing.consume)}
    makes = {int(step) for step in firing.produce}
    taken, made, cycle = [], [], -(10**6)
    for frame in range(frames):
        for step in range(firing.fires):
            cycle += 1
            if step in takes:
                cycle = max(cycle, int(arrive[takes[step]]) + frame * period)
                taken.append(cycle)
            if step in makes:
                made.append(cycle + firing.latency)
        # Steps behind the last one wait for nothing: a shift register empties itself.
        behind = [step - firing.fires + 1 for step in sorted(makes) if step >= firing.fires]
        made += [cycle + later + firing.latency for later in behind]
    return taken, made


@given(mapped_networks(), st.integers(0, 30), st.integers(0, 2**32 - 1))
def test_periodic_firing_is_the_steady_state_of_the_machine(
    case: tuple[Graph, Folding], extra: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    for block in blocks_of(map_graph(*case)).values():
        joins = len(block.inputs) > 1  # those are held to the simulation of beats
        if joins or isinstance(block, Window) or block.interval > 2000:
            continue
        beats = block.inputs[0].beats
        period = max(block.interval, beats) + extra
        arrive = np.sort(rng.integers(0, period, beats))
        taken, made = firing_machine(block, arrive, period, 3)
        (consume,), produce = periodic(block, [arrive], period)
        assert (consume + 2 * period).tolist() == taken[-beats:]
        assert (produce + 2 * period).tolist() == made[-len(produce) :]


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 90)), min_size=1, max_size=12))
def test_occupancy_counts_what_waits(pairs: list[tuple[int, int]]) -> None:
    made = np.sort(np.array([m for m, _ in pairs])) + np.arange(len(pairs))
    taken = np.maximum.accumulate(made + np.array([w for _, w in pairs])) + np.arange(len(pairs))
    period = int(made[-1] - made[0]) + 1
    assume(taken[0] + period >= taken[-1])  # beats leave in order, also from frame to frame
    back = int((taken - made).max()) // period + 2
    worst = 0
    for cycle in range(int(made[0]) + back * period, int(made[0]) + (back + 1) * period):
        shift = np.arange(back + 2)[:, None] * period
        present = (made + shift <= cycle) & (cycle <= taken + shift)
        worst = max(worst, int(present.sum()))
    assert occupancy(made, taken, period) == worst
    start = int(made[0]) + back * period
    shift = np.arange(back + 2)[:, None] * period
    held = [
        int(((made + shift <= cycle) & (cycle <= taken + shift)).sum())
        for cycle in range(start, start + period)
    ]
    if worst <= 2:
        assert waiting(made, taken, period) == sum(number == 2 for number in held)


def test_intervals_are_the_published_formulas() -> None:
    folding = Folding({"conv": NodeFolding(pe=2, simd=3), "conv_2": NodeFolding(pe=4, simd=8)})
    intervals = block_intervals(map_graph(digits_like(), folding))
    assert intervals["conv"] == 64 * (9 // 3) * (8 // 2)
    assert intervals["conv_2"] == 16 * (72 // 8) * (16 // 4)
    assert intervals["conv_pad"] == 10 * 10
    assert intervals["act"] == 64 * 8 // 2
    assert intervals["pool"] == 16 * 4 * 8 // 2
    assert intervals["scores"] == 64 * 10


def _last_beats(hardware: Graph) -> list[int]:
    blocks = blocks_of(hardware)
    makers = [hardware.producer(edge) for edge in hardware.outputs]
    return [blocks[node.name].outputs[0].beats for node in makers if node is not None]


@given(mapped_networks())
def test_the_pipeline_is_as_fast_as_its_slowest_block(case: tuple[Graph, Folding]) -> None:
    hardware = map_graph(*case)
    flow = analyse(hardware)
    assert flow.interval == max(flow.intervals.values())
    assert flow.intervals[flow.bottleneck] == flow.interval
    # Not the input's beats: a pad makes border ahead, and a stride may leave the last ones out.
    assert flow.latency >= max(_last_beats(hardware))


@given(mapped_networks())
def test_fifos_hold_what_the_schedule_puts_into_them(case: tuple[Graph, Folding]) -> None:
    hardware = map_graph(*case)
    flow = analyse(hardware)
    for block in blocks_of(hardware).values():
        if isinstance(block, Fifo):
            # What the FIFO holds in the schedule of the finished design: made to taken.
            assert flow.beats[block.node.output] <= block.depth
    for edge, beats in flow.beats.items():
        # A stream without a FIFO has two places.
        producer = hardware.producer(edge)
        (reader,) = hardware.consumers(edge)
        if producer is not None and "fifo" not in (producer.op, reader.op):
            assert beats <= 2


def test_large_network_is_analysed_in_seconds() -> None:
    # The convolutions of CNV, completely folded: 59 million cycles a frame.
    net = Net((32, 32, 3), "uint2", "int2n")
    for channels in (64, 64):
        net.conv(channels, 3).threshold()
    net.pool()
    for channels in (128, 128):
        net.conv(channels, 3).threshold()
    graph = net.pool().flatten().dense(10, name="scores").finish()
    flow = analyse(map_graph(graph))
    assert flow.interval == 28 * 28 * 64 * 9 * 64
    assert flow.bottleneck == "conv_2"


def test_a_period_below_the_interval_is_refused() -> None:
    hardware = map_graph(digits_like())
    block = blocks_of(hardware)["conv_window"]
    assert isinstance(block, Window)
    with pytest.raises(GraphError, match="is less than the interval"):
        block.times(np.arange(block.inputs[0].beats), block.interval - 1)
