# SPDX-License-Identifier: Apache-2.0
"""Weights from outside: RTL == graph whatever the memory does; at the predicted rate if it can."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.hw_networks import HYBRID, Net

from bitwright.hw import Folding, MapOptions, NodeFolding, analyse, map_graph
from bitwright.hw.external import WeightMemory
from bitwright.hw.weight_image import memory_plan
from bitwright.ir import Graph, random_feeds
from bitwright.rtl.emit import emit
from bitwright.sim import (
    MemoryModel,
    SimResult,
    Simulator,
    StallPattern,
    burst_stalls,
    no_stalls,
    random_stalls,
)
from bitwright.sim.toolchain import lint

FRAMES = 6


def network(activation: str = "uint2", weight: str = "int3n") -> Graph:
    """A convolution and two dense layers of different shapes."""
    net = Net((6, 5, 2), activation, weight, seed=4, name="outside")
    padding = 0 if activation == "bipolar" else 1
    net.conv(6, 3, padding).threshold().flatten().dense(24, bias=True, name="fc").threshold()
    return net.dense(5, name="scores").finish()


def choices(**nodes: tuple[int, int]) -> Folding:
    """Units with external weights: name -> (PE, SIMD)."""
    return Folding(
        {n: NodeFolding(pe=pe, simd=simd, mem_mode="external") for n, (pe, simd) in nodes.items()}
    )


class Design:
    """A network with weights outside, mapped, written and compiled."""

    def __init__(self, graph: Graph, folding: Folding, memory: WeightMemory, folder: Path) -> None:
        self.graph = graph
        self.hardware = map_graph(graph, folding, MapOptions(memory=memory))
        self.flow = analyse(self.hardware)
        emit(self.hardware, folder / "rtl")
        self.table = json.loads((folder / "rtl" / "design.json").read_text())
        self.simulator = Simulator.build(folder / "rtl")
        self.feeds = random_feeds(graph, FRAMES, np.random.default_rng(5))
        self.expected = graph.run(self.feeds)

    def run(self, stalls: StallPattern, reset_at: int | None = None) -> SimResult:
        inputs = self.simulator.pack({"s_axis_0": self.feeds[self.graph.inputs[0]]})
        result = self.simulator.run(inputs, FRAMES, stalls, reset_at=reset_at)
        for number, edge in enumerate(self.graph.outputs):
            got = result.levels[f"m_axis_{number}"].reshape(self.expected[edge].shape)
            assert (got == self.expected[edge]).all(), f"{edge} differs (stalls: {stalls.name})"
        return result


@pytest.mark.parametrize(
    ("folding", "memory", "formats"),
    [
        pytest.param(
            choices(conv=(3, 2), fc=(4, 5), scores=(1, 3)),
            WeightMemory(128),
            ("uint2", "int3n"),
            marks=pytest.mark.long,
        ),
        (choices(conv=(2, 9), fc=(3, 9)), WeightMemory(64, 40), ("bipolar", "bipolar")),
        (choices(conv=(2, 9), fc=(3, 9)), WeightMemory(64, 40), ("uint1", "bipolar")),
        pytest.param(
            choices(fc=(4, 15), scores=(1, 1)),
            WeightMemory(512, latency=200),
            ("int4", "int5"),
            marks=pytest.mark.long,
        ),
        (choices(conv=(2, 3), fc=(3, 6)), WeightMemory(128), ("uint2", HYBRID)),
    ],
    ids=["three", "binary", "bits", "wide", "codebook"],
)
def test_values_rate_and_traffic(
    folding: Folding, memory: WeightMemory, formats: tuple[str, str], tmp_path: Path
) -> None:
    design = Design(network(*formats), folding, memory, tmp_path)
    free = design.run(no_stalls())
    assert np.diff(free.frame_ends())[-1] == design.flow.interval
    assert free.latency >= design.flow.latency
    (port,) = design.table["memory_ports"]
    # What was read is what was stated, and what the buffers hold beyond it.
    ahead = sum(region["prefetch"] for region in port["regions"])
    ahead += sum(2 * region["cell_beats"] + 2 for region in port["regions"])
    stated = FRAMES * port["beats_per_frame"]
    assert stated <= free.memory_beats["m_axi_gmem0"] <= stated + ahead + port["image_bytes"]
    for stalls in (random_stalls(0.5, 3), random_stalls(0.9, 4), burst_stalls(seed=5)):
        design.run(stalls)
    design.run(random_stalls(0.3, 6), reset_at=design.flow.interval + 91)
    slow = MemoryModel(latency=150, jitter=90, beats_per_cycle=0.05, mixed=True)
    crawl = design.run(StallPattern("slow memory", memory=slow))
    limited = port["beats_per_frame"] > 0.05 * design.flow.interval
    assert crawl.cycles > free.cycles if limited else crawl.cycles >= free.cycles
    sources = [tmp_path / "rtl" / name for name in design.table["files"]]
    assert lint(sources, design.table["top"]) == ""


@pytest.mark.parametrize("forgets", [False, True], ids=["answers", "forgets"])
def test_answers_to_what_was_asked_before_a_reset_are_no_weights(
    forgets: bool, tmp_path: Path
) -> None:
    folding = choices(conv=(3, 2), fc=(4, 5), scores=(1, 3))
    design = Design(network(), folding, WeightMemory(128), tmp_path)
    slow = MemoryModel(latency=150, jitter=90, mixed=True, forgets=forgets)
    for cycle in (3, 40, 160, design.flow.interval + 91):
        design.run(StallPattern("slow memory", seed=cycle, memory=slow), reset_at=cycle)


def test_interval_holds_at_exactly_the_bandwidth_that_is_asked_for(tmp_path: Path) -> None:
    folding = choices(conv=(2, 2), fc=(4, 3))
    wide = map_graph(network(), folding)
    plan = memory_plan(wide)
    assert plan is not None
    memory = WeightMemory(beats_per_cycle=plan.demand)
    design = Design(network(), folding, memory, tmp_path)
    assert design.table["memory_ports"][0]["beats_per_cycle"] == plan.demand < 1
    frames = design.run(no_stalls()).frame_ends()
    assert np.diff(frames)[-1] == design.flow.interval
    late = replace(no_stalls(), memory=MemoryModel(latency=64))
    assert np.diff(design.run(late).frame_ends())[-1] == design.flow.interval
    starved = MemoryModel(beats_per_cycle=plan.demand / 4)
    slow = design.run(StallPattern("quarter", memory=starved)).frame_ends()
    assert np.diff(slow)[-1] > design.flow.interval
