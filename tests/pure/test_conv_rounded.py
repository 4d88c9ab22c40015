# SPDX-License-Identifier: Apache-2.0
"""Convolutions whose accumulator rounds and saturates: the definition by loops over whole numbers,
and the same on hardware blocks.
"""

from __future__ import annotations

import numpy as np
import pytest
from tests.hw_networks import random_folding, rounded_network

from bitwright.base.errors import GraphError, ModelError, RecipeError
from bitwright.formats import parse_format
from bitwright.hw import Folding, NodeFolding, map_graph
from bitwright.ir import (
    INTEGER,
    Graph,
    GraphBuilder,
    Node,
    TensorType,
    random_feeds,
)
from bitwright.ir.integer import ROUNDED


def by_loops(x: np.ndarray, node: Node, height: int, width: int) -> np.ndarray:
    """One sum after another, in Python's integers."""
    weight, bias = node.params["weight"], node.params.get("bias")
    rows, kernel_h, kernel_w, columns = weight.shape
    groups, (top, left, *_), (down, right) = (
        node.integer("groups"), node.ints("padding"), node.ints("stride")
    )  # fmt: skip
    tile, drop, bits = (node.integer(name) for name in ROUNDED)
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    out = np.zeros((height, width, rows), dtype=np.int64)
    for y, z, row in np.ndindex(out.shape):
        group = row // (rows // groups)
        products = []
        for i, j, c in np.ndindex(kernel_h, kernel_w, columns):
            at = (y * down + i - top, z * right + j - left)
            inside = 0 <= at[0] < x.shape[0] and 0 <= at[1] < x.shape[1]
            value = int(x[at[0], at[1], group * columns + c]) if inside else 0
            products.append(value * int(weight[row, i, j, c]))
        total = 0 if bias is None else int(bias[row])
        for start in range(0, len(products), tile):
            added = sum(products[start : start + tile])
            total += (added + (1 << drop >> 1)) >> drop
            total = min(max(total, low), high)
        out[y, z, row] = total
    return out


@pytest.mark.parametrize("seed", range(12))
def test_the_sum_is_rounded_and_saturates_step_by_step(seed: int) -> None:
    graph = rounded_network(np.random.default_rng(seed), layers=1)
    (node,) = (node for node in graph if node.op == "conv_rounded")
    feeds = random_feeds(graph, 2, np.random.default_rng(seed))
    found = graph.run(feeds)[node.output]
    for x, y in zip(feeds["x"], found, strict=True):
        assert (by_loops(x, node, *y.shape[:2]) == y).all()
    kind = graph.types[node.output]
    assert kind.lo <= found.min() and found.max() <= kind.hi


def test_narrow_sums_do_saturate_on_the_way() -> None:
    """+100, +100, -100 in 8 bits: 127 - 100 = 27, not 100."""
    builder = GraphBuilder("g", INTEGER)
    edge = builder.input("x", TensorType((1, 1, 3), parse_format("int8"), (1.0,), -128, 127))
    attrs = {"weight_format": "int8", "tile": 1, "drop": 0, "bits": 8}
    weight = np.ones((1, 1, 1, 3), dtype=np.int64)
    edge = builder.add("conv_rounded", (edge,), name="c", attrs=attrs, params={"weight": weight})
    graph = builder.finish(edge)
    found = graph.run({"x": np.array([100, 100, -100]).reshape(1, 1, 1, 3)})[edge]
    assert found.item() == 27


@pytest.mark.parametrize("seed", range(8))
def test_blocks_do_the_same(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    graph = rounded_network(rng, layers=3)
    mapped = map_graph(graph, random_folding(graph, rng))
    feeds = random_feeds(graph, 3, rng)
    (out,) = graph.outputs
    assert (mapped.run(feeds)[mapped.outputs[0]] == graph.run(feeds)[out]).all()


def test_what_has_no_meaning_or_no_hardware_is_said() -> None:
    def conv(tile: int, drop: int = 2, bits: int = 8, channels: int = 6, bias: int = 0) -> Graph:
        builder = GraphBuilder("g", INTEGER)
        kind = TensorType((2, 2, channels), parse_format("int4"), (1.0,), -8, 7)
        edge = builder.input("x", kind)
        edge = builder.add(
            "conv_rounded",
            (edge,),
            name="c",
            attrs={"weight_format": "int4", "tile": tile, "drop": drop, "bits": bits},
            params={
                "weight": np.ones((2, 1, 1, channels), dtype=np.int64),
                "bias": np.full(2, bias),
            },
        )
        return builder.finish(edge)

    with pytest.raises(GraphError, match="a step of 0 products"):
        conv(0)
    with pytest.raises(GraphError, match="an accumulator of 1 bits"):
        conv(1, bits=1)
    with pytest.raises(GraphError, match=r"a bias lies outside of the accumulator's \[-128, 127\]"):
        conv(1, bias=200)
    with pytest.raises(ModelError, match="6 products of a sum in steps of 4 have no hardware"):
        map_graph(conv(4))
    assert map_graph(conv(9)).node("c").integer("simd") == 6  # more than there are: all at once
    with pytest.raises(RecipeError, match="SIMD=2, but its sum is rounded after every 3 products"):
        map_graph(conv(3), Folding({"c": NodeFolding(simd=2)}))
