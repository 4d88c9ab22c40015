# SPDX-License-Identifier: Apache-2.0
"""From an ONNX file to RTL: the simulated design gives the integers of the imported graph."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.onnx_models import File
from tests.pure.test_onnx_networks import bundle

from bitwright.ir import INTEGER, load_graph
from bitwright.pipeline.import_network import import_graph


def residual(path: Path) -> Path:
    """A depthwise bundle with a shortcut whose scale is another, an average, a classifier."""
    net = File("N", 3, 6, 8)
    first = net.quant(4, 0.25)
    bundle(net, 3, 3)
    net.raw("Add", net.net, first)
    net.quant(4, 0.5)
    net.op("GlobalAveragePool")
    net.op("Flatten")
    net.quant(6, 0.125)
    net.op("MatMul", net.const(np.random.default_rng(0).integers(-3, 4, (3, 4))))
    path.write_bytes(net.model())
    return path


def test_a_residual_network_becomes_hardware(tmp_path: Path) -> None:
    source = residual(tmp_path / "residual.onnx")
    report = import_graph(source, tmp_path / "out", hardware={"target": "ecp5-45k"}, simulate=6)
    assert report["hardware"]["simulated_frames"] == 6
    assert report == json.loads((tmp_path / "out" / "import.json").read_text())
    ops = [layer["op"] for layer in report["layers"]]
    assert {"conv", "threshold", "add", "sum_pool", "dense", "top_k"} <= set(ops)


def test_a_network_that_gives_an_image_becomes_hardware(tmp_path: Path) -> None:
    net = File("N", 3, 6, 8)
    net.quant(4, 0.25)
    bundle(net, 3, 3)
    net.op("Conv", net.const(np.random.default_rng(0).integers(-3, 4, (2, 3, 1, 1))))
    (tmp_path / "dense_map.onnx").write_bytes(net.model())
    report = import_graph(
        tmp_path / "dense_map.onnx", tmp_path / "out", hardware={"target": "ecp5-45k"}, simulate=4
    )
    assert report["hardware"]["simulated_frames"] == 4
    graph = load_graph(tmp_path / "out" / "graph.bwg", dialects={"integer": INTEGER})
    assert graph.types[graph.outputs[0]].shape == (6, 8, 2)


@pytest.mark.parametrize("name", ["TFC_2W2A"])
def test_a_published_network_becomes_hardware(tmp_path: Path, data_dir: Path, name: str) -> None:
    source = data_dir / "qonnx" / f"{name}.onnx"
    if not source.is_file():
        pytest.skip("no qonnx/ in the test data")
    report = import_graph(source, tmp_path / "out", hardware={"target": "ecp5-45k"}, simulate=10)
    assert report["hardware"]["simulated_frames"] == 10
    assert (tmp_path / "out" / "map" / "rtl" / "design.json").is_file()
