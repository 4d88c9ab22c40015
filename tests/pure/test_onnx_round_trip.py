# SPDX-License-Identifier: Apache-2.0
"""Drawn integer graphs written as ONNX files and read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.strategies import GraphLimits, integer_graphs

from bitwright.base.errors import GraphError
from bitwright.formats import parse_format
from bitwright.interop.onnx import export_qdq as export_qdq_module
from bitwright.interop.onnx.export_qdq import export_qdq
from bitwright.interop.onnx.export_qonnx import qonnx_model
from bitwright.interop.onnx.reader import load
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, random_feeds


@given(integer_graphs(GraphLimits.everything(blocks=2)), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_export_and_import_are_inverse(graph: Graph, seed: int) -> None:
    try:
        body = qonnx_model(graph)
    except GraphError as error:
        assert "float" in error.message
        return
    imported = load(body)
    feeds = random_feeds(graph, 3, np.random.default_rng(seed))
    expected = graph.run(feeds)
    found = imported.graph.run(feeds)
    for edge, output in zip(graph.outputs, imported.outputs, strict=True):
        assert np.array_equal(output.reals(found[output.edge]), expected[edge])


def test_levels_that_a_quantizer_only_names_anew_are_flattened() -> None:
    """0 or 2 becomes 0 or 1: no level changes but what it stands for, beside a part of scale 1."""
    builder = GraphBuilder("renamed", INTEGER)
    bit = {"base": 0, "step": 1, "format": "uint1", "scale": (0.5,)}
    x = builder.input("x", TensorType((1, 1, 1), parse_format("uint4"), (0.25,), 0, 15))

    def threshold(edge: str, at: int) -> str:
        params = {"thresholds": np.array([[at]])}
        return builder.add("threshold", (edge,), attrs=bit, params=params)

    def conv(edge: str, weight: int) -> str:
        attrs = {"weight_format": "int3", "weight_scale": (0.5,)}
        params = {"weight": np.array([[[[weight]]]])}
        return builder.add("conv", (edge,), attrs=attrs, params=params)

    above = threshold(x, 7)
    nothing = {"table": np.array([[0, 0]])}
    attrs = {"format": "uint1", "scale": (0.5,)}
    zero = builder.add("lookup", (conv(above, -1),), attrs=attrs, params=nothing)
    doubled = builder.add("add", (above, zero), attrs={"multipliers": (2, 2), "scale": (0.5,)})
    renamed = threshold(doubled, 2)
    joined = builder.add("concat", (renamed, threshold(conv(renamed, -2), -1)))
    flat = builder.add("flatten", (joined,))
    weight = {"weight": np.array([[1, 3], [-2, 1]])}
    attrs = {"weight_format": "int3", "weight_scale": (0.5,)}
    graph = builder.finish(builder.add("dense", (flat,), attrs=attrs, params=weight))
    imported = load(qonnx_model(graph))
    feeds = {"x": np.arange(16).reshape(16, 1, 1, 1)}
    found = imported.graph.run({imported.graph.inputs[0]: feeds["x"]})
    (output,) = [o for o in imported.outputs if o.edge != "label"]
    assert np.array_equal(output.reals(found[output.edge]), graph.run(feeds)[graph.outputs[0]])


def test_a_table_behind_joined_roundings_of_a_wide_range() -> None:
    """Two branches in 8-bit weights, rounded to a bit each: 70 000 levels before, 4 behind."""
    builder = GraphBuilder("wide", INTEGER)
    x = builder.input("x", TensorType((1, 1, 3), parse_format("int8"), (0.5,), -128, 127))

    def branch(weight: list[int], kind: str, offset: int) -> str:
        attrs = {"weight_format": kind, "weight_scale": (0.5,)}
        edge = builder.add("conv", (x,), attrs=attrs, params={"weight": np.array([[[weight]]])})
        bit = {"shift": 0, "rounding": "half_even", "lo": 0, "hi": 1, "format": "uint1"}
        params = {"multiplier": np.array([16]), "offset": np.array([offset])}
        return builder.add("requant", (edge,), attrs={**bit, "scale": (0.5,)}, params=params)

    joined = builder.add(
        "concat", (branch([88, -84, -106], "int8", 6), branch([-2, 0, -2], "int2", -3))
    )
    table = {"table": np.array([[0, 1], [1, 0]])}
    looked = builder.add(
        "lookup", (joined,), attrs={"format": "uint1", "scale": (0.5,)}, params=table
    )
    flat = builder.add("flatten", (looked,))
    attrs = {"weight_format": "int3", "weight_scale": (0.5,)}
    weight = {"weight": np.array([[1, 3], [-2, 1]])}
    graph = builder.finish(builder.add("dense", (flat,), attrs=attrs, params=weight))
    imported = load(qonnx_model(graph))
    feeds = random_feeds(graph, 300, np.random.default_rng(0))
    found = imported.graph.run({imported.graph.inputs[0]: feeds["x"]})
    (output,) = [o for o in imported.outputs if o.edge != "label"]
    assert np.array_equal(output.reals(found[output.edge]), graph.run(feeds)[graph.outputs[0]])


@given(integer_graphs(GraphLimits.everything(blocks=2)))
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_onnx_runtime_runs_the_qdq_file(
    tmp_path_factory: pytest.TempPathFactory, graph: Graph
) -> None:
    path = tmp_path_factory.mktemp("qdq") / "net.onnx"
    try:
        report = export_qdq(graph, path, frames=4)
    except GraphError as error:
        assert "float" in error.message and not path.exists()
        return
    assert report.frames == 8 and path.is_file()  # as many of little contrast


@pytest.mark.parametrize("scale", [1e-60, 1e60, 1e-40, 2e37])
def test_a_scale_that_float32_does_not_hold_is_no_qdq_file(tmp_path: Path, scale: float) -> None:
    """As 0 or infinity on both sides everything would be equal, and every score the same."""
    builder = GraphBuilder("tiny", INTEGER)
    x = builder.input("x", TensorType((4,), parse_format("uint4"), (1.0,), 0, 15))
    y = builder.add(
        "dense",
        (x,),
        attrs={"weight_format": "int4", "weight_scale": (scale,)},
        params={"weight": np.arange(-6, 6).reshape(3, 4)},
    )
    graph = builder.finish(y)
    assert graph.types[y].scale
    with pytest.raises(GraphError, match="leaves what float32 holds"):
        export_qdq(graph, tmp_path / "net.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["uint4", "int16"])
@pytest.mark.parametrize("scale", [(0.25,), (0.25, 0.25), (0.25, 3.0)])
def test_a_qdq_file_takes_what_the_inputs_levels_stand_for(
    tmp_path: Path, kind: str, scale: tuple[float, ...]
) -> None:
    runtime = pytest.importorskip("onnxruntime")
    number = parse_format(kind)
    builder = GraphBuilder("scaled", INTEGER)
    ends = number.min_level, number.max_level
    x = builder.input("x", TensorType((2, 2, 2), number, scale, *ends))
    weight = {"weight": np.array([3, -2])[:, None, None, None]}
    attrs = {"weight_format": "int4", "groups": 2}
    graph = builder.finish(builder.add("conv", (x,), attrs=attrs, params=weight))
    export_qdq(graph, tmp_path / "net.onnx")
    session = runtime.InferenceSession(tmp_path / "net.onnx")
    feeds = random_feeds(graph, 5, np.random.default_rng(0))
    reals = np.moveaxis(feeds["x"] * np.array(scale), -1, 1).astype(np.float32)
    found = [session.run(None, {session.get_inputs()[0].name: r[None]})[0] for r in reals]
    ((edge, levels),) = graph.run(feeds).items()
    wanted = np.moveaxis(levels * np.array(graph.types[edge].scale or 1.0), -1, 1)
    assert np.array_equal(np.concatenate(found), wanted)


@pytest.mark.parametrize("source", ["uint8", "int16"])
def test_no_activation_is_rounded_once_more(tmp_path: Path, source: str) -> None:
    """ONNX Runtime's optimizer makes bytes of floats that a layer of bytes reads, by what is
    largest in each frame: frames of little contrast show it.
    """
    runtime = pytest.importorskip("onnxruntime")
    rng, number = np.random.default_rng(3), parse_format(source)
    builder = GraphBuilder("net", INTEGER)
    x = builder.input("x", TensorType((64,), number, (0.0625,), 0, min(900, number.max_level)))
    attrs = {"shift": 0, "rounding": "half_even", "lo": -127, "hi": 127, "format": "int8"}
    params = {"multiplier": np.array([2]), "offset": np.array([-builder.types[x].hi])}
    x = builder.add("requant", (x,), attrs=attrs, params=params)
    weight = {"weight": rng.integers(-9, 10, (10, 64))}
    graph = builder.finish(
        builder.add("dense", (x,), attrs={"weight_format": "int8"}, params=weight)
    )
    export_qdq(graph, tmp_path / "net.onnx")
    session = runtime.InferenceSession(tmp_path / "net.onnx")
    middle = graph.types["x"].hi // 2
    frames = rng.integers(middle - 15, middle + 15, (40, 64))
    name = session.get_inputs()[0].name
    found = [
        session.run(None, {name: (frame[None] / 16).astype(np.float32)})[0] for frame in frames
    ]
    ((edge, levels),) = graph.run({"x": frames}).items()
    wanted = levels * np.array(graph.types[edge].scale or 1.0)
    assert np.array_equal(np.concatenate(found), wanted)


def test_a_pool_in_front_of_a_line_stays_exact(tmp_path: Path) -> None:
    """Its ones, as floats, were rounded to bytes together with what follows; in dim frames only."""
    runtime = pytest.importorskip("onnxruntime")
    builder = GraphBuilder("net", INTEGER)
    x = builder.input("x", TensorType((9, 9, 2), parse_format("uint8"), (0.0625,), 0, 255))
    window = {"kernel": (3, 3), "stride": (3, 3), "padding": (0, 0, 0, 0)}
    x = builder.add("sum_pool", (x,), attrs=window)
    thresholds = np.stack([np.arange(1, 16), np.arange(1, 16) * 10])
    attrs = {"base": 0, "step": 1, "format": "uint4"}
    x = builder.add("threshold", (x,), attrs=attrs, params={"thresholds": thresholds})
    graph = builder.finish(x)
    export_qdq(graph, tmp_path / "net.onnx")
    session = runtime.InferenceSession(tmp_path / "net.onnx")
    frames = np.random.default_rng(3).integers(0, 16, (40, 9, 9, 2))
    name = session.get_inputs()[0].name
    reals = np.moveaxis(frames / 16, -1, 1).astype(np.float32)
    found = np.concatenate([session.run(None, {name: real[None]})[0] for real in reals])
    assert np.array_equal(np.moveaxis(found, 1, -1), graph.run({"x": frames})[x])


@pytest.mark.parametrize("base", [32_767, 256, 0, -100, -300, -32_000])
def test_levels_far_from_zero_are_written(tmp_path: Path, base: int) -> None:
    """256 of them in a line, of which no zero point of 8 bits makes bytes."""
    builder = GraphBuilder("far", INTEGER)
    kind = TensorType((1, 1, 1), parse_format("int8"), (1.0,), -128, 127)
    x = builder.input("x", kind)
    limits = np.arange(-127, 128)[None]
    levels = "uint16" if base >= 0 else "int16"
    attrs = {"format": levels, "scale": (1.0,), "step": 1, "base": base}
    edge = builder.add("threshold", (x,), attrs=attrs, params={"thresholds": limits})
    graph = builder.finish(edge)
    assert (graph.types[edge].lo, graph.types[edge].hi) == (base, base + 255)
    report = export_qdq(graph, tmp_path / "far.onnx")  # it compares every value
    assert report.values > 0


def test_what_the_graph_leaves_to_the_host_is_said() -> None:
    """A rearrangement at the end is none of the graph's."""
    builder = GraphBuilder("places", INTEGER)
    x = builder.input("x", TensorType((4, 4, 2), parse_format("int4"), (1.0,), -8, 7))
    weight = np.random.default_rng(0).integers(-2, 2, (2, 1, 1, 2))
    edge = builder.add("conv", (x,), attrs={"weight_format": "int2"}, params={"weight": weight})
    plain = load(qonnx_model(builder.finish(edge)))
    assert not [note for note in plain.notes if "left to the host" in note]
    edge = builder.add("space_to_depth", (edge,), attrs={"block": 2})
    moved = load(qonnx_model(builder.finish(edge)))
    assert [note for note in moved.notes if "another order of the elements" in note]


