# SPDX-License-Identifier: Apache-2.0
"""The networks of `benchmarks/executor.py`: integer graphs for us, ONNX models for the peer.

Weights are random: speed does not depend on them. Thresholds are as many as the formats need,
spread over the accumulators, so that all levels occur. TFC is 784-64-64-64-10, CNV is the VGG-like
CIFAR network of the FINN paper (Umuroglu et al. 2017): 3x3 convolutions without padding,
64-64-pool-128-128-pool-256-256, dense 512-512-10; SkyNet (Zhang et al. 2020) is the detector with a
depthwise and a 1x1 convolution a bundle and a bypass, at 160x320. All take 8-bit images.
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
SKYNET_IMAGE = (160, 320, 3)
SKYNET_WIDTHS = (48, 96, 192, 384, 512, 96)  # of the bundles
SKYNET_POOLS = (0, 1, 2)  # after these bundles
SKYNET_BYPASS = (2, 4)  # from the output of one bundle to beside that of another


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

    def depthwise(self) -> None:
        """3x3, padding 1."""
        channels = self.builder.types[self.edge].channels
        weight = _levels(self.rng, self.weights, (channels, 3, 3, 1))
        attrs = {"weight_format": self.weights, "groups": channels, "padding": (1, 1, 1, 1)}
        self.add("conv", attrs, {"weight": weight})

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


def skynet(weights: str, activations: str) -> Graph:
    """SkyNet with its bypass; its output is an image, 20 x 40 pixels of 10 numbers."""
    net = _Net("skynet", SKYNET_IMAGE, weights, activations)
    early = ""
    for index, rows in enumerate(SKYNET_WIDTHS):
        net.depthwise()
        net.activation()
        net.product("conv", rows, (1, 1))
        net.activation()
        if index == SKYNET_BYPASS[0]:
            early = net.builder.add("space_to_depth", (net.edge,), attrs={"block": 2})
        if index == SKYNET_BYPASS[1]:
            net.edge = net.builder.add("concat", (early, net.edge))
        if index in SKYNET_POOLS:
            net.add("max_pool", {"kernel": (2, 2), "stride": (2, 2)}, {})
    net.product("conv", CLASSES, (1, 1))
    return net.builder.finish(net.edge)


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

    def conv(self, rows: int, columns: int, side: int = 3, **attrs: Any) -> None:
        taps = columns // attrs.get("group", 1)
        weight = self.array(rows, taps, side, side, scale=(2 / (side**2 * taps)) ** 0.5)
        bias = self.array(rows, scale=0.01)
        self.node("Conv", (weight, bias), kernel_shape=[side, side], **attrs)

    def dense(self, rows: int, columns: int) -> None:
        weight = self.array(columns, rows, scale=(2 / columns) ** 0.5)
        self.node("Gemm", (weight, self.array(rows, scale=0.01)))

    def save(self, path: Path, *, image: bool = False) -> None:
        import onnx
        from onnx import TensorProto, helper

        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *self.shape])
        axes = ["n", CLASSES, "h", "w"] if image else ["n", CLASSES]
        y = helper.make_tensor_value_info(self.edge, TensorProto.FLOAT, axes)
        graph = helper.make_graph(self.nodes, "float", [x], [y], self.arrays)
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)


def float_onnx(name: str, path: Path) -> tuple[int, ...]:
    """Write the float32 network of that name; returns the shape of one input."""
    if name == "skynet":
        return _skynet_onnx(path)
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


def _skynet_onnx(path: Path) -> tuple[int, ...]:
    """Batch norms folded into the convolutions; space to depth as ONNX's own operator."""
    height, width, columns = SKYNET_IMAGE
    net = _Onnx((columns, height, width))
    early = ""
    for index, rows in enumerate(SKYNET_WIDTHS):
        net.conv(columns, columns, group=columns, pads=[1, 1, 1, 1])
        net.node("Relu")
        net.conv(rows, columns, 1)
        net.node("Relu")
        columns = rows
        if index == SKYNET_BYPASS[0]:
            late = net.edge
            net.node("SpaceToDepth", blocksize=2)
            early, net.edge = net.edge, late
        if index == SKYNET_BYPASS[1]:
            net.node("Concat", (early,), axis=1)
            columns += 4 * SKYNET_WIDTHS[SKYNET_BYPASS[0]]
        if index in SKYNET_POOLS:
            net.node("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    net.conv(CLASSES, columns, 1)
    net.save(path, image=True)
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
