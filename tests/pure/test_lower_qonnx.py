# SPDX-License-Identifier: Apache-2.0
"""QONNX export: QONNX's own executor gives the same integers on every edge."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.strategies import GraphLimits, integer_graphs

from bitwright.base.errors import GraphError, MismatchError
from bitwright.formats import parse_format
from bitwright.interop.onnx import export_qonnx as export_module
from bitwright.interop.onnx.export_qonnx import export_qonnx, qonnx_model, run_qonnx
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, random_feeds
from bitwright.lower import optimise

onnx = pytest.importorskip("onnx")
pytest.importorskip("qonnx")


def classifier(weight_high: int = 7, bits: int = 4) -> Graph:
    rng = np.random.default_rng(1)
    b = GraphBuilder("net", INTEGER)
    kind = parse_format(f"uint{bits}")
    x = b.input("x", TensorType((5, 4, 2), kind, (0.5,), 0, kind.max_level))
    x = b.add(
        "conv",
        (x,),
        name="conv1",
        attrs={"padding": (1, 0, 2, 1), "stride": (2, 1), "weight_format": "int8"},
        params={"weight": rng.integers(-weight_high, weight_high + 1, (3, 2, 3, 2))},
    )
    x = b.add(
        "threshold",
        (x,),
        name="act1",
        attrs={"base": -1, "step": 2, "format": "bipolar"},
        params={"thresholds": np.array([[3], [-4], [1 << 40]]), "flip": np.array([0, 1, 0])},
    )
    x = b.add("flatten", (x,))
    scores = b.add(
        "dense",
        (x,),
        name="head",
        attrs={"weight_format": "bipolar"},
        params={"weight": rng.integers(0, 2, (4, b.types[x].size)) * 2 - 1},
    )
    return b.finish(scores, b.add("top_k", (scores,), name="label"))


@pytest.mark.parametrize("k", [1, 3])
def test_labels_that_other_nodes_read(k: int, tmp_path: Path) -> None:
    b = GraphBuilder("net", INTEGER)
    x = b.input("x", TensorType((6,), parse_format("uint4"), (1.0,), 0, 15))
    label = b.add("top_k", (x,), attrs={"k": k})
    graph = b.finish(b.add("top_k", (b.add("concat", (label, label)),)), label)
    assert export_qonnx(graph, tmp_path / "net.onnx").values > 0


@given(integer_graphs(GraphLimits.everything(blocks=2)), st.booleans())
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_networks_agree(
    tmp_path_factory: pytest.TempPathFactory, graph: Graph, opt: bool
) -> None:
    path = tmp_path_factory.mktemp("qonnx") / "net.onnx"
    graph = optimise(graph) if opt else graph
    report = export_qonnx(graph, path, frames=2, batch=2)
    assert report.edges == tuple(graph.types) and path.is_file()


def test_the_file_runs_and_says_what_it_is(tmp_path: Path) -> None:
    graph = classifier()
    feeds = random_feeds(graph, 3, np.random.default_rng(5))
    report = export_qonnx(graph, tmp_path / "net.onnx", feeds=feeds, frames=2)
    assert report.frames == 5
    body = (tmp_path / "net.onnx").read_bytes()
    found, expected = run_qonnx(body, graph, feeds), graph.run(feeds)
    assert all(np.array_equal(found[edge], expected[edge]) for edge in graph.outputs)
    model = onnx.load_from_string(body)
    assert {o.domain for o in model.opset_import} == {"", "qonnx.custom_op.general"}
    properties = {p.key: p.value for p in model.metadata_props}
    assert properties["bitwright.digest"] == graph.digest
    assert float(properties["bitwright.scale.x"]) == 0.5
    kinds = {
        a.tensor_name: a.quant_parameter_tensor_names[0].value
        for a in model.graph.quantization_annotation
    }
    assert (kinds["x"], kinds["act1"], kinds["head.weight"]) == ("UINT4", "BIPOLAR", "BIPOLAR")
    assert [o.name for o in model.graph.output] == list(graph.outputs)


def test_a_file_that_disagrees_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Export a graph with one weight changed under the original's name: the check must see it."""
    graph = classifier()
    head = graph.node("head")
    weight = head.params["weight"].copy()
    weight[0, 0] *= -1
    nodes = tuple(
        replace(n, params={**n.params, "weight": weight}) if n is head else n for n in graph
    )
    wrong = qonnx_model(replace(graph, nodes=nodes))
    monkeypatch.setattr(export_module, "qonnx_model", lambda *_, **__: wrong)
    path = tmp_path / "net.onnx"
    path.write_bytes(b"old")
    with pytest.raises(MismatchError, match="edge head"):
        export_qonnx(graph, path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_sums_beyond_float32_are_refused(tmp_path: Path) -> None:
    b = GraphBuilder("wide", INTEGER)
    x = b.input("x", TensorType((600,), parse_format("uint8"), (1.0,), 0, 255))
    b.add(
        "dense",
        (x,),
        name="d",
        attrs={"weight_format": "int8"},
        params={"weight": np.full((1, 600), 127)},
    )
    with pytest.raises(GraphError, match="float32") as error:
        export_qonnx(b.finish("d"), tmp_path / "net.onnx")
    assert error.value.where == "d" and not list(tmp_path.iterdir())


@pytest.mark.parametrize("rounding", ["half_even", "half_up", "floor"])
def test_requant_is_exact_at_ties_and_ends(tmp_path: Path, rounding: str) -> None:
    b = GraphBuilder("requant", INTEGER)
    x = b.input("x", TensorType((1,), parse_format("int8"), (1.0,), -128, 127))
    b.add(
        "requant",
        (x,),
        name="r",
        attrs={"shift": 3, "rounding": rounding, "lo": -9, "hi": 9, "format": "int8"},
        params={"multiplier": np.array([-2]), "offset": np.array([4])},
    )
    graph = b.finish("r")
    feeds = {"x": np.arange(-128, 128).reshape(-1, 1)}
    assert export_qonnx(graph, tmp_path / "r.onnx", feeds=feeds, batch=4).frames == 260


@pytest.mark.parametrize("outputs", [("d", "d"), ("x",), ("d", "x")])
def test_an_end_that_stands_there_twice_is_refused(
    outputs: tuple[str, ...], tmp_path: Path
) -> None:
    b = GraphBuilder("net", INTEGER)
    x = b.input("x", TensorType((3,), parse_format("uint4"), (1.0,), 0, 15))
    params = {"weight": np.ones((2, 3), np.int64)}
    b.add("dense", (x,), name="d", attrs={"weight_format": "int4"}, params=params)
    with pytest.raises(GraphError, match="output twice, or an input and an output"):
        export_qonnx(b.finish(*outputs), tmp_path / "net.onnx")
