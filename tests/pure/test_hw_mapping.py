# SPDX-License-Identifier: Apache-2.0
"""Mapping: the hardware graph means the same as the integer graph, or the refusal says why."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hw_networks import Net, digits_like, levels, mapped_networks, mlp

from bitwright.base.errors import ModelError, RecipeError
from bitwright.hw import (
    Folding,
    MapOptions,
    NodeFolding,
    analyse,
    block_of,
    blocks_of,
    describe,
    folding_of,
    map_graph,
    parse_folding,
)
from bitwright.hw.blocks import Fifo, Flatten, MatVec
from bitwright.hw.cost import estimate as estimate_of
from bitwright.hw.dialect import HARDWARE
from bitwright.hw.tokens import check_tokens
from bitwright.ir import INTEGER, Graph, GraphBuilder, load_graph, random_feeds, save_graph, verify


def assert_same(graph: Graph, hardware: Graph, frames: int = 3, seed: int = 0) -> None:
    feeds = random_feeds(graph, frames, np.random.default_rng(seed))
    expected, got = graph.run(feeds), hardware.run(feeds)
    assert list(expected) == list(got)
    for edge, value in expected.items():
        assert (value == got[edge]).all()


@given(mapped_networks(), st.booleans())
def test_hardware_graph_computes_the_same(case: tuple[Graph, Folding], fifos: bool) -> None:
    graph, folding = case
    hardware = map_graph(graph, folding, MapOptions(fifos=fifos))
    verify(hardware)
    assert_same(graph, hardware)


@given(mapped_networks())
def test_every_stream_fits_both_its_ends(case: tuple[Graph, Folding]) -> None:
    hardware = map_graph(*case)
    blocks = blocks_of(hardware)
    ports = {e: p for b in blocks.values() for e, p in zip(b.node.outputs, b.outputs, strict=True)}
    for node in hardware:
        for edge, want in zip(node.inputs, blocks[node.name].inputs, strict=True):
            assert len(hardware.consumers(edge)) == 1
            if edge in ports:
                assert (ports[edge].lanes, ports[edge].width) == (want.lanes, want.width)
                assert isinstance(blocks[node.name], Flatten) or ports[edge].beats == want.beats


@given(mapped_networks())
def test_the_folding_of_a_design_gives_the_design_again(case: tuple[Graph, Folding]) -> None:
    hardware = map_graph(*case)
    folding = parse_folding(folding_of(hardware).to_json())
    assert map_graph(case[0], folding) == hardware


def test_saved_and_loaded_hardware_graph_is_equal(tmp_path: Any) -> None:
    hardware = map_graph(digits_like())
    save_graph(hardware, tmp_path / "hw.graph")
    assert load_graph(tmp_path / "hw.graph", {"hardware": HARDWARE}) == hardware


def test_unset_folding_follows_the_neighbours() -> None:
    folding = Folding({"conv": NodeFolding(pe=4), "conv_2": NodeFolding(pe=2, simd=12)})
    hardware = map_graph(digits_like(), folding)
    found = {name: block.lanes for name, block in blocks_of(hardware).items()}
    assert found["act"] == (4, 4)
    assert found["pool_window"] == found["pool"] == (4, 4)
    assert found["conv_2_pad"] == found["conv_2_window"] == (4, 4)
    assert found["conv_2_dwc"] == (4, 12)


def test_an_input_is_as_wide_as_its_first_reader_wants() -> None:
    graph = Net((6, 4, 2), "uint2", "int2n").flatten().dense(4, name="fc").finish()
    hardware = map_graph(graph, Folding({"fc": NodeFolding(simd=16)}))
    assert [node.op for node in hardware][:2] == ["flatten", "matvec"]
    assert blocks_of(hardware)["flat"].lanes == (16, 16)
    assert analyse(hardware).interval == 3 * 4


def test_lane_counts_that_share_no_divisor_go_through_their_multiple() -> None:
    graph = mlp("uint4", "int4n")
    folding = Folding({"dense": NodeFolding(pe=4), "dense_2": NodeFolding(simd=6)})
    dwcs = [b.lanes for b in blocks_of(map_graph(graph, folding)).values() if b.node.op == "dwc"]
    assert (4, 12) in dwcs and (12, 6) in dwcs


def test_a_given_fifo_depth_is_kept() -> None:
    folding = Folding({"dense_2": NodeFolding(depth=100)})
    blocks = blocks_of(map_graph(mlp("uint4", "int4n"), folding))
    fifo = blocks["dense_2_fifo"]
    assert isinstance(fifo, Fifo) and fifo.depth == 100


def test_memory_style_follows_size_unless_it_is_given() -> None:
    graph = Net((512,), "uint4", "int4n").dense(64, name="scores").finish(label=False)
    for asked, style in ((None, "block"), ("distributed", "distributed")):
        hardware = map_graph(graph, Folding({"scores": NodeFolding(ram_style=asked)}))
        assert hardware.node("scores").string("ram_style") == style


@pytest.mark.parametrize(
    ("choice", "message", "hint"),
    [
        (NodeFolding(pe=5), "PE=5 does not divide 16", "legal are 1, 2, 4, 8, 16"),
        (NodeFolding(simd=7), "SIMD=7 does not divide 72", "legal are 1, 2, 3"),
        (NodeFolding(reuse_factor=7), "no PE and SIMD give ReuseFactor 7", "near it are 6, 8"),
    ],
)
def test_illegal_folding_says_what_is_legal(choice: NodeFolding, message: str, hint: str) -> None:
    with pytest.raises(RecipeError, match=message) as caught:
        map_graph(digits_like(), Folding({"conv_2": choice}))
    assert caught.value.where == "folding, conv_2"
    assert hint.split(" ", maxsplit=1)[0] in str(caught.value.hint)


def test_illegal_buffers_and_stray_names() -> None:
    with pytest.raises(RecipeError, match="pixels=2 is less than"):
        map_graph(digits_like(), Folding({"conv_window": NodeFolding(pixels=2)}))
    with pytest.raises(RecipeError, match="names \\['conv9'\\]") as caught:
        map_graph(digits_like(), Folding({"conv9": NodeFolding(pe=1)}))
    assert "conv_2_window" in str(caught.value.hint)
    with pytest.raises(RecipeError, match="unknown family 'gowin'"):
        MapOptions("gowin")


def test_reuse_factor_is_another_word_for_pe_and_simd() -> None:
    hardware = map_graph(digits_like(), Folding({"conv_2": NodeFolding(reuse_factor=16)}))
    block = blocks_of(hardware)["conv_2"]
    assert isinstance(block, MatVec)
    assert (block.simd, block.pe) == (72, 1)


@pytest.mark.parametrize(
    ("padding", "kernel", "dilation", "ahead"),
    [
        ((1, 1, 1, 1), 3, 1, 0),
        ((2, 2, 0, 0), 3, 1, 0),  # the first window ends with the first pixel
        ((2, 3, 0, 0), 3, 1, 1),
        ((3, 0, 0, 0), 3, 1, 1),
        ((3, 5, 0, 0), 3, 2, 0),
        ((4, 4, 0, 0), 3, 2, 0),
        ((4, 5, 0, 0), 3, 2, 1),
        ((0, 1, 0, 0), 1, 1, 1),
        ((0, 0, 9, 9), 1, 1, 0),
    ],
)
def test_a_pad_waits_for_its_frame_where_windows_lie_in_front_of_the_first_pixel(
    padding: tuple[int, ...], kernel: int, dilation: int, ahead: int
) -> None:
    builder = GraphBuilder("net", INTEGER)
    edge = builder.input("x", levels((6, 6, 4), "uint4"))
    attrs = {"padding": padding, "dilation": (dilation,) * 2, "weight_format": "int4"}
    params = {"weight": np.ones((4, kernel, kernel, 4), dtype=np.int64)}
    graph = builder.finish(builder.add("conv", (edge,), attrs=attrs, params=params, name="c"))
    hardware = map_graph(graph)
    pad = hardware.node("c_pad")
    assert pad.integer("wait_for_input") == ahead
    assert blocks_of(hardware)["c_pad"].instance().parameters.get("WaitForInput", 0) == ahead
    check_tokens(hardware)


def _threshold(count: int, step: int = 1, source: str = "uint4") -> Graph:
    builder = GraphBuilder("net", INTEGER)
    edge = builder.input("x", levels((3,), source))
    attrs = {"base": 0, "step": step, "format": "uint16", "scale": (1.0,)}
    params = {"thresholds": np.arange(count)[None, :]}
    return builder.finish(builder.add("threshold", (edge,), attrs=attrs, params=params, name="t"))


@pytest.mark.parametrize(
    ("graph", "where", "message"),
    [
        (_threshold(256), "t", "256 thresholds a channel: the hardware searches at most 255"),
        (_threshold(3, step=2), "t", "thresholds with step 2"),
        (_threshold(3, source="bipolar"), "t", "threshold of a bipolar tensor"),
    ],
)
def test_what_has_no_hardware_is_refused_with_the_reason(
    graph: Graph, where: str, message: str
) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        map_graph(graph)
    assert caught.value.where == where
    assert caught.value.hint


def test_streams_of_a_fork_keep_clear_of_names_of_the_graph() -> None:
    """Exporters number the nodes of one kind: Relu, Relu_1, Relu_2."""
    b = GraphBuilder("net", INTEGER)
    x = b.input("x", levels((2, 2, 3), "uint2"))
    attrs: dict[str, Any] = {"multipliers": (1, 1), "scale": (1.0,)}
    first = b.add("add", (x, x), name="add", attrs=attrs)
    second = b.add("add", (first, first), name="add_1", attrs=attrs)
    third = b.add("add", (second, first), name="add_0", attrs=attrs)
    graph = b.finish(b.add("add", (third, third), name="add_fork", attrs=attrs))
    assert_same(graph, map_graph(graph))


def test_several_readers_of_an_edge_get_forks_and_outputs_keep_their_names() -> None:
    builder = GraphBuilder("net", INTEGER)
    edge = builder.input("x", levels((4,), "uint4"))
    params = {"weight": np.arange(12).reshape(3, 4) - 6}
    attrs = {"weight_format": "int4"}
    one = builder.add("dense", (edge,), name="one", attrs=attrs, params=params)
    two = builder.add("dense", (edge,), name="two", attrs=attrs, params=params)
    label = builder.add("top_k", (one,), name="label")
    graph = builder.finish(one, two, label)
    hardware = map_graph(graph)
    assert hardware.outputs == ("one", "two", "label")
    assert sum(node.op == "fork" for node in hardware) == 2
    assert_same(graph, hardware)


def test_an_edge_read_twice_comes_in_two_streams_and_joins_convert_each_input() -> None:
    net = Net((4, 4, 6), "uint4", "int4n")
    start = net.edge
    net.add(start, (1, 3))
    doubled = net.edge
    net.at(start).conv(4, 1).threshold().concat(doubled, start)
    graph = net.finish(label=False)
    folding = Folding({"add": NodeFolding(pe=3), "concat": NodeFolding(pe=2)})
    hardware = map_graph(graph, folding)
    verify(hardware)
    assert_same(graph, hardware)
    assert sum(node.op == "fork" for node in hardware) == 3  # x is read four times
    assert {"concat_part0", "concat"} <= {n.name for n in hardware if n.op == "concat"}
    assert "concat_in0_dwc0" in {node.name for node in hardware}
    assert map_graph(graph, folding_of(hardware)) == hardware


def test_a_depthwise_unit_and_its_window_have_the_same_lanes() -> None:
    graph = Net((5, 5, 6), "uint4", "int4n").depthwise().threshold().finish(label=False)
    for choice in ({"dw": NodeFolding(pe=3)}, {"dw_window": NodeFolding(simd=3)}):
        hardware = map_graph(graph, Folding(choice))
        assert block_of(hardware, hardware.node("dw")).lanes == (3, 3)
        assert block_of(hardware, hardware.node("dw_window")).lanes == (3, 3)
        assert_same(graph, hardware)
    both = Folding({"dw": NodeFolding(pe=3), "dw_window": NodeFolding(simd=2)})
    with pytest.raises(RecipeError, match="PE=3 differs from SIMD=2 of dw_window"):
        map_graph(graph, both)
    # As FINN's folding files say it for a VVAU.
    hardware = map_graph(graph, parse_folding({"dw": {"PE": 2, "ram_style": "block"}}))
    assert hardware.node("dw").integer("pe") == 2


def test_a_parallel_window_takes_all_channels_and_gives_all_pixels() -> None:
    graph = digits_like()
    hardware = map_graph(graph, Folding({"conv_2_window": NodeFolding(parallel_window=1)}))
    window = block_of(hardware, hardware.node("conv_2_window"))
    channels, kernel = window.input_type.channels, window.node.ints("kernel")
    assert window.lanes == (channels, channels * kernel[0] * kernel[1])
    assert window.interval == window.inputs[0].beats  # a pixel a cycle
    kinds = {row.layer: row.op for row in describe(hardware, "ecp5")}
    assert kinds["conv_2_window"] == "window_parallel" and kinds["conv_window"] == "window"
    assert_same(graph, hardware)
    narrow = NodeFolding(parallel_window=1, simd=channels // 2)
    with pytest.raises(RecipeError, match=r"SIMD=\d+ of a parallel window") as caught:
        map_graph(graph, Folding({"conv_2_window": narrow}))
    assert f"SIMD={channels}" in str(caught.value.hint)


def test_a_depthwise_unit_and_its_window_are_parallel_together() -> None:
    graph = Net((5, 5, 18), "uint4", "int4n").depthwise().threshold().finish(label=False)
    by_window = map_graph(graph, Folding({"dw_window": NodeFolding(parallel_window=1)}))
    unit, window = (block_of(by_window, by_window.node(name)) for name in ("dw", "dw_window"))
    assert (unit.lanes, window.lanes) == ((18 * 9, 18), (18, 18 * 9))
    assert unit.interval == 25 and window.interval == 49  # a pixel a cycle, of the padded image
    by_unit = map_graph(graph, parse_folding({"dw": {"PE": 6, "SIMD": 9}}))
    unit = block_of(by_unit, by_unit.node("dw"))
    assert unit.lanes == (54, 6) and unit.interval == 75
    assert by_unit.node("dw_dwc").integer("out_lanes") == 54
    for hardware in (by_window, by_unit):
        assert map_graph(graph, folding_of(hardware)) == hardware
        assert_same(graph, hardware)


@pytest.mark.parametrize(
    "nodes",
    [
        {"dw": {"PE": 2, "SIMD": 1}, "dw_window": {"parallel_window": 1}},
        {"dw": {"PE": 2, "SIMD": 9}, "dw_window": {"parallel_window": 0}},
        {"dw": {"PE": 2, "SIMD": 3}},
        # As many lanes as a beat of the window has, in another order.
        {"dw": {"PE": 2, "SIMD": 9}, "dw_window": {"SIMD": 18, "parallel_window": 0}},
    ],
)
def test_a_depthwise_unit_takes_no_beats_in_another_order(nodes: dict[str, object]) -> None:
    graph = Net((5, 5, 18), "uint4", "int4n").depthwise().threshold().finish(label=False)
    with pytest.raises(RecipeError) as caught:
        map_graph(graph, parse_folding(nodes))
    assert "dw" in str(caught.value) and caught.value.hint


def test_a_parallel_window_has_no_buffer_whose_pixels_count() -> None:
    """Those of a file are left out, be they fewer than a serial window needs."""
    graph = digits_like()
    plain = map_graph(graph, Folding({"conv_window": NodeFolding(parallel_window=1)}))
    for pixels in (1, 100):
        choice = NodeFolding(parallel_window=1, pixels=pixels)
        hardware = map_graph(graph, Folding({"conv_window": choice}))
        assert hardware == plain == map_graph(graph, folding_of(hardware))


def test_grouped_convolutions_of_any_group_size() -> None:
    for groups, rows in ((2, 4), (4, 8), (4, 4), (2, 2)):
        net = Net((5, 4, 4), "uint4", "int4n").grouped(rows, 3, groups, padding=1)
        graph = net.threshold().finish(label=False)
        hardware = map_graph(graph)
        ops = {node.op for node in hardware}
        assert ("depthwise" in ops) == (groups == rows == 4)
        assert_same(graph, hardware)


def test_pools_of_the_whole_image_need_no_window() -> None:
    graph = Net((4, 4, 6), "uint4", "int4n").average(4).flatten().dense(3, name="s").finish()
    hardware = map_graph(graph)
    assert "window" not in {node.op for node in hardware}
    assert_same(graph, hardware)


def test_fifo_memory_can_be_given_by_the_name_of_the_fifo() -> None:
    folding = Folding({"dense_2": NodeFolding(depth=4096)})
    graph = mlp("uint4", "int4n")
    assert map_graph(graph, folding).node("dense_2_fifo").string("ram_style") == "block"
    named = {**folding.nodes, "dense_2_fifo": NodeFolding(ram_style="distributed")}
    hardware = map_graph(graph, Folding(named))
    assert hardware.node("dense_2_fifo").string("ram_style") == "distributed"
    with pytest.raises(RecipeError, match="dense_9_fifo"):
        map_graph(graph, Folding({"dense_9_fifo": NodeFolding(ram_style="block")}))
    with pytest.raises(RecipeError, match="depth has 2 entries for 1 inputs"):
        map_graph(graph, Folding({"dense_2": NodeFolding(depth=(4, 4))}))


def test_description_has_the_figures_of_every_block() -> None:
    hardware = map_graph(digits_like(), Folding({"conv_2": NodeFolding(pe=4, simd=4)}))
    rows = {row.layer: row for row in describe(hardware, "ecp5")}
    row = rows["conv_2"]
    assert (row.pe, row.simd, row.weight_format, row.weight_bits) == (4, 4, "int4n", 4)
    assert row.cycles == 16 // 4 * 72 // 4 * 16
    assert row.macs == 16 * 16 * 72
    assert row.parameters == 16 * 72
    assert row.accumulator_bits == hardware.types["conv_2"].wire_bits
    assert row.predicted.lut > 0
    assert row.instance == "i_conv_2"
    assert max(r.cycles for r in rows.values()) == analyse(hardware).interval
    assert {"op", "layer", "predicted"} <= set(row.to_json())


def test_estimate_of_a_block_states_beats_interval_and_latency() -> None:
    hardware = map_graph(digits_like(), Folding({"conv": NodeFolding(pe=2, simd=3)}))
    estimate = estimate_of(block_of(hardware, hardware.node("conv")), "ecp5")
    assert estimate.beats_in == (64 * 3,)
    assert estimate.beats_out == (64 * 4,)
    assert estimate.interval == 64 * 3 * 4
    # Last of three beats, pipeline, trees of three terms, one level for two weight digits.
    assert estimate.latency == 2 + 5 + 2 + 1
    assert estimate.resources.lut > 0
