# SPDX-License-Identifier: Apache-2.0
"""Max pools inside the product in front of them: one layer, and the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bitwright.engine.checker import check_program
from bitwright.engine.compiler import compile_graph
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, random_feeds

SMALL = EngineConfig(pixels=4, feature_words=256, weight_rows=64, parameter_rows=64)


def network(
    seed: int, activation: str, *, pool_first: bool = False, channels: int = 5, kernel: int = 1
) -> Graph:
    """Convolution, activation that rises in some channels and falls in others, max pool."""
    rng = np.random.default_rng(seed)
    builder = GraphBuilder("pooled", INTEGER)
    kind = TensorType((7, 9, channels), parse_format("int6"), (1.0,), -32, 31)
    edge = builder.input("x", kind)
    rows = 11
    weight = rng.integers(-128 if seed % 2 else -127, 128, (rows, kernel, kernel, channels))
    attrs: dict[str, Any] = {"weight_format": "int8", "weight_scale": (1.0,)}
    attrs["dilation"] = (1, 1) if kernel > 1 else tuple(rng.integers(1, 4, 2).tolist())
    params = {"weight": weight, "bias": rng.integers(-900, 900, rows)}
    edge = builder.add("conv", (edge,), attrs=attrs, params=params)
    size = int(rng.integers(2, 4))
    pool = {
        "kernel": (size, int(rng.integers(1, 4))), "stride": tuple(rng.integers(1, 4, 2).tolist()),
        "padding": (1, 0, 0, 0),
    }  # fmt: skip
    if pool_first:
        edge = builder.add("max_pool", (edge,), attrs=pool)
    edge = _activated(builder, edge, activation, rng, rows)
    if not pool_first:
        edge = builder.add("max_pool", (edge,), attrs=pool)
    return builder.finish(edge)


def _activated(
    builder: GraphBuilder, edge: str, activation: str, rng: np.random.Generator, rows: int
) -> str:
    if activation == "requant":
        params = {"multiplier": rng.integers(-40, 41, rows), "offset": rng.integers(-5, 5, rows)}
        attrs: dict[str, Any] = {"shift": 9, "rounding": "half_even", "lo": -128, "hi": 127}
        return builder.add(
            "requant", (edge,), attrs={**attrs, "format": "int8", "scale": (1.0,)}, params=params
        )
    thresholds = np.sort(rng.integers(-9000, 9000, (rows, 7)))
    flip = rng.integers(0, 2, rows)
    attrs = {"base": 0, "step": 1, "format": "uint3", "scale": (1.0,)}
    return builder.add(
        "threshold", (edge,), attrs=attrs, params={"thresholds": thresholds, "flip": flip}
    )


def check(graph: Graph, config: EngineConfig) -> int:
    """The emulated program gives the graph's numbers; its number of layers."""
    image = compile_graph(graph, config)
    check_program(image.program, config, image.words)
    feeds = random_feeds(graph, 2, np.random.default_rng(1))
    expected, found = graph.run(feeds), image.run(feeds)
    for edge, levels in expected.items():
        assert np.array_equal(levels, found[edge]), edge
    return len({layer for layer in image.layers if layer})


@pytest.mark.parametrize("config", [SMALL, ENGINES["e256"]], ids=["small", "e256"])
@pytest.mark.parametrize("pool_first", [False, True])
@pytest.mark.parametrize("activation", ["requant", "threshold"])
def test_product_activation_and_pool_are_one_layer(
    activation: str, pool_first: bool, config: EngineConfig
) -> None:
    for seed in range(0, 12, 2):
        assert check(network(seed, activation, pool_first=pool_first), config) == 1


def test_what_does_not_fit_into_one_is_two() -> None:
    """Channels in two words, a kernel of several taps, a weight that has no negative."""
    assert check(network(0, "requant", channels=12), SMALL) == 2
    assert check(network(0, "requant", kernel=2), SMALL) == 2
    assert {check(network(seed, "requant"), SMALL) for seed in range(1, 21, 2)} <= {1, 2}


@pytest.mark.parametrize("config", [SMALL, ENGINES["e256"]], ids=["small", "e256"])
@pytest.mark.parametrize("padding", [(0, 0, 2, 0), (0, 0, 0, 3), (0, 0, 1, 1), (1, 0, 0, 0)])
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("groups", [1, 11])
def test_padding_on_any_side_of_one_tap(
    padding: tuple[int, ...], pooled: bool, groups: int, config: EngineConfig
) -> None:
    """Sums of padding are results: they stand in the image, and in the maximum of a pool."""
    rng = np.random.default_rng(3)
    builder = GraphBuilder("padded", INTEGER)
    edge = builder.input("x", TensorType((5, 4, 11), parse_format("uint4"), (1.0,), 0, 15))
    attrs: dict[str, Any] = {"weight_format": "int8", "weight_scale": (1.0,), "padding": padding}
    weight = rng.integers(-128, 0, (11, 1, 1, 11 // groups))  # so that nothing exceeds padding
    edge = builder.add(
        "conv", (edge,), attrs={**attrs, "groups": groups}, params={"weight": weight}
    )
    if pooled:
        edge = builder.add("max_pool", (edge,), attrs={"kernel": (2, 2), "stride": (1, 1)})
    check(builder.finish(_activated(builder, edge, "requant", rng, 11)), config)
