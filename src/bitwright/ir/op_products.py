# SPDX-License-Identifier: Apache-2.0
"""Type rules and definitions of `conv` and `dense`."""

from __future__ import annotations

from bitwright.formats import parse_format
from bitwright.ir import kernels
from bitwright.ir.intervals import dot_interval
from bitwright.ir.node import IntArray, Node
from bitwright.ir.op_common import Arrays, Types, image_shape, need, window_shape
from bitwright.ir.types import TensorType


def _scale_product(
    tensor: TensorType, node: Node, rows: int, depthwise: bool = False
) -> tuple[float, ...]:
    weight_scale = node.floats("weight_scale")
    need(len(weight_scale) in (1, rows), f"weight_scale needs 1 or {rows} entries")
    if len(tensor.scale) == 1:
        return tuple(tensor.scale[0] * s for s in weight_scale)
    need(
        depthwise and len(tensor.scale) > 0,
        "an input with one scale per channel can only be multiplied channel by channel "
        "(a depthwise convolution)",
    )
    each = weight_scale * (rows if len(weight_scale) == 1 else 1)
    multiplier = rows // len(tensor.scale)
    return tuple(tensor.scale[row // multiplier] * s for row, s in enumerate(each))


def _check_weight_format(node: Node, weight: IntArray) -> None:
    weight_format = parse_format(node.string("weight_format"))
    inside = weight_format.min_level <= weight.min() and weight.max() <= weight_format.max_level
    need(bool(inside), f"weights [{weight.min()}, {weight.max()}] exceed {weight_format.name}")
    need(
        weight_format.name != "bipolar" or bool((weight != 0).all()),
        "a bipolar weight cannot be 0",
    )
    known = weight_format.contains(weight)
    need(
        bool(known.all()),
        f"weight {'' if known.all() else weight[~known].flat[0]} is no level of "
        f"{weight_format.name}",
    )


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
    need(len(padding) == 4 and min(padding) >= 0, "padding is (top, left, bottom, right), >= 0")
    need(
        not (tensor.is_bipolar and any(padding)),
        "a bipolar tensor cannot be padded with zero: use padding 0 or a format that holds zero",
    )
    _check_weight_format(node, weight)
    bias = node.params.get("bias")
    need(bias is None or bias.shape == (rows,), f"bias must have shape ({rows},)")
    out_h, out_w = window_shape(
        (height, width), (kernel_h, kernel_w), node.ints("stride"), padding, node.ints("dilation")
    )
    low, high = (min(tensor.lo, 0), max(tensor.hi, 0)) if any(padding) else (tensor.lo, tensor.hi)
    lo, hi = dot_interval(weight, low, high, bias).final.hull
    return (
        TensorType(
            (out_h, out_w, rows),
            None,
            _scale_product(tensor, node, rows, groups == channels),
            lo,
            hi,
        ),
    )


def run_conv(node: Node, types: Types, arrays: Arrays) -> Arrays:
    out = kernels.conv2d(
        arrays[0],
        node.params["weight"],
        node.ints("stride"),
        node.ints("padding"),
        node.ints("dilation"),
        node.integer("groups"),
    )
    bias = node.params.get("bias")
    return (out if bias is None else out + bias,)


def infer_dense(node: Node, types: Types) -> Types:
    (tensor,) = types
    weight = node.params["weight"]
    need(
        len(tensor.shape) == 1 and weight.ndim == 2 and weight.shape[1] == tensor.channels,
        f"weight {weight.shape} does not fit an input of shape {tensor.shape}",
    )
    _check_weight_format(node, weight)
    bias = node.params.get("bias")
    need(bias is None or bias.shape == (weight.shape[0],), f"bias must be ({weight.shape[0]},)")
    lo, hi = dot_interval(weight, tensor.lo, tensor.hi, bias).final.hull
    rows = weight.shape[0]
    return (TensorType((rows,), None, _scale_product(tensor, node, rows), lo, hi),)


def run_dense(node: Node, types: Types, arrays: Arrays) -> Arrays:
    out = arrays[0] @ node.params["weight"].T
    bias = node.params.get("bias")
    return (out if bias is None else out + bias,)
