# SPDX-License-Identifier: Apache-2.0
"""Type rules and definitions of what moves, joins and pools elements without weights."""

from __future__ import annotations

from itertools import chain
from math import prod

import numpy as np

from bitwright.ir import kernels
from bitwright.ir.node import Node
from bitwright.ir.op_common import Arrays, Types, check_padding, image_shape, need, window_shape
from bitwright.ir.types import TensorType, check_frame_shape


def infer_max_pool(node: Node, types: Types) -> Types:
    (tensor,) = types
    height, width, channels = image_shape(tensor)
    kernel, padding = node.ints("kernel"), node.ints("padding")
    check_padding(padding)
    need(
        max(padding[0], padding[2]) < kernel[0] and max(padding[1], padding[3]) < kernel[1],
        "padding must be smaller than the kernel (a window of padding only has no maximum)",
    )
    out = window_shape((height, width), kernel, node.ints("stride"), padding)
    return (TensorType((*out, channels), tensor.format, tensor.scale, tensor.lo, tensor.hi),)


def run_max_pool(node: Node, types: Types, arrays: Arrays) -> Arrays:
    return (
        kernels.max_pool(
            arrays[0], node.ints("kernel"), node.ints("stride"), node.ints("padding"), types[0].lo
        ),
    )


def infer_flatten(node: Node, types: Types) -> Types:
    (tensor,) = types
    need(len(tensor.scale) <= 1, "a tensor with one scale per channel cannot be flattened")
    return (TensorType((tensor.size,), tensor.format, tensor.scale, tensor.lo, tensor.hi),)


def run_flatten(node: Node, types: Types, arrays: Arrays) -> Arrays:
    return (arrays[0].reshape(arrays[0].shape[0], types[0].size),)


def infer_top_k(node: Node, types: Types) -> Types:
    (tensor,) = types
    k = node.integer("k")
    need(len(tensor.shape) == 1, f"top_k takes a vector, got shape {tensor.shape}")
    need(1 <= k <= tensor.channels, f"k must be 1 .. {tensor.channels}, got {k}")
    need(
        len(set(tensor.scale)) <= 1,
        "an order of levels needs one common scale; quantize this layer's weights per tensor",
    )
    return (TensorType((k,), None, (), 0, tensor.channels - 1),)


def run_top_k(node: Node, types: Types, arrays: Arrays) -> Arrays:
    order = np.argsort(-arrays[0], axis=1, kind="stable")
    return (order[:, : node.integer("k")].astype(np.int64),)


def infer_sum_pool(node: Node, types: Types) -> Types:
    (tensor,) = types
    height, width, channels = image_shape(tensor)
    kernel, padding = node.ints("kernel"), node.ints("padding")
    check_padding(padding)
    out = window_shape((height, width), kernel, node.ints("stride"), padding)
    count = prod(kernel)
    lo, hi = (min(tensor.lo, 0), max(tensor.hi, 0)) if any(padding) else (tensor.lo, tensor.hi)
    scale = tuple(s / count for s in tensor.scale)
    return (TensorType((*out, channels), None, scale, lo * count, hi * count),)


def run_sum_pool(node: Node, types: Types, arrays: Arrays) -> Arrays:
    padded = kernels.pad_image(arrays[0], node.ints("padding"), 0)
    patches = kernels.windows(padded, node.ints("kernel"), node.ints("stride"), (1, 1))
    return (patches.sum(axis=(3, 4)),)


def infer_add(node: Node, types: Types) -> Types:
    multipliers = node.ints("multipliers")
    need(len(multipliers) == 2 and 0 not in multipliers, "multipliers are two integers, not 0")
    first, second = types
    need(
        first.shape == second.shape,
        f"the operands have shapes {first.shape} and {second.shape}; they must be equal",
    )
    ends = [sorted((m * t.lo, m * t.hi)) for m, t in zip(multipliers, types, strict=True)]
    lo, hi = sum(low for low, _ in ends), sum(high for _, high in ends)
    return (TensorType(first.shape, None, node.floats("scale"), lo, hi),)


def run_add(node: Node, types: Types, arrays: Arrays) -> Arrays:
    first, second = node.ints("multipliers")
    return (first * arrays[0] + second * arrays[1],)


def infer_concat(node: Node, types: Types) -> Types:
    spaces = {t.shape[:-1] for t in types}
    need(len(spaces) == 1, f"the parts differ in more than channels: {[t.shape for t in types]}")
    shape = (*types[0].shape[:-1], sum(t.channels for t in types))
    check_frame_shape(shape)  # before there are as many scales
    formats = {t.format for t in types}
    first = types[0].scale
    same = len(first) <= 1 and all(t.scale == first for t in types)
    need(same or all(t.scale for t in types), "a part without a scale cannot be joined to others")
    scale = first if same else tuple(chain.from_iterable(map(_scale_each, types)))
    out_format = next(iter(formats)) if len(formats) == 1 else None
    return (
        TensorType(shape, out_format, scale, min(t.lo for t in types), max(t.hi for t in types)),
    )


def _scale_each(tensor: TensorType) -> tuple[float, ...]:
    return tensor.scale * (tensor.channels if len(tensor.scale) == 1 else 1)


def run_concat(node: Node, types: Types, arrays: Arrays) -> Arrays:
    return (np.concatenate(arrays, axis=-1),)


def infer_space_to_depth(node: Node, types: Types) -> Types:
    (tensor,) = types
    height, width, channels = image_shape(tensor)
    block = node.integer("block")
    need(
        block >= 1 and height % block == 0 and width % block == 0,
        f"blocks of {block} do not divide an image of {height} x {width}",
    )
    need(len(tensor.scale) <= 1, "a tensor with one scale per channel cannot be rearranged")
    shape = (height // block, width // block, channels * block * block)
    return (TensorType(shape, tensor.format, tensor.scale, tensor.lo, tensor.hi),)


def run_space_to_depth(node: Node, types: Types, arrays: Arrays) -> Arrays:
    block = node.integer("block")
    patches = kernels.windows(arrays[0], (block, block), (block, block), (1, 1))
    return (patches.reshape(*patches.shape[:3], -1),)


def infer_upsample(node: Node, types: Types) -> Types:
    (tensor,) = types
    height, width, channels = image_shape(tensor)
    factor = node.ints("factor")
    need(len(factor) == 2 and min(factor) >= 1, f"factor is two integers >= 1, got {factor}")
    shape = (height * factor[0], width * factor[1], channels)
    return (TensorType(shape, tensor.format, tensor.scale, tensor.lo, tensor.hi),)


def run_upsample(node: Node, types: Types, arrays: Arrays) -> Arrays:
    vertical, horizontal = node.ints("factor")
    return (arrays[0].repeat(vertical, axis=1).repeat(horizontal, axis=2),)
