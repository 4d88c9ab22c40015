# SPDX-License-Identifier: Apache-2.0
"""Products with constant weights: Conv, MatMul, Gemm, XnorPopcountMatMul."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bitwright.base.errors import FormatError
from bitwright.interop.onnx.reader import views
from bitwright.interop.onnx.reader.build import Importer
from bitwright.interop.onnx.reader.levels import format_of_weights, whole_numbers
from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.onnx.reader.values import Const, Floats, Value
from bitwright.ir import Attr, IntArray

_IMAGE_RANK = 4
_WHOLE = 1e-6
_MAX_BIAS = 1 << 40
#: Relative error of a product of two numbers of float32, one of them rounded before.
_ROUNDED_TWICE = 2.0**-23


class Weights(NamedTuple):
    """Integers (rows first) and the real value of a level, (1,) or (rows,)."""

    levels: IntArray
    scale: Floats


def integer_weights(const: Const, node: OnnxNode) -> Weights:
    """The integers of a constant whose first axis is the output row.

    Raises:
        ModelError: it is not quantized, or has several scales within a row.
    """
    values = np.asarray(const.value, np.float64)
    if const.levels is None:
        if not np.isfinite(values).all() or (values % 1).any():
            raise node.error(
                "its weights are real numbers that no quantizer made",
                "quantize them: Quant (QONNX) or DequantizeLinear (QDQ) in front of this input",
            )
        return Weights(whole_numbers(values), np.ones(1))
    assert const.scale is not None
    scale = np.broadcast_to(const.scale, values.shape).reshape(len(values), -1)
    levels = const.levels
    if not (scale == scale[:, :1]).all():
        # A factor of whole numbers within a row (a sign, say) goes into the integers.
        ratio = scale / np.abs(scale).min(axis=1, keepdims=True)
        if (np.abs(ratio - np.rint(ratio)) > _WHOLE).any():
            raise node.error(
                "its weights have several scales within one output channel",
                "quantize weights per tensor or per output channel",
            )
        levels = whole_numbers(levels * np.rint(ratio).reshape(levels.shape))
        scale = np.abs(scale).min(axis=1, keepdims=True)
    rows = scale[:, 0]
    return Weights(levels, rows[:1] if (rows == rows[0]).all() else rows)


def _into_weights(gain: Floats, columns: IntArray, node: OnnxNode) -> tuple[IntArray, float]:
    """Gains of the input channels as whole factors of the columns, and one common gain."""
    least = float(np.abs(gain).min())
    if least == 0:
        raise node.error("one of its input channels is always zero", "prune it before the export")
    factors = gain / least
    whole = np.rint(factors)
    if (np.abs(factors - whole) > _WHOLE).any():
        raise node.error(
            f"its input has one scale a channel ({gain.min():.4g} .. {gain.max():.4g})",
            "a dense product needs one scale: quantize its input per tensor; the quantizers in "
            "front of a concat must share their scale",
        )
    return whole_numbers(columns * whole), least


def _attrs(weights: Weights, node: OnnxNode) -> dict[str, Attr]:
    try:
        name = format_of_weights(weights.levels)
    except FormatError as error:
        raise node.error(error.message, error.hint) from error
    return {"weight_format": name, "weight_scale": tuple(float(s) for s in weights.scale)}


def _bias(low: Importer, node: OnnxNode, place: int, rows: int) -> Floats | None:
    if not node.has(place):
        return None
    bias = np.asarray(low.const(node, place).value, np.float64).ravel()
    if bias.size not in (1, rows) or not np.isfinite(bias).all():
        raise node.error(f"a bias of {bias.size} numbers for {rows} output channels")
    return bias


def _pads(node: OnnxNode, size: tuple[int, int], kernel: tuple[int, int]) -> tuple[int, ...]:
    """(top, left, bottom, right) of a window operator, auto_pad resolved."""
    mode = node.string("auto_pad", "NOTSET")
    stride = node.ints("strides", (1, 1))
    dilation = node.ints("dilations", (1, 1))
    if mode in ("NOTSET", ""):
        return node.ints("pads", (0, 0, 0, 0))
    if mode == "VALID":
        return (0, 0, 0, 0)
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise node.error(f"unknown auto_pad {mode!r}")
    before, after = [], []
    for axis in range(2):
        span = dilation[axis] * (kernel[axis] - 1) + 1
        out = -(-size[axis] // stride[axis])
        total = max(0, (out - 1) * stride[axis] + span - size[axis])
        small = total // 2
        before.append(small if mode == "SAME_UPPER" else total - small)
        after.append(total - before[-1])
    return (*before, *after)


def window(
    node: OnnxNode, size: tuple[int, int], kernel: tuple[int, ...]
) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int, int, int]]:
    """Kernel, stride and padding of a window operator, checked."""
    stride, dilation = node.ints("strides", (1, 1)), node.ints("dilations", (1, 1))
    if len(kernel) != 2 or len(stride) != 2 or len(dilation) != 2:
        raise node.error(
            f"has a window of {len(kernel)} axes; images have two",
            "give a 1-D network a height of 1",
        )
    if min(*kernel, *stride, *dilation) < 1 or max(*kernel, *stride, *dilation) > 1 << 16:
        raise node.error(f"impossible window: kernel {kernel}, strides {stride}, {dilation=}")
    pads = _pads(node, size, (kernel[0], kernel[1]))
    if len(pads) != 4 or min(pads) < 0 or max(pads) > 1 << 16:
        raise node.error(f"pads {pads} must be four numbers, 0 to {1 << 16}")
    return (kernel[0], kernel[1]), (stride[0], stride[1]), (pads[0], pads[1], pads[2], pads[3])


def _conv(low: Importer, node: OnnxNode) -> Value:
    last = "channels_last" in node.domain
    const = low.const(node, 1)
    if const.value.ndim != _IMAGE_RANK:
        raise node.error(
            f"its weights have shape {const.value.shape}; only 2-D convolutions are supported",
            "give a 1-D network a height of 1",
        )
    value = low.data(node, 0)
    border = value.border
    value, place = low.image(replace(value, border=(0, 0, 0, 0)), node, last)
    value, gain, offset = low.linear(value, node)
    weights = integer_weights(const, node)
    levels = weights.levels if last else weights.levels.transpose(0, 2, 3, 1)
    rows, groups = levels.shape[0], node.integer("group", 1)
    height, width, channels = low.frame(value)
    if groups < 1 or rows % groups or levels.shape[3] * groups != channels:
        raise node.error(
            f"weights {const.value.shape} with {groups} groups do not fit {channels} channels"
        )
    kernel = (levels.shape[1], levels.shape[2])
    if node.ints("kernel_shape", kernel) != kernel:
        raise node.error(f"kernel_shape {node.ints('kernel_shape', kernel)}, weights {kernel}")
    # SAME counts from the image with the border that waits in front of it.
    size = (height + border[0] + border[2], width + border[1] + border[3])
    kernel, stride, pads = window(node, size, kernel)
    pads = (pads[0] + border[0], pads[1] + border[1], pads[2] + border[2], pads[3] + border[3])
    value, offset = _zero_is_zero(low, node, value, gain, offset, pads)
    levels, rows_at, scale = _grouped(node, levels, weights.scale, groups, channels, place)
    depthwise, own = groups == channels, levels
    if gain.size > 1 and not depthwise:
        if groups > 1:
            raise node.error("a grouped convolution of an input with one scale a channel")
        levels, common = _into_weights(gain, levels, node)
        gain = np.full(1, common)
    each = np.repeat(gain, rows // channels) if depthwise and gain.size > 1 else gain
    weights = Weights(levels, scale)
    attrs = _attrs(weights, node) | {
        "stride": stride,
        "padding": pads,
        "dilation": node.ints("dilations", (1, 1)),
        "groups": groups,
    }
    bias = _bias(low, node, 2, rows)
    if bias is not None and rows_at is not None and bias.size > 1:
        bias = _scattered(bias, rows_at)
    params, bias = _with_bias(levels, bias, each * scale, offset)
    edge = low.add("conv", (value.edge,), node, attrs, params)
    result = _on(low, edge, rows_at, last, each * scale)
    result = _with_offset(result, own, scale, offset, groups)
    return result if bias is None else result.then("add", bias)


def _on(low: Importer, edge: str, channels: IntArray | None, last: bool, unit: Floats) -> Value:
    """A value on the edge of a convolution; see `views.permuted`."""
    order = views.permuted(low.frames[edge], channels, last)
    shape = views.canonical_shape(low.frames[edge]) if order is None else order.shape
    return Value(edge, shape, order, unit)


def _with_bias(
    levels: IntArray, bias: Floats | None, unit: Floats, offset: Floats
) -> tuple[dict[str, IntArray], Floats | None]:
    """The parameters of a product: a bias of whole levels is one of them, others come behind.

    A quantized bias is stored as float32 of level and scale, each rounded: what float32 cannot tell
    from whole levels is those.
    """
    params = {"weight": levels}
    if bias is None or offset.any():
        return params, bias
    whole = np.rint(bias / unit)
    if (np.abs(whole * unit - bias) > _ROUNDED_TWICE * np.abs(bias)).any():
        return params, bias
    if np.abs(whole).max() >= _MAX_BIAS:
        return params, bias
    if whole.any():
        params["bias"] = np.broadcast_to(whole, (len(levels),)).astype(np.int64)
    return params, None


def _scattered(array: Floats, place: IntArray) -> Floats:
    """ONNX channel k's number at edge channel ``place[k]``."""
    moved = np.empty_like(array)
    moved[place] = array
    return moved


