# SPDX-License-Identifier: Apache-2.0
"""Type rules and definitions of the blocks that the integer dialect does not have as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bitwright.ir import INTEGER, IntArray, Node, TensorType, dot_interval
from bitwright.ir.op_common import Arrays, Types, image_shape, need
from bitwright.ir.op_products import add_bias, check_product, infer_rounded, run_rounded


def divides(node: Node, attr: str, total: int, what: str) -> None:
    """Raises GraphError unless an attribute is a number of lanes that divides `total`."""
    lanes = node.integer(attr)
    need(lanes >= 1 and total % lanes == 0, f"{attr}={lanes} does not divide {total} ({what})")


def check_step(node: Node) -> None:
    """Raises GraphError unless a step of a rounded sum is one of the unit."""
    tile, simd = node.integer("tile"), node.integer("simd")
    need(tile == simd, f"steps of {tile} products in an accumulator that rounds, but simd={simd}")


def _depthwise_sizes(node: Node) -> tuple[int, int]:
    """(channels, pixels of a window)."""
    weight = node.params["weight"]
    need(weight.ndim == 2, f"weight must be (C, window), got shape {weight.shape}")
    return weight.shape[0], weight.shape[1]


def _depthwise_lanes(node: Node) -> int:
    """Channels whose elements alternate: of one alone they are side by side where all pixels of
    its window come at once.
    """
    return node.integer("pe") if node.integer("simd") == 1 else 1


def infer_depthwise(node: Node, types: Types) -> Types:
    (tensor,) = types
    channels, window = _depthwise_sizes(node)
    weight, bias = node.params["weight"], node.params.get("bias")
    need(
        channels * window == tensor.channels,
        f"weight {weight.shape} does not fit {tensor.channels} elements",
    )
    divides(node, "pe", channels, "channels")
    need(node.integer("simd") in (1, window), f"simd must be 1 or the {window} pixels of a window")
    check_product(node)
    factors = node.floats("weight_scale")
    need(len(factors) in (1, channels), f"weight_scale needs 1 or {channels} entries")
    scale = _channel_scale(node, tensor, channels, window)
    count = max(len(scale), len(factors))
    each = scale * (count // len(scale)), factors * (count // len(factors))
    out_scale = tuple(a * b for a, b in zip(*each, strict=True))
    if node.integer("bits"):
        check_step(node)
        alone = replace(tensor, scale=(1.0,))
        (kind,) = infer_rounded(node, alone, tensor.shape[:-1], channels)
        factor = 2.0 ** node.integer("drop")
        return (replace(kind, scale=tuple(factor * s for s in out_scale)),)
    lo, hi = dot_interval(weight, tensor.lo, tensor.hi, bias).final.hull
    return (TensorType((*tensor.shape[:-1], channels), None, out_scale, lo, hi),)


def _channel_scale(node: Node, tensor: TensorType, channels: int, window: int) -> tuple[float, ...]:
    """One scale, or one a channel, of elements in order (channel fold, pixel, lane)."""
    need(bool(tensor.scale), "an input without a scale cannot be multiplied")
    if len(tensor.scale) == 1:
        return tensor.scale
    lanes = _depthwise_lanes(node)
    scale = np.array(tensor.scale).reshape(channels // lanes, window, lanes)
    need(bool((scale == scale[:, :1]).all()), "the pixels of a window need the same scales")
    return tuple(scale[:, 0].ravel().tolist())


def run_depthwise(node: Node, types: Types, arrays: Arrays) -> Arrays:
    channels, window = _depthwise_sizes(node)
    lanes = _depthwise_lanes(node)
    x = arrays[0].reshape(*arrays[0].shape[:-1], channels // lanes, window, lanes)
    if node.integer("bits"):
        vectors = np.swapaxes(x, -1, -2).reshape(*x.shape[:-3], channels, window)
        return run_rounded(node, vectors, channels)
    weight = node.params["weight"].reshape(channels // lanes, lanes, window)
    out = (x * weight.transpose(0, 2, 1)).sum(axis=-2).reshape(*arrays[0].shape[:-1], channels)
    return add_bias(node, out)


def _pool_sizes(node: Node, tensor: TensorType) -> tuple[tuple[int, int, int], int]:
    """(shape of the result, pixels that become one)."""
    height, width, columns = image_shape(tensor)
    pixels = node.integer("window")
    need(pixels >= 0, f"a window of {pixels} pixels")
    if pixels == 0:
        return (1, 1, columns), height * width
    need(columns % pixels == 0, f"{columns} elements are not {pixels} pixels of a window")
    return (height, width, columns // pixels), pixels


def _pixel_scale(tensor: TensorType, channels: int) -> tuple[float, ...]:
    """Scales of one pixel's channels, from elements in order (pixel, channel)."""
    scale = tensor.scale if len(tensor.scale) <= 1 else tensor.scale[:channels]
    need(
        len(scale) <= 1 or tensor.scale == scale * (tensor.channels // channels),
        "the pixels of a window need the same scales",
    )
    return scale


def infer_pool_max(node: Node, types: Types) -> Types:
    (tensor,) = types
    shape, _ = _pool_sizes(node, tensor)
    divides(node, "pe", shape[2], "channels")
    scale = _pixel_scale(tensor, shape[2])
    return (TensorType(shape, tensor.format, scale, tensor.lo, tensor.hi),)


def infer_pool_sum(node: Node, types: Types) -> Types:
    (tensor,) = types
    shape, count = _pool_sizes(node, tensor)
    divides(node, "pe", shape[2], "channels")
    scale = tuple(s / count for s in _pixel_scale(tensor, shape[2]))
    return (TensorType(shape, None, scale, tensor.lo * count, tensor.hi * count),)


def _pool_pixels(node: Node, types: Types, arrays: Arrays) -> IntArray:
    """``(N, H, W, pixels, C)``"""
    shape, pixels = _pool_sizes(node, types[0])
    return arrays[0].reshape(-1, shape[0], shape[1], pixels, shape[2])


def run_pool_max(node: Node, types: Types, arrays: Arrays) -> Arrays:
    return (_pool_pixels(node, types, arrays).max(axis=-2),)


def run_pool_sum(node: Node, types: Types, arrays: Arrays) -> Arrays:
    return (_pool_pixels(node, types, arrays).sum(axis=-2),)


def infer_join(node: Node, types: Types) -> Types:
    """Type of `add` and `concat`: the rule of the integer dialect, with lanes."""
    for tensor in types:
        divides(node, "pe", tensor.channels, "channels of an operand")
    if node.op == "add":
        factors = node.ints("multipliers")
        need(max(map(abs, factors)) < 1 << 29, f"multipliers {factors} must lie below 2^29")
    return INTEGER.ops[node.op].infer(node, types)


def infer_top_k(node: Node, types: Types) -> Types:
    divides(node, "pe", types[0].channels, "channels")
    one = node.integer("k") == 1 or node.integer("pe") == 1
    need(one, "more than one index needs pe=1")
    return INTEGER.ops["top_k"].infer(node, types)
