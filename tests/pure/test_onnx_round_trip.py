# SPDX-License-Identifier: Apache-2.0
"""Drawn integer graphs written as ONNX files and read again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.strategies import GraphLimits, integer_graphs

from bitwright.base.errors import GraphError
from bitwright.interop.onnx.export_qdq import export_qdq
from bitwright.interop.onnx.export_qonnx import qonnx_model
from bitwright.interop.onnx.reader import load
from bitwright.ir import Graph, random_feeds


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
    assert report.frames == 4 and path.is_file()
