# SPDX-License-Identifier: Apache-2.0
"""The executor without a compiler: exact numpy, with BLAS wherever intervals allow floating point.

Sums of integers are exact in float32 while every partial sum stays within 2^24, in float64 within
2^53.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.ir import kernels
from bitwright.ir.executor.products import Product, product_of
from bitwright.ir.graph import Graph
from bitwright.ir.integer import INTEGER
from bitwright.ir.node import IntArray, Node
from bitwright.ir.types import TensorType

Array = NDArray[Any]
Step = Callable[[Array], Array]  # of one input
Join = Callable[..., Array]  # of one or several inputs

_FLOAT32_EXACT = 1 << 24
_FLOAT64_EXACT = 1 << 53
_PATCH_BYTES = 8 << 20  # images are taken in chunks whose patches fit a cache
_BISECT_FROM = 16  # thresholds from which searchsorted beats comparing with all
# Measured on Zen 3: counting bits beats float32 BLAS for few output rows.
_XNOR_ROWS = 8


def _dtype(tensor: TensorType) -> np.dtype[np.signedinteger]:
    """The smallest integer type for the levels of an edge."""
    for kind in (np.int8, np.int16, np.int32):
        if np.iinfo(kind).min <= tensor.lo and tensor.hi <= np.iinfo(kind).max:
            return np.dtype(kind)
    return np.dtype(np.int64)


def accumulator_dtype(product: Product) -> np.dtype[np.generic]:
    """float32, float64 or int64: the fastest type in which every partial sum is exact."""
    bound = product.magnitude(max(abs(product.source.lo), abs(product.source.hi)))
    if bound <= _FLOAT32_EXACT:
        return np.dtype(np.float32)
    return np.dtype(np.float64 if bound <= _FLOAT64_EXACT else np.int64)


def _patches(x: Array, product: Product) -> Array:
    """``(N, OH, OW, KH * KW * C)`` windows of one group; copied, because BLAS wants rows."""
    kernel = product.weight.shape[2:4]
    view = kernels.windows(
        kernels.pad_image(x, product.padding, 0), kernel, product.stride, product.dilation
    )
    return view.reshape(*view.shape[:3], prod(view.shape[3:]))


def _by_chunks(run: Step, x: Array, bytes_per_image: int) -> Array:
    """Apply a step to a few images at a time, so that its temporaries stay in the cache."""
    chunk = max(1, _PATCH_BYTES // max(1, bytes_per_image))
    if x.shape[0] <= chunk:
        return run(x)
    return np.concatenate([run(x[i : i + chunk]) for i in range(0, x.shape[0], chunk)])


def _blas_step(product: Product, out: np.dtype[np.generic]) -> Step:
    dtype = accumulator_dtype(product)
    groups, rows = product.groups, product.rows
    matrices = [np.ascontiguousarray(w.reshape(rows, -1).T.astype(dtype)) for w in product.weight]
    bias = product.bias.reshape(-1).astype(dtype)
    columns = product.columns
    pixels = product.result.size // product.result.channels

    def run(x: Array) -> Array:
        values = x.astype(dtype)
        parts = [
            _patches(values[..., g * columns : (g + 1) * columns], product) @ matrices[g]
            for g in range(groups)
        ]
        total = parts[0] if groups == 1 else np.concatenate(parts, axis=-1)
        return np.asarray((total + bias).astype(out))

    size = pixels * matrices[0].shape[0] * groups * dtype.itemsize
    return lambda x: _by_chunks(run, x, size)


def _xnor_step(product: Product, out: np.dtype[np.generic]) -> Step:
    """Bipolar by bipolar with packed bits: ``columns - 2 * popcount(a xor w)``."""
    weight = product.weight[0].reshape(product.rows, -1)
    columns = weight.shape[1]
    words = _words(weight > 0)
    bias = product.bias.reshape(-1) + columns

    def run(x: Array) -> Array:
        packed = _words(_patches(x, product) > 0)
        differing = np.bitwise_count(packed[..., None, :] ^ words).sum(axis=-1, dtype=np.int64)
        return np.asarray((bias - 2 * differing).astype(out))

    size = product.result.size * words.shape[1] * 8
    return lambda x: _by_chunks(run, x, size)


def _words(bits: NDArray[np.bool_]) -> NDArray[np.uint64]:
    packed = np.packbits(bits, axis=-1, bitorder="little")
    short = -packed.shape[-1] % 8
    return np.ascontiguousarray(np.pad(packed, ((0, 0),) * (bits.ndim - 1) + ((0, short),))).view(
        np.uint64
    )


def _is_xnor(product: Product) -> bool:
    return (
        hasattr(np, "bitwise_count")  # numpy 2
        and product.source.is_bipolar
        and product.groups == 1
        and product.rows <= _XNOR_ROWS
        and not any(product.padding)
        and bool(np.all(np.abs(product.weight) == 1))
    )


def _is_depthwise(product: Product) -> bool:
    return product.rows == product.columns == 1 and product.groups > 1


def _product_step(node: Node, source: TensorType, result: TensorType) -> Step:
    product = product_of(node, source, result)
    out = _dtype(result)
    if _is_depthwise(product):
        return _depthwise_step(product, out)
    step = _xnor_step(product, out) if _is_xnor(product) else _blas_step(product, out)
    if node.op == "conv":
        return step
    rows = product.rows
    return lambda x: step(x[:, None, None, :]).reshape(x.shape[0], rows)


def _threshold_step(node: Node, source: TensorType, result: TensorType) -> Step:
    thresholds = np.broadcast_to(
        node.params["thresholds"], (source.channels, node.params["thresholds"].shape[1])
    )
    flip = np.broadcast_to(node.params.get("flip", np.zeros(1, np.int64)) == 1, source.channels)
    base, step, out = node.integer("base"), node.integer("step"), _dtype(result)
    low, high = (min(source.lo, -source.hi), max(source.hi, -source.lo))
    clipped = np.clip(thresholds, low, high + 1)
    kind = _dtype(TensorType((1,), None, (), low, high + 1))
    table = np.ascontiguousarray(clipped.T.astype(kind))

    counter = _dtype(TensorType((1,), None, (), 0, table.shape[0]))

    def run(x: Array) -> Array:
        values = x.astype(kind, copy=False)
        if flip.any():
            values = np.where(flip, -values, values)
        count = np.zeros(x.shape, dtype=counter)
        if table.shape[0] < _BISECT_FROM:
            for row in table:
                count += values >= row
        else:
            for channel in range(source.channels):
                column = table[:, channel]
                count[..., channel] = np.searchsorted(column, values[..., channel], side="right")
        return np.asarray(base + step * count.astype(np.int64)).astype(out)

    return run


def _pool_step(node: Node, source: TensorType, result: TensorType) -> Step:
    kernel, stride, padding = node.ints("kernel"), node.ints("stride"), node.ints("padding")
    height, width, _ = result.shape

    def run(x: Array) -> Array:
        padded = kernels.pad_image(x, padding, source.lo)
        best: Array | None = None
        for ky in range(kernel[0]):
            for kx in range(kernel[1]):
                rows = slice(ky, ky + stride[0] * (height - 1) + 1, stride[0])
                part = padded[:, rows, kx : kx + stride[1] * (width - 1) + 1 : stride[1]]
                best = part if best is None else np.maximum(best, part)
        return np.ascontiguousarray(best)

    return run


def _depthwise_step(product: Product, out: np.dtype[np.generic]) -> Step:
    """One output channel an input channel: shifted images, multiplied and added."""
    dtype = accumulator_dtype(product)
    weight = product.weight[:, 0, :, :, 0].astype(dtype)
    bias = product.bias[:, 0].astype(dtype)
    height, width, _ = product.result.shape
    (stride_y, stride_x), (dilation_y, dilation_x) = product.stride, product.dilation

    def run(x: Array) -> Array:
        padded = kernels.pad_image(x.astype(dtype), product.padding, 0)
        total = np.broadcast_to(bias, (x.shape[0], *product.result.shape)).copy()
        for ky in range(weight.shape[1]):
            for kx in range(weight.shape[2]):
                y0, x0 = ky * dilation_y, kx * dilation_x
                rows = slice(y0, y0 + stride_y * (height - 1) + 1, stride_y)
                columns = slice(x0, x0 + stride_x * (width - 1) + 1, stride_x)
                total += padded[:, rows, columns] * weight[:, ky, kx]
        return np.asarray(total.astype(out))

    return lambda x: _by_chunks(run, x, product.result.size * dtype.itemsize)


def _add_step(node: Node, types: tuple[TensorType, ...], result: TensorType) -> Join:
    first, second = node.ints("multipliers")
    out = _dtype(result)
    ends = [abs(m * v) for m, t in zip((first, second), types, strict=True) for v in (t.lo, t.hi)]
    wide = _dtype(TensorType((1,), None, (), -sum(ends), sum(ends)))

    def run(a: Array, b: Array) -> Array:
        return np.asarray((a.astype(wide) * first + b.astype(wide) * second).astype(out))

    return run


def _reference_step(node: Node, types: tuple[TensorType, ...], result: TensorType) -> Join:
    """The interpreter's own kernel, for what is not worth more."""
    reference = INTEGER.spec(node).reference
    out = _dtype(result)
    return lambda *x: reference(node, types, tuple(v.astype(np.int64) for v in x))[0].astype(out)


