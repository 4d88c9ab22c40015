# SPDX-License-Identifier: Apache-2.0
"""Formats in hardware: what memories and streams hold, what is refused, what is looked up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.hw_networks import (
    CODEBOOK,
    FORMAT_LIMITS,
    HYBRID,
    Net,
    floats,
    levels,
    mapped_networks,
    mixed,
    shifts_and_tables,
)

from bitwright.base.errors import FormatError, GraphError, ModelError
from bitwright.build.energy_formats import mac_energy
from bitwright.formats import CodebookFormat, parse_format
from bitwright.hw import (
    Folding,
    NodeFolding,
    RateGoal,
    analyse,
    block_of,
    blocks_of,
    graph_resources,
    mac_cost,
    mac_format,
    map_graph,
    search_folding,
    template,
)
from bitwright.hw.blocks import Depthwise, MatVec
from bitwright.hw.macs import mac_table
from bitwright.hw.operands import weight_operand
from bitwright.ir import INTEGER, Graph, GraphBuilder, random_feeds, rebuild
from bitwright.sim.beats import StreamSpec, pack, unpack

CODED = ("po2_3", "po2_6<zero>", CODEBOOK, HYBRID, "cb4:po2_4{-64,-1,2,32}", "e2m1", "e4m3",
         "e4m3<finite,flush>", "e5m2", "e3m0", "mx<e2m1,32>")  # fmt: skip


def _unit(weight: str, activation: str = "uint4") -> MatVec:
    graph = Net((12,), activation, weight).dense(6).finish(label=False)
    hardware = template(graph)
    block = block_of(hardware, next(node for node in hardware if node.op == "matvec"))
    assert isinstance(block, MatVec)
    return block


@pytest.mark.parametrize("weight", CODED)
def test_weight_memories_hold_codes(weight: str) -> None:
    unit = _unit(weight)
    assert unit.weight_bits == parse_format(weight).bits
    memory = unit.weight_memory()
    assert memory.width == unit.pe * unit.simd * unit.weight_bits
    np.testing.assert_array_equal(unit.unpack_weight(memory), unit.weight)


@pytest.mark.parametrize("weight", CODED)
def test_depthwise_memories_hold_codes(weight: str) -> None:
    graph = Net((5, 5, 4), "uint4", weight).depthwise().finish(label=False)
    unit = next(b for b in blocks_of(template(graph)).values() if isinstance(b, Depthwise))
    memory = unit.weight_memory()
    assert unit.weight_bits == parse_format(weight).bits
    np.testing.assert_array_equal(unit.unpack_weight(memory), unit.weight)


def test_a_table_that_saves_nothing_is_not_used() -> None:
    grid = parse_format("int4").grid()
    kind = CodebookFormat(16, parse_format("int4"), tuple(int(level) for level in grid))
    operand = weight_operand(kind, grid, "fc")
    assert (operand.word, operand.index) == (4, 0)


@given(mapped_networks(FORMAT_LIMITS))
def test_hardware_graph_equals_integer_graph(case: tuple[Graph, Folding]) -> None:
    graph, folding = case
    hardware = map_graph(graph, folding)
    feeds = random_feeds(graph, 2, np.random.default_rng(1))
    expected, got = graph.run(feeds), hardware.run(feeds)
    assert all((got[edge] == expected[edge]).all() for edge in graph.outputs)
    for block in blocks_of(hardware).values():
        if isinstance(block, MatVec | Depthwise):
            np.testing.assert_array_equal(
                block.unpack_weight(block.weight_memory()), block.node.params["weight"]
            )


@pytest.mark.parametrize("network", [shifts_and_tables, floats, mixed])
def test_search_folds_networks_of_codes(network: Callable[[], Graph]) -> None:
    graph = network()
    folding = search_folding(graph, RateGoal(1e8 / 600, 1e8), family="ecp5")
    hardware = map_graph(graph, folding)
    assert analyse(hardware).interval <= 600
    assert graph_resources(hardware, "ecp5").lut > 0


def test_memory_of_codes_is_what_the_search_sees() -> None:
    """The same layer with codes of 4 bits and with the integers that they stand for."""
    codes = Net((256,), "uint4", "po2_4").dense(64, name="fc").finish(label=False)
    node = next(node for node in codes if node.op == "dense")
    wide = replace(node, attrs={**node.attrs, "weight_format": "int9"})
    integers = rebuild(codes, tuple(wide if n is node else n for n in codes))
    folding = Folding({"fc": NodeFolding(pe=4, simd=4, ram_style="block")})
    narrow, broad = (
        blocks_of(map_graph(graph, folding))["fc"].memory_cost("ecp5").bram
        for graph in (codes, integers)
    )
    # 1024 words of 64 bits, and of 144, in blocks of 18; the replay buffer is LUT RAM.
    assert (narrow, broad) == (4, 8)


# --- requantization by shifts ---------------------------------------------------------------------


def test_dynamic_fixed_point_has_no_multiplier() -> None:
    graph = Net((5, 5, 3), "int8", "int8").conv(4, 3).shifted().finish(label=False)
    hardware = template(graph)
    block = block_of(hardware, next(node for node in hardware if node.op == "requant"))
    instance = block.instance()
    assert instance.parameters["Power"] == 0
    assert "MulFile" not in instance.memories
    assert {dict(fold.attrs)["res_type"] for fold in block.foldings()} == {"lut"}
    assert block.memory_cost("ecp5").dsp == 0
    varied = np.array([1, 2, 1, 1])
    other = replace(block.node, params={**block.node.params, "multiplier": varied})
    assert "MulFile" in replace(block, node=other).instance().memories


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda net: net.add(net.edge), "add of e4m3"),
        (lambda net: net.concat(net.edge), "concat of e4m3"),
        (lambda net: net.average(2), "sum_pool of e4m3"),
    ],
)
def test_no_hardware_computes_with_floats_elsewhere(make: object, words: str) -> None:
    net = Net((4, 4, 2), "e4m3", "e4m3").conv(2, 1).requant_float()
    with pytest.raises(ModelError, match=words) as caught:
        map_graph(make(net).finish(label=False))  # type: ignore[operator]
    assert caught.value.where and "integer format" in str(caught.value.hint)


def test_activations_of_codebooks_are_refused() -> None:
    with pytest.raises(ModelError, match=r"products of cb16.* have no hardware"):
        map_graph(Net((8,), CODEBOOK, "int4").dense(3).finish(label=False))


def test_codebooks_without_a_table_are_refused() -> None:
    builder = GraphBuilder("net", INTEGER)
    edge = builder.input("x", levels((4,), "uint4"))
    attrs = {"weight_format": "cb16:int8", "weight_scale": (1.0,)}
    params = {"weight": np.ones((2, 4), dtype=np.int64)}
    edge = builder.add("dense", (edge,), name="fc", attrs=attrs, params=params)
    with pytest.raises(ModelError, match="no table") as caught:
        map_graph(builder.finish(edge))
    assert caught.value.where == "fc"


def test_no_zero_no_padding() -> None:
    net = Net((4, 4, 2), "po2_4", "int4").conv(2, 3, 1)
    with pytest.raises(ModelError, match="format po2_4 has no level 0 to pad with"):
        map_graph(net.finish(label=False))


# --- streams --------------------------------------------------------------------------------------


@given(st.sampled_from(("e2m1", "e4m3", "e5m2", "e3m2<flush>", "po2_4")), st.integers(1, 5))
def test_beats_of_codes_and_back(name: str, lanes: int) -> None:
    kind = parse_format(name)
    spec = StreamSpec(lanes, kind.bits, 4, lanes * kind.bits + 3, codes=kind)
    given_levels = np.random.default_rng(lanes).choice(kind.grid(), (3, 4 * lanes))
    np.testing.assert_array_equal(unpack(spec, pack(spec, given_levels)), given_levels)


def test_what_no_code_stands_for() -> None:
    spec = StreamSpec(1, 8, 1, 8, codes=parse_format("e4m3"))
    with pytest.raises(FormatError, match="17 is no e4m3 level"):
        pack(spec, np.array([[17]]))
    with pytest.raises(FormatError, match="NaN"):
        unpack(spec, np.array([[0x7F]], dtype=np.uint8))
    with pytest.raises(GraphError, match="has 8 bits"):
        StreamSpec(1, 7, 1, 7, codes=parse_format("e4m3"))


# --- costs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weight", "name"),
    [("ternary", "int2"), ("int4n", "int4"), ("uint4", "int5"), ("fixed<8,-2>", "int8"),
     ("mxfp4", "e2m1"), ("po2_4<zero,linear>", "po2_4<zero>"), ("bipolar", "bipolar"),
     (CODEBOOK, "cb16"), (HYBRID, "cb16:e4m3")],
)  # fmt: skip
def test_formats_of_the_same_hardware_share_their_measurement(weight: str, name: str) -> None:
    assert mac_format(weight, weight=True) == name


def test_measured_pairs_are_found_and_others_are_not_invented() -> None:
    for key in mac_table()["pairs"]:
        weight, activation = key.split(" ")
        found = mac_cost(weight, activation)
        assert found is not None and found.luts.value > 0
        assert found.multiplier is None or found.multiplier.dsp >= 1
    assert mac_cost("int13", "uint8") is None
    assert mac_cost("e8m23", "e8m23") is None
    with pytest.raises(FormatError):
        mac_cost("int4x", "uint8")


def test_shifts_cost_less_than_products() -> None:
    shift, product = mac_cost("po2_4", "int8"), mac_cost("int8", "int8")
    assert shift is not None and product is not None
    assert shift.luts.value < product.luts.value
    assert shift.multiplier is None and product.multiplier is not None


def test_energy_follows_its_stated_rule() -> None:
    # Horowitz' own figures at the widths that he gives.
    wide = mac_energy("e8m23", "e8m23")
    assert wide is not None and wide.value == pytest.approx(3.7 + 0.9)
    small = mac_energy("int8", "int8")
    assert small is not None and str(small.source) == "model"
    assert small.value == pytest.approx(0.0031 * 64 + 0.0035 * 24, rel=0.01)
    order = [mac_energy(name, name) for name in ("bipolar", "int4", "int8", "e4m3", "e5m10")]
    values = [figure.value for figure in order if figure is not None]
    assert values == sorted(values) and len(values) == 5