def _zero_is_zero(
    low: Importer,
    node: OnnxNode,
    value: Value,
    gain: Floats,
    offset: Floats,
    pads: tuple[int, ...],
) -> tuple[Value, Floats]:
    """Padding adds real zeros, so level 0 must stand for them."""
    if not any(pads) or not offset.any():
        return value, offset
    zero = offset / gain
    if zero.size > 1 or abs(zero[0] - np.rint(zero[0])) > _WHOLE:
        raise node.error(
            "pads with real zero, which no level of its input stands for",
            "quantize its input with a whole zero point, or use no padding",
        )
    edge = low.shifted(value, int(np.rint(zero[0])), node)
    return replace(value, edge=edge, steps=(), unit=gain), np.zeros(1)


def _grouped(
    node: OnnxNode,
    levels: IntArray,
    scale: Floats,
    groups: int,
    channels: int,
    place: IntArray | None,
) -> tuple[IntArray, IntArray | None, Floats]:
    """Weights for an edge whose channels lie in another order; and the order of the rows."""
    if place is None:
        return levels, None, scale
    if groups == 1:
        moved = np.empty_like(levels)
        moved[..., place] = levels
        return moved, None, scale
    if groups != channels:
        raise node.error(
            "a grouped convolution behind a permutation of channels",
            "remove the transposes in front of it",
        )
    each = levels.shape[0] // channels
    rows_at = (place[:, None] * each + np.arange(each)).ravel()
    moved = np.empty_like(levels)
    moved[rows_at] = levels
    return moved, rows_at, scale if scale.size == 1 else _scattered(scale, rows_at)


