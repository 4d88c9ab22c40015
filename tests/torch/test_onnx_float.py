# SPDX-License-Identifier: Apache-2.0
"""Float ONNX files are models: what they compute, what a recipe and `import` make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, numpy_helper
from onnxruntime import InferenceSession, SessionOptions
from tests.onnx_models import File

from bitwright.base.errors import ModelError
from bitwright.cli import entry
from bitwright.interop.model_files import load_model, model_from_spec
from bitwright.interop.onnx.float_network import is_float_file
from bitwright.models import ModelSpec
from bitwright.pipeline.api import inspect_model

RNG = np.random.default_rng(3)


def convolution(file: File, outputs: int, inputs: int, side: int = 3, **options: Any) -> None:
    file.op("Conv", file.const(RNG.normal(0, 0.4, (outputs, inputs, side, side))), **options)


def dense(file: File, inputs: int, outputs: int = 3) -> None:
    file.op("Flatten")
    file.op("Gemm", file.const(RNG.normal(0, 0.4, (outputs, inputs))), transB=1)


def residual(file: File) -> None:
    """Batch norm, depthwise, a sum of two tensors, channels joined, the mean of all pixels."""
    convolution(file, 4, 2, pads=[1, 1, 1, 1], strides=[2, 2])
    names = [file.const(RNG.uniform(0.5, 2, 4)) for _ in range(4)]
    file.op("BatchNormalization", *names, epsilon=1e-3)
    front = file.op("Relu")
    convolution(file, 4, 1, pads=[1, 1, 1, 1], group=4)
    file.op("Add", front)
    file.op("Concat", file.raw("LeakyRelu", file.net, alpha=0.2), axis=1)
    file.op("ReduceMean", axes=[2, 3], keepdims=0)
    file.op("MatMul", file.const(RNG.normal(0, 1, (8, 3))))
    file.op("Add", file.const([0.5, 1, -1]))
    file.op("Softmax", axis=1)


def constants(file: File) -> None:
    """Constants beside tensors, on either side; a bias that another node adds."""
    file.op("Sub", file.const([[[0.3]], [[0.1]]]))
    file.op("Div", file.const(0.7))
    convolution(file, 4, 2)
    file.op("Add", file.const(RNG.normal(0, 1, (1, 4, 1, 1))))
    file.op("Mul", file.const([[[2.0]], [[3.0]], [[0.5]], [[1.0]]]))
    file.raw("Sub", file.const(1.0), file.net)
    file.op("Clip", file.const(0.0), file.const(6.0))
    file.op("Clip", file.const(-1.0), file.const(4.0))
    image = file.net
    shape = file.raw("Constant", value=numpy_helper.from_array(np.array([-1, 100])))
    file.raw("Reshape", image, shape)
    dense(file, 100)


def second_names(file: File) -> None:
    """A tensor that is read under two names: what is added to one is not in the other."""
    file.opset = 18
    convolution(file, 4, 2)
    front = file.net
    file.op("Identity")
    file.op("Add", file.const(RNG.normal(0, 1, (1, 4, 1, 1))))
    file.op("Add", front)
    pads, axes = file.const([2, 1, 0, 0], np.int64), file.const([3, -2], np.int64)
    file.raw("Pad", file.net, pads, "", axes)


def windows(file: File) -> None:
    """Padding that differs from side to side, SAME, pools with their options."""
    convolution(file, 3, 2, pads=[0, 1, 2, 1])
    file.op("Sigmoid")
    convolution(file, 3, 3, auto_pad="SAME_UPPER", strides=[2, 2])
    file.op("Tanh")
    file.op("MaxPool", kernel_shape=[2, 2], strides=[1, 1])
    pads = file.const([0, 0, 1, 1, 0, 0, 0, 1], np.int64)
    file.op("Pad", pads)
    file.op("AveragePool", kernel_shape=[2, 2], strides=[1, 1], pads=[1, 1, 1, 1])
    file.op("AveragePool", kernel_shape=[2, 2], strides=[2, 2], count_include_pad=1)
    file.op("GlobalMaxPool")
    file.op("Squeeze", file.const([2, 3], np.int64))
    file.op("Identity")
    dense(file, 3)


@pytest.mark.parametrize(
    "fill", [residual, windows, constants, second_names], ids=lambda fill: fill.__name__
)
def test_a_file_computes_what_it_says(fill: Any, tmp_path: Path) -> None:
    """Against ONNX Runtime: the order of float sums is all that may differ."""
    file = File(1, 2, 7, 7)
    fill(file)
    path = tmp_path / "net.onnx"
    path.write_bytes(file.model())
    loaded = load_model(path)
    assert loaded.input_shape == (7, 7, 2)
    images = RNG.uniform(0, 1, (5, 1, 2, 7, 7)).astype(np.float32)
    options = SessionOptions()
    options.log_severity_level = 3
    session = InferenceSession(path.read_bytes(), options)
    for image in images:
        (expected,) = session.run(None, {"inp": image})
        with torch.no_grad():
            found = loaded.model(torch.from_numpy(image)).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    if fill is constants:  # the one that is added behind the convolution is its bias
        assert loaded.network is not None
        assert "bias" in next(x for x in loaded.network.layers if "weight" in x.arrays).arrays


def test_layers_are_named_after_their_modules(tmp_path: Path) -> None:
    """As torch names parameters and nodes, so that rules of a policy find them."""
    file = File(1, 1, 4, 4)
    file.op("Conv", file.const(RNG.normal(0, 1, (2, 1, 3, 3)), name="block.a.weight"))
    file.nodes[-1].name = "/block/a/Conv"
    file.op("Relu")
    file.nodes[-1].name = "/block/Relu"
    dense(file, 8)
    (tmp_path / "net.onnx").write_bytes(file.model())
    names = [name for name, _ in load_model(tmp_path / "net.onnx").model.named_modules()]
    assert {"block.a", "block.Relu"} <= set(names)


def test_a_recipe_and_the_verbs_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = File("N", 2, "H", "W")
    convolution(file, 4, 2, pads=[1, 1, 1, 1])
    file.op("Relu")
    file.op("GlobalAveragePool")
    dense(file, 4)
    path = tmp_path / "net.onnx"
    path.write_bytes(file.model())
    model = model_from_spec(ModelSpec(name=str(path)), 3, (6, 5, 2))
    assert model.training and model(torch.rand(2, 2, 6, 5)).shape == (2, 3)
    with pytest.raises(ModelError, match="how large an image is"):
        load_model(path)
    assert not inspect_model(str(path), input_shape=(6, 5, 2)).problems
    out = tmp_path / "out"
    assert entry.run(["import", str(path), "--out", str(out), "--input-shape", "6x5x2"]) == 0
    assert json.loads((out / "import.json").read_text())["parameters"] == 4 * 18 + 12
    assert "bitwright init" in capsys.readouterr().out
    refused = ["import", str(path), "--out", str(tmp_path / "x"), "--target", "ecp5-25k"]
    assert entry.run(refused) == 2
    assert "a float network, which has no integers yet" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("op", "options", "message"),
    [
        ("Mul", {"twice": True}, "only their sum is a layer"),
        ("HardSwish", {}, "is not supported in a float model"),
        ("Softmax", {"axis": 2}, "only along the channels"),
        ("Transpose", {"perm": [0, 2, 3, 1]}, "is not supported in a float model"),
        ("MaxPool", {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1]}, "put a Pad in front"),
        ("Flatten", {"axis": 2}, "only images made vectors"),
    ],
)
def test_what_is_refused(op: str, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = File(1, 2, 4, 4)
    more = [file.net] if options.pop("twice", False) else []
    file.op(op, *more, **options)
    (tmp_path / "net.onnx").write_bytes(file.model())
    with pytest.raises(ModelError, match=f"node {op}_0.*{op}") as caught:
        load_model(tmp_path / "net.onnx")
    assert message in f"{caught.value.message} {caught.value.hint}"


def test_what_would_compute_something_else_is_refused(tmp_path: Path) -> None:
    """Whole numbers, training, a softmax of all pixels."""
    path = tmp_path / "net.onnx"

    def message(fill: Any, opset: int = 17) -> str:
        file = File(1, 2, 4, 4, opset=opset)
        fill(file)
        path.write_bytes(file.model())
        with pytest.raises(ModelError) as caught:
            load_model(path)
        return caught.value.message

    def whole(fill: Any) -> str:
        file = File(1, 2, 4, 4, opset=17, element=TensorProto.INT32)
        fill(file)
        file.op("Cast", to=TensorProto.FLOAT)
        file.op("Conv", file.const(np.ones((3, 2, 1, 1))))
        path.write_bytes(file.model())
        with pytest.raises(ModelError) as caught:
            load_model(path)
        return caught.value.message

    assert "is of int32, whose arithmetic" in whole(lambda f: f.op("Div", f.const(100, np.int32)))
    assert "makes whole numbers" in message(lambda f: f.op("Cast", to=7))
    rate, yes = np.float32(0.5), np.array(True)
    training = message(lambda f: f.op("Dropout", f.const(rate), f.const(yes, np.bool_)))
    assert "in training mode" in training
    assert "columns at once" in message(lambda f: f.op("Softmax", axis=1), 11)


def test_an_output_in_the_middle_has_no_later_bias(tmp_path: Path) -> None:
    file = File(1, 2, 4, 4)
    convolution(file, 3, 2)
    middle = file.net
    file.op("Add", file.const(RNG.uniform(1, 2, (1, 3, 1, 1))))
    path = tmp_path / "net.onnx"
    path.write_bytes(file.model())
    image = torch.rand(1, 2, 4, 4)
    with torch.no_grad():
        whole, cut = load_model(path).model(image), load_model(path, output=middle).model(image)
    assert not torch.equal(whole, cut)


def test_a_quantized_file_stays_one(tmp_path: Path) -> None:
    file = File(1, 2, 4, 4)
    file.quant()
    convolution(file, 4, 2)
    (tmp_path / "net.onnx").write_bytes(file.model())
    assert not is_float_file(tmp_path / "net.onnx")
    with pytest.raises(ModelError, match="is a quantized network"):
        load_model(tmp_path / "net.onnx")