def _moving_step(node: Node, types: tuple[TensorType, ...], result: TensorType) -> Join:
    """What only moves elements works on any integer type."""
    reference = INTEGER.spec(node).reference
    out = _dtype(result)
    return lambda *x: reference(node, types, tuple(v.astype(out, copy=False) for v in x))[0]


_MOVES = ("concat", "space_to_depth", "upsample", "flatten")


def _make_step(node: Node, types: tuple[TensorType, ...], result: TensorType) -> Join:
    if node.op in ("conv", "dense"):
        return _product_step(node, types[0], result)
    if node.op == "threshold":
        return _threshold_step(node, types[0], result)
    if node.op == "max_pool":
        return _pool_step(node, types[0], result)
    if node.op == "add":
        return _add_step(node, types, result)
    return (_moving_step if node.op in _MOVES else _reference_step)(node, types, result)


@dataclass(frozen=True)
class NumpyPlan:
    """One step per node, with the last reader of each edge, so that memory is freed on the way."""

    graph: Graph
    steps: tuple[tuple[Node, Join], ...]
    kernels: dict[str, str]

    def run(self, feeds: dict[str, Array]) -> dict[str, IntArray]:
        """Execute on checked feeds ``(N, *shape)``."""
        graph = self.graph
        values: dict[str, Array] = {
            edge: feeds[edge].astype(_dtype(graph.types[edge]), copy=False) for edge in graph.inputs
        }
        last = {edge: node.name for node in graph.nodes for edge in node.inputs}
        for node, step in self.steps:
            values[node.output] = step(*(values[edge] for edge in node.inputs))
            for edge in dict.fromkeys(node.inputs):
                if last[edge] == node.name and edge not in graph.outputs:
                    del values[edge]
        return {edge: values[edge].astype(np.int64) for edge in graph.outputs}


def make_numpy_plan(graph: Graph) -> NumpyPlan:
    """Prepare a verified integer graph."""
    steps: list[tuple[Node, Join]] = []
    names: dict[str, str] = {}
    for node in graph.nodes:
        types, result = tuple(graph.types[e] for e in node.inputs), graph.types[node.output]
        steps.append((node, _make_step(node, types, result)))
        if node.op in ("conv", "dense"):
            product = product_of(node, types[0], result)
            names[node.name] = "xnor" if _is_xnor(product) else accumulator_dtype(product).name
    return NumpyPlan(graph, tuple(steps), names)
