# SPDX-License-Identifier: Apache-2.0
"""Import of whole networks: what ONNX Runtime's quantizer writes, and the shape of SkyNet."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.onnx_models import File, run_file
from tests.pure.test_onnx_ops import conv

from bitwright.interop.onnx.reader import load


class Reader:
    """Calibration samples for ONNX Runtime's quantizer."""

    def __init__(self, samples: np.ndarray) -> None:
        self.samples = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        sample = next(self.samples, None)
        return None if sample is None else {"inp": sample[None]}


def float_network() -> onnx.ModelProto:
    """A residual, a depthwise convolution, a concatenation, Relu6, pools and a classifier."""
    rng = np.random.default_rng(0)
    nodes: list[Any] = []
    constants: list[Any] = []

    def const(values: Any, name: str) -> str:
        constants.append(numpy_helper.from_array(np.asarray(values, np.float32), name))
        return name

    def op(kind: str, inputs: list[str], name: str, **attrs: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [name], name=name, **attrs))
        return name

    def layer(x: str, name: str, *shape: int, **attrs: Any) -> str:
        spread = 1.5 / np.sqrt(np.prod(shape[1:]))
        weight = const(rng.normal(size=shape) * spread, f"{name}_w")
        bias = const(rng.normal(size=shape[0]) * 0.1, f"{name}_b")
        pads = [shape[2] // 2] * 4
        return op("Relu", [op("Conv", [x, weight, bias], name, pads=pads, **attrs)], f"{name}_r")

    x = layer("inp", "c1", 8, 3, 3, 3)
    start = op("MaxPool", [x], "p1", kernel_shape=[2, 2], strides=[2, 2])
    x = layer(start, "c2", 8, 1, 3, 3, group=8)
    x = op("Relu", [op("Add", [layer(x, "c3", 8, 8, 1, 1), start], "a1")], "r3")
    x = op("Concat", [x, layer(x, "c4", 4, 8, 1, 1)], "cat", axis=1)
    x = layer(x, "c5", 16, 12, 3, 3, strides=[2, 2])
    x = op("Clip", [x, const(0.0, "lo"), const(6.0, "hi")], "relu6")
    x = op("Flatten", [op("GlobalAveragePool", [x], "gap")], "flat")
    weight, bias = const(rng.normal(size=(16, 10)), "fc_w"), const(rng.normal(size=10), "fc_b")
    op("Gemm", [x, weight, bias], "out")
    graph = helper.make_graph(
        nodes,
        "float",
        [helper.make_tensor_value_info("inp", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 10])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("activations", "weights", "per_channel"),
    [("QUInt8", "QInt8", True), ("QInt8", "QInt8", False), ("QUInt8", "QUInt8", False)],
)
def test_networks_of_onnx_runtime_s_quantizer(
    tmp_path: Path, activations: str, weights: str, per_channel: bool
) -> None:
    """Zero points, real scales, int32 biases: float32 sums may round, so a few scores may."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    logging.disable(logging.WARNING)
    rng = np.random.default_rng(1)
    onnx.save(float_network(), str(tmp_path / "float.onnx"))
    quantization.quantize_static(
        str(tmp_path / "float.onnx"),
        str(tmp_path / "int8.onnx"),
        Reader(rng.normal(size=(40, 3, 16, 16)).astype(np.float32)),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType[activations],
        weight_type=quantization.QuantType[weights],
        per_channel=per_channel,
    )
    logging.disable(logging.NOTSET)
    imported = load(tmp_path / "int8.onnx")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        str(tmp_path / "int8.onnx"), options, providers=["CPUExecutionProvider"]
    )
    images = rng.normal(size=(60, 3, 16, 16)).astype(np.float32)
    expected = np.concatenate([session.run(None, {"inp": i[None]})[0] for i in images])
    found = imported.graph.run({"x": imported.levels(images)})
    scores = imported.outputs[0].reals(found["scores"])
    near = np.abs(expected - scores) <= 1e-6 * np.abs(expected).max()
    assert near.mean() > 0.99
    assert (expected.argmax(axis=1) == found["label"][:, 0]).mean() > 0.98
    ops = [node.op for node in imported.graph]
    assert ops.count("add") == ops.count("concat") == ops.count("sum_pool") == 1


def bundle(net: File, inputs: int, outputs: int) -> None:
    """Depthwise, batch norm, Relu6, quantizer; pointwise and the same."""
    for rows, columns, size, groups in ((inputs, 1, 3, inputs), (outputs, inputs, 1, 1)):
        conv(net, rows, columns, size, size, pads=(size // 2,) * 4, group=groups)
        gains = np.resize([0.5, -1.0, 2.0], rows)
        operands = (gains, np.resize([0.5, 0, -0.25], rows), np.zeros(rows), np.full(rows, 4.0))
        net.op("BatchNormalization", *(net.const(o) for o in operands), epsilon=0.0)
        net.op("Clip", net.const(0.0), net.const(6.0))
        net.quant(4, 0.5, signed=0)


def test_the_shape_of_skynet() -> None:
    """Bypass through the reorg chain of 4 reshapes and 3 transposes, joined with the main branch;
    FINN's flow stops here. Rectangular, and every node is integer hardware."""
    net = File(1, 3, 8, 16)
    net.quant(4, 0.25)
    bundle(net, 3, 6)
    net.op("MaxPool", kernel_shape=(2, 2), strides=(2, 2))
    bundle(net, 6, 8)
    main = net.net
    steps = (
        ("R", (1, 8, 2, 2, 4, 2)), ("T", (0, 1, 2, 4, 3, 5)), ("R", (1, 8, 8, 4)),
        ("T", (0, 1, 3, 2)), ("R", (1, 8, 4, 2, 4)), ("T", (0, 2, 1, 3, 4)), ("R", (1, 32, 2, 4)),
    )  # fmt: skip
    for kind, numbers in steps:
        if kind == "R":
            net.op("Reshape", net.const(numbers, np.int64))
        else:
            net.op("Transpose", perm=numbers)
    bypass, net.net = net.net, main
    net.op("MaxPool", kernel_shape=(2, 2), strides=(2, 2))
    bundle(net, 8, 10)
    net.raw("Concat", bypass, net.net, axis=1)
    bundle(net, 42, 6)
    conv(net, 10, 6, 1, 1)
    body = net.model()
    imported = load(body)
    ops = [node.op for node in imported.graph]
    assert ops.count("space_to_depth") == ops.count("concat") == 1 and not imported.notes
    assert set(ops) == {"conv", "threshold", "max_pool", "space_to_depth", "concat"}
    images = np.random.default_rng(0).normal(size=(4, 3, 8, 16)).astype(np.float32)
    found = imported.graph.run({"x": imported.levels(images)})
    (expected,) = run_file(body, images)
    assert np.array_equal(imported.outputs[0].reals(found["scores"]), expected)
