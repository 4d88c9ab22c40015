# SPDX-License-Identifier: Apache-2.0
"""External weights: packing, image, bandwidth, and the folding that keeps within it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hw_networks import Net, digits_like, mlp

from bitwright.base.errors import RecipeError, TargetError
from bitwright.base.figures import Resources
from bitwright.hw import (
    FillGoal,
    Folding,
    MapOptions,
    NodeFolding,
    RateGoal,
    analyse,
    blocks_of,
    describe,
    folding_of,
    graph_resources,
    map_graph,
    parse_folding,
    search_folding,
)
from bitwright.hw.blocks import MatVec
from bitwright.hw.external import BURST, Outside, WeightMemory, burst_bytes, packing
from bitwright.hw.weight_image import memory_image, memory_plan, words_in_image

OUTSIDE = Folding({"dense": NodeFolding(pe=2, simd=4, mem_mode="external")})


@given(
    st.integers(1, 600),
    st.integers(1, 400),
    st.sampled_from((32, 64, 128, 256, 512, 1024)),
)
def test_packing_fits_and_wastes_little(word: int, words: int, port: int) -> None:
    beats, count = packing(word, words, port)
    assert words % count == 0 and 1 <= count * word <= beats * port
    assert beats <= max(-(-word // port), 1024 // port)
    if word <= port:  # never worse than one word a beat; nearly full if many words may share
        assert beats / count <= 1
    if words == 360 and word in (1, 3, 12):
        assert count * word / (beats * port) > 0.8


@given(st.integers(0, 2**32 - 1), st.sampled_from((64, 128, 1024)))
def test_image_holds_every_word(seed: int, port: int) -> None:
    rng = np.random.default_rng(seed)
    net = Net((12,), "uint2", str(rng.choice(["bipolar", "int3", "int5n"])), seed)
    graph = net.dense(8, name="a").threshold().dense(6, name="b").finish()
    pe, simd = (int(rng.choice(d)) for d in ((1, 2), (1, 2)))
    choice = NodeFolding(pe=pe, simd=simd, mem_mode="external")
    options = MapOptions(memory=WeightMemory(port))
    hardware = map_graph(graph, Folding({"a": choice, "b": choice}), options)
    plan = memory_plan(hardware)
    assert plan is not None
    image = memory_image(hardware, plan)
    assert len(image) == plan.bytes
    blocks = blocks_of(hardware)
    end = 0
    for region in plan.regions:
        unit = blocks[region.node]
        assert isinstance(unit, MatVec)
        assert (words_in_image(image, region) == unit.weight_memory().bits).all()
        assert region.offset >= end and region.offset % (BURST * port // 8) == 0
        assert region.beats >= BURST
        end = region.offset + region.bytes


def test_layout_by_hand() -> None:
    """Two 12-bit words a 32-bit memory word, little endian, rows and columns as in a .mem file."""
    graph = Net((4,), "uint2", "int3").dense(2, name="fc").finish()
    folding = Folding({"fc": NodeFolding(pe=2, simd=2, mem_mode="external")})
    hardware = map_graph(graph, folding, MapOptions(memory=WeightMemory(32)))
    plan = memory_plan(hardware)
    assert plan is not None
    (region,) = plan.regions
    assert (region.words, region.word_bits, region.cell_beats, region.cell_words) == (2, 12, 1, 2)
    weight = graph.node("fc").params["weight"]
    value = 0
    for position, (row, column) in enumerate(
        [(0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3)]
    ):
        value |= (int(weight[row, column]) & 7) << (3 * position)
    image = memory_image(hardware, plan)
    assert image == value.to_bytes(4, "little") * region.copies


def test_traffic_is_every_weight_once_a_vector() -> None:
    net = Net((6, 6, 2), "uint2", "int4", seed=1)
    graph = net.conv(4, 2).threshold().flatten().dense(3, name="fc").finish()
    choice = NodeFolding(pe=2, simd=2, mem_mode="external")
    hardware = map_graph(graph, Folding({"conv": choice}))
    plan = memory_plan(hardware)
    assert plan is not None
    # 25 pixels, 4 x 8 weights of 4 bits
    assert plan.regions[0].bytes_per_frame == 25 * 4 * 8 * 4 // 8
    table = plan.bandwidth(1000, 50e6)
    assert table["gbytes_per_s"] == pytest.approx(400 * 50e6 / 1000 / 1e9)
    assert table["peak_gbytes_per_s"] == pytest.approx(2 * 50e6 / 1e9)  # 16 bits a cycle
    assert table["available_gbytes_per_s"] == pytest.approx(8 * 50e6 / 1e9)


def test_external_weights_take_no_memory_of_the_device() -> None:
    graph = Net((512,), "uint4", "int8").dense(64, name="fc").finish()
    inside = map_graph(graph, Folding({"fc": NodeFolding(pe=2, simd=4)}))
    outside = map_graph(graph, Folding({"fc": NodeFolding(pe=2, simd=4, mem_mode="external")}))
    assert graph_resources(inside, "ecp5").bram >= 512 * 64 * 8 / 18432
    assert graph_resources(outside, "ecp5").bram <= 3
    assert analyse(inside).interval == analyse(outside).interval


def test_the_folding_of_a_design_gives_the_design_again() -> None:
    graph = mlp("uint2", "int3")
    hardware = map_graph(graph, OUTSIDE)
    folding = parse_folding(folding_of(hardware).to_json())
    assert folding.nodes["dense"].mem_mode == "external"
    assert map_graph(graph, folding) == hardware
    default = parse_folding({"Defaults": {"mem_mode": ["external", ["matvec"]]}})
    plan = memory_plan(map_graph(graph, default))
    assert plan is not None and len(plan.regions) == 3


def test_more_than_the_memory_gives_is_refused_with_the_numbers() -> None:
    graph = mlp("uint2", "int4")
    folding = Folding({"dense": NodeFolding(pe=4, simd=6, mem_mode="external")})
    slow = WeightMemory.with_bandwidth(0.5, 100e6)
    assert slow.beats_per_cycle == pytest.approx(0.625)
    message = r"need 12 bytes a cycle \(dense 12\), the memory gives 5"
    with pytest.raises(TargetError, match=message):
        map_graph(graph, folding, MapOptions(memory=slow))


def test_search_keeps_within_the_bandwidth() -> None:
    graph = digits_like()
    budget = FillGoal(Resources(6000, 9000, 0, 8))
    fast = search_folding(graph, budget, family="ecp5", outside=Outside(("conv_2", "scores")))
    slow_memory = WeightMemory(beats_per_cycle=0.25)
    slow = search_folding(
        graph, budget, family="ecp5", outside=Outside(("conv_2", "scores"), slow_memory)
    )
    intervals = []
    for folding, memory in ((fast, WeightMemory()), (slow, slow_memory)):
        hardware = map_graph(graph, folding, MapOptions(memory=memory))
        plan = memory_plan(hardware)
        assert plan is not None and len(plan.regions) == 2
        assert plan.demand <= memory.beats_per_cycle + 1e-9
        intervals.append(analyse(hardware).interval)
    assert intervals[0] < intervals[1]


def test_search_says_what_the_memory_lacks() -> None:
    outside = Outside(("conv_2",), WeightMemory(32, beats_per_cycle=0.2))
    with pytest.raises(TargetError, match=r"need at least [\d.]+ bytes a cycle at 600 cycles"):
        search_folding(digits_like(), RateGoal(1, 600), family="ecp5", outside=outside)
    with pytest.raises(RecipeError, match="'pool' cannot have weights outside"):
        search_folding(digits_like(), RateGoal(1, 600), family="ecp5", outside=Outside(("pool",)))


def test_only_matrix_units_have_weights_outside() -> None:
    folding = Folding({"pool": NodeFolding(mem_mode="external")})
    with pytest.raises(RecipeError, match="a pool_max block cannot have its weights outside"):
        map_graph(digits_like(), folding)


def test_describe_says_what_is_read() -> None:
    hardware = map_graph(mlp("uint2", "int3"), OUTSIDE)
    rows = {row.layer: row.read_bytes for row in describe(hardware, "ecp5")}
    assert rows["dense"] == 36 // 12 * 5 * 8  # 36 words of 24 bits, 12 of them in 5 of 64 bits
    assert rows["dense_2"] is None


@given(st.integers(1, 256), st.sampled_from((32, 64, 128, 256, 512, 1024)))
def test_no_burst_crosses_a_page(burst: int, port: int) -> None:
    try:
        size = burst_bytes(burst, port)
    except RecipeError:
        assert 4096 % (burst * port // 8)
        return
    starts = range(0, 3 * 4096, size)
    assert all(start // 4096 == (start + size - 1) // 4096 for start in starts)


def test_a_burst_of_24_words_is_refused() -> None:
    with pytest.raises(RecipeError, match="24 words of 64 bits would cross 4096 bytes"):
        burst_bytes(24, 64)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"data_bits": 48}, "48 bits does not exist"),
        ({"address_bits": 8}, "address_bits must be 13 .. 64"),
        ({"beats_per_cycle": 0}, "bandwidth must be above 0"),
        ({"beats_per_cycle": 1.5}, "at most the port's own"),
    ],
)
def test_bad_memories(fields: dict[str, float], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        WeightMemory(**fields)  # type: ignore[arg-type]
