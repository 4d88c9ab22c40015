# SPDX-License-Identifier: Apache-2.0
"""From the largest magnitude of a tensor to integer, fraction and exponent bits. No torch.

The formulas are those of the public tool Ristretto (Gysel et al. 2016, arXiv:1604.03168, and its
fork of Caffe), which the search in `quant.search` follows. Words: ``il`` is the integer length,
the bits left of the binary point with the sign bit, ``fl`` the fraction length; ``bw = il + fl``,
and a value of ``bw`` bits runs from ``-2^(il-1)`` to ``2^(il-1) - 2^-fl``. Both may be negative
or larger than ``bw``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from bitwright.base.errors import FormatError

#: Ristretto never takes fewer exponent bits, whatever the ranges.
LEAST_EXPONENT_BITS = 4


def parameter_il(largest: float) -> int:
    """``ceil(log2(largest) + 1)``: nothing but the magnitude 2^(il-1) itself can clip.

    A tensor of zeros gets 1: any length holds it.

    Raises:
        FormatError: the magnitude is negative, infinite or NaN.
    """
    return 1 if _checked(largest) == 0 else _ceil_log2(largest) + 1


def activation_il(largest: float, *, spare_bit: bool = False) -> int:
    """``ceil(log2(largest))``: one bit fewer than `parameter_il`, so the top half octave clips.

    Args:
        largest: largest magnitude.
        spare_bit: keep the bit that Ristretto saves, so that nothing clips.

    Raises:
        FormatError: the magnitude is negative, infinite or NaN.
    """
    if spare_bit:
        return parameter_il(largest)
    return 0 if _checked(largest) == 0 else _ceil_log2(largest)


def fraction_length(bits: int, il: int) -> int:
    """``fl = bw - il``; negative and larger than ``bw`` are both legal."""
    return bits - il


def exponent_bits(maxima: Iterable[float], *, least: int = LEAST_EXPONENT_BITS) -> int:
    """Exponent bits for a whole network: ``ceil(log2(log2(max) - 1) + 1)``, at least ``least``.

    Args:
        maxima: largest magnitudes of every layer's input and output (not of the weights).

    Raises:
        FormatError: a magnitude is negative, infinite or NaN.
    """
    bits = least
    for largest in maxima:
        # Up to 2^2 the inner logarithm is 1 or less: such a range asks for nothing.
        if _checked(largest) > 4:
            bits = max(bits, math.ceil(math.log2(math.log2(largest) - 1) + 1))
    return bits


def exponent_window(largest: float, bits: int) -> tuple[int, int]:
    """``(exp_min, exp_max)`` of power-of-two weights: 2^bits powers, the last one as large as the
    largest weight rounds to in the log domain, so that no power is left unused at the top.

    Raises:
        FormatError: no bits, or no largest magnitude.
    """
    if not 1 <= bits <= 8:
        raise FormatError(f"a window of {bits} exponent bits", hint="expected 1 to 8")
    top = round(math.log2(largest)) if _checked(largest) > 0 else 0
    return top - (1 << bits) + 1, top


def _ceil_log2(value: float) -> int:
    """``ceil(log2(value))`` without the rounding error of a logarithm at powers of two."""
    mantissa, exponent = math.frexp(value)
    return exponent - 1 if mantissa == 0.5 else exponent


def _checked(largest: float) -> float:
    if not math.isfinite(largest) or largest < 0:
        raise FormatError(
            f"{largest} is no largest magnitude of a tensor",
            hint="expected a finite number from 0 on: look for NaN or infinity in it",
        )
    return largest
