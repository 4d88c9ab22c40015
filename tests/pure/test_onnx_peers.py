# SPDX-License-Identifier: Apache-2.0
"""Files as peers write them: Brevitas' QCDQ and QONNX, FINN's networks, activations spelled out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto
from tests.onnx_models import QONNX, File, run_file

from bitwright.base.errors import ModelError
from bitwright.interop.onnx.reader import Imported, load
from bitwright.interop.onnx.reader.compare import original_outputs
from bitwright.ir import random_feeds
from bitwright.ir.executor import Executor


def reals(imported: Imported, images: np.ndarray) -> np.ndarray:
    """What the file's first output is, by the graph."""
    output = imported.outputs[0]
    return output.reals(imported.graph.run({"x": imported.levels(images)})[output.edge])


def by_onnx_runtime(body: bytes, images: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(body, options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"inp": image[None]})[0] for image in images])


def drawn(*shape: int, count: int = 16) -> np.ndarray:
    """Images whose values lie on and between levels."""
    values = np.random.default_rng(3).integers(-40, 41, (count, *shape)) / 16
    return values.astype(np.float32)


def qcdq(net: File, scale: object, ends: tuple[int, int], dtype: type = np.int8) -> str:
    """QuantizeLinear, Clip to a few bits, DequantizeLinear, as Brevitas writes it."""
    rows = np.shape(scale)
    attrs = {"axis": 0} if rows else {}
    operands = net.const(scale), net.const(np.zeros(rows), dtype)
    net.op("QuantizeLinear", *operands, **attrs)
    net.op("Clip", net.const(ends[0], dtype), net.const(ends[1], dtype))
    return net.op("DequantizeLinear", *operands, **attrs)


def quantized_constant(net: File, value: np.ndarray, *args: object) -> str:
    data, net.net = net.net, net.const(value)
    name = qcdq(net, *args)  # type: ignore[arg-type]
    net.net = data
    return name


@pytest.mark.parametrize("scale", [0.25, (0.25, 0.5, 0.125)], ids=["tensor", "channels"])
def test_constants_behind_a_clip_of_codes(scale: object) -> None:
    """142 of 151 QCDQ files of Brevitas: weights of few bits have a Clip behind QuantizeLinear."""
    rng = np.random.default_rng(0)
    net = File(1, 2, 4, 4)
    qcdq(net, 0.5, (-8, 7))
    weights = rng.integers(-12, 13, (3, 2, 3, 3)) / 8
    bias = net.const(rng.integers(-30, 31, 3), np.int32)
    data = net.net
    steps = net.const(np.multiply(scale, 0.5) * np.ones(3))
    bias = net.raw("DequantizeLinear", bias, steps, axis=0)
    net.net = data
    net.op("Conv", quantized_constant(net, weights, scale, (-3, 3)), bias, pads=[1] * 4)
    qcdq(net, 0.5, (0, 7), np.uint8)
    body, images = net.model(), drawn(2, 4, 4)
    imported = load(body)
    assert np.array_equal(reals(imported, images), by_onnx_runtime(body, images))
    conv = next(node for node in imported.graph if node.op == "conv")
    assert conv.attrs["weight_format"] == "int3n"  # the clip, not int8


@pytest.mark.parametrize("bits", [16, 24, 32])
def test_wide_biases(bits: int) -> None:
    """Int16Bias, Int24Bias and Int32Bias of Brevitas, in QONNX."""
    rng = np.random.default_rng(1)
    net = File(1, 4)
    net.quant(4, 0.5)
    data = net.net
    net.net = net.const(rng.integers(-2, 3, (3, 4)) * 0.25)
    weight = net.quant(3, 0.25, narrow=1)
    net.net = net.const([1e3, -1e3, 1.3])
    bias = net.quant(bits, 0.125)
    net.net = data
    net.op("Gemm", weight, bias, transB=1)
    body, images = net.model(), drawn(4)
    imported = load(body)
    assert np.array_equal(reals(imported, images), run_file(body, images)[0])
    dense = next(node for node in imported.graph if node.op == "dense")
    assert np.array_equal(dense.params["bias"], [8000, -8000, 10])


