# SPDX-License-Identifier: Apache-2.0
"""Passes: every one keeps every output, and each does what it is for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import GraphLimits, integer_graphs

import bitwright
from bitwright.formats import parse_format
from bitwright.ir import (
    INTEGER,
    Graph,
    GraphBuilder,
    Pass,
    TensorType,
    compare_graphs,
    random_feeds,
)
from bitwright.lower import PASSES, optimise
from bitwright.lower.passes import (
    absorb_flips,
    flatten_concats,
    fuse_thresholds,
    merge_bias,
    merge_duplicates,
    narrow_formats,
    remove_dead,
    remove_identities,
    share_thresholds,
    sink_pool,
    tighten_thresholds,
)

EVERYTHING = integer_graphs(GraphLimits.everything())
ANY = st.one_of(integer_graphs(), EVERYTHING)
DEEP = st.one_of(integer_graphs(GraphLimits(blocks=3)), EVERYTHING)


@pytest.mark.parametrize("step", PASSES, ids=lambda p: p.__name__)
@given(graph=ANY, seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_a_pass_keeps_outputs_and_is_idempotent(step: Pass, graph: Graph, seed: int) -> None:
    after = step(graph)
    compare_graphs(graph, after, 8, np.random.default_rng(seed), step.__name__)
    assert step(after) == after


@given(DEEP, st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_the_pipeline_keeps_outputs_and_named_activations(graph: Graph, seed: int) -> None:
    after = optimise(graph, check=8)
    feeds = random_feeds(graph, 8, np.random.default_rng(seed))
    before, now = graph.run(feeds, edges=True), after.run(feeds, edges=True)
    for edge in set(before) & set(now):
        if after.types[edge].format is not None or edge in graph.outputs:
            assert np.array_equal(before[edge], now[edge]), edge


def conv_net(**threshold: np.ndarray) -> GraphBuilder:
    """uint4 image -> 3x3 conv of 2 channels with bias, ready for what follows."""
    rng = np.random.default_rng(3)
    b = GraphBuilder("net", INTEGER)
    x = b.input("x", TensorType((5, 5, 1), parse_format("uint4"), (0.5,), 0, 15))
    b.add(
        "conv",
        (x,),
        name="c",
        attrs={"weight_format": "int4n", "weight_scale": (0.25,)},
        params={"weight": rng.integers(-7, 8, (2, 3, 3, 1)), "bias": np.array([5, -9])},
    )
    return b


def act(
    b: GraphBuilder, edge: str, name: str, thresholds: object, kind: str = "uint2", **more: object
) -> str:
    fmt = parse_format(kind)
    params = {"thresholds": np.array(thresholds)}
    params |= {k: np.array(v) for k, v in more.items()}
    attrs = {"format": kind, "scale": (0.5,), "base": fmt.min_level, "step": fmt.level_step}
    return b.add("threshold", (edge,), name=name, attrs=attrs, params=params)


def test_bias_goes_into_thresholds_through_a_pool() -> None:
    b = conv_net()
    pooled = b.add("max_pool", ("c",), name="p", attrs={"kernel": (2, 2), "stride": (1, 1)})
    graph = b.finish(act(b, pooled, "t", [[0, 10, 20]], flip=[0, 1]))
    after = merge_bias(graph)
    assert "bias" not in after.node("c").params
    assert after.node("t").params["thresholds"].tolist() == [[-5, 5, 15], [-9, 1, 11]]


def test_bias_of_the_last_layer_stays() -> None:
    graph = conv_net().finish("c")
    assert merge_bias(graph) is graph


def test_bias_goes_into_requant_offset() -> None:
    b = conv_net()
    b.add(
        "requant",
        ("c",),
        name="r",
        attrs={"shift": 4, "lo": 0, "hi": 15, "format": "uint4", "rounding": "half_even"},
        params={"multiplier": np.array([3]), "offset": np.array([7])},
    )
    after = merge_bias(b.finish("r"))
    assert after.node("r").params["offset"].tolist() == [7 + 15, 7 - 27]


def test_bias_stays_where_another_reader_sees_the_sum() -> None:
    b = conv_net()
    act(b, "c", "t", [[0, 10, 20]])
    graph = b.finish("t", "c")
    assert merge_bias(graph) is graph


def test_flips_become_negated_rows() -> None:
    b = conv_net()
    graph = b.finish(act(b, "c", "t", [[0, 10, 20]], flip=[0, 1]))
    after = absorb_flips(graph)
    assert "flip" not in after.node("t").params
    before, now = graph.node("c"), after.node("c")
    assert np.array_equal(now.params["weight"][1], -before.params["weight"][1])
    assert now.params["bias"].tolist() == [5, 9]
    assert after.types["c"].scale == (0.125, -0.125)


def test_a_row_that_cannot_be_negated_keeps_its_flip() -> None:
    b = GraphBuilder("net", INTEGER)
    x = b.input("x", TensorType((2,), parse_format("uint4"), (1.0,), 0, 15))
    y = b.add("dense", (x,), attrs={"weight_format": "int4"}, params={"weight": [[-8, 1], [7, -7]]})
    graph = b.finish(act(b, y, "t", [[0, 10, 20]], flip=[1, 1]))
    after = absorb_flips(graph)
    assert after.node("t").params["flip"].tolist() == [1, 0]
    assert after.node("dense").params["weight"].tolist() == [[-8, 1], [-7, 7]]


def test_pool_sinks_below_the_threshold_only_where_it_saves() -> None:
    b = conv_net()
    pooled = b.add("max_pool", ("c",), name="p", attrs={"kernel": (2, 2), "stride": (1, 1)})
    graph = b.finish(act(b, pooled, "t", [[0, 10, 20]]))
    after = sink_pool(graph)
    assert [n.op for n in after] == ["conv", "threshold", "max_pool"]
    assert after.outputs == ("t",) and after.types["t"].wire_bits == 2
    assert after.types["t"].shape == graph.types["t"].shape

    b = GraphBuilder("narrow", INTEGER)
    x = b.input("x", TensorType((4, 4, 1), parse_format("uint1"), (1.0,), 0, 1))
    pooled = b.add("max_pool", (x,), attrs={"kernel": (2, 2), "stride": (2, 2)})
    narrow = b.finish(act(b, pooled, "t", [[0, 1, 1]]))
    assert sink_pool(narrow) is narrow


def test_pool_does_not_cross_a_flip() -> None:
    b = conv_net()
    pooled = b.add("max_pool", ("c",), name="p", attrs={"kernel": (2, 2), "stride": (1, 1)})
    graph = b.finish(act(b, pooled, "t", [[0, 10, 20]], flip=[0, 1]))
    assert sink_pool(graph) is graph


def test_unreachable_thresholds_go_and_the_wire_narrows() -> None:
    b = GraphBuilder("net", INTEGER)
    x = b.input("x", TensorType((2,), parse_format("int4"), (1.0,), -8, 7))
    rows = [[-99, -8, 0, 3, 7, 50, 60], [-20, -9, 1, 2, 3, 9, 8 + 99]]
    graph = b.finish(act(b, x, "t", rows, kind="uint3"))
    after = tighten_thresholds(graph).node("t")
    assert after.params["thresholds"].tolist() == [[0, 3, 7], [1, 2, 3]]
    assert after.attrs["base"] == 2
    assert tighten_thresholds(graph).types["t"].hi == 5


def test_a_constant_threshold_keeps_one_comparison() -> None:
    b = GraphBuilder("net", INTEGER)
    x = b.input("x", TensorType((2,), parse_format("int4"), (1.0,), -8, 7))
    graph = b.finish(act(b, x, "t", [[-9, -9, -9]]))
    after = tighten_thresholds(graph)
    assert after.node("t").params["thresholds"].shape == (1, 1)
    compare_graphs(graph, after, 20, np.random.default_rng(0), "tighten")


def test_two_thresholds_become_one() -> None:
    b = conv_net()
    first = act(b, "c", "t1", [[-30, 0, 30], [-20, 0, 20]], kind="int2", flip=[0, 1])
    graph = b.finish(act(b, first, "t2", [[-1, 0, 1]], flip=[1, 1]))
    after = fuse_thresholds(graph)
    assert [n.name for n in after] == ["c", "t2"]
    compare_graphs(graph, after, 50, np.random.default_rng(0), "fuse")


def test_identities_go() -> None:
    b = GraphBuilder("net", INTEGER)
    x = b.input("x", TensorType((4, 4, 2), parse_format("uint2"), (0.5,), 0, 3))
    same = act(b, x, "same", [[1, 2, 3]])
    one = b.add("max_pool", (same,), name="one", attrs={"kernel": (1, 1), "stride": (1, 1)})
    graph = b.finish(act(b, one, "last", [[1, 1, 2]]))
    assert [n.name for n in remove_identities(graph)] == ["last"]


def test_a_pool_of_single_pixels_with_a_border_stays() -> None:
    b = GraphBuilder("net", INTEGER)
    x = b.input("x", TensorType((3, 3, 2), parse_format("uint2"), (0.5,), 0, 3))
    window = {"kernel": (1, 1), "stride": (1, 1), "padding": (1, 0, 1, 2)}
    graph = b.finish(act(b, b.add("sum_pool", (x,), attrs=window), "last", [[1, 1, 2]]))
    assert remove_identities(graph) is graph


def test_what_only_looks_like_an_identity_stays() -> None:
    b = GraphBuilder("net", INTEGER)
    x = b.input("x", TensorType((4,), parse_format("uint2"), (0.25,), 0, 3))
    other_scale = act(b, x, "other_scale", [[1, 2, 3]])
    off_by_one = act(b, other_scale, "off_by_one", [[1, 2, 4]])
    graph = b.finish(act(b, off_by_one, "output", [[1, 2, 3]]))
    assert remove_identities(graph) is graph


def test_equal_rows_are_shared() -> None:
    b = conv_net()
    graph = b.finish(act(b, "c", "t", [[1, 2, 3], [1, 2, 3]], flip=[1, 1]))
    params = share_thresholds(graph).node("t").params
    assert params["thresholds"].tolist() == [[1, 2, 3]] and params["flip"].tolist() == [1]
    b = conv_net()
    mixed = b.finish(act(b, "c", "t", [[1, 2, 3], [1, 2, 3]], flip=[0, 1]))
    assert share_thresholds(mixed) is mixed


@pytest.mark.parametrize(
    ("declared", "weight", "narrowed"),
    [
        ("int8", [[-3, 3]], "int3"),
        ("int8n", [[-3, 3]], "int3n"),
        ("int4n", [[-7, 7]], "int4n"),
        ("uint8", [[0, 5]], "uint3"),
        ("int8", [[0, 0]], "int2"),
        ("ternary", [[0, 1]], "ternary"),
        ("bipolar", [[1, 1]], "bipolar"),
    ],
)
def test_weight_formats_narrow_within_their_kind(
    declared: str, weight: list[list[int]], narrowed: str
) -> None:
    b = GraphBuilder("net", INTEGER)
    x = b.input("x", TensorType((2,), parse_format("uint4"), (1.0,), 0, 15))
    b.add("dense", (x,), name="d", attrs={"weight_format": declared}, params={"weight": weight})
    assert narrow_formats(b.finish("d")).node("d").attrs["weight_format"] == narrowed


def test_every_pass_is_in_the_documents_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "passes.md").read_text()
    rows = [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]
    assert rows == [step.__name__ for step in PASSES]


def test_lowering_without_torch() -> None:
    """Range analysis, passes and export load in an interpreter that never sees torch."""
    code = "import bitwright.interop.onnx.export_qonnx, sys; print('torch' in sys.modules)"
    path = os.pathsep.join([str(Path(bitwright.__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.strip() == "False"


def branches() -> GraphBuilder:
    """uint4 image read by three thresholds, two of them equal, and by one that nobody reads."""
    b = GraphBuilder("net", INTEGER)
    x = b.input("x", TensorType((4, 4, 2), parse_format("uint4"), (0.5,), 0, 15))
    for name, limit in (("t1", 3), ("t2", 3), ("t3", 9), ("dead", 5)):
        b.add(
            "threshold",
            (x,),
            name=name,
            attrs={"format": "uint1", "scale": (1.0,)},
            params={"thresholds": np.array([[limit]])},
        )
    return b


def test_equal_branches_become_one_and_dead_ones_go() -> None:
    b = branches()
    y = b.add("add", ("t1", "t2"), name="sum", attrs={"scale": (1.0,)})
    graph = b.finish(y, "t3")
    after = merge_duplicates(remove_dead(graph))
    assert [n.name for n in after] == ["t1", "t3", "sum"]
    assert after.node("sum").inputs == ("t1", "t1")
    compare_graphs(graph, after, 8, np.random.default_rng(0), "both")


def test_an_output_is_never_merged_away() -> None:
    graph = branches().finish("t1", "t2")
    assert merge_duplicates(graph).outputs == ("t1", "t2")


def test_nested_concats_become_one_unless_others_read_them() -> None:
    b = branches()
    inner = b.add("concat", ("t1", "t3"), name="inner")
    outer = b.add("concat", ("t2", inner), name="outer")
    graph = b.finish(outer)
    after = flatten_concats(graph)
    assert after.node("outer").inputs == ("t2", "t1", "t3")
    compare_graphs(graph, after, 8, np.random.default_rng(0), "flatten_concats")
    assert flatten_concats(b.finish(outer, inner)) == b.finish(outer, inner)


def test_a_long_row_of_thresholds_becomes_one() -> None:
    b = conv_net()
    edge = "c"
    for number in range(1500):
        edge = act(b, edge, f"t{number}", [[-30, 0, 30]] if not number else [[1, 2, 3]])
    graph = b.finish(edge)
    after = fuse_thresholds(graph)
    assert [n.name for n in after] == ["c", "t1499"]
    compare_graphs(graph, after, 3, np.random.default_rng(0), "fuse")


def test_a_threshold_passes_a_long_row_of_pools() -> None:
    b = conv_net()
    edge = "c"
    for number in range(1500):
        window = {"kernel": (1, 1), "stride": (1, 1)}
        edge = b.add("max_pool", (edge,), name=f"p{number}", attrs=window)
    graph = b.finish(act(b, edge, "t", [[-30, 0, 30]]))
    after = sink_pool(graph)
    assert [n.op for n in after][:2] == ["conv", "threshold"] and after.outputs == ("t",)
    compare_graphs(graph, after, 3, np.random.default_rng(0), "sink")


def test_concatenations_of_concatenations_become_one_without_doubling() -> None:
    b = conv_net()
    edge = "c"
    for number in range(600):
        edge = b.add("concat", (edge, "c"), name=f"j{number}")
    after = flatten_concats(b.finish(edge))
    assert [n.op for n in after] == ["conv", "concat"] and len(after.nodes[-1].inputs) == 601

    b = conv_net()
    edge = "c"
    for number in range(12):
        edge = b.add("concat", (edge, edge), name=f"j{number}")
    graph = b.finish(edge)
    assert flatten_concats(graph) is graph
