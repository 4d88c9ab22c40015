# SPDX-License-Identifier: Apache-2.0
"""Memory images: what is packed is what is read back, and stands where the layout says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hw_networks import Net, mapped_networks

from bitwright.base.errors import GraphError
from bitwright.hw import Folding, NodeFolding, blocks_of, map_graph
from bitwright.hw.blocks import MatVec, Requant, Threshold
from bitwright.hw.memory import (
    Memory,
    bram_count,
    dsp_count,
    pack_lanes,
    parse_memory,
    ram_resources,
    ram_style,
    rom_luts,
    unpack_lanes,
)
from bitwright.ir import Graph


@given(st.integers(1, 70), st.integers(1, 9), st.integers(1, 20), st.booleans(), st.integers(0, 99))
def test_pack_and_unpack(depth: int, lanes: int, width: int, signed: bool, seed: int) -> None:
    low, high = (-(1 << (width - 1)), 1 << (width - 1)) if signed else (0, 1 << width)
    values = np.random.default_rng(seed).integers(low, high, (depth, lanes))
    memory = pack_lanes(values, width, "test")
    bits = parse_memory(memory.text, memory.width)
    assert np.array_equal(bits, memory.bits)
    assert np.array_equal(unpack_lanes(Memory(bits, "test"), lanes, signed=signed), values)


def test_text_is_hex_with_lane_0_last_and_a_header() -> None:
    memory = pack_lanes(np.array([[1, -2, 3], [0, 7, -8]]), 4, "some layout")
    assert memory.text == "// some layout\n// 2 words of 12 bits\n3e1\n870\n"


def test_values_that_do_not_fit_are_refused() -> None:
    for values in ([[8, -1]], [[16, 0]], [[-9, 0]]):
        with pytest.raises(GraphError, match="do not fit into 4 bits"):
            pack_lanes(np.array(values), 4, "x")
    with pytest.raises(GraphError, match="is no word of 4 bits"):
        parse_memory("1f\n", 4)
    with pytest.raises(GraphError, match="no hexadecimal word"):
        parse_memory("zz\n", 8)


@given(mapped_networks())
def test_weight_memory_holds_the_weights(case: tuple[Graph, Folding]) -> None:
    for block in blocks_of(map_graph(*case)).values():
        if isinstance(block, MatVec):
            assert np.array_equal(block.unpack_weight(block.weight_memory()), block.weight)


def test_weight_layout_word_by_word() -> None:
    graph = Net((6,), "uint4", "int4n").dense(4, name="fc").finish(label=False)
    hardware = map_graph(graph, Folding({"fc": NodeFolding(pe=2, simd=3)}))
    block = blocks_of(hardware)["fc"]
    assert isinstance(block, MatVec)
    lanes = unpack_lanes(block.weight_memory(), 6, signed=True)
    for fold in range(2):
        for step in range(2):
            for p in range(2):
                for s in range(3):
                    expected = block.weight[fold * 2 + p, step * 3 + s]
                    assert lanes[fold * 2 + step, p * 3 + s] == expected


def _search(block: Threshold, x: int, channel: int) -> int:
    """What the module does, read off its header: binary search through the stage memories."""
    fold, lane = divmod(channel % block.rows, block.pe)
    value = ~x if block.flips[channel % block.rows] else x
    prefix = 0
    for stage in range(block.stages):
        images = block.stage_memories(stage)
        assert len(images) == block.pe and {image.width for image in images} == {block.word_bits}
        lanes = np.hstack([unpack_lanes(image, 1, signed=True) for image in images])
        prefix = 2 * prefix + int(value >= lanes[(fold << stage) + prefix, lane])
    return prefix


@given(mapped_networks())
def test_threshold_memories_decide_as_the_graph_does(case: tuple[Graph, Folding]) -> None:
    graph, folding = case
    for block in blocks_of(map_graph(graph, folding)).values():
        if not isinstance(block, Threshold):
            continue
        given = block.node.params["thresholds"]
        low, high = block.input_type.lo, block.input_type.hi
        near = np.unique(np.clip(np.concatenate([given.ravel(), given.ravel() - 1]), low, high))
        for channel in range(min(3, block.input_type.channels)):
            for x in {low, high, *(int(v) for v in near[:6]), *(-int(v) for v in near[:6])}:
                if not low <= x <= high:
                    continue
                row = given[channel % len(given)]
                flipped = block.flips[channel % block.rows]
                assert _search(block, x, channel) == int(((-x if flipped else x) >= row).sum())


@given(mapped_networks())
def test_requant_memories_hold_their_channels(case: tuple[Graph, Folding]) -> None:
    for block in blocks_of(map_graph(*case)).values():
        if isinstance(block, Requant):
            memory = block.memory("offset", block.offset_bits)
            lanes = unpack_lanes(memory, block.pe, signed=True).ravel()
            wanted = np.broadcast_to(block.node.params["offset"], (block.rows,))
            assert np.array_equal(lanes, wanted)


def test_block_ram_shapes() -> None:
    # DP16KD and RAMB18: 1024 x 18, 512 x 36; M10K: 1024 x 10, 256 x 40.
    for family, depth, width, count in (
        ("ecp5", 1024, 18, 1), ("ecp5", 512, 36, 1), ("ecp5", 513, 36, 2), ("xc7", 2048, 18, 2),
        ("cyclonev", 1024, 18, 2), ("cyclonev", 256, 40, 1), ("xcup", 16384, 1, 1),
    ):  # fmt: skip
        assert bram_count(family, depth, width) == count
    assert dsp_count("ecp5", 8, 8) == 1
    assert dsp_count("ecp5", 20, 8) == 2
    assert dsp_count("cyclonev", 9, 9) == 0.5


def test_small_memories_stay_in_luts() -> None:
    assert ram_style("ecp5", 32, 8) == "distributed"
    assert ram_style("ecp5", 1024, 16) == "block"
    assert rom_luts("ecp5", 64, 8) == 32


def test_small_memories_of_ice40_are_registers_and_large_ones_block_ram() -> None:
    """It has no LUT RAM: 16 words of 8 bits are 128 flip-flops and their multiplexer."""
    small = ram_resources("ice40", 16, 8, "auto")
    assert (small.ff, small.bram) == (128, 0)
    assert small.lut > 8 * 16 / 4
    assert ram_resources("ecp5", 16, 8, "auto").ff == 0
    assert ram_resources("ice40", 256, 16, "auto").to_json() == {
        "lut": 0, "ff": 0, "dsp": 0, "bram": 1,
    }  # fmt: skip
    assert bram_count("ice40", 512, 16) == 2
    assert bram_count("ice40", 2048, 2) == 1
