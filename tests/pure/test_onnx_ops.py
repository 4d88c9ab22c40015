# SPDX-License-Identifier: Apache-2.0
"""Import of single operators and small chains: equal to QONNX's executor, value for value.

Scales are powers of two, so that QONNX's float32 is exact and there is nothing to tolerate.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.onnx_models import QONNX, File, run_file

from bitwright.base.errors import ModelError
from bitwright.interop.onnx.reader import Imported, load

Build = Callable[[File], object]


def weights(*shape: int, seed: int = 0, limit: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(-limit, limit + 1, shape)


def conv(net: File, *shape: int, scale: float = 0.25, **attrs: object) -> str:
    """A convolution with quantized weights."""
    held, data = net.const(weights(*shape) * scale), net.net
    net.net = held
    quantized = net.quant(3, scale, narrow=1)
    net.net = data
    return net.op("Conv", quantized, **attrs)


def agree(body: bytes, shape: tuple[int, ...], *, tolerance: float = 0.0) -> Imported:
    """Import a file and compare every output on random images that reach every level."""
    imported = load(body)
    rng = np.random.default_rng(1)
    images = (rng.integers(-40, 41, (12, *shape)) / 16).astype(np.float32)
    images[0] = 0
    expected = run_file(body, images)
    found = imported.graph.run({"x": imported.levels(images)})
    for wanted, output in zip(expected, imported.outputs, strict=False):
        reals = output.reals(found[output.edge]).reshape(wanted.shape)
        if tolerance:
            assert np.allclose(wanted, reals, atol=tolerance)
        else:
            assert np.array_equal(wanted, reals), np.abs(wanted - reals).max()
    return imported


def ops(imported: Imported) -> list[str]:
    return [node.op for node in imported.graph]


def _bn(net: File, channels: int = 3) -> None:
    gain = np.array([1, -0.5, 2, 0.25, -1, 0, 4, 1])[:channels]
    operands = [gain, np.arange(channels) * 0.5, np.ones(channels), np.full(channels, 4.0)]
    net.op("BatchNormalization", *(net.const(o) for o in operands), epsilon=0.0)


def _reorg(net: File) -> None:
    """The chain of four reshapes and three transposes that SkyNet's reorg layer exports to."""
    steps = (
        ("R", (1, 2, 3, 2, 2, 2)), ("T", (0, 1, 2, 4, 3, 5)), ("R", (1, 2, 6, 4)),
        ("T", (0, 1, 3, 2)), ("R", (1, 2, 4, 3, 2)), ("T", (0, 2, 1, 3, 4)), ("R", (1, 8, 3, 2)),
    )  # fmt: skip
    for kind, numbers in steps:
        if kind == "R":
            net.op("Reshape", net.const(numbers, np.int64))
        else:
            net.op("Transpose", perm=numbers)


def _reorg_then_conv(net: File) -> None:
    _reorg(net)
    conv(net, 3, 8, 1, 1)


def _pixel_unshuffle(net: File) -> None:
    """Another order of channels: the convolution's columns follow."""
    net.op("Reshape", net.const((1, 2, 3, 2, 2, 2), np.int64))
    net.op("Transpose", perm=(0, 1, 3, 5, 2, 4))
    net.op("Reshape", net.const((1, 8, 3, 2), np.int64))
    net.op("MaxPool", kernel_shape=(2, 1))
    conv(net, 3, 8, 2, 1)


def _shuffled_depthwise(net: File) -> None:
    net.op("Reshape", net.const((1, 2, 3, 2, 2, 2), np.int64))
    net.op("Transpose", perm=(0, 1, 3, 5, 2, 4))
    net.op("Reshape", net.const((1, 8, 3, 2), np.int64))
    conv(net, 16, 1, 2, 2, group=8)
    net.op("Add", net.const(np.arange(16).reshape(16, 1, 1)))


def _join(net: File, op: str = "Add", second: float = 0.25) -> None:
    start = net.net
    first = net.quant(3, 0.5)
    net.net = start
    conv(net, 2, 2, 1, 1)
    net.raw(op, first, net.quant(4, second))


def _sum(net: File) -> None:
    start = net.net
    parts = []
    for scale in (0.5, 0.25, 1.0):
        net.net = start
        parts.append(net.quant(3, scale))
    net.raw("Sum", *parts)


