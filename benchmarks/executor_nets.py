# SPDX-License-Identifier: Apache-2.0
"""The networks of `benchmarks/executor.py`: integer graphs for us, ONNX models for the peer.

Weights are random: speed does not depend on them. Thresholds are as many as the formats need,
spread over the accumulators, so that all levels occur. TFC is 784-64-64-64-10, CNV is the VGG-like
CIFAR network of the FINN paper (Umuroglu et al. 2017): 3x3 convolutions without padding,
64-64-pool-128-128-pool-256-256, dense 512-512-10; both take 8-bit images.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType

CNV_CONVS = (64, 64, 128, 128, 256, 256)
CNV_POOLS = (1, 3)
CNV_HIDDEN = (512, 512)
TFC_HIDDEN = (64, 64, 64)
CLASSES = 10


def _levels(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name == "bipolar":
        return rng.integers(0, 2, shape) * 2 - 1
    kind = parse_format(name)
    return rng.integers(kind.min_level, kind.max_level + 1, shape)


class _Net:
    """A chain of layers with one weight and one activation format."""

    def __init__(self, name: str, shape: tuple[int, ...], weights: str, activations: str) -> None:
        self.rng = np.random.default_rng(0)
        self.builder = GraphBuilder(name, INTEGER)
        self.weights, self.activations = weights, activations
        image = TensorType(shape, parse_format("uint8"), (1 / 255,), 0, 255)
        self.edge = self.builder.input("x", image)

    def add(self, op: str, attrs: dict[str, Any], params: dict[str, np.ndarray]) -> None:
        self.edge = self.builder.add(op, (self.edge,), attrs=attrs, params=params)

    def product(self, op: str, rows: int, kernel: tuple[int, ...]) -> None:
        shape = (rows, *kernel, self.builder.types[self.edge].channels)
        weight = _levels(self.rng, self.weights, shape)
        self.add(op, {"weight_format": self.weights}, {"weight": weight})

    def activation(self) -> None:
        kind, sums = parse_format(self.activations), self.builder.types[self.edge]
        steps = (kind.max_level - kind.min_level) // kind.level_step
        spread = max(2.0, (sums.hi - sums.lo) / 40)
        shape = (sums.channels, steps)
        thresholds = np.sort(self.rng.normal(0, spread, shape).round().astype(np.int64), axis=1)
        attrs = {"base": kind.min_level, "step": kind.level_step, "format": self.activations}
        flip = self.rng.integers(0, 2, sums.channels)
        self.add("threshold", attrs, {"thresholds": thresholds, "flip": flip})

    def finish(self) -> Graph:
        self.product("dense", CLASSES, ())
        return self.builder.finish(self.edge, self.builder.add("top_k", (self.edge,)))


def tfc(weights: str, activations: str) -> Graph:
    """784-64-64-64-10."""
    net = _Net("tfc", (784,), weights, activations)
    for rows in TFC_HIDDEN:
        net.product("dense", rows, ())
        net.activation()
    return net.finish()


def cnv(weights: str, activations: str) -> Graph:
    """The VGG-like CIFAR network of the FINN paper."""
    net = _Net("cnv", (32, 32, 3), weights, activations)
    for index, rows in enumerate(CNV_CONVS):
        net.product("conv", rows, (3, 3))
        net.activation()
        if index in CNV_POOLS:
            net.add("max_pool", {"kernel": (2, 2), "stride": (2, 2)}, {})
    net.add("flatten", {}, {})
    for rows in CNV_HIDDEN:
        net.product("dense", rows, ())
        net.activation()
    return net.finish()


class _Onnx:
    """A chain of float32 layers with ReLU, NCHW."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.rng = np.random.default_rng(0)
        self.shape, self.edge = shape, "x"
        self.nodes: list[Any] = []
        self.arrays: list[Any] = []

    def node(self, op: str, inputs: tuple[str, ...] = (), **attrs: Any) -> None:
        from onnx import helper

        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [self.edge, *inputs], [name], **attrs))
        self.edge = name

    def array(self, *shape: int, scale: float) -> str:
        from onnx import numpy_helper

        name = f"p{len(self.arrays)}"
        values = (self.rng.normal(size=shape) * scale).astype(np.float32)
        self.arrays.append(numpy_helper.from_array(values, name))
        return name

    def conv(self, rows: int, columns: int) -> None:
        weight = self.array(rows, columns, 3, 3, scale=(2 / (9 * columns)) ** 0.5)
        self.node("Conv", (weight, self.array(rows, scale=0.01)), kernel_shape=[3, 3])

    def dense(self, rows: int, columns: int) -> None:
        weight = self.array(columns, rows, scale=(2 / columns) ** 0.5)
        self.node("Gemm", (weight, self.array(rows, scale=0.01)))

    def save(self, path: Path) -> None:
        import onnx
        from onnx import TensorProto, helper

        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *self.shape])
        y = helper.make_tensor_value_info(self.edge, TensorProto.FLOAT, ["n", CLASSES])
        graph = helper.make_graph(self.nodes, "float", [x], [y], self.arrays)
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def float_onnx(name: str, path: Path) -> tuple[int, ...]:
    """Write the float32 network ``cnv`` or ``tfc``; returns the shape of one input."""
    net = _Onnx((3, 32, 32) if name == "cnv" else (784,))
    columns = net.shape[0]
    if name == "cnv":
        for index, rows in enumerate(CNV_CONVS):
            net.conv(rows, columns)
            net.node("Relu")
            columns = rows
            if index in CNV_POOLS:
                net.node("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
        net.node("Flatten")
    for rows in CNV_HIDDEN if name == "cnv" else TFC_HIDDEN:
        net.dense(rows, columns)
        net.node("Relu")
        columns = rows
    net.dense(CLASSES, columns)
    net.save(path)
    return net.shape


def int8_onnx(source: Path, shape: tuple[int, ...], folder: Path) -> list[Path]:
    """The float network quantized statically to 8 bits by ONNX Runtime, in all its usual ways."""
    from onnxruntime.quantization import (
        CalibrationDataReader,
        QuantFormat,
        QuantType,
        quantize_static,
    )

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            rng = np.random.default_rng(1)
            batches = [rng.random((8, *shape), dtype=np.float32) for _ in range(4)]
            self.batches: Iterator[np.ndarray] = iter(batches)

        def get_next(self) -> dict[str, np.ndarray] | None:
            batch = next(self.batches, None)
            return None if batch is None else {"x": batch}

    paths = []
    for layout in ("QDQ", "QOperator"):
        for kind in ("QUInt8", "QInt8"):
            for per_channel in (False, True):
                name = f"{layout}-{kind}{'-per-channel' if per_channel else ''}"
                paths.append(folder / f"{source.stem}-{name}.onnx")
                quantize_static(
                    source,
                    paths[-1],
                    Reader(),
                    quant_format=QuantFormat[layout],
                    activation_type=QuantType[kind],
                    weight_type=QuantType.QInt8,
                    per_channel=per_channel,
                )
    return paths
