# SPDX-License-Identifier: Apache-2.0
"""Quantizers of activations in integers.

Few bits become thresholds on the accumulator: exactly ``clip(round(gain * acc + offset))`` in two
IEEE double operations (`formats.thresholds`). Many bits multiply, add and shift: there the
multiplier is rounded, and the rounded one is what the network means.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import fx, nn

from bitwright.formats.rounding import FloatArray
from bitwright.formats.thresholds import Thresholds, affine_thresholds
from bitwright.ir import Attr, IntArray, TensorType
from bitwright.ir.op_activations import float_rule
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.integers.affine import INPUT, AffineValue, Context
from bitwright.quantize.integers.functions import function_integers
from bitwright.quantize.integers.requantize import shift_parameters
from bitwright.quantize.spec import Role

Attrs = dict[str, Attr]
Params = dict[str, IntArray]


def quantizer(
    context: Context, node: fx.Node, module: ActivationQuantizer, value: AffineValue
) -> AffineValue:
    """Accumulators (or the network's input) -> levels; then what has waited for it."""
    path = str(node.target)
    if module.role is Role.INPUT:
        return _input(context, module, value, path)
    kind, unit = context.type_of(value), float(module.unit)
    gain, offset = np.broadcast_arrays(value.gain / unit, value.offset / unit)
    bits = context.policy.threshold_bits
    if value.function is not None:
        found = function_integers(value, kind, module, bits, path)
        made = _of_function(found, value)
    elif module.spec.format.bits <= bits and not module.spec.format.is_float:
        rule = (module.format, module.spec.rounding)
        made = _thresholds(affine_thresholds(gain, offset, kind.lo, kind.hi, *rule), value)
    else:
        made = _shift(gain, offset, module, kind, value, path)
    op, attrs, params = made
    attrs |= {"format": module.format.name, "scale": (unit,)}
    edge = context.add(op, path, value, attrs, params)
    for waiting in value.pending:
        edge = context.add(waiting.op, waiting.path, edge, waiting.attrs)
    return AffineValue(edge, np.full(1, unit), np.zeros(1), path, value.shape, value.order)


def _input(
    context: Context, module: ActivationQuantizer, value: AffineValue, path: str
) -> AffineValue:
    """The network's input: its levels are what the graph takes."""
    number_format, unit = module.format, float(module.unit)
    channels, *size = value.shape
    size = [1, *size] if len(size) == 1 else size  # a signal is an image of one row
    # The scale of the format and its lsb, multiplied again as the levels' definition does it.
    scale = unit / module.spec.format.lsb * number_format.lsb
    low, high = number_format.min_level, number_format.max_level
    kind = TensorType((*size, channels), number_format, (scale,), low, high)
    edge = context.builder.input(INPUT, kind)
    return replace(value, edge=edge, gain=np.full(1, unit), source=path)


def _of_function(found: Thresholds | IntArray, value: AffineValue) -> tuple[str, Attrs, Params]:
    if isinstance(found, Thresholds):
        return _thresholds(found, value)
    return "lookup", {}, {"table": found[np.newaxis]}


def _thresholds(found: Thresholds, value: AffineValue) -> tuple[str, Attrs, Params]:
    params = {"thresholds": value.ordered(found.thresholds)}
    if found.flip.any():
        params["flip"] = value.ordered(found.flip.astype(np.int64))
    return "threshold", {"base": found.base, "step": found.step}, params


def _shift(
    gain: FloatArray,
    offset: FloatArray,
    module: ActivationQuantizer,
    kind: TensorType,
    value: AffineValue,
    path: str,
) -> tuple[str, Attrs, Params]:
    floats = module.spec.format.is_float
    reach = max(abs(kind.lo), abs(kind.hi))
    multiplier, shifted, shift = shift_parameters(gain, offset, reach, path, fewer=floats)
    levels = module.level_range
    attrs: Attrs = {
        "shift": shift,
        "rounding": str(module.spec.rounding),
        "lo": int(levels.low if floats else module.format.min_level),
        "hi": int(levels.high),
    }
    if floats:
        attrs["significant"], attrs["smallest"] = float_rule(module.spec.format)
    params = {"multiplier": value.ordered(multiplier), "offset": value.ordered(shifted)}
    return "requant_float" if floats else "requant", attrs, params


def function(context: Context, node: fx.Node, module: nn.Module, value: AffineValue) -> AffineValue:
    """Kept aside for the quantizer behind."""
    return replace(value, function=module)
