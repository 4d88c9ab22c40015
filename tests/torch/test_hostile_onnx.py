# SPDX-License-Identifier: Apache-2.0
"""Float ONNX files that were made to do harm."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.pace import within

from bitwright.base.errors import BitwrightError, ModelError
from bitwright.interop.onnx.float_network import load_float_onnx
from bitwright.interop.onnx.reader.beside import _joined, digest_beside
from bitwright.interop.onnx.reader.model import Data
from bitwright.models import ModelSpec
from bitwright.pipeline.steps.facts import model_version


def _saved(path: Path, nodes: list[onnx.NodeProto], **arrays: object) -> Path:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, (1, 1, 8, 8))],
        [info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in arrays.items()],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    path.write_bytes(made.SerializeToString())
    return path


def _chain(count: int, op: str, *more: str, **attrs: object) -> list[onnx.NodeProto]:
    names = ["x", *(f"t{number}" for number in range(count - 1)), "y"]
    return [helper.make_node(op, [names[k], *more], [names[k + 1]], **attrs) for k in range(count)]


def test_layers_behind_each_other_take_time_as_they_are_many(tmp_path: Path) -> None:
    """All layers so far were gone through for each: minutes for 50 000 nodes, a file of 1 MB."""
    file = _saved(tmp_path / "a.onnx", _chain(12_000, "Relu"))
    with within(3):
        assert len(load_float_onnx(file).layers) == 12_001


def test_weights_that_many_nodes_name_are_counted_for_each(tmp_path: Path) -> None:
    """8000 convolutions by one array of 500 kB took 4 GB, and as much again in torch."""
    nodes = _chain(3_000, "Conv", "w", pads=[100, 100, 99, 99])
    file = _saved(tmp_path / "a.onnx", nodes, w=np.zeros((1, 1, 200, 200), np.float32))
    with pytest.raises(ModelError, match="more numbers than the file holds bytes"):
        load_float_onnx(file)


@pytest.mark.parametrize(
    ("node", "arrays", "said"),
    [
        (helper.make_node("Clip", ["x", "a", "b"], ["y"]), {"a": [], "b": 6.0}, "bound of shape"),
        (helper.make_node("Clip", ["x", "a"], ["y"]), {"a": 0.0}, "two constant bounds"),
        (helper.make_node("Reshape", ["x", "a"], ["y"]), {"a": [1.0, np.inf]}, "be integers"),
        (helper.make_node("ReduceMean", ["x", "a"], ["y"]), {"a": [np.nan]}, "be integers"),
        (helper.make_node("Pad", ["x", "a"], ["y"]), {"a": [np.inf] * 8}, "be integers"),
        (helper.make_node("Concat", [], ["y"], axis=1), {}, "none at place 0"),
        (helper.make_node("Identity", [""], ["y"]), {}, "none at place 0"),
        (helper.make_node("Relu", [], ["y"]), {}, "none at place 0"),
    ],
)
def test_nodes_that_lack_what_they_need(
    node: onnx.NodeProto, arrays: dict[str, object], said: str, tmp_path: Path
) -> None:
    numbers = {name: np.asarray(value, np.float32) for name, value in arrays.items()}
    with pytest.raises(ModelError, match=said):
        load_float_onnx(_saved(tmp_path / "a.onnx", [node], **numbers))


def test_a_node_that_gives_nothing(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], []), *_chain(1, "Relu")]
    with pytest.raises(BitwrightError, match="gives nothing"):
        load_float_onnx(_saved(tmp_path / "a.onnx", nodes))


def test_a_model_is_another_when_numbers_beside_its_file_are(tmp_path: Path) -> None:
    """A run went on with the network of before, and its RTL was proven equal to that."""
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    path = _saved(tmp_path / "net.onnx", [node], w=np.ones((2, 1, 3, 3), np.float32))
    spec = ModelSpec(name=str(path))
    alone = model_version(spec, ())
    onnx.save_model(
        onnx.load(path), path, save_as_external_data=True, location="net.data", size_threshold=0
    )
    before, held = model_version(spec, ()), (tmp_path / "net.data").read_bytes()
    (tmp_path / "net.data").write_bytes(held[:-1] + b"\x00")
    assert len({alone, before, model_version(spec, ())}) == 3
    (tmp_path / "net.data").write_bytes(held)
    assert model_version(spec, ()) == before
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(
        np.ones((2, 1, 3, 3), np.float32), "w"
    ))  # fmt: skip
    other = _saved(tmp_path / "other.onnx", [constant, node])
    onnx.save_model(
        onnx.load(other), other, save_as_external_data=True, location="other.data",
        size_threshold=0, convert_attribute=True,
    )  # fmt: skip
    before = digest_beside(other)
    body = (tmp_path / "other.data").read_bytes()
    (tmp_path / "other.data").write_bytes(body[:-1] + b"\x01")
    assert before and digest_beside(other) not in ("", before)


def test_only_what_a_model_shows_of_the_files_beside_it_is_read(tmp_path: Path) -> None:
    """A file of 300 GiB of nothing, a kilobyte of an archive, was read whole."""
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    path = _saved(tmp_path / "net.onnx", [node], w=np.ones((2, 1, 3, 3), np.float32))
    onnx.save_model(
        onnx.load(path), path, save_as_external_data=True, location="net.data", size_threshold=0
    )
    before = model_version(ModelSpec(name=str(path)), ())
    os.truncate(tmp_path / "net.data", 300 << 30)
    assert model_version(ModelSpec(name=str(path)), ()) == before
    pieces = [("a", 0, 4), ("b", 10, 10), ("a", 2, 4), ("b", 40, 2), ("a", 6, 1), ("b", 12, 3)]
    joined = _joined(Data(Path(name), *place) for name, *place in pieces)
    assert [(str(file), *place) for file, *place in joined] == [
        ("a", 0, 7), ("b", 10, 10), ("b", 40, 2)
    ]  # fmt: skip
