# SPDX-License-Identifier: Apache-2.0
"""What the public Ristretto does, and what is mended: five choices as plain values. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from bitwright.formats.rounding import Rounding
from bitwright.papers.ristretto.search import Parity


@dataclass(frozen=True)
class Behaviour:
    """The choices in which the public code and sound arithmetic part.

    Attributes:
        tie: how a value half way between two levels is rounded: away from zero in the public CPU
            code, to even in its GPU code.
        stop_at_zero: the CPU routine for minifloats returns at the first value that is or becomes
            zero and leaves the rest of the tensor in float; features behind a ReLU are full of
            zeros, so its results look better than the format is.
        fixed_exponents: minifloats keep the exponent bias ``2^(E-1) - 1`` and flush to zero below
            ``2^-bias``; mended, each tensor has a power of two as its scale, and denormals.
        bias_as_weight: biases are put into the format of the weights, whose range was taken without
            them, so that large biases saturate at any width; mended, they have 32 bits and a binary
            point of their own.
        clip_half: activations have one integer bit too few, so that the upper half octave clips.
        no_zero: power-of-two weights have no zero, so that a weight of 0 becomes the smallest
            power; mended, the lowest exponent code is zero.
        float_features: with power-of-two weights features stay float, as in the CPU code.
    """

    tie: Rounding = Rounding.HALF_EVEN
    stop_at_zero: bool = False
    fixed_exponents: bool = False
    bias_as_weight: bool = False
    clip_half: bool = False
    no_zero: bool = False
    float_features: bool = False

    @classmethod
    def of(cls, parity: Parity) -> Behaviour:
        """The behaviour of the public CPU or GPU code, or the mended one."""
        if parity is Parity.MENDED:
            return cls()
        cpu = parity is Parity.CPU
        return cls(
            tie=Rounding.HALF_AWAY if cpu else Rounding.HALF_EVEN,
            stop_at_zero=cpu,
            fixed_exponents=True,
            bias_as_weight=True,
            clip_half=True,
            no_zero=True,
            float_features=cpu,
        )
