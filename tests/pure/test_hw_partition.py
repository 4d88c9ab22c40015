# SPDX-License-Identifier: Apache-2.0
"""Partitions: the parts compute the whole, fit their devices, and are as few as can be."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.hw_networks import Net, digits_like, mapped_networks, resnet

from bitwright.base.errors import RecipeError, TargetError
from bitwright.base.figures import RESOURCE_WORDS, Resources
from bitwright.hw import FillGoal, Folding, RateGoal, graph_resources, map_graph, search_folding
from bitwright.hw.cuts import LINK_LATENCY, CutPlan, units_of
from bitwright.hw.dataflow import block_intervals
from bitwright.hw.devices import partition
from bitwright.hw.external import Outside
from bitwright.hw.partition import cut_graph
from bitwright.hw.weight_image import memory_plan
from bitwright.ir import Graph, random_feeds, verify


@settings(max_examples=30)
@given(mapped_networks(), st.data())
def test_parts_compute_the_whole(case: tuple[Graph, Folding], data: st.DataObject) -> None:
    graph, hardware = case[0], map_graph(*case)
    count = len(units_of(hardware))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, count - 1)), max_size=3)))
    parts = cut_graph(hardware, [c for c in cuts if c < count], "ecp5")
    for part in parts.parts:
        verify(part)
    feeds = random_feeds(graph, 2, np.random.default_rng(0))
    expected, got = graph.run(feeds), parts.run(feeds)
    assert all((got[edge] == expected[edge]).all() for edge in graph.outputs)
    for link in parts.links:
        # A FIFO stands at the receiving end, and covers the way there and back.
        (reader,) = parts.parts[link.target].consumers(link.edge)
        assert reader.op == "fifo" and reader.integer("depth") >= 2 * LINK_LATENCY
        assert link.edge in parts.parts[link.source].outputs and link.source < link.target
    assert parts.interval == max(block_intervals(hardware).values())


def mapped_digits() -> Graph:
    graph = digits_like()
    goal = FillGoal(Resources(6000, 9000, 0, 8))
    return map_graph(graph, search_folding(graph, goal, family="ecp5"))


def test_best_cuts_are_the_fewest_with_the_least_traffic() -> None:
    plan = CutPlan(mapped_digits(), "ecp5")
    end = len(plan.units)
    for luts in (1300.0, 2100.0, 2600.0, 3300.0, 9000.0):
        device = Resources(luts, 4000, 0, 8)
        legal = [
            (len(cuts), sum(map(plan.traffic, cuts)), cuts)
            for size in range(4)
            for cuts in combinations(range(1, end), size)
            if all(plan.part_cost(a, b).fits(device) for a, b in pairwise((0, *cuts, end)))
        ]
        found = plan.best_cuts(device)
        if not legal:
            assert found is None
            continue
        assert found is not None
        assert (len(found), sum(map(plan.traffic, found))) == min(legal)[:2]


def test_even_cuts_balance_the_fullest_part() -> None:
    plan = CutPlan(mapped_digits(), "ecp5")
    device, end = Resources(2000, 4000, 0, 8), len(plan.units)

    def fullest(cuts: tuple[int, ...]) -> float:
        loads = [plan.part_cost(a, b).lut / device.lut for a, b in pairwise((0, *cuts, end))]
        return max(loads)

    best = min(map(fullest, combinations(range(1, end), 2)))
    assert fullest(plan.even_cuts(3, device)) == pytest.approx(best)


def test_part_costs_are_those_of_the_parts() -> None:
    """The estimate that cuts are chosen by is the model of the part itself."""
    hardware = mapped_digits()
    plan = CutPlan(hardware, "ecp5")
    cuts = plan.even_cuts(3, Resources(2000, 4000, 0, 8))
    parts = cut_graph(hardware, cuts, "ecp5").parts
    for part, (a, b) in zip(parts, pairwise((0, *cuts, len(plan.units))), strict=True):
        used, said = graph_resources(part, "ecp5"), plan.part_cost(a, b)
        for kind in RESOURCE_WORDS:
            assert getattr(said, kind) == pytest.approx(getattr(used, kind), rel=0.02, abs=2)


@pytest.mark.long
def test_fewest_devices_for_a_rate() -> None:
    graph, device = digits_like(), Resources(2800, 5000, 0, 8)
    slow = partition(graph, device, family="ecp5", cycles=4000)
    assert len(slow.parts) == 1 and slow.interval <= 4000 and not slow.links
    fast = partition(graph, device, family="ecp5", cycles=700)
    assert len(fast.parts) == 2 and fast.interval <= 700
    for part in fast.parts:
        assert graph_resources(part, "ecp5").fits(device)
    with pytest.raises(TargetError, match=r"700 cycles a frame need about [\d.]+ devices"):
        partition(graph, device, family="ecp5", cycles=700, devices=1)


@pytest.mark.long
def test_more_devices_are_faster() -> None:
    graph, device = digits_like(), Resources(2600, 5000, 0, 4)
    one = partition(graph, device, family="ecp5", devices=1)
    two = partition(graph, device, family="ecp5", devices=2)
    assert len(one.parts) == 1 and len(two.parts) == 2
    assert two.interval < one.interval
    for part in (*one.parts, *two.parts):
        assert graph_resources(part, "ecp5").fits(device)


def test_parts_with_weights_outside() -> None:
    graph, device = digits_like(), Resources(2000, 3500, 0, 8)
    outside = Outside(("conv_2", "scores"))
    parts = partition(graph, device, family="ecp5", cycles=2400, outside=outside)
    plans = [memory_plan(part) for part in parts.parts]
    read = [region.node for plan in plans if plan is not None for region in plan.regions]
    assert len(parts.parts) > 1 and read == ["conv_2", "scores"]
    for part in parts.parts:
        assert graph_resources(part, "ecp5").fits(device)


def test_a_bypass_is_a_link_of_its_own() -> None:
    graph = resnet(1, 8, 4)
    hardware = map_graph(graph, search_folding(graph, RateGoal(1, 20000), family="ecp5"))
    names = [unit.name for unit in units_of(hardware)]
    middle = names.index("conv_3_window")  # between the two convolutions of the first block
    parts = cut_graph(hardware, [middle], "ecp5")
    assert len(parts.links) == 2
    feeds = random_feeds(graph, 2, np.random.default_rng(0))
    expected, got = graph.run(feeds), parts.run(feeds)
    assert all((got[edge] == expected[edge]).all() for edge in graph.outputs)


def test_what_cannot_be_is_refused_with_the_layer() -> None:
    graph = Net((64,), "uint4", "int8").dense(32, name="huge").threshold().dense(3).finish()
    with pytest.raises(TargetError, match="does not fit one device alone") as caught:
        partition(graph, Resources(60, 80, 0, 0), family="ecp5", devices=5)
    assert caught.value.where is not None and "huge" in caught.value.where
    with pytest.raises(TargetError, match="with as many lanes as it can have; 1 are allowed"):
        partition(digits_like(), Resources(1e6, 1e6, 0, 99), family="ecp5", cycles=1)
    with pytest.raises(TargetError, match="on 1 devices together no folding fits"):
        partition(digits_like(), Resources(1300, 2600, 0, 4), family="ecp5", devices=1)
    with pytest.raises(RecipeError, match="give cycles"):
        partition(graph, Resources(1e6, 1e6), family="ecp5")
    with pytest.raises(RecipeError, match="devices must be at least 1, got 0"):
        partition(graph, Resources(1e6, 1e6), family="ecp5", devices=0)
    with pytest.raises(RecipeError, match="cuts must ascend"):
        cut_graph(map_graph(graph), [3, 2], "ecp5")