def _concat(net: File) -> None:
    start = net.net
    parts = []
    for scale in (0.5, 0.125):
        net.net = start
        parts.append(net.quant(3, scale))
    net.raw("Concat", *parts, axis=1)


def _concat_depthwise(net: File) -> None:
    _concat(net)
    conv(net, 4, 1, 3, 3, group=4, pads=(1, 1, 1, 1))


def _concat_quant_conv(net: File) -> None:
    _concat(net)
    net.quant(8, 0.125)
    conv(net, 3, 4, 1, 1)


def _shape_arithmetic(net: File) -> None:
    """What torch's ``x.view(x.size(0), -1)`` exports to."""
    data = net.net
    net.op("Shape")
    net.op("Gather", net.const(0, np.int64), axis=0)
    net.op("Unsqueeze", net.const([0], np.int64))
    target = net.op("Concat", net.const([-1], np.int64), axis=0)
    net.raw("Reshape", data, target)
    net.op("MatMul", net.const(weights(48, 5)))


def _resize(net: File) -> None:
    net.op(
        "Resize",
        net.const(np.zeros(0)),
        net.const((1, 1, 2, 3)),
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )


def _pad_conv(net: File) -> None:
    net.op("Pad", net.const((0, 0, 1, 2, 0, 0, 0, 1), np.int64))
    conv(net, 3, 2, 3, 3, pads=(1, 0, 0, 1))


def _pool_of_falling(net: File) -> None:
    """A max pool between a batch norm with negative gains and the quantizer."""
    conv(net, 3, 2, 1, 1)
    _bn(net)
    net.op("MaxPool", kernel_shape=(2, 2), strides=(2, 2))
    net.op("Relu")
    net.quant(3, 0.5, signed=0)


def _zero_point_padding(net: File) -> None:
    """FINN's signed quantizer: thresholds, then Add, then Mul; zero is not level 0 of the node."""
    table = (np.arange(15) - 7.5) * 0.5
    net.op("MultiThreshold", net.const(table[None]), domain=QONNX, out_dtype="UINT4")
    net.op("Add", net.const(-8.0))
    net.op("Mul", net.const(0.5))
    conv(net, 3, 2, 3, 3, pads=(1, 1, 1, 1))


def _multi_threshold(net: File) -> None:
    conv(net, 3, 2, 1, 1)
    table = np.sort(weights(3, 7, seed=4, limit=9), axis=1) / 8
    net.op(
        "MultiThreshold", net.const(table), domain=QONNX, out_dtype="INT4", out_scale=2.0,
        out_bias=-7.0, data_layout="NCHW",
    )  # fmt: skip


def _nhwc_threshold(net: File) -> None:
    net.op("Transpose", perm=(0, 2, 3, 1))
    table = np.sort(weights(2, 3, seed=5, limit=9), axis=1) / 8
    net.op(
        "MultiThreshold", net.const(table), domain="finn.custom_op.general", out_dtype="UINT2",
        data_layout="NHWC",
    )  # fmt: skip
    net.op("MatMul", net.const(weights(2, 3)))


def _channels_last(net: File) -> None:
    net.op("Transpose", perm=(0, 2, 3, 1))
    net.shaped(1, 6, 4, 2)
    net.op(
        "Conv", net.const(weights(3, 2, 2, 2)), domain="qonnx.custom_op.channels_last",
        kernel_shape=(2, 2), strides=(1, 1), pads=(0, 0, 0, 0), group=1, dilations=(1, 1),
    )  # fmt: skip
    net.op("Transpose", perm=(0, 3, 1, 2))


def _trunc(net: File) -> None:
    net.op("AveragePool", kernel_shape=(2, 2), strides=(2, 2))
    net.op("Mul", net.const(4.0))
    operands = [net.const(v) for v in (0.5, 0.0, 6.0, 4.0)]
    net.op("Trunc", *operands, domain=QONNX, rounding_mode="FLOOR")


def _gemm(net: File) -> None:
    net.op("Flatten")
    held = net.const(weights(5, 48))
    net.op("Gemm", held, net.const(np.arange(5) * 0.5), transB=1, beta=0.5)


def _global(net: File) -> None:
    net.op("GlobalAveragePool")
    net.op("Flatten")
    net.quant(6, 0.0625)
    net.op("MatMul", net.const(weights(2, 4)))