def test_biases_whose_scale_is_rounded_are_whole_levels() -> None:
    """Their scale is a product, rounded to float32: scores are those integers, without a note."""
    scales = np.float32(0.0737123), np.float32(0.0131717)
    net = File(1, 4)
    net.quant(4, scales[0])
    data = net.net
    net.net = net.const(np.arange(12).reshape(3, 4) * scales[1])
    weight = net.quant(4, scales[1])
    net.net = net.const(np.float32(scales[0] * scales[1]) * np.array([70001, -1234567, 33]))
    bias = net.quant(32, scales[0] * scales[1])
    net.net = data
    net.op("Gemm", weight, bias, transB=1)
    imported = load(net.model())
    dense = next(node for node in imported.graph if node.op == "dense")
    assert np.array_equal(dense.params["bias"], [70001, -1234567, 33]) and not imported.notes


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32])
def test_scalar_constants_are_dequantized(dtype: type) -> None:
    net = File(1, 4)
    net.quant(4, 0.5)
    data = net.net
    scalar = net.raw("DequantizeLinear", net.const(3, dtype), net.const(0.25))
    net.raw("Mul", data, scalar)
    net.quant(4, 0.5)
    body, images = net.model(), drawn(4)
    assert np.array_equal(reals(load(body), images), run_file(body, images)[0])


def test_scalar_constants_are_quantized() -> None:
    net = File(1, 4)
    net.quant(4, 0.5)
    data, net.net = net.net, net.const(0.8)
    net.raw("Mul", data, qcdq(net, 0.25, (-3, 3)))
    net.quant(4, 0.5)
    body, images = net.model(), drawn(4)
    assert np.array_equal(reals(load(body), images), run_file(body, images)[0])


@pytest.mark.parametrize("features", [64, 128, 600])
def test_networks_of_one_bit_run_fast(features: int) -> None:
    """FINN's tutorial: BipolarQuant -> MatMul with +-1. Weights lie transposed in memory."""
    rng = np.random.default_rng(features)
    net = File(1, features)
    for rows, columns in ((features, 64), (64, 64), (64, 3)):
        net.op("BipolarQuant", net.const(1.0), domain=QONNX)
        net.op("MatMul", net.const(rng.choice([-1.0, 1.0], (rows, columns))))
    graph = load(net.model()).graph
    feeds = random_feeds(graph, 5, rng)
    found, expected = Executor(graph).run(feeds), graph.run(feeds)
    assert all(np.array_equal(found[edge], expected[edge]) for edge in graph.outputs)


def _silu(net: File) -> None:
    start = net.net
    net.raw("Mul", start, net.raw("Sigmoid", start))


def _silu_divided(net: File) -> None:
    start = net.net
    net.op("Neg")
    net.op("Exp")
    net.raw("Div", start, net.op("Add", net.const(1.0)))


def _hard_swish(net: File) -> None:
    start = net.net
    net.raw("Mul", start, net.raw("HardSigmoid", start, alpha=1 / 6, beta=0.5))


def _hard_swish_of_clip(net: File) -> None:
    start = net.net
    net.op("Add", net.const(3.0))
    net.raw("Mul", start, net.op("Clip", net.const(0.0), net.const(6.0)))
    net.op("Div", net.const(6.0))


def _mish(net: File) -> None:
    start = net.net
    net.raw("Mul", start, (net.raw("Softplus", start), net.op("Tanh"))[1])


def _gelu(net: File) -> None:
    """As exporters write it below operator set 20."""
    start = net.net
    net.op("Div", net.const(np.sqrt(2)))
    net.op("Erf")
    net.raw("Mul", start, net.op("Add", net.const(1.0)))
    net.op("Mul", net.const(0.5))


def _gelu_tanh(net: File) -> None:
    start = net.net
    net.raw("Mul", start, net.raw("Mul", start, start))
    net.op("Mul", net.const(0.044715))
    net.raw("Add", start, net.net)
    net.op("Mul", net.const(0.7978846))
    net.op("Tanh")
    net.raw("Mul", start, net.op("Add", net.const(1.0)))
    net.op("Mul", net.const(0.5))


def _silu_with_quantizer(net: File) -> None:
    """The sigmoid in few bits, as a layer of its own leaves it."""
    start = net.net
    net.op("Sigmoid")
    net.raw("Mul", start, net.quant(5, 1 / 32, signed=False))


def _both_quantized(net: File) -> None:
    """Of another scale than what it is multiplied with, which is quantized again."""
    start = net.net
    part = net.quant(4, 0.5)
    net.net = start
    net.op("Tanh")
    net.raw("Mul", part, net.quant(4, 0.15))


