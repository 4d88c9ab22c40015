# SPDX-License-Identifier: Apache-2.0
"""Lanes of 4 bits: chains of convolutions with few bits on the engine, equal to the graph."""

from __future__ import annotations

import numpy as np
import pytest

from bitwright.engine.checker import check_program
from bitwright.engine.compiler import compile_graph, front
from bitwright.engine.compiler.front import network_of
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.estimate import timeline
from bitwright.engine.image import EngineImage
from bitwright.engine.isa import Bits, Input, Reduce, Result
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, random_feeds

SMALL = EngineConfig(pixels=8, feature_words=512, weight_rows=256, parameter_rows=64)


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


class Blocks:
    """A dense block of 4 bits: every layer reads what all before it made, pools between them."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.builder = GraphBuilder("blocks", INTEGER)

    def layer(self, edge: str, rows: int, kernel: int, groups: int = 1, out: str = "") -> str:
        """A convolution and its activation, rounded lines and any thresholds."""
        rng, builder = self.rng, self.builder
        size = (rows, kernel, kernel, builder.types[edge].channels // groups)
        attrs = {
            "padding": (kernel // 2,) * 4, "groups": groups, "weight_format": "int4",
            "weight_scale": (0.5,),
        }  # fmt: skip
        params = {"weight": rng.integers(-8, 8, size)}
        return self.activation(builder.add("conv", (edge,), attrs=attrs, params=params), out)

    def activation(self, edge: str, name: str = "") -> str:
        builder, rng = self.builder, self.rng
        sums, out = builder.types[edge], parse_format(name or str(rng.choice(["uint4", "int4"])))
        steps = (sums.channels, out.max_level - out.min_level)
        limits = np.sort(rng.integers(sums.lo, sums.hi + 1, steps), axis=1)
        if rng.random() < 0.7:
            slope = rng.integers(1, max(2, (sums.hi - sums.lo) // 20), (steps[0], 1))
            limits = np.arange(steps[1]) * slope + rng.integers(sums.lo, 1, (steps[0], 1))
        attrs = {"base": out.min_level, "step": 1, "format": out.name, "scale": (0.5,)}
        return builder.add("threshold", (edge,), attrs=attrs, params={"thresholds": limits})

    def pool(self, edge: str, name: str) -> str:
        attrs = {"kernel": (2, 2), "stride": (2, 2)}
        return self.builder.add(name, (edge,), attrs=attrs)

    def run(self) -> Graph:
        rng, builder = self.rng, self.builder
        shape = (8, 8, int(rng.integers(1, 9)))
        edge = builder.input("x", TensorType(shape, parse_format("uint8"), (0.5,), 0, 255))
        edge = self.layer(edge, int(rng.choice([8, 16, 24, 30])), 3)
        for _ in range(int(rng.integers(1, 4))):
            if rng.random() < 0.3:
                edge = self.activation(self.pool(edge, "sum_pool"))
            elif rng.random() < 0.3:
                edge = self.pool(edge, "max_pool")
            if rng.random() < 0.3:
                channels = builder.types[edge].channels
                edge = self.layer(edge, channels, 3, channels)
            rows = int(rng.choice([8, 12, 16]))  # signed parts come first in a concatenation
            new = self.layer(self.layer(edge, 16, 1), rows, 3, out="uint4")
            if builder.types[new].shape[:2] == builder.types[edge].shape[:2]:
                edge = builder.add("concat", (edge, new))
        return builder.finish(self.layer(edge, 8, 1))


@pytest.mark.parametrize("config", [ENGINES["e256-2"], SMALL])
@pytest.mark.parametrize("seed", range(20))
def test_joined_nibbles_are_the_graph(seed: int, config: EngineConfig) -> None:
    graph = Blocks(seed).run()
    check(graph, compile_graph(graph, config), seed)


def test_joined_lanes_are_of_four_bits() -> None:
    """All that a concatenation joins, pooled too; one reader of another kind, and none is."""
    networks = [network_of(Blocks(seed).run(), ENGINES["e256"]) for seed in range(20)]
    layers = [layer for network in networks for layer in network.layers]
    joined = [la for la in layers if la.out.parent is not None]
    assert sum(la.out.result == Result.FOUR for la in joined) > len(joined) // 2 > 5
    assert any(la.out.result == Result.EIGHT for la in joined)
    for layer in joined:
        assert layer.out.parent is not None and layer.out.parent[0].result == layer.out.result
    assert any(la.bits == Bits.FOUR and la.reduce == Reduce.MAX for la in layers)
    odd = [la for la in layers if la.out.result == Result.FOUR and len(la.out.places) == 24]
    assert odd and all(la.out.planes == 2 for la in odd)


@pytest.mark.parametrize("config", [ENGINES["e256"], SMALL])
@pytest.mark.parametrize("seed", range(12))
def test_nibbles_are_the_graph(seed: int, config: EngineConfig) -> None:
    graph = chain(seed)
    image = compile_graph(graph, config)
    assert any(isinstance(i, Input) and i.bits == Bits.FOUR for i in image.program)
    check(graph, image, seed)


def check(graph: Graph, image: EngineImage, seed: int) -> None:
    """The program is safe, and gives the graph's outputs."""
    check_program(image.program, image.config, image.words)
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


def test_after_some_attempts_nothing_has_lanes_of_4_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph may be made so that each attempt finds one more family that does not fit."""
    graphs = [Blocks(seed).run() for seed in range(6)]
    config = ENGINES["e256"]

    def narrow() -> int:
        found = (network_of(graph, config).layers for graph in graphs)
        return sum(layer.out.result == Result.FOUR for layers in found for layer in layers)

    assert narrow() > 0
    monkeypatch.setattr(front, "_MOST_ATTEMPTS", 0)
    assert narrow() == 0