def _mean(net: File) -> None:
    net.op("ReduceMean", axes=(2, 3), keepdims=0)
    net.op("Mul", net.const(3.0))


def _per_channel_weights(net: File) -> None:
    scale = np.array([0.25, 0.5, 1.0]).reshape(3, 1, 1, 1)
    held, data = net.const(weights(3, 2, 1, 1) * scale), net.net
    net.net = held
    quantized = net.quant(3, scale, narrow=1)
    net.net = data
    net.op("Conv", quantized, net.const([1.0, -0.25, 0.3]))
    net.op("Relu")
    net.quant(4, 0.25, signed=0)


def _qdq(net: File) -> None:
    """QuantizeLinear with a zero point, Clip to fewer bits, DequantizeLinear; weights int8."""
    scale, zero = net.const(0.25), net.const(10, np.uint8)
    net.op("QuantizeLinear", scale, zero)
    net.op("Clip", net.const(2, np.uint8), net.const(17, np.uint8))
    data = net.op("DequantizeLinear", scale, zero)
    rows = net.const((0.5, 0.25, 1.0))
    held = net.raw("DequantizeLinear", net.const(weights(3, 2, 3, 3), np.int8), rows, axis=0)
    bias = net.raw("DequantizeLinear", net.const((7, -3, 100), np.int32), net.const(0.0625))
    net.raw("Conv", data, held, bias, pads=(1, 1, 1, 1))


def _spelled_out(net: File) -> None:
    """A quantizer in standard operators: divide, round, clip, multiply."""
    conv(net, 3, 2, 1, 1)
    _bn(net)
    net.op("Div", net.const(0.5))
    net.op("Round")
    net.op("Clip", net.const(-4.0), net.const(3.0))
    net.op("Mul", net.const(0.5))
    conv(net, 2, 3, 3, 3, pads=(1, 1, 1, 1))


