# SPDX-License-Identifier: Apache-2.0
"""The engine's law: an emulated program gives what `Graph.run` gives, on every engine."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.integer_strategies import GraphLimits, integer_graphs

from bitwright.base.errors import ModelError
from bitwright.engine.checker import check_program
from bitwright.engine.compiler import compile_graph
from bitwright.engine.config import ENGINES, EngineConfig
from bitwright.engine.image import EngineImage
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, random_feeds

#: The usual one, and small ones: strips, chains and what moves outside happen in small networks.
CONFIGS = (
    ENGINES["e256"],
    EngineConfig(pixels=4, feature_words=256, weight_rows=64, parameter_rows=32),
    EngineConfig(pixels=16, feature_words=256, weight_rows=64, parameter_rows=32),
    EngineConfig(pixels=2, feature_words=128, weight_rows=32, parameter_rows=16),
    EngineConfig(pixels=8, lanes=16, outputs=16, feature_words=256, weight_rows=64),
)
LIMITS = GraphLimits.everything(blocks=3, channels=10, image=9)
#: Why a drawn network may have no program: tables of sums, and engines that are too small.
REFUSED = ("a table of", "one row of its maps", "rows of weights", "a table behind a pool")


def compare(graph: Graph, config: EngineConfig, counts: Counter[str]) -> None:
    try:
        image = compile_graph(graph, config)
    except ModelError as error:
        assert any(reason in error.message for reason in REFUSED), error
        counts["refused"] += 1
        return
    body = image.to_bytes()
    image = EngineImage.from_bytes(body)  # what is written can be read
    assert image.to_bytes() == body
    feeds = random_feeds(graph, 1, np.random.default_rng(0))
    expected, got = graph.run(feeds), image.run(feeds)
    assert set(expected) == set(got)
    for edge, levels in expected.items():
        assert np.array_equal(levels, got[edge]), edge
    check_program(image.program, config, image.words)
    counts["compared"] += 1


def law(examples: int) -> Counter[str]:
    counts: Counter[str] = Counter()

    @settings(
        max_examples=examples, deadline=None, database=None, derandomize=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(integer_graphs(LIMITS), st.sampled_from(CONFIGS))
    def hold(graph: Graph, config: EngineConfig) -> None:
        compare(graph, config, counts)

    hold()
    return counts


def test_an_emulated_program_is_the_graph() -> None:
    counts = law(320)
    assert counts["compared"] >= 200, counts


@pytest.mark.slow
def test_an_emulated_program_is_the_graph_10_000_times() -> None:
    counts = law(16_000)
    assert counts["compared"] >= 10_000, counts


@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(integer_graphs(GraphLimits()))
def test_compiling_is_deterministic_and_images_are_files(graph: Graph) -> None:
    image = compile_graph(graph, ENGINES["e256"])
    data = image.to_bytes()
    assert compile_graph(graph, ENGINES["e256"]).to_bytes() == data
    again = EngineImage.from_bytes(data)
    assert again.to_bytes() == data
    feeds = random_feeds(graph, 2, np.random.default_rng(1))
    first, second = image.run(feeds), again.run(feeds)
    assert all(np.array_equal(first[edge], second[edge]) for edge in first)


def test_parts_with_and_without_signs_are_copied() -> None:
    """A concatenation of both that lies in two others: its second place is a copy of its bytes."""
    builder = GraphBuilder("parts", INTEGER)
    shape = (3, 4, 8)
    signed = builder.input("a", TensorType(shape, parse_format("int8"), (1.0,), -128, 127))
    plain = builder.input("b", TensorType(shape, parse_format("uint8"), (1.0,), 0, 255))
    both = builder.add("concat", (signed, plain))
    outputs = [both, builder.add("concat", (both, plain)), builder.add("concat", (both, both))]
    counts: Counter[str] = Counter()
    for config in CONFIGS:
        compare(builder.finish(*outputs), config, counts)
    assert counts["compared"] == len(CONFIGS)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_neighbours_share_the_words_of_an_input(data: st.DataObject) -> None:
    """A convolution of few channels, of any kernel, stride, dilation and padding; as a file too."""
    draw, builder = data.draw, GraphBuilder("narrow", INTEGER)
    height, width, channels = (
        draw(st.integers(1, 9)),
        draw(st.integers(4, 20)),
        draw(st.integers(1, 5)),
    )
    kind = parse_format(draw(st.sampled_from(["uint8", "int8"])))
    x = builder.input(
        "x", TensorType((height, width, channels), kind, (1.0,), kind.min_level, kind.max_level)
    )
    across, stride = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    dilation = draw(st.integers(1, (width - 1) // (across - 1)))
    padding = tuple(draw(st.integers(0, 3)) for _ in range(4))
    seed = np.random.default_rng(draw(st.integers(0, 99)))
    weight = seed.integers(-8, 8, (draw(st.sampled_from([3, 8, 17])), 1, across, channels))
    attrs = {
        "stride": (stride, stride), "dilation": (1, dilation), "padding": padding,
        "weight_format": "int4", "weight_scale": (0.5,),
    }  # fmt: skip
    graph = builder.finish(builder.add("conv", (x,), attrs=attrs, params={"weight": weight}))
    config = draw(st.sampled_from((ENGINES["e256"], ENGINES["e2048"])))
    image = EngineImage.from_bytes(compile_graph(graph, config).to_bytes())
    assert (image.inputs[0].columns is None) == (2 * channels > config.lanes)
    feeds = random_feeds(graph, 1, np.random.default_rng(0))
    expected, got = graph.run(feeds), image.run(feeds)
    assert all(np.array_equal(expected[edge], got[edge]) for edge in expected)


@pytest.mark.parametrize("flat", ["input", "output"])
def test_a_flattened_image_is_one_of_several_pixels(flat: str) -> None:
    """At the end of a network it lies in memory as the image does."""
    builder = GraphBuilder("flat", INTEGER)
    edge = builder.input("x", TensorType((4, 4, 8), parse_format("uint4"), (1.0,), 0, 15))
    if flat == "output":
        weight = np.random.default_rng(0).integers(-2, 2, (8, 1, 1, 8))
        edge = builder.add(
            "conv", (edge,), attrs={"weight_format": "int2"}, params={"weight": weight}
        )
        thresholds = np.arange(15)[None]
        attrs = {"format": "uint4"}
        edge = builder.add("threshold", (edge,), attrs=attrs, params={"thresholds": thresholds})
    edge = builder.add("flatten", (edge,))
    if flat == "input":
        weight = np.random.default_rng(0).integers(-2, 2, (5, 128))
        attrs = {"weight_format": "int2"}
        edge = builder.add("dense", (edge,), attrs=attrs, params={"weight": weight})
    counts: Counter[str] = Counter()
    compare(builder.finish(edge), ENGINES["e256"], counts)
    assert counts["compared"] == 1
