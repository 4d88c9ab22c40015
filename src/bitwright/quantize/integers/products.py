# SPDX-License-Identifier: Apache-2.0
"""Convolutions and dense layers in integers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError
from bitwright.formats.rounding import FloatArray
from bitwright.ir import Attr, IntArray
from bitwright.quantize.integers.affine import (
    AffineValue,
    Context,
    added,
    each,
    pair,
    unquantized,
)
from bitwright.quantize.integers.order import Order, group_blocks, straight
from bitwright.quantize.integers.weights import integer_weight
from bitwright.quantize.layers import QuantConv2d, QuantLayer, own_border

#: A bias of more bits than this says that its layer's input has died.
_BIAS_BITS = 48
#: Levels from here on are those of floats.
_WIDE_LEVELS = 1 << 16


def product(context: Context, node: fx.Node, layer: QuantLayer, value: AffineValue) -> AffineValue:
    """Levels -> exact accumulators.

    The bias is added in integers where the accumulators are the scores, else it is an offset that
    the activation behind takes up.
    """
    path = str(node.target)
    depthwise = isinstance(layer, QuantConv2d) and layer.groups == layer.in_channels
    if not (value.has_levels if depthwise else value.is_common):
        raise unquantized(path, "its input is not quantized")
    levels, unit, weight_format = integer_weight(layer.weight_quantizer, layer.weight, path)
    weight, weight_unit = _exact(levels, path), unit.to("cpu").double().numpy().reshape(-1)
    rows, inputs = len(weight), value.gain
    if inputs.size > 1:
        inputs, weight_unit = np.repeat(inputs, rows // inputs.size), each(weight_unit, rows)
    gain = weight_unit * inputs
    offset, params = np.zeros(1), {"weight": weight}
    real = layer.exact_bias()
    if real is not None and layer.input_quantizer is None:
        offset = real.cpu().numpy()  # taken up by the activation behind
    elif real is not None:
        bias = _integer_bias(real.cpu().numpy(), gain, context, value, path)
        params["bias"] = bias.astype(np.int64)
    attrs: dict[str, Attr] = {
        "weight_format": weight_format.name,
        "weight_scale": tuple(float(u) for u in weight_unit),
    }
    if isinstance(layer, QuantConv2d):
        edge, order = _convolution(context, layer, value, path, attrs, params)
    else:
        edge, order = _dense(context, value, path, attrs, params), None
    return AffineValue(edge, gain, offset, path, context.shape_behind(node), order)


def _exact(levels: Tensor, path: str) -> IntArray:
    """Whole numbers as int64."""
    array = levels.detach().cpu().double().numpy()
    whole: IntArray = array.astype(np.int64)
    if not np.array_equal(whole, array):
        raise ModelError("its weights hold levels that are no integers", where=path)
    return whole


def _convolution(
    context: Context,
    layer: QuantConv2d,
    value: AffineValue,
    path: str,
    attrs: dict[str, Attr],
    params: dict[str, IntArray],
) -> tuple[str, Order]:
    """The edge of a convolution, and its order of channels."""
    if value.order is not None and layer.groups > 1:
        if group_blocks(value.order, layer.groups) is None:
            value = context.restored(value, f"{path}_in0")
    attrs |= {
        "stride": pair(layer.stride),
        "padding": added(own_border(layer), value.border),
        "dilation": pair(layer.dilation),
        "groups": layer.groups,
    }
    order: Order = None
    if value.order is not None:
        columns, rows = _permutations(value.order, layer)
        moved = params["weight"][rows]
        columns = columns.reshape(*columns.shape, *(1,) * (moved.ndim - 2))
        params["weight"] = np.take_along_axis(moved, columns, axis=1)
        if "bias" in params:
            params["bias"] = params["bias"][rows]
        scales = attrs["weight_scale"]
        if isinstance(scales, tuple) and len(scales) > 1:
            attrs["weight_scale"] = tuple(float(scales[row]) for row in rows)
        order = straight(rows)
    params["weight"] = params["weight"].transpose(0, 2, 3, 1)
    return context.add("conv", path, value, attrs, params), order


def _permutations(order: IntArray, layer: QuantConv2d) -> tuple[IntArray, IntArray]:
    """Which columns each of the graph's rows reads, as torch numbers them, and torch's index of
    each row.
    """
    count = layer.out_channels
    if layer.groups == 1:
        return np.broadcast_to(order, (count, len(order))), np.arange(count)
    blocks, width = group_blocks(order, layer.groups), len(order) // layer.groups
    if blocks is None:
        raise ModelError("internal: the order was not restored")
    share = count // layer.groups
    rows = (blocks[:, np.newaxis] * share + np.arange(share)).ravel()
    inside = order.reshape(layer.groups, width) - blocks[:, np.newaxis] * width
    return np.repeat(inside, share, axis=0), rows


def _dense(
    context: Context,
    value: AffineValue,
    path: str,
    attrs: dict[str, Attr],
    params: dict[str, IntArray],
) -> str:
    shape = context.type_of(value).shape
    if len(shape) != 1:
        raise ModelError(
            f"a dense layer takes a vector, its input is an image {shape}",
            where=path,
            hint="put nn.Flatten in front of it",
        )
    if value.order is not None:
        params["weight"] = params["weight"][:, value.order]
    return context.add("dense", path, value, attrs, params)


def _integer_bias(
    real: FloatArray, gain: FloatArray, context: Context, value: AffineValue, path: str
) -> FloatArray:
    """The bias in units of the accumulator.

    Raises:
        ModelError: it would not fit: a scale, of input or weights, has shrunk to nothing.
    """
    bias = np.rint(real / gain)
    widest = float(np.abs(bias).max())
    if widest < 2.0**_BIAS_BITS:
        return bias
    bits = int(np.log2(widest)) + 1
    kind = context.type_of(value)
    if max(abs(kind.lo), abs(kind.hi)) >= _WIDE_LEVELS:
        raise ModelError(
            f"its bias would have {bits} bits in units of the accumulator, more than fit: the "
            f"levels of its input, from {value.source}, are that fine",
            where=path,
            hint="use fewer exponent bits, or integers",
        )
    weights, inputs = float(gain.min() / value.gain.max()), float(value.gain.min())
    if weights < inputs:
        raise ModelError(
            f"its bias would have {bits} bits, more than fit: the scale of its weights has shrunk "
            f"to {weights:.3g}: they have died",
            where=path,
            hint="lower the learning rate, or choose another rule for the scale of weights",
        )
    raise ModelError(
        f"its bias would have {bits} bits, more than fit: the scale of its input, from "
        f"{value.source}, has shrunk to {float(value.gain.max()):.3g}: an activation that has died",
        where=path,
        hint="calibrate with images that wake it, lower the learning rate, or remove the layer",
    )


def batch_norm(
    context: Context, node: fx.Node, norm: nn.BatchNorm1d | nn.BatchNorm2d, value: AffineValue
) -> AffineValue:
    """``(x - mean) * gamma / sqrt(var + eps) + beta``, gathered into gain and offset."""
    mean = norm.running_mean.double().cpu().numpy()
    factor = 1.0 / np.sqrt(norm.running_var.double().cpu().numpy() + norm.eps)
    shift = np.zeros_like(mean)
    if norm.affine:
        factor = factor * norm.weight.detach().double().cpu().numpy()
        shift = norm.bias.detach().double().cpu().numpy()
    offset = (value.offset - mean) * factor + shift
    return replace(value, gain=value.gain * factor, offset=offset)