CASES: dict[str, Build] = {
    "conv, asymmetric pads and strides": lambda n: conv(
        n, 3, 2, 3, 2, pads=(1, 0, 2, 1), strides=(2, 1)
    ),
    "conv, SAME_UPPER": lambda n: conv(n, 3, 2, 3, 2, auto_pad="SAME_UPPER", strides=(2, 2)),
    "conv, SAME_LOWER": lambda n: conv(n, 3, 2, 2, 3, auto_pad="SAME_LOWER"),
    "conv, depthwise, dilated": lambda n: conv(n, 4, 1, 2, 2, group=2, dilations=(2, 3)),
    "per-channel weights and bias": _per_channel_weights,
    "gemm": _gemm,
    "matmul after a view": _shape_arithmetic,
    "batch norm": lambda n: (conv(n, 3, 2, 1, 1), _bn(n), n.quant(3, 0.5)),
    "clip": lambda n: (n.op("Clip", n.const(-1.0), n.const(0.75)), n.quant(3, 0.25)),
    "leaky relu": lambda n: (n.op("LeakyRelu", alpha=0.25), n.quant(4, 0.25)),
    "leaky relu, falling": lambda n: (n.op("LeakyRelu", alpha=-0.5), n.quant(4, 0.25)),
    "prelu": lambda n: (n.op("PRelu", n.const([[[0.5]], [[0.25]]])), n.quant(4, 0.25)),
    "hard swish": lambda n: (n.op("Mul", n.const(0.5)), n.op("Abs"), n.quant(3, 0.5, signed=0)),
    "sigmoid": lambda n: (n.op("Sigmoid"), n.quant(3, 0.125, signed=0)),
    "tanh": lambda n: (n.op("Tanh"), n.quant(3, 0.25)),
    "subtract from a constant": lambda n: (n.raw("Sub", n.const(1.0), n.net), n.quant(3, 0.5)),
    "divide": lambda n: (n.op("Div", n.const([[[2.0]], [[-4.0]]])), n.quant(3, 0.25)),
    "relu between products": lambda n: (n.op("Relu"), conv(n, 3, 2, 1, 1)),
    "sign": lambda n: (n.op("Sign"), conv(n, 3, 2, 1, 1)),
    "bipolar": lambda n: (n.op("BipolarQuant", n.const(0.5), domain=QONNX), conv(n, 3, 2, 2, 2)),
    "1-bit quant": lambda n: n.quant(1, 0.5),
    "narrow quant": lambda n: n.quant(3, 0.5, narrow=1),
    "quant with zero point": lambda n: (n.quant(4, 0.25, signed=0, zero=5.0), conv(n, 3, 2, 1, 1)),
    "old names": lambda n: n.quant(3, 0.5, domain="onnx.brevitas"),
    "new names": lambda n: n.quant(3, 0.5, op="IntQuant", mode="HALF_EVEN"),
    "floor": lambda n: n.quant(3, 0.75, mode="FLOOR"),
    "ceil": lambda n: n.quant(3, 0.75, mode="CEIL"),
    "half away": lambda n: n.quant(3, 1.0, mode="HALF_UP"),
    "half to zero": lambda n: n.quant(3, 1.0, mode="HALF_DOWN"),
    "towards zero": lambda n: n.quant(3, 0.75, mode="DOWN"),
    "away from zero": lambda n: n.quant(3, 0.75, mode="UP"),
    "trunc": _trunc,
    "multi threshold": _multi_threshold,
    "zero point and padding": _zero_point_padding,
    "nhwc": _nhwc_threshold,
    "channels last": _channels_last,
    "max pool, ceil mode": lambda n: n.op(
        "MaxPool", kernel_shape=(3, 2), strides=(2, 3), pads=(1, 0, 1, 1), ceil_mode=1
    ),
    "max pool of falling channels": _pool_of_falling,
    "global max pool": lambda n: n.op("GlobalMaxPool"),
    "average pool": lambda n: (
        n.op("AveragePool", kernel_shape=(2, 2), strides=(2, 1)), n.quant(4, 0.25)
    ),
    "average pool with padding": lambda n: (
        n.op("AveragePool", kernel_shape=(2, 2), pads=(1, 0, 0, 1), count_include_pad=1),
        n.quant(4, 0.25),
    ),
    "global average pool": _global,
    "mean": _mean,
    "add": _join,
    "subtract": lambda n: _join(n, "Sub", 0.5),
    "sum of three": _sum,
    "concat": _concat,
    "concat into depthwise": _concat_depthwise,
    "concat, quantized again": _concat_quant_conv,
    "reorg": _reorg_then_conv,
    "reorg at the end": lambda n: (conv(n, 2, 2, 1, 1), _reorg(n)),
    "pixel unshuffle": _pixel_unshuffle,
    "shuffled depthwise": _shuffled_depthwise,
    "space to depth": lambda n: (n.op("SpaceToDepth", blocksize=2), conv(n, 3, 8, 1, 1)),
    "resize": _resize,
    "pad": _pad_conv,
    "quantizer spelled out": _spelled_out,
    "qdq": _qdq,
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operator_equals_qonnx(name: str) -> None:
    net = File(1, 2, 6, 4)
    if name != "qdq":
        net.quant(4, 0.25)
    CASES[name](net)
    agree(net.model(), (2, 6, 4), tolerance=1e-6 if name == "mean" else 0.0)


def test_reorg_is_one_operation() -> None:
    net = File(1, 2, 6, 4)
    net.quant(4, 0.25)
    _reorg_then_conv(net)
    assert ops(load(net.model())) == ["space_to_depth", "conv"]


def test_channels_last_input_is_recognised() -> None:
    net = File(1, 6, 4, 2)
    net.quant(4, 0.25)
    net.op("Transpose", perm=(0, 3, 1, 2))
    conv(net, 3, 2, 3, 3, pads=(1, 1, 1, 1))
    imported = agree(net.model(), (6, 4, 2))
    assert imported.graph.types["x"].shape == (6, 4, 2)


def test_a_quantizer_of_the_input_can_become_hardware() -> None:
    net = File("batch", 1, 4, 4)
    net.op("Mul", net.const(2.0))
    net.op("Sub", net.const(1.0))
    net.quant(2, 1.0, narrow=1)
    conv(net, 2, 1, 3, 3)
    body = net.model()
    pixels = np.random.default_rng(0).integers(0, 256, (20, 1, 4, 4))
    imported = load(body, input_type="uint8", input_scale=1 / 256)
    assert ops(imported) == ["threshold", "conv"] and imported.source is None
    outside = load(body)
    assert ops(outside) == ["conv"] and outside.graph.types["x"].format is not None
    edge = imported.outputs[0].edge
    found = imported.graph.run({"x": imported.levels(pixels)})[edge]
    reals = (pixels / 256).astype(np.float32)
    assert np.array_equal(found, outside.graph.run({"x": outside.levels(reals)})[edge])


def test_a_fixed_batch_is_one_sample() -> None:
    def body(batch: int) -> bytes:
        net = File(batch, 2, 3, 1)
        net.quant(4, 0.25)
        net.op("Reshape", net.const((batch, 6), np.int64))
        net.op("MatMul", net.const(weights(6, 3)))
        return net.model()

    assert load(body(8)).graph == load(body(1)).graph


def test_a_fraction_is_no_integer() -> None:
    net = File(1, 6)
    net.quant(4, 0.25)
    net.op("Cast", to=6)
    with pytest.raises(ModelError, match=r"Cast_1.*casts real numbers"):
        load(net.model())


def test_xnor_popcount() -> None:
    net = File(1, 6)
    net.quant(1, 1.0, signed=0)
    net.op("XnorPopcountMatMul", net.const(weights(6, 4, limit=1) > 0), domain=QONNX)
    agree(net.model(), (6,))


def test_labels_follow_the_scores() -> None:
    """Scores with a scale and an offset a class are ordered as the file orders them."""
    net = File(1, 6)
    net.quant(4, 0.25)
    scale = np.array([0.25, 0.5, 1.0])
    held, data = net.const(weights(6, 3) * scale), net.net
    net.net = held
    quantized = net.quant(3, scale, narrow=1)
    scores = net.raw("MatMul", data, quantized)
    scores = net.op("Add", net.const([0.3, -0.2, 0.17]))
    net.op("Softmax", axis=1)
    net.raw("ArgMax", scores, axis=1, keepdims=1)
    body = net.model()
    imported = load(body)
    images = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    (expected,) = run_file(body, images)
    found = imported.graph.run({"x": imported.levels(images)})["label"]
    assert np.array_equal(found, expected)
    assert any("16 bits" in note for note in imported.notes)


def test_whole_biases_stay_exact() -> None:
    net = File(1, 6)
    net.quant(4, 0.25)
    net.op("MatMul", net.const(weights(6, 3)))
    net.op("Add", net.const([0.5, -0.25, 3.0]))
    imported = agree(net.model(), (6,))
    assert ops(imported) == ["dense", "top_k"] and not imported.notes
    assert imported.graph.node("scores").params["bias"].tolist() == [2, -1, 12]


def test_several_classes() -> None:
    net = File(1, 6)
    net.quant(4, 0.25)
    net.op("MatMul", net.const(weights(6, 5)))
    net.op("TopK", net.const([3], np.int64), outputs=2)
    imported = agree(net.model("t2_1"), (6,))
    assert imported.graph.node("label").attrs["k"] == 3


@pytest.mark.parametrize("kind", ["Conv", "MatMul"])
def test_a_constant_of_each_channel_meets_the_products_own_weights(kind: str) -> None:
    """Gains of the channels go into the weights; what was added behind them does not."""
    net = File(1, 4, 3, 3)
    net.quant(4, 0.25)
    net.op("Mul", net.const(np.reshape([1.0, -2.0, 4.0, 0.5], (1, 4, 1, 1))))
    net.op("Add", net.const(np.reshape([3.0, -1.0, 5.0, 2.0], (1, 4, 1, 1))))
    if kind == "Conv":
        net.op("Conv", net.const(weights(5, 4, 3, 3)), kernel_shape=[3, 3])
        net.quant(8, 2.0)
        net.op("Flatten")
    else:
        net.op("Flatten")
        net.op("MatMul", net.const(weights(36, 5)))
    agree(net.model(), (4, 3, 3))


@pytest.mark.parametrize("size", [6, 7])
def test_same_counts_from_the_image_with_the_border_in_front(size: int) -> None:
    net = File(1, 1, size, size)
    net.quant(4, 0.25)
    net.op("Pad", net.const([0, 0, 1, 1, 0, 0, size % 2 == 0, 0], np.int64))
    net.op(
        "Conv", net.const(weights(2, 1, 3, 3)), kernel_shape=[3, 3], strides=[2, 2],
        auto_pad="SAME_UPPER",
    )  # fmt: skip
    agree(net.model(), (1, size, size))


def test_signs_have_no_zero_point() -> None:
    net = File(1, 6)
    net.quant(1, 0.5, zero=3.0)
    with pytest.raises(ModelError, match="one signed bit with the zero point 3"):
        load(net.model())
