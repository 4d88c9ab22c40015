# SPDX-License-Identifier: Apache-2.0
"""Type rules and definitions of `conv` and `dense`."""

from __future__ import annotations

from math import prod

import numpy as np

from bitwright.formats import Format, parse_format
from bitwright.ir import kernels
from bitwright.ir.intervals import dot_interval
from bitwright.ir.known import Known
from bitwright.ir.node import IntArray, Node
from bitwright.ir.op_common import Arrays, Types, check_padding, image_shape, need, window_shape
from bitwright.ir.types import TensorType

_HULLS: Known[tuple[int, int]] = Known()
_WRONG: Known[str] = Known()


def dot_scale(node: Node, tensor: TensorType, groups: int, rows: int) -> tuple[float, ...]:
    """Real value of a sum's level 1; the elements of one group must share their scale."""
    weight_scale = node.floats("weight_scale")
    need(len(weight_scale) in (1, rows), f"weight_scale needs 1 or {rows} entries")
    if len(tensor.scale) == 1:
        return tuple(tensor.scale[0] * s for s in weight_scale)
    need(bool(tensor.scale), "an input without a scale cannot be multiplied")
    first = tensor.scale[:: tensor.channels // groups]
    need(
        tensor.scale == tuple(s for s in first for _ in range(tensor.channels // groups)),
        "an input with one scale per channel can only be multiplied channel by channel "
        "(a depthwise convolution)",
    )
    each = weight_scale * (rows // len(weight_scale))
    return tuple(first[row * groups // rows] * s for row, s in enumerate(each))


def _wrong_levels(weight: IntArray, weight_format: Format) -> str:
    """Why weights are not of a format; nothing where they are."""
    low, high = int(weight.min()), int(weight.max())
    if not weight_format.min_level <= low <= high <= weight_format.max_level:
        return f"weights [{low}, {high}] exceed {weight_format.name}"
    known = weight_format.contains(weight)
    if known.all():
        return ""
    return f"weight {weight[~known].flat[0]} is no level of {weight_format.name}"


def check_product(node: Node) -> None:
    """Raises GraphError unless weights are levels of their format and there is a bias a row."""
    weight, bias = node.params["weight"], node.params.get("bias")
    weight_format = parse_format(node.string("weight_format"))
    said = _WRONG.of(weight, weight_format.name, lambda: _wrong_levels(weight, weight_format))
    need(not said, said)
    rows = weight.shape[0]
    need(bias is None or bias.shape == (rows,), f"bias must have shape ({rows},)")


def infer_product(
    node: Node, tensor: TensorType, space: tuple[int, ...], groups: int = 1, *, padded: bool = False
) -> Types:
    """Type of the accumulators of weights times a tensor, in groups.

    Args:
        space: shape of the result but for its channels.
        padded: some terms are left out at the border.
    """
    check_product(node)
    weight, bias = node.params["weight"], node.params.get("bias")
    low, high = (min(tensor.lo, 0), max(tensor.hi, 0)) if padded else (tensor.lo, tensor.hi)
    shift = None if bias is None else node.digests["bias"]
    lo, hi = _HULLS.of(
        weight, (low, high, shift), lambda: dot_interval(weight, low, high, bias).final.hull
    )
    rows = weight.shape[0]
    return (TensorType((*space, rows), None, dot_scale(node, tensor, groups, rows), lo, hi),)


def add_bias(node: Node, sums: IntArray) -> Arrays:
    bias = node.params.get("bias")
    return (sums if bias is None else sums + bias,)


def infer_conv(node: Node, types: Types) -> Types:
    (tensor,) = types
    height, width, channels = image_shape(tensor)
    weight = node.params["weight"]
    groups, padding = node.integer("groups"), node.ints("padding")
    need(weight.ndim == 4, f"weight must be (O, KH, KW, I), got shape {weight.shape}")
    rows, kernel_h, kernel_w, columns = weight.shape
    need(
        groups >= 1 and rows % groups == 0 and columns * groups == channels,
        f"weight {weight.shape} with {groups} groups does not fit {channels} input channels",
    )
    check_padding(padding)
    need(
        not (tensor.is_bipolar and any(padding)),
        "a bipolar tensor cannot be padded with zero: use padding 0 or a format that holds zero",
    )
    out = window_shape(
        (height, width), (kernel_h, kernel_w), node.ints("stride"), padding, node.ints("dilation")
    )
    return infer_product(node, tensor, out, groups, padded=any(padding))


def run_conv(node: Node, types: Types, arrays: Arrays) -> Arrays:
    out = kernels.conv2d(
        arrays[0],
        node.params["weight"],
        node.ints("stride"),
        node.ints("padding"),
        node.ints("dilation"),
        node.integer("groups"),
    )
    return add_bias(node, out)


#: Bits of an accumulator that rounds, and of what it drops.
_MOST_BITS = 32


def infer_rounded(node: Node, tensor: TensorType, shape: tuple[int, ...], groups: int) -> Types:
    """Type of sums in an accumulator that rounds and saturates: `tile`, `drop` and `bits` of the
    node; see `kernels.rounded_sums`.
    """
    check_product(node)
    weight, bias = node.params["weight"], node.params.get("bias")
    tile, drop, bits = (node.integer(name) for name in ("tile", "drop", "bits"))
    need(tile >= 1, f"a step of {tile} products")
    need(0 <= drop <= _MOST_BITS, f"{drop} bits are dropped, expected 0 to {_MOST_BITS}")
    need(2 <= bits <= _MOST_BITS, f"an accumulator of {bits} bits, expected 2 to {_MOST_BITS}")
    need(tensor.code_format is None and not tensor.is_bipolar, "a rounded sum is one of integers")
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    fits = bias is None or (low <= bias.min() and bias.max() <= high)
    need(bool(fits), f"a bias lies outside of the accumulator's [{low}, {high}]")
    rows = weight.shape[0]
    scale = tuple(s * 2.0**drop for s in dot_scale(node, tensor, groups, rows))
    return (TensorType((*shape, rows), None, scale, low, high),)


def run_rounded(node: Node, vectors: IntArray, groups: int) -> Arrays:
    """Of vectors ``(..., groups, K)``, in the order in which products are added."""
    weight = node.params["weight"].reshape(groups, -1, vectors.shape[-1])
    bias = node.params.get("bias", np.zeros(weight.shape[0] * weight.shape[1], np.int64))
    tile, drop, bits = (node.integer(name) for name in ("tile", "drop", "bits"))
    sums = kernels.rounded_sums(vectors, weight, bias.reshape(groups, -1), tile, drop, bits)
    return (sums.reshape(*vectors.shape[:-2], -1),)


def infer_conv_rounded(node: Node, types: Types) -> Types:
    (exact,) = infer_conv(node, types)
    return infer_rounded(node, types[0], exact.shape[:-1], node.integer("groups"))


def run_conv_rounded(node: Node, types: Types, arrays: Arrays) -> Arrays:
    kernel, groups = node.params["weight"].shape[1:3], node.integer("groups")
    padded = kernels.pad_image(arrays[0], node.ints("padding"), 0)
    patches = kernels.windows(padded, kernel, node.ints("stride"), node.ints("dilation"))
    split = patches.reshape(*patches.shape[:3], prod(kernel), groups, -1)
    vectors = np.moveaxis(split, -2, -3)
    return run_rounded(node, vectors.reshape(*vectors.shape[:-2], -1), groups)


def infer_dense(node: Node, types: Types) -> Types:
    (tensor,) = types
    weight = node.params["weight"]
    need(
        len(tensor.shape) == 1 and weight.ndim == 2 and weight.shape[1] == tensor.channels,
        f"weight {weight.shape} does not fit an input of shape {tensor.shape}",
    )
    return infer_product(node, tensor, ())


def run_dense(node: Node, types: Types, arrays: Arrays) -> Arrays:
    return add_bias(node, arrays[0] @ node.params["weight"].T)
