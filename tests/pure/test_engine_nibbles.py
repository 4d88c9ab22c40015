# SPDX-License-Identifier: Apache-2.0
"""Lanes of 4 bits: chains of convolutions with few bits on the engine, equal to the graph."""

from __future__ import annotations

import numpy as np
import pytest

from bitwright.engine.checker import check_program
from bitwright.engine.compiler import compile_graph
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.estimate import timeline
from bitwright.engine.isa import Bits, Input
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, random_feeds

SMALL = EngineConfig(pixels=8, feature_words=256, weight_rows=256, parameter_rows=64)


def chain(seed: int, weights: str | None = None) -> Graph:
    """Three convolutions with activations of 3 or 4 bits, and a dense layer."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder("chain", INTEGER)
    shape = (int(rng.integers(3, 9)), int(rng.integers(3, 9)), int(rng.integers(1, 20)))
    edge = builder.input("x", TensorType(shape, parse_format("uint8"), (0.5,), 0, 255))
    for _ in range(3):
        rows, kernel = int(rng.choice([8, 12, 16, 30, 32])), int(rng.choice([1, 3]))
        name = weights or f"int{rng.integers(2, 5)}"
        kind = parse_format(name)
        size = (rows, kernel, kernel, builder.types[edge].channels)
        attrs = {
            "stride": (int(rng.integers(1, 3)),) * 2, "padding": (kernel // 2,) * 4,
            "weight_format": name, "weight_scale": (0.5,),
        }  # fmt: skip
        params = {
            "weight": rng.integers(kind.min_level, kind.max_level + 1, size),
            "bias": rng.integers(-9, 9, rows),
        }
        edge = builder.add("conv", (edge,), attrs=attrs, params=params)
        out = parse_format(str(rng.choice(["uint4", "int4", "uint3", "int3"])))
        sums = builder.types[edge]
        if rng.random() < 0.5:
            steps = (rows, out.max_level - out.min_level)
            limits = np.sort(rng.integers(sums.lo, sums.hi + 1, steps), axis=1)
            attrs = {"base": out.min_level, "step": 1, "format": out.name, "scale": (0.5,)}
            params = {"thresholds": limits}
            edge = builder.add("threshold", (edge,), attrs=attrs, params=params)
        else:
            attrs = {
                "shift": 14, "rounding": "half_even", "lo": out.min_level, "hi": out.max_level,
                "format": out.name, "scale": (0.5,),
            }  # fmt: skip
            params = {
                "multiplier": rng.integers(-60, 200, rows),
                "offset": rng.integers(-9999, 9999, rows),
            }
            edge = builder.add("requant", (edge,), attrs=attrs, params=params)
    edge = builder.add("flatten", (edge,))
    weight = rng.integers(-8, 8, (5, builder.types[edge].channels))
    attrs = {"weight_format": "int4", "weight_scale": (0.5,)}
    return builder.finish(builder.add("dense", (edge,), attrs=attrs, params={"weight": weight}))


@pytest.mark.parametrize("config", [ENGINES["e256"], SMALL])
@pytest.mark.parametrize("seed", range(12))
def test_nibbles_are_the_graph(seed: int, config: EngineConfig) -> None:
    graph = chain(seed)
    image = compile_graph(graph, config)
    assert any(isinstance(i, Input) and i.bits == Bits.FOUR for i in image.program)
    check_program(image.program, config, image.words)
    feeds = random_feeds(graph, 1, np.random.default_rng(seed))
    expected, got = graph.run(feeds), image.run(feeds)
    assert all(np.array_equal(expected[edge], got[edge]) for edge in expected)


def test_four_bits_take_fewer_cycles_and_no_lanes_none() -> None:
    graph = chain(1, "int4")
    eight = EngineConfig(nibbles=False)
    with_nibbles, without = (compile_graph(graph, c) for c in (ENGINES["e256"], eight))
    assert not any(isinstance(i, Input) and i.bits == Bits.FOUR for i in without.program)
    cycles = [timeline(image.program, image.config).cycles for image in (with_nibbles, without)]
    assert cycles[0] < cycles[1]