def test_comparisons_with_thresholds_are_made_some_frames_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """775 bytes with 255 thresholds a pixel took 14 GB of ONNX Runtime."""
    builder = GraphBuilder("steps", INTEGER)
    x = builder.input("x", TensorType((40, 40, 1), parse_format("uint8"), (1.0,), 0, 255))
    limits = np.sort(np.random.default_rng(0).integers(0, 256, (1, 255)), axis=1)
    edge = builder.add("threshold", (x,), attrs={"format": "uint8"}, params={"thresholds": limits})
    graph = builder.finish(edge)
    assert export_qdq(graph, tmp_path / "a.onnx").comparisons == 1
    batches = []
    session = export_qdq_module._session

    def counted(model: bytes, options: object) -> object:
        found = session(model, options)

        class Counted:
            def run(self, names: object, feeds: dict[str, np.ndarray]) -> object:
                batches.append(len(next(iter(feeds.values()))))
                return found.run(names, feeds)

        return Counted()

    monkeypatch.setattr(export_qdq_module, "_session", counted)
    monkeypatch.setattr(export_qdq_module, "AT_A_TIME", 2 * 40 * 40 * 255 * 5)
    export_qdq(graph, tmp_path / "b.onnx")
    assert batches and max(batches) == 2
    with pytest.raises(GraphError, match="comparisons of one frame with thresholds take"):
        export_qdq(graph, tmp_path / "c.onnx", room=1_500_000)
    assert not (tmp_path / "c.onnx").exists()


def test_lines_take_no_comparisons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written as a line is not refused for the thresholds that it no longer has."""
    builder = GraphBuilder("line", INTEGER)
    x = builder.input("x", TensorType((30, 30, 1), parse_format("uint8"), (1.0,), 0, 255))
    params = {"thresholds": np.arange(1, 256)[None]}
    graph = builder.finish(builder.add("threshold", (x,), attrs={"format": "uint8"}, params=params))
    report = export_qdq(graph, tmp_path / "a.onnx", room=30 * 30 * 255)
    assert (report.lines, report.comparisons) == (1, 0)

    class Full:
        def run(self, *_: object) -> object:
            raise RuntimeError("std::bad_alloc")

    monkeypatch.setattr(export_qdq_module, "_session", lambda *_: Full())
    with pytest.raises(MemoryError):  # which commands know, and say what to do
        export_qdq(graph, tmp_path / "b.onnx")