def _silu_qdq(net: File) -> None:
    """The same in the style of ONNX Runtime."""
    start, scale, zero = net.net, net.const(1 / 255), net.const(0, np.uint8)
    net.op("Sigmoid")
    net.op("QuantizeLinear", scale, zero)
    net.raw("Mul", start, net.op("DequantizeLinear", scale, zero))


SPELLED_OUT = (
    _silu_with_quantizer, _both_quantized, _silu_qdq, _silu, _silu_divided, _hard_swish,
    _hard_swish_of_clip, _mish, _gelu, _gelu_tanh,
)  # fmt: skip


@pytest.mark.parametrize("activation", SPELLED_OUT)
@pytest.mark.parametrize("channels", [False, True], ids=["plain", "per channel"])
def test_activations_spelled_out(activation: Callable[[File], None], channels: bool) -> None:
    """A product of two functions of one tensor is a function of it, on every level of it."""
    net = File(1, 3)
    net.quant(7, 0.125)
    if channels:
        net.op("Mul", net.const([0.5, 1.0, 0.25]))
    activation(net)
    if channels:
        net.op("Mul", net.const([1.0, 2.0, 0.5]))
    net.quant(6, 0.0710678)
    body = net.model()
    images = np.repeat(np.arange(-64, 64, dtype=np.float32)[:, None] / 8, 3, axis=1)
    imported = load(body)
    assert [node.op for node in imported.graph] == ["lookup", "top_k"]
    # In units of the last scale: QONNX computes in float32.
    found, expected = reals(imported, images), run_file(body, images)[0]
    assert np.array_equal(np.rint(found / 0.0710678), np.rint(expected / 0.0710678))


def test_activations_spelled_out_are_concatenated() -> None:
    """The quantizer behind the concatenation is that of both."""
    net = File(1, 2, 2, 2)
    start = net.quant(6, 0.25)
    parts = []
    for gain in (1.0, 0.5):
        net.raw("Mul", start, net.const(gain))
        _silu(net)
        parts.append(net.net)
    net.raw("Concat", *parts, axis=1)
    net.quant(5, 0.3)
    body, images = net.model(), drawn(2, 2, 2)
    found, expected = reals(load(body), images), run_file(body, images)[0]
    assert np.array_equal(np.rint(found / 0.3), np.rint(expected / 0.3))


def _two_tensors(net: File) -> None:
    start = net.net
    net.op("MatMul", net.const(np.eye(4)))
    net.raw("Mul", start, net.net)


def _without_end(net: File) -> None:
    """Each is a product of the two before it: their sizes grow as Fibonacci's numbers."""
    before, last = net.net, net.op("Sigmoid")
    for _ in range(40):
        before, last = last, net.raw("Mul", before, last)


@pytest.mark.parametrize(
    ("build", "message"),
    [(_two_tensors, "a product of activations"), (_without_end, "more than 100 element-wise")],
)
def test_products_that_are_refused(build: Callable[[File], None], message: str) -> None:
    net = File(1, 4)
    net.quant(4, 0.5)
    build(net)
    net.quant(4, 0.5)
    with pytest.raises(ModelError, match=message):
        load(net.model())


@pytest.mark.parametrize(
    ("kind", "refused"), [(TensorProto.FLOAT16, False), (TensorProto.FLOAT8E4M3FN, True)]
)
def test_casts_to_narrower_reals(kind: int, refused: bool) -> None:
    """Eight bits are a quantizer that must not be missed; 16 are said to be left out."""
    net = File(1, 4, opset=19)
    net.quant(4, 0.5)
    net.op("Cast", to=kind)
    net.op("Cast", to=TensorProto.FLOAT)
    net.quant(3, 1.0)
    if refused:
        with pytest.raises(ModelError, match="casts to float8_e4m3fn"):
            load(net.model())
    else:
        assert any("float16" in note for note in load(net.model()).notes)


def test_a_file_of_one_image_is_run_image_by_image() -> None:
    """Its Reshape says 1, as in FINN's tutorial, so the batch cannot be replaced."""
    pytest.importorskip("qonnx")
    net = File(1, 3, 2, 2)
    net.quant(4, 0.5)
    net.op("Reshape", net.const([1, 12], np.int64))
    net.op("MatMul", net.const(np.arange(36).reshape(12, 3) % 5 - 2))
    body, images = net.model(), drawn(3, 2, 2)
    assert np.array_equal(original_outputs(body, images)[0], run_file(body, images)[0])
