# SPDX-License-Identifier: Apache-2.0
"""Other formats in ONNX: weights as integer levels, or a refusal that names the format."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.torch.test_quant_formats import networks

from bitwright.base.errors import GraphError
from bitwright.interop.onnx.export_qdq import export_qdq
from bitwright.interop.onnx.export_qonnx import export_qonnx
from bitwright.ir import Graph
from bitwright.lower import optimise
from bitwright.quantize import apply

pytest.importorskip("qonnx")
pytest.importorskip("onnxruntime")


def lowered(weight: str, activation: str, entering: str = "uint8") -> Graph:
    model, policy, images = networks(weight, activation, entering=entering)
    return optimise(apply(model, policy, "freeze", images).graph)


@pytest.mark.parametrize(
    ("weight", "activation"), [("e5m2", "uint4"), ("po2_4", "uint8"), ("mx<e2m1,4>", "uint4")]
)
def test_weights_are_written_as_their_levels(tmp_path: Path, weight: str, activation: str) -> None:
    """Both exporters run the file and compare every value before they accept it."""
    graph = lowered(weight, activation)
    assert export_qonnx(graph, tmp_path / "a.onnx").values > 0
    report = export_qdq(graph, tmp_path / "b.onnx")
    assert report.values > 0 and (tmp_path / "b.onnx").is_file()


def test_what_onnx_cannot_round_is_refused(tmp_path: Path) -> None:
    for activation, entering, message in (
        ("e2m1", "uint8", "e2m1 activations have no exact ONNX form"),
        ("uint8", "e2m1", "e2m1 inputs have no exact ONNX form"),
    ):
        graph = lowered("int4", activation, entering)
        with pytest.raises(GraphError, match=message):
            export_qdq(graph, tmp_path / "x.onnx")
    assert not list(tmp_path.iterdir())
