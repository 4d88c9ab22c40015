# SPDX-License-Identifier: Apache-2.0
"""Whole networks: RTL == integer graph under stalls, predicted interval == simulated one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.drawn_streams import drawn_stream
from tests.hw_networks import (
    FORMAT_LIMITS,
    LIMITS,
    Net,
    densenet,
    digits_like,
    floats,
    mapped_networks,
    mixed,
    mlp,
    random_folding,
    resnet,
    shifts_and_tables,
    skynet,
)
from tests.strategies import GraphLimits

from bitwright.base.figures import Resources
from bitwright.hw import (
    FillGoal,
    Folding,
    NodeFolding,
    RateGoal,
    analyse,
    map_graph,
    search_folding,
)
from bitwright.hw.folding import parse_folding
from bitwright.hw.template import template
from bitwright.hw.tokens import simulate_tokens, steady_interval
from bitwright.ir import Graph, random_feeds
from bitwright.rtl.emit import emit
from bitwright.sim import SimResult, Simulator, StallPattern, burst_stalls, no_stalls, random_stalls
from bitwright.sim.toolchain import lint

FRAMES = 6


class Design:
    """A network, its RTL, and the simulator of it."""

    def __init__(self, graph: Graph, folding: Folding, folder: Path) -> None:
        self.graph, self.hardware = graph, map_graph(graph, folding)
        self.flow = analyse(self.hardware)
        emit(self.hardware, folder / "rtl")
        self.simulator = Simulator.build(folder / "rtl")
        self.feeds = random_feeds(graph, FRAMES, np.random.default_rng(5))
        self.expected = graph.run(self.feeds)

    def run(self, stalls: StallPattern, reset_at: int | None = None) -> SimResult:
        names = {f"s_axis_{i}": self.feeds[e] for i, e in enumerate(self.graph.inputs)}
        inputs = self.simulator.pack(names)
        result = self.simulator.run(inputs, FRAMES, stalls, reset_at=reset_at)
        for number, edge in enumerate(self.graph.outputs):
            got = result.levels[f"m_axis_{number}"].reshape(self.expected[edge].shape)
            assert (got == self.expected[edge]).all(), f"{edge} differs (stalls: {stalls.name})"
        return result

    def check(self) -> None:
        free = self.run(no_stalls())
        # In the steady state, which begins once all FIFOs have filled.
        ends = [int(end) for end in free.frame_ends()]
        assert self.flow.interval in (ends[-1] - ends[-2], steady_interval(ends))
        assert free.latency >= self.flow.latency
        # The simulation of beats is that of the RTL, to the cycle.
        beats = simulate_tokens(self.hardware, FRAMES)
        assert beats.latency == free.latency
        assert np.diff(beats.frame_ends).tolist() == np.diff(ends).tolist()
        self.run(random_stalls(0.5, seed=3))
        self.run(burst_stalls(seed=4))


def _few(examples: int) -> settings:
    """A compilation takes seconds, so few networks are drawn; failures do not shrink."""
    phases = [Phase.explicit, Phase.reuse, Phase.generate]
    return settings(max_examples=examples, phases=phases, suppress_health_check=list(HealthCheck))


Drawn = tuple[Graph, Folding]


@_few(6)
@given(mapped_networks(LIMITS))
def test_random_network(tmp_path_factory: pytest.TempPathFactory, case: Drawn) -> None:
    Design(*case, tmp_path_factory.mktemp("net")).check()


@_few(2)
@given(mapped_networks(FORMAT_LIMITS))
def test_random_network_of_any_formats(
    tmp_path_factory: pytest.TempPathFactory, case: Drawn
) -> None:
    Design(*case, tmp_path_factory.mktemp("net")).check()


def test_what_pauses_gets_its_beats_in_time(tmp_path: Path) -> None:
    """Two cycles a frame slower than predicted, without a FIFO in front of a window."""
    Design(*drawn_stream(10472), tmp_path).check()


@pytest.mark.slow
@pytest.mark.parametrize("limits", [LIMITS, FORMAT_LIMITS], ids=["numbers", "formats"])
@_few(50)
@given(data=st.data())
def test_fifty_random_networks(
    tmp_path_factory: pytest.TempPathFactory, limits: GraphLimits, data: st.DataObject
) -> None:
    Design(*data.draw(mapped_networks(limits)), tmp_path_factory.mktemp("net")).check()


@pytest.mark.parametrize(
    ("shape", "kernel", "attrs"),
    [
        ((3, 2, 4), (1, 1), {"padding": (2, 2, 2, 2)}),
        ((3, 3, 4), (2, 2), {"padding": (3, 0, 0, 1)}),
        ((2, 1, 4), (1, 1), {"padding": (0, 2, 1, 0), "stride": (2, 2)}),
        ((1, 1, 4), (1, 2), {"padding": (0, 3, 0, 0), "stride": (1, 2), "dilation": (1, 2)}),
        ((3, 1, 4), (2, 1), {"padding": (1, 1, 0, 1), "groups": 4}),
        ((3, 4, 4), (2, 1), {"padding": (2, 1, 0, 1), "stride": (2, 1), "groups": 2}),
    ],
)
def test_windows_in_front_of_the_first_pixel(
    shape: tuple[int, ...], kernel: tuple[int, int], attrs: dict[str, object], tmp_path: Path
) -> None:
    """Their results depend on no input, and still none may leave before a frame comes."""
    graph = _lone_conv(shape, kernel, attrs)
    assert map_graph(graph).node("conv_pad").integer("wait_for_input") == 1
    Design(graph, random_folding(graph, np.random.default_rng(1)), tmp_path).check()


def _parallel(graph: Graph, seed: int) -> Folding:
    """A random folding in which every window gives all its pixels in one beat."""
    drawn = random_folding(graph, np.random.default_rng(seed), 16)
    nodes = dict(drawn.nodes)
    for node in template(graph):
        if node.op == "window":
            nodes[node.name] = NodeFolding(parallel_window=1)
        if node.op == "depthwise" and node.name in nodes:  # it follows its window
            nodes[node.name] = replace(nodes[node.name], simd=None)
    return Folding(nodes)


@pytest.mark.parametrize(
    "network",
    [
        digits_like,
        lambda: Net((6, 5, 6), "uint4", "int4n", 4).depthwise(3, 1).threshold().finish(label=False),
        lambda: _lone_conv((3, 4, 4), (2, 1), {"padding": (2, 1, 0, 1), "groups": 2}),
        lambda: _lone_conv((9, 7, 2), (3, 2), {"padding": (1, 1, 1, 1), "dilation": (2, 3)}),
        lambda: _lone_conv((3, 3, 1), (2, 2), {"padding": (3, 0, 0, 1), "stride": (2, 1)}),
    ],
    ids=["digits", "depthwise", "groups", "dilated", "border"],
)
def test_parallel_windows(network: Callable[[], Graph], tmp_path: Path) -> None:
    graph = network()
    Design(graph, _parallel(graph, 2), tmp_path).check()


def test_parallel_depthwise_units_in_dsp_blocks(tmp_path: Path) -> None:
    """Two products of a channel in a block, and of another unit half the channels in LUTs."""
    net = Net((5, 4, 6), "uint4", "int4n", 9).depthwise(3, 1).threshold().depthwise(3, 1, 2)
    nodes = {
        "dw": {"PE": 2, "SIMD": 9, "resType": "dsp"},
        "dw_2": {"PE": 6, "SIMD": 9, "resType": "dsp", "DspPE": 3},
    }
    design = Design(net.requant().finish(label=False), parse_folding(nodes), tmp_path)
    assert design.hardware.node("dw").integer("dsp_pack") == 2
    design.check()


def _lone_conv(shape: tuple[int, ...], kernel: tuple[int, int], attrs: dict[str, object]) -> Graph:
    net = Net(shape, "int4", "int4", seed=sum(shape))
    rng, columns = np.random.default_rng(3), shape[2] // int(str(attrs.get("groups", 1)))
    weight = rng.integers(-8, 8, (4, *kernel, columns))
    fixed = {"weight_format": "int4", "weight_scale": (0.5,)}
    edge = (net.edge,)
    net.builder.add("conv", edge, name="conv", attrs={**fixed, **attrs}, params={"weight": weight})
    return net.builder.finish("conv")


@pytest.mark.parametrize(
    "network",
    [
        shifts_and_tables,
        pytest.param(floats, marks=pytest.mark.long),
        pytest.param(mixed, marks=pytest.mark.long),
    ],
)
def test_codes_in_memories_and_on_streams(network: Callable[[], Graph], tmp_path: Path) -> None:
    graph = network()
    design = Design(graph, random_folding(graph, np.random.default_rng(8), 6), tmp_path)
    design.check()
    table = json.loads((tmp_path / "rtl" / "design.json").read_text())
    sources = [tmp_path / "rtl" / name for name in table["files"]]
    assert lint(sources, table["top"]) == ""


def _networks_with_joins() -> list[Graph]:
    return [resnet(1, 8, 4), densenet(), skynet(16, 24, 8)]


@pytest.mark.slow
@pytest.mark.parametrize("graph", _networks_with_joins(), ids=lambda graph: graph.name)
def test_networks_with_joins(graph: Graph, tmp_path: Path) -> None:
    folding = search_folding(graph, RateGoal(1e8 / 5000, 1e8), family="ecp5")
    Design(graph, folding, tmp_path).check()


def _cnn(activation: str, weight: str) -> Graph:
    net = Net((7, 6, 2), activation, weight, seed=11)
    padding = 0 if activation == "bipolar" else 1
    net.conv(6, 3, padding).threshold().conv(4, 3, 0, stride=2).threshold()
    return net.flatten().dense(5, name="scores").finish()


@pytest.mark.parametrize(
    ("activation", "weight"),
    [("bipolar", "bipolar"), ("uint1", "bipolar"), ("uint2", "ternary"), ("int4", "int4")],
)
def test_formats(activation: str, weight: str, tmp_path: Path) -> None:
    graph = _cnn(activation, weight)
    Design(graph, random_folding(graph, np.random.default_rng(2)), tmp_path).check()


@pytest.mark.long
def test_digits_network_as_the_search_folds_it(tmp_path: Path) -> None:
    graph = digits_like()
    folding = search_folding(graph, FillGoal(Resources(6000, 9000, 0, 8)), family="ecp5")
    design = Design(graph, folding, tmp_path)
    design.check()
    middle = design.flow.interval * 2 + 17
    again = design.run(no_stalls(), reset_at=middle)
    assert again.frames == FRAMES


def test_the_frame_behind_a_damaged_one_is_right(tmp_path: Path) -> None:
    """Beats lost and surplus, a lost tlast too: wrong are the frames they happen in, no other."""
    graph = digits_like()
    folding = search_folding(graph, FillGoal(Resources(6000, 9000, 0, 8)), family="ecp5")
    design = Design(graph, folding, tmp_path)
    (port,) = design.simulator.design.inputs
    count = port.spec.beats
    whole = design.simulator.pack({port.name: design.feeds[graph.inputs[0]]})[port.name]
    frames = whole.reshape(FRAMES, count, -1)
    ends = np.arange(count) == count - 1
    without = np.arange(count) != count // 3  # one beat lost
    twice = np.repeat(np.arange(count), 1 + (np.arange(count) == count // 2))  # one too many
    sent = [  # (beats, tlast), frames that come out of it: the number, or None for a wrong one
        (frames[0], ends, [0]),
        (frames[1][without], ends[without], [None]),
        (frames[2], ends, [2]),
        (frames[3][twice], ends[twice], [None]),
        (frames[4], ends, [4]),
        (frames[5][:-1], ends[:-1], []),  # its tlast is lost, so it ends with the next one
        (frames[0], ends, [None]),
        (frames[1], ends, [1]),
        (frames[2][:1], ends[-1:], [None]),
        (frames[3], ends, [3]),
    ]
    beats = np.concatenate([part for part, _, _ in sent])
    lasts = np.concatenate([last for _, last, _ in sent])
    expected = [number for _, _, numbers in sent for number in numbers]
    for stalls in (no_stalls(), random_stalls(0.5, seed=3), burst_stalls(seed=4)):
        result = design.simulator.run(
            {port.name: beats}, len(expected), stalls, lasts={port.name: lasts}
        )
        assert result.frame_error == 1
        for number, edge in enumerate(graph.outputs):
            got = result.levels[f"m_axis_{number}"].reshape(-1, *design.expected[edge].shape[1:])
            for frame, source in enumerate(expected):
                if source is not None:
                    assert (got[frame] == design.expected[edge][source]).all(), (edge, frame)
    assert design.run(no_stalls()).frame_error == 0


@pytest.mark.parametrize(
    ("pads", "cycles"), [((1, 0), 2300), pytest.param((2, 1), 3600, marks=pytest.mark.long)]
)
def test_balanced_pipeline(pads: tuple[int, int], cycles: int, tmp_path: Path) -> None:
    """All blocks near the same interval: the hardest case for FIFO depths."""
    net = Net((12, 9, 3), "uint4", "int4", seed=cycles)
    net.conv(8, 5, pads[0]).threshold().pool().conv(12, 3, pads[1]).threshold()
    graph = net.flatten().dense(5, name="scores").finish()
    goal = RateGoal(100e6 / cycles, 100e6)
    design = Design(graph, search_folding(graph, goal, family="ecp5"), tmp_path)
    assert cycles / 2 < design.flow.interval <= cycles
    design.check()


def test_a_fully_busy_converter_gets_the_places_it_needs(tmp_path: Path) -> None:
    """Two places would hold all beats, but the converter stands still while both are taken."""
    graph = Net((36,), "uint2", "int5n").threshold().dense(4, name="fc").finish()
    folding = Folding({"act": NodeFolding(pe=1), "fc": NodeFolding(pe=2, simd=4)})
    design = Design(graph, folding, tmp_path)
    assert design.flow.intervals["fc_dwc"] == design.flow.interval == 36
    assert design.flow.intervals["fc"] == 18
    design.check()


def test_fully_unfolded_layers_run_at_their_rate(tmp_path: Path) -> None:
    graph = mlp("uint2", "int2n")
    folding = search_folding(graph, FillGoal(Resources(1e6, 1e6, 0, 99)), family="ecp5")
    design = Design(graph, folding, tmp_path)
    assert design.flow.interval <= 6
    design.check()
