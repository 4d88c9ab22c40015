# SPDX-License-Identifier: Apache-2.0
"""The integer dialect: a quantized network as exact integer operations on NHWC levels."""

from __future__ import annotations

import numpy as np

from bitwright.errors import GraphError
from bitwright.formats import parse_format
from bitwright.ir import kernels
from bitwright.ir.dialect import AttrSpec, Dialect, OpSpec, ParamSpec
from bitwright.ir.graph import IntArray, Node
from bitwright.ir.types import TensorType

Types = tuple[TensorType, ...]
Arrays = tuple[IntArray, ...]


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise GraphError(message)


def _image(tensor: TensorType) -> tuple[int, int, int]:
    _need(len(tensor.shape) == 3, f"expected an image (H, W, C), got shape {tensor.shape}")
    height, width, channels = tensor.shape
    return height, width, channels


def _per_channel(node: Node, name: str, channels: int) -> IntArray:
    value = node.params[name]
    _need(
        value.shape[0] in (1, channels),
        f"{name} must have 1 or {channels} rows (channels), got {value.shape[0]}",
    )
    return value


def window_shape(
    size: tuple[int, int],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...] = (1, 1),
) -> tuple[int, int]:
    """Output height and width of a sliding window; padding is (top, left, bottom, right).

    Raises:
        GraphError: the window does not fit into the padded image.
    """
    out: list[int] = []
    for axis in range(2):
        span = dilation[axis] * (kernel[axis] - 1) + 1
        room = size[axis] + padding[axis] + padding[axis + 2] - span
        _need(
            min(kernel[axis], stride[axis], dilation[axis]) >= 1, "kernel and stride must be >= 1"
        )
        _need(room >= 0, f"a window of {span} does not fit into {size[axis]} with {padding=}")
        out.append(room // stride[axis] + 1)
    return out[0], out[1]


def dot_interval(weight: IntArray, lo: int, hi: int, bias: IntArray | None) -> tuple[int, int]:
    """Exact interval of ``weight @ x + bias`` over all x in [lo, hi], over all rows.

    Args:
        weight: ``(rows, columns)`` levels.
    """
    positive = np.where(weight > 0, weight, 0).sum(axis=1, dtype=object)
    negative = np.where(weight < 0, weight, 0).sum(axis=1, dtype=object)
    low, high = positive * lo + negative * hi, positive * hi + negative * lo
    if bias is not None:
        low, high = low + bias.astype(object), high + bias.astype(object)
    return int(min(low)), int(max(high))


def _scale_product(tensor: TensorType, node: Node, rows: int) -> tuple[float, ...]:
    weight_scale = node.floats("weight_scale")
    _need(len(tensor.scale) == 1, "an input with one scale per channel cannot be multiplied")
    _need(len(weight_scale) in (1, rows), f"weight_scale needs 1 or {rows} entries")
    return tuple(tensor.scale[0] * s for s in weight_scale)


def _check_weight_format(node: Node, weight: IntArray) -> None:
    weight_format = parse_format(node.string("weight_format"))
    inside = weight_format.min_level <= weight.min() and weight.max() <= weight_format.max_level
    _need(bool(inside), f"weights [{weight.min()}, {weight.max()}] exceed {weight_format.name}")
    _need(
        weight_format.name != "bipolar" or bool((weight != 0).all()),
        "a bipolar weight cannot be 0",
    )


def _infer_conv(node: Node, types: Types) -> Types:
    (tensor,) = types
    height, width, channels = _image(tensor)
    weight = node.params["weight"]
    groups, padding = node.integer("groups"), node.ints("padding")
    _need(weight.ndim == 4, f"weight must be (O, KH, KW, I), got shape {weight.shape}")
    rows, kernel_h, kernel_w, columns = weight.shape
    _need(
        groups >= 1 and rows % groups == 0 and columns * groups == channels,
        f"weight {weight.shape} with {groups} groups does not fit {channels} input channels",
    )
    _need(len(padding) == 4 and min(padding) >= 0, "padding is (top, left, bottom, right), >= 0")
    _need(
        not (tensor.is_bipolar and any(padding)),
        "a bipolar tensor cannot be padded with zero: use padding 0 or a format that holds zero",
    )
    _check_weight_format(node, weight)
    bias = node.params.get("bias")
    _need(bias is None or bias.shape == (rows,), f"bias must have shape ({rows},)")
    out_h, out_w = window_shape(
        (height, width), (kernel_h, kernel_w), node.ints("stride"), padding, node.ints("dilation")
    )
    low, high = (min(tensor.lo, 0), max(tensor.hi, 0)) if any(padding) else (tensor.lo, tensor.hi)
    lo, hi = dot_interval(weight.reshape(rows, -1), low, high, bias)
    return (TensorType((out_h, out_w, rows), None, _scale_product(tensor, node, rows), lo, hi),)


def _run_conv(node: Node, types: Types, arrays: Arrays) -> Arrays:
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


def _infer_dense(node: Node, types: Types) -> Types:
    (tensor,) = types
    weight = node.params["weight"]
    _need(
        len(tensor.shape) == 1 and weight.ndim == 2 and weight.shape[1] == tensor.channels,
        f"weight {weight.shape} does not fit an input of shape {tensor.shape}",
    )
    _check_weight_format(node, weight)
    bias = node.params.get("bias")
    _need(bias is None or bias.shape == (weight.shape[0],), f"bias must be ({weight.shape[0]},)")
    lo, hi = dot_interval(weight, tensor.lo, tensor.hi, bias)
    rows = weight.shape[0]
    return (TensorType((rows,), None, _scale_product(tensor, node, rows), lo, hi),)


def _run_dense(node: Node, types: Types, arrays: Arrays) -> Arrays:
    out = arrays[0] @ node.params["weight"].T
    bias = node.params.get("bias")
    return (out if bias is None else out + bias,)


def _infer_threshold(node: Node, types: Types) -> Types:
    (tensor,) = types
    thresholds = _per_channel(node, "thresholds", tensor.channels)
    _need(thresholds.ndim == 2 and thresholds.shape[1] >= 1, "thresholds must be (C or 1, T)")
    _need(bool((np.diff(thresholds, axis=1) >= 0).all()), "thresholds must ascend")
    if "flip" in node.params:
        flip = _per_channel(node, "flip", tensor.channels)
        _need(bool(np.isin(flip, (0, 1)).all()), "flip must be 0 or 1")
    base, step, count = node.integer("base"), node.integer("step"), thresholds.shape[1]
    lo, hi = base, base + step * count
    _need(step >= 1, f"step must be positive, got {step}")
    out_format = parse_format(node.string("format"))
    _need(
        out_format.min_level <= lo and hi <= out_format.max_level,
        f"outputs [{lo}, {hi}] exceed {out_format.name}",
    )
    return (TensorType(tensor.shape, out_format, node.floats("scale"), lo, hi),)


def _run_threshold(node: Node, types: Types, arrays: Arrays) -> Arrays:
    x = arrays[0]
    if "flip" in node.params:
        x = np.where(node.params["flip"] == 1, -x, x)
    count = kernels.count_thresholds(x, node.params["thresholds"])
    return (node.integer("base") + node.integer("step") * count,)


def _infer_requant(node: Node, types: Types) -> Types:
    (tensor,) = types
    multiplier = _per_channel(node, "multiplier", tensor.channels)
    offset = _per_channel(node, "offset", tensor.channels)
    _need(node.integer("shift") >= 0, "shift must be >= 0")
    _need(node.string("rounding") in kernels.SHIFT_ROUNDINGS, "unknown rounding")
    bound = max(abs(tensor.lo), abs(tensor.hi)) * int(np.abs(multiplier).max()) + int(
        np.abs(offset).max()
    )
    _need(bound < 1 << 62, f"the product needs {bound.bit_length() + 1} bits, at most 63 fit")
    out_format = parse_format(node.string("format"))
    lo, hi = node.integer("lo"), node.integer("hi")
    _need(
        out_format.min_level <= lo <= hi <= out_format.max_level,
        f"outputs [{lo}, {hi}] exceed {out_format.name}",
    )
    return (TensorType(tensor.shape, out_format, node.floats("scale"), lo, hi),)


def _run_requant(node: Node, types: Types, arrays: Arrays) -> Arrays:
    product = arrays[0] * node.params["multiplier"] + node.params["offset"]
    rounded = kernels.round_shift(product, node.integer("shift"), node.string("rounding"))
    return (np.clip(rounded, node.integer("lo"), node.integer("hi")),)


def _infer_max_pool(node: Node, types: Types) -> Types:
    (tensor,) = types
    height, width, channels = _image(tensor)
    kernel, padding = node.ints("kernel"), node.ints("padding")
    _need(len(padding) == 4 and min(padding) >= 0, "padding is (top, left, bottom, right), >= 0")
    _need(
        max(padding[0], padding[2]) < kernel[0] and max(padding[1], padding[3]) < kernel[1],
        "padding must be smaller than the kernel (a window of padding only has no maximum)",
    )
    out = window_shape((height, width), kernel, node.ints("stride"), padding)
    return (TensorType((*out, channels), tensor.format, tensor.scale, tensor.lo, tensor.hi),)


def _run_max_pool(node: Node, types: Types, arrays: Arrays) -> Arrays:
    return (
        kernels.max_pool(
            arrays[0], node.ints("kernel"), node.ints("stride"), node.ints("padding"), types[0].lo
        ),
    )


def _infer_flatten(node: Node, types: Types) -> Types:
    (tensor,) = types
    _need(len(tensor.scale) <= 1, "a tensor with one scale per channel cannot be flattened")
    return (TensorType((tensor.size,), tensor.format, tensor.scale, tensor.lo, tensor.hi),)


def _run_flatten(node: Node, types: Types, arrays: Arrays) -> Arrays:
    return (arrays[0].reshape(arrays[0].shape[0], types[0].size),)


def _infer_argmax(node: Node, types: Types) -> Types:
    (tensor,) = types
    _need(len(tensor.shape) == 1, f"argmax takes a vector, got shape {tensor.shape}")
    _need(
        len(set(tensor.scale)) <= 1,
        "argmax over levels needs one common scale; quantize this layer's weights per tensor",
    )
    return (TensorType((1,), None, (), 0, tensor.channels - 1),)


def _run_argmax(node: Node, types: Types, arrays: Arrays) -> Arrays:
    return (np.argmax(arrays[0], axis=1, keepdims=True).astype(np.int64),)


_STRIDE = AttrSpec("ints", "(vertical, horizontal)", (1, 1))
_PADDING = AttrSpec("ints", "(top, left, bottom, right)", (0, 0, 0, 0))
_WEIGHT_FORMAT = AttrSpec("str", "number format of the weights")
_WEIGHT_SCALE = AttrSpec("floats", "real value of a weight's level 1, one or one per row", (1.0,))
_FORMAT = AttrSpec("str", "number format of the output")
_SCALE = AttrSpec("floats", "real value of the output's level 1", (1.0,))
_BIAS = ParamSpec("(O,)", "added to the accumulator", optional=True)

_OPS = (
    OpSpec(
        "conv",
        "exact integer convolution, zero padding",
        1,
        _infer_conv,
        _run_conv,
        attrs={
            "stride": _STRIDE,
            "padding": _PADDING,
            "dilation": AttrSpec("ints", "(vertical, horizontal)", (1, 1)),
            "groups": AttrSpec("int", "channel groups", 1),
            "weight_format": _WEIGHT_FORMAT,
            "weight_scale": _WEIGHT_SCALE,
        },
        params={"weight": ParamSpec("(O, KH, KW, I/groups)", "levels"), "bias": _BIAS},
    ),
    OpSpec(
        "dense",
        "exact matrix-vector product",
        1,
        _infer_dense,
        _run_dense,
        attrs={"weight_format": _WEIGHT_FORMAT, "weight_scale": _WEIGHT_SCALE},
        params={"weight": ParamSpec("(O, I)", "levels"), "bias": _BIAS},
    ),
    OpSpec(
        "threshold",
        "`base + step * count(x >= t)` over the channel's thresholds; of `-x` where flip is 1",
        1,
        _infer_threshold,
        _run_threshold,
        attrs={
            "base": AttrSpec("int", "output below the first threshold", 0),
            "step": AttrSpec("int", "output step per threshold (2 for bipolar)", 1),
            "format": _FORMAT,
            "scale": _SCALE,
        },
        params={
            "thresholds": ParamSpec("(C or 1, T)", "ascending"),
            "flip": ParamSpec("(C or 1,)", "1: compare -x", optional=True),
        },
    ),
    OpSpec(
        "requant",
        "`clip(round_shift(x * multiplier + offset, shift), lo, hi)`",
        1,
        _infer_requant,
        _run_requant,
        attrs={
            "shift": AttrSpec("int", "right shift"),
            "rounding": AttrSpec("str", "half_even, half_up or floor", "half_even"),
            "lo": AttrSpec("int", "smallest output"),
            "hi": AttrSpec("int", "largest output"),
            "format": _FORMAT,
            "scale": _SCALE,
        },
        params={
            "multiplier": ParamSpec("(C or 1,)", "integer factor"),
            "offset": ParamSpec("(C or 1,)", "integer offset before the shift"),
        },
    ),
    OpSpec(
        "max_pool",
        "maximum over windows; padding never wins",
        1,
        _infer_max_pool,
        _run_max_pool,
        attrs={
            "kernel": AttrSpec("ints", "(height, width)"),
            "stride": AttrSpec("ints", "(vertical, horizontal)"),
            "padding": _PADDING,
        },
    ),
    OpSpec(
        "flatten",
        "(H, W, C) -> (H*W*C,), channel fastest",
        1,
        _infer_flatten,
        _run_flatten,
    ),
    OpSpec("argmax", "index of the first maximum", 1, _infer_argmax, _run_argmax),
)

INTEGER = Dialect("integer", {spec.name: spec for spec in _OPS})
