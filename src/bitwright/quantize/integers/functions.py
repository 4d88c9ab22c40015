# SPDX-License-Identifier: Apache-2.0
"""Activation functions in integers: thresholds found by bisection, or tables.

Both are computed once, from the function in float64; from then on the integers are the definition.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.formats import Format
from bitwright.formats.base import IntArray
from bitwright.formats.rounding import FloatArray
from bitwright.formats.thresholds import Thresholds, even_levels, find_thresholds
from bitwright.ir import TensorType
from bitwright.ir.op_activations import MAX_TABLE
from bitwright.quantize import elementwise
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.integers.affine import AffineValue
from bitwright.quantize.spec import QuantSpec


def function_integers(
    value: AffineValue,
    kind: TensorType,
    quantizer: ActivationQuantizer,
    threshold_bits: int,
    path: str,
) -> Thresholds | IntArray:
    """The quantized function of ``value.function``: thresholds in torch's order of channels, or a
    table with an entry for every level of ``kind``.

    Raises:
        ModelError: the function needs a table and its input is not quantized to few bits.
    """
    module = value.function
    if module is None:
        raise ModelError("internal: no function", where=path)
    traits = elementwise.of_module(module)
    # Thresholds count evenly spaced levels.
    few = quantizer.spec.format.bits <= threshold_bits and quantizer.spec.format.uniform
    rising = traits is not None and traits.monotone and not elementwise.falls(module)
    function = elementwise.exact(module)
    if few and rising:
        return _thresholds(value, kind, function, quantizer)
    plain = replace(value, function=None)
    if plain.is_common and kind.hi - kind.lo < MAX_TABLE:
        real = np.arange(kind.lo, kind.hi + 1) * value.gain[0]
        return _levels(function(real[np.newaxis])[0], quantizer, quantizer.format)
    if few and elementwise.falls(module):
        raise ModelError(
            "its learned slope is negative, so that it falls: thresholds cannot express it",
            where=path,
            hint="keep the slope above zero, or use nn.LeakyReLU",
        )
    have = (
        f"spans {kind.hi - kind.lo + 1} units of its step; at most {MAX_TABLE} are possible"
        if plain.is_common
        else "is not quantized to one scale"
    )
    name = quantizer.spec.format.name
    raise ModelError(
        f"it becomes a table of {name} numbers, and its input {have}",
        where=path,
        hint="quantize its input to an integer format of few bits",
    )


def _levels(real: FloatArray, quantizer: ActivationQuantizer, number_format: Format) -> IntArray:
    """The quantizer's rule in float64; ``number_format`` has the zero point."""
    spec: QuantSpec = quantizer.spec
    if spec.format.uniform:
        return even_levels(real / quantizer.unit, number_format, spec.rounding)
    scale = quantizer.unit / spec.format.lsb
    codes = spec.format.encode(real, scale, rounding=spec.rounding)
    return np.clip(spec.format.levels(codes), spec.lowest, None)


def _thresholds(
    value: AffineValue,
    kind: TensorType,
    function: elementwise.Function,
    quantizer: ActivationQuantizer,
) -> Thresholds:
    slopes = int(getattr(value.function, "num_parameters", 1))  # a learned one a channel, perhaps
    rows = max(value.gain.size, value.offset.size, slopes)
    gain, offset = (np.broadcast_to(part, (rows,)) for part in (value.gain, value.offset))
    rising, shift, number_format = np.abs(gain)[:, None], offset[:, None], quantizer.format

    def levels(acc: IntArray) -> IntArray:
        return _levels(function(acc * rising + shift), quantizer, number_format)

    return find_thresholds(levels, gain < 0, kind.lo, kind.hi, number_format)
