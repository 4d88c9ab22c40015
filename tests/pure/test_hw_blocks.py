# SPDX-License-Identifier: Apache-2.0
"""Blocks beyond plain chains: memory images, firing of joins, element orders, error messages."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import GraphError
from bitwright.formats import parse_format
from bitwright.hw import HARDWARE, Block, block_of
from bitwright.hw.blocks import Depthwise, Lookup
from bitwright.hw.blocks.join import signed_digits
from bitwright.hw.memory import unpack_lanes
from bitwright.ir import Attr, Graph, GraphBuilder, IntArray, TensorType


def kind(
    shape: tuple[int, ...], form: str = "uint4", scale: tuple[float, ...] = (0.5,)
) -> TensorType:
    levels = parse_format(form)
    return TensorType(shape, levels, scale, levels.min_level, levels.max_level)


def one(
    op: str,
    tensors: tuple[TensorType, ...],
    attrs: dict[str, Attr],
    params: dict[str, IntArray] | None = None,
) -> Graph:
    builder = GraphBuilder("one", HARDWARE)
    edges = tuple(builder.input(f"x{i}", tensor) for i, tensor in enumerate(tensors))
    return builder.finish(builder.add(op, edges, attrs=attrs, params=params))


def block(graph: Graph) -> Block:
    return block_of(graph, graph.nodes[-1])


@given(st.integers(-(1 << 28), 1 << 28).filter(bool))
def test_signed_digits_are_the_fewest_powers(number: int) -> None:
    digits, rest = 0, number
    while rest:
        if rest % 2:
            rest -= 2 - rest % 4
            digits += 1
        rest //= 2
    assert signed_digits(number) == digits


@pytest.mark.parametrize("form", ["int4", "int7", "bipolar"])
@pytest.mark.parametrize("pe", [1, 2, 6])
def test_depthwise_weights_come_back(form: str, pe: int) -> None:
    levels = parse_format(form)
    rng = np.random.default_rng(pe)
    weight = rng.integers(levels.min_level, levels.max_level + 1, (6, 9))
    weight = np.where(weight == 0, 1, weight)
    attrs: dict[str, Attr] = {"weight_format": form, "pe": pe}
    unit = cast(Depthwise, block(one("depthwise", (kind((1, 1, 54)),), attrs, {"weight": weight})))
    memory = unit.weight_memory()
    assert memory.depth == 9 * 6 // pe
    np.testing.assert_array_equal(unit.unpack_weight(memory), weight)
    with pytest.raises(GraphError, match="has no bias"):
        unit.bias_memory()


def test_window_of_groups_feeds_a_depthwise_unit() -> None:
    """Window with one group a beat, then the unit: channel by channel the sum over the window."""
    rng = np.random.default_rng(3)
    weight = rng.integers(-4, 4, (4, 9))
    builder = GraphBuilder("pair", HARDWARE)
    scale = (0.5, 0.25, 1.0, 2.0)
    x = builder.input("x", kind((5, 6, 4), scale=scale))
    shape: dict[str, Attr] = {"kernel": (3, 3), "pixels": 20, "groups": 0, "simd": 2}
    window = builder.add("window", (x,), attrs=shape)
    attrs: dict[str, Attr] = {"weight_format": "int4", "pe": 2}
    graph = builder.finish(
        builder.add("depthwise", (window,), attrs=attrs, params={"weight": weight})
    )
    image = rng.integers(0, 16, (2, 5, 6, 4))
    (out,) = graph.run({"x": image}).values()
    taps = weight.reshape(4, 3, 3)
    for row in range(3):
        for column in range(4):
            patch = image[:, row : row + 3, column : column + 3]
            expected = np.einsum("nijc,cij->nc", patch, taps)
            np.testing.assert_array_equal(out[:, row, column], expected)
    assert graph.types[graph.outputs[0]].scale == scale


@pytest.mark.parametrize("form", ["int3", "uint3", "bipolar"])
def test_lookup_addresses_are_wire_codes(form: str) -> None:
    tensor = kind((4,), form)
    size = tensor.hi - tensor.lo + 1
    table = np.arange(size, dtype=np.int64)[None] * 3 - 5
    attrs: dict[str, Attr] = {"format": "int6", "pe": 2}
    unit = cast(Lookup, block(one("lookup", (tensor,), attrs, {"table": table})))
    words = unpack_lanes(unit.table_memory(), 1, signed=True)[:, 0]
    assert len(words) == 1 << tensor.wire_bits
    for level in (-1, 1) if tensor.is_bipolar else range(tensor.lo, tensor.hi + 1):
        code = (level + 1) // 2 if tensor.is_bipolar else level & (len(words) - 1)
        assert words[code] == table[0, level - tensor.lo]


def test_joins_say_when_each_input_is_taken() -> None:
    add = block(one("add", (kind((2, 2, 4)), kind((2, 2, 4), "int3")), {"pe": 2})).firing()
    np.testing.assert_array_equal(add.consumes, np.tile(np.arange(8), (2, 1)))
    join = block(one("concat", (kind((1, 2, 4)), kind((1, 2, 2), "int3")), {"pe": 2}))
    first, second = join.firing().consumes
    assert first.tolist() == [0, 1, 3, 4] and second.tolist() == [2, 5]
    assert [port.name for port in join.inputs] == ["in0", "in1"]
    assert join.interval == 6 and join.latency == 1


def test_pools_of_a_whole_image() -> None:
    image = np.random.default_rng(1).integers(0, 16, (3, 4, 5, 2))
    for op, expected in (
        ("pool_max", image.max(axis=(1, 2))),
        ("pool_sum", image.sum(axis=(1, 2))),
    ):
        graph = one(op, (kind((4, 5, 2)),), {"window": 0, "pe": 2})
        (out,) = graph.run({"x0": image}).values()
        np.testing.assert_array_equal(out[:, 0, 0], expected)
        assert block(graph).interval == 20


@pytest.mark.parametrize(
    ("op", "tensors", "attrs", "message"),
    [
        ("add", (kind((2, 4)), kind((2, 4))), {"pe": 3}, "does not divide 4"),
        ("add", (kind((4,)), kind((4,))), {"multipliers": (1, 1 << 29)}, "below 2.29"),
        ("concat", (kind((1, 1, 4)), kind((1, 1, 6))), {"pe": 4}, "does not divide 6"),
        ("pool_sum", (kind((2, 2, 4)),), {"window": 3}, "not 3 pixels"),
        ("pool_max", (kind((2, 2, 4)),), {"window": -1}, "-1 pixels"),
        ("top_k", (kind((4,)),), {"k": 2, "pe": 2}, "needs pe=1"),
        ("window", (kind((4, 4, 4)),), {"kernel": (3, 3), "pixels": 20, "groups": 3}, "3 groups"),
        ("upsample", (kind((2, 2, 4)),), {"factor": (2, 0)}, "two integers"),
    ],
)
def test_illegal_blocks_are_named(
    op: str, tensors: tuple[TensorType, ...], attrs: dict[str, Attr], message: str
) -> None:
    with pytest.raises(GraphError, match=message):
        one(op, tensors, attrs)