def _with_offset(
    result: Value, levels: IntArray, scale: Floats, offset: Floats, groups: int
) -> Value:
    """A constant in front of a product without padding is a constant behind it: the sum of its
    products with the file's own weights, without the gains that have gone into them.
    """
    if not offset.any():
        return result
    rows, columns = levels.shape[0], levels.shape[-1]
    sums = levels.reshape(rows, -1, columns).sum(axis=1)
    if offset.size == 1:
        return result.then("add", sums.sum(axis=1) * offset * scale)
    inputs = np.arange(groups)[:, None] * columns + np.arange(columns)
    each = offset[np.repeat(inputs, rows // groups, axis=0)]
    return result.then("add", (sums * each).sum(axis=1) * scale)


def dense(
    low: Importer, node: OnnxNode, value: Value, const: Const, bias: Floats | None = None
) -> Value:
    """A product with a (rows, columns) constant: a dense layer, or a 1x1 convolution."""
    weights = integer_weights(const, node)
    rows, columns = weights.levels.shape
    if len(value.shape) == _IMAGE_RANK:
        value, place = low.image(value, node, last=True)
    else:
        value, place = low.vector(value, node)
    value, gain, offset = low.linear(value, node)
    features = value.shape[-1]
    if features != columns:
        raise node.error(f"weights for {columns} features, its input has {features}")
    levels = weights.levels
    held = low.frame(value)[-1]
    if place is not None:
        moved = np.zeros((rows, held), np.int64)
        moved[:, place] = levels
        levels = moved
    own = levels
    if gain.size > 1:
        levels, common = _into_weights(gain, levels, node)
        gain = np.full(1, common)
    attrs = _attrs(Weights(levels, weights.scale), node)
    unit = gain * weights.scale
    is_image = len(value.shape) == _IMAGE_RANK
    held_levels = levels.reshape(rows, 1, 1, -1) if is_image else levels
    params, bias = _with_bias(held_levels, bias, unit, offset)
    edge = low.add("conv" if is_image else "dense", (value.edge,), node, attrs, params)
    result = _on(low, edge, None, True, unit) if is_image else Value(edge, (1, rows), None, unit)
    result = _with_offset(result, own.reshape(rows, -1), weights.scale, offset, 1)
    return result if bias is None else result.then("add", bias)


def _matrix(low: Importer, node: OnnxNode) -> tuple[Value, Const]:
    if isinstance(low.tensor(node, 0), Const):
        raise node.error(
            "multiplies a constant by data from the right", "write it as data @ weights"
        )
    if isinstance(low.tensor(node, 1), Value):
        raise node.error(
            "multiplies two tensors that both change with the input (attention)",
            "only products with constant weights have hardware",
        )
    const = low.const(node, 1)
    if const.value.ndim != 2:
        raise node.error(f"its weights have shape {const.value.shape}, expected a matrix")
    return low.data(node, 0), const


def _matmul(low: Importer, node: OnnxNode) -> Value:
    value, const = _matrix(low, node)
    return dense(low, node, value, const.moved(np.transpose))


def _gemm(low: Importer, node: OnnxNode) -> Value:
    value, const = _matrix(low, node)
    if node.integer("transA", 0):
        raise node.error("transposes its data", "export it with transA=0")
    rows_first = const if node.integer("transB", 0) else const.moved(np.transpose)
    added = np.shape(low.const(node, 2).value) if node.has(2) else ()
    if len(added) > 2 or any(side != 1 for side in added[:-1]):
        raise node.error(
            f"adds numbers of shape {added}: others to each image of a batch",
            "give C one number for each output feature",
        )
    alpha, beta = node.real("alpha", 1.0), node.real("beta", 1.0)
    bias = _bias(low, node, 2, rows_first.value.shape[0])
    if alpha == 1.0:
        return dense(low, node, value, rows_first, None if bias is None else bias * beta)
    result = dense(low, node, value, rows_first).then("mul", np.full(1, alpha))
    return result if bias is None else result.then("add", bias * beta)


def _xnor(low: Importer, node: OnnxNode) -> Value:
    """Both operands are bits; the result counts equal ones: (sum of +-1 products + K) / 2."""
    value, const = _matrix(low, node)
    bits = np.asarray(const.value, np.float64)
    if not np.isin(bits, (0, 1)).all():
        raise node.error("its weights are not bits")
    signs = Const(2 * bits - 1)
    value = value.then("mul", np.full(1, 2.0)).then("add", np.full(1, -1.0))
    result = dense(low, node, value, signs.moved(np.transpose))
    count = np.full(1, float(len(bits)))
    return result.then("add", count).then("mul", np.full(1, 0.5))


HANDLERS = {"Conv": _conv, "MatMul": _matmul, "Gemm": _gemm, "XnorPopcountMatMul": _xnor}
