# SPDX-License-Identifier: Apache-2.0
"""Gain and offset of a quantizer as integers: multiply, add, shift."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.formats.rounding import FloatArray
from bitwright.ir import IntArray

#: Bits of the largest multiplier of a `requant` (without the sign), but where channels of small
#: gain need more: 17 + sign fit the 18-bit multipliers of FPGAs, with 16 significant bits or more.
MULTIPLIER_BITS = 17
_MAX_SHIFT = 60
#: Fewest bits of a multiplier that wide accumulators leave to an activation of few significant
#: bits: its error is then below 2^-8 of a value, an eighth of a step of 4 bits.
_LEAST_BITS = 8
#: Most bits of a multiplier, for channels whose gains lie far apart: the product fits 62.
_MOST_BITS = 61
_HALF = 0.5


def shift_parameters(
    gain: FloatArray,
    offset: FloatArray,
    reach: int,
    path: str,
    *,
    fewer: bool = False,
) -> tuple[IntArray, IntArray, int]:
    """Integers with ``(acc * m + o) / 2^shift`` nearest to ``acc * gain + offset``.

    Where small integers give exactly that, they are taken, with the smallest shift: powers of two
    as scales make the multiplier 1. Else the shift is common to all channels, and the largest
    multiplier has `MULTIPLIER_BITS` bits, unless the shift would exceed `_MAX_SHIFT`; or more, if
    these would leave a channel of small gain so few that its levels came out wrong.

    Args:
        reach: largest magnitude of the accumulator.
        path: the user's path of the layer.
        fewer: give up bits of the multiplier, down to `_LEAST_BITS`, so that the product fits.

    Raises:
        ModelError: the product does not fit 62 bits, or not with the bits that the channel of the
            smallest gain needs.
    """
    exact = exact_shift(gain, offset)
    if exact is not None and _fits(*exact[:2], reach):
        return exact[0].astype(np.int64), exact[1].astype(np.int64), exact[2]
    largest = float(np.abs(gain).max())
    exponent = 0 if largest == 0 else int(np.floor(np.log2(largest))) + 1
    silenced = -1
    for bits in _widths(fewer=fewer):
        shift = min(max(bits - exponent, 0), _MAX_SHIFT)
        multiplier = np.rint(gain * 2.0**shift)
        scaled = np.rint(offset * 2.0**shift)
        if not _fits(multiplier, scaled, reach):
            continue
        silenced = _silenced(multiplier, gain, reach, shift)
        if silenced < 0:
            return multiplier.astype(np.int64), scaled.astype(np.int64), shift
    if silenced >= 0:
        raise ModelError(
            f"the scales of its channels lie too far apart for one shift: the gain of channel "
            f"{silenced} is {abs(gain[silenced]):.3g}, the largest {largest:.3g}",
            where=path,
            hint="use formats of like range for what is concatenated, or fewer bits; a channel of "
            "hardly any variance in front of a batch norm may be pruned",
        )
    raise ModelError(
        f"multiplier and offset do not fit 62 bits: the accumulator reaches {reach}, "
        f"{reach.bit_length()} bits",
        where=path,
        hint="use fewer bits; of small floats fewer exponent bits",
    )


def _widths(*, fewer: bool) -> Iterator[int]:
    """Bits of the largest multiplier, in the order in which they are tried."""
    yield from range(MULTIPLIER_BITS, _MOST_BITS + 1)
    if fewer:
        yield from range(MULTIPLIER_BITS - 1, _LEAST_BITS - 1, -1)


def exact_shift(gain: FloatArray, offset: FloatArray) -> tuple[FloatArray, FloatArray, int] | None:
    """Integers with exactly ``(acc * m + o) / 2^shift == acc * gain + offset``, or None.

    None, too, where a multiplier would have more than `MULTIPLIER_BITS` bits.
    """
    if not (np.isfinite(gain).all() and np.isfinite(offset).all()) or not gain.any():
        return None
    shift = max(_fraction_bits(gain), _fraction_bits(offset), 0)
    if shift > _MAX_SHIFT or float(np.abs(gain).max()) * 2.0**shift >= 2.0**MULTIPLIER_BITS:
        return None
    return gain * 2.0**shift, offset * 2.0**shift, shift


def _fraction_bits(values: FloatArray) -> int:
    """Smallest k such that all values times 2^k are integers; negative if they are multiples."""
    mantissa, exponent = np.frexp(values[values != 0])
    if not mantissa.size:
        return 0
    whole = np.ldexp(mantissa, 53).astype(np.int64)
    trailing = np.log2((whole & -whole).astype(np.float64)).astype(np.int64)
    return int((53 - exponent.astype(np.int64) - trailing).max())


def _silenced(multiplier: FloatArray, gain: FloatArray, reach: int, shift: int) -> int:
    """A channel without `_LEAST_BITS` that loses half a level or more by it; -1: there is none."""
    lost = np.abs(multiplier * 2.0**-shift - gain)
    bad = (lost > 2.0**-_LEAST_BITS * np.abs(gain)) & (lost * reach > _HALF)
    return int(np.argmax(bad)) if bad.any() else -1


def _fits(multiplier: FloatArray, offset: FloatArray, reach: int) -> bool:
    return float(np.abs(offset).max() + reach * np.abs(multiplier).max()) < 2.0**62
