# SPDX-License-Identifier: Apache-2.0
"""Freezing of activation functions: thresholds found by bisection, or tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.formats import BipolarFormat, Format
from bitwright.formats.base import IntArray
from bitwright.formats.rounding import FloatArray, round_to_int
from bitwright.quantize import elementwise
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.frozen_joins import LookupActivation, ThresholdActivation
from bitwright.quantize.policy import QuantSpec
from bitwright.quantize.walk import Edge

#: Largest number of entries of a table: 16 address bits, as in the integer dialect.
MAX_TABLE = 1 << 16


def functional_activation(
    edge: Edge, quantizer: ActivationQuantizer, threshold_bits: int, path: str
) -> ThresholdActivation | LookupActivation:
    """The quantized function of ``edge.function`` on the integers of an edge.

    Raises:
        ModelError: the function needs a table and its input is not quantized to few bits.
    """
    module = edge.function
    if module is None:
        raise ModelError("internal: no function", where=path)
    traits = elementwise.of_module(module)
    # Thresholds count evenly spaced levels.
    few = quantizer.spec.format.bits <= threshold_bits and quantizer.spec.format.uniform
    rising = traits is not None and traits.monotone and not elementwise.falls(module)
    if few and rising:
        return _thresholds(edge, module_function(edge), quantizer, path)
    plain = replace(edge, function=None)
    if plain.is_common and edge.hi - edge.lo < MAX_TABLE:
        return _table(edge, module_function(edge), quantizer, path)
    if few and elementwise.falls(module):
        raise ModelError(
            "its learned slope is negative, so that it falls: thresholds cannot express it",
            where=path,
            hint="keep the slope above zero, or use nn.LeakyReLU",
        )
    have = (
        f"spans {edge.hi - edge.lo + 1} units of its step; at most {MAX_TABLE} are possible"
        if plain.is_common
        else "is not quantized to one scale"
    )
    name = quantizer.spec.format.name
    raise ModelError(
        f"it becomes a table of {name} numbers, and its input {have}",
        where=path,
        hint="quantize its input to an integer format of few bits",
    )


def module_function(edge: Edge) -> elementwise.Function:
    """The pending function in float64."""
    if edge.function is None:
        raise ModelError("internal: no function", where=edge.source)
    return elementwise.exact(edge.function)


def _levels(real: FloatArray, unit: float, spec: QuantSpec, number_format: Format) -> IntArray:
    """The quantizer's rule in float64; ``number_format`` has the zero point."""
    if isinstance(spec.format, BipolarFormat):
        return np.where(real >= 0, 1, -1)
    if not spec.format.uniform:
        codes = spec.format.encode(real, unit / spec.format.lsb, rounding=spec.rounding)
        return np.clip(spec.format.levels(codes), spec.lowest, None)
    rounded = round_to_int(real / unit, spec.rounding)
    clipped = np.clip(rounded, number_format.min_level, number_format.max_level)
    return np.asarray(clipped.astype(np.int64))


def _table(
    edge: Edge, function: elementwise.Function, quantizer: ActivationQuantizer, path: str
) -> LookupActivation:
    real = np.arange(edge.lo, edge.hi + 1) * edge.gain[0]
    number_format = quantizer.format
    found = function(real[np.newaxis])[0]
    levels = _levels(found, quantizer.unit, quantizer.spec, number_format)
    return LookupActivation(levels, edge.lo, number_format, path)


def _thresholds(
    edge: Edge, function: elementwise.Function, quantizer: ActivationQuantizer, path: str
) -> ThresholdActivation:
    """For each channel and level the smallest integer that reaches it, by bisection.

    A channel with a negative gain falls, and is compared with its sign changed.
    """
    rows = max(edge.gain.size, edge.offset.size, _slopes(edge))
    gain = np.broadcast_to(edge.gain, (rows,))[:, np.newaxis]
    offset = np.broadcast_to(edge.offset, (rows,))[:, np.newaxis]
    number_format, unit, spec = quantizer.format, quantizer.unit, quantizer.spec
    base, step = number_format.min_level, number_format.level_step
    count = (number_format.max_level - base) // step
    wanted = base + step * np.arange(1, count + 1, dtype=np.int64)
    flip = gain[:, 0] < 0
    start, end = np.where(flip, -edge.hi, edge.lo), np.where(flip, -edge.lo, edge.hi)
    below = np.repeat((start - 1)[:, np.newaxis], count, axis=1)
    above = np.repeat((end + 1)[:, np.newaxis], count, axis=1)
    for _ in range(int((end - start + 2).max()).bit_length()):
        middle = (below + above) >> 1
        real = middle * np.abs(gain) + offset
        reached = _levels(function(real), unit, spec, number_format) >= wanted
        unsettled = above - below > 1
        above = np.where(unsettled & reached, middle, above)
        below = np.where(unsettled & ~reached, middle, below)
    return ThresholdActivation(above, flip.astype(np.int64), base, step, number_format, path)


def _slopes(edge: Edge) -> int:
    """Number of channels with a learned slope each."""
    return int(getattr(edge.function, "num_parameters", 1))
