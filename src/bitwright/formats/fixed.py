# SPDX-License-Identifier: Apache-2.0
"""``fixed<W,I>`` and ``ufixed<W,I>``: integers with a binary point, as in ap_fixed and hls4ml.

W is the whole width; I the bits left of the point, the sign bit included; W - I are fractional
bits, so one level is 2^(I - W). I may be negative or exceed W.

================  =================  ====================
name              levels             reals at scale 1
================  =================  ====================
``fixed<8,3>``    -128 .. 127        -4 .. 3.96875
``ufixed<8,0>``   0 .. 255           0 .. 0.99609375
================  =================  ====================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError
from bitwright.formats.base import Format, IntArray

MAX_BITS = 16
_MAX_POINT = 64


@dataclass(frozen=True, slots=True)
class FixedFormat(Format):
    """Fixed point: ``width`` bits of which ``integer`` (sign included) are left of the point."""

    family: ClassVar[str] = "fixed point"
    in_training: ClassVar[bool] = True

    width: int
    integer: int
    is_signed: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MAX_BITS:
            raise FormatError(
                f"{self.name!r} has {self.width} bits", hint=f"fixed has 1 to {MAX_BITS} bits"
            )
        if abs(self.integer) > _MAX_POINT:
            raise FormatError(f"{self.name!r}: the binary point is out of range")

    @property
    def name(self) -> str:
        return f"{'' if self.is_signed else 'u'}fixed<{self.width},{self.integer}>"

    @property
    def has_own_scale(self) -> bool:
        return True

    def without_sign(self) -> Format:
        if not self.signed or self.bits == 1:
            return self
        return FixedFormat(self.bits - 1, self.integer - 1, False)

    def with_sign(self) -> Format:
        return self if self.signed else FixedFormat(self.bits, self.integer, True)

    @property
    def bits(self) -> int:
        return self.width

    @property
    def signed(self) -> bool:
        return self.is_signed

    @property
    def min_code(self) -> int:
        return -(1 << (self.width - 1)) if self.is_signed else 0

    @property
    def max_code(self) -> int:
        return (1 << (self.width - int(self.is_signed))) - 1

    @property
    def min_level(self) -> int:
        return self.min_code

    @property
    def max_level(self) -> int:
        return self.max_code

    @property
    def lsb(self) -> float:
        return float(2.0 ** (self.integer - self.width))

    @property
    def qonnx_name(self) -> str:
        # QONNX's FIXED is signed; an unsigned one is an integer with a scale there.
        return f"FIXED<{self.width},{self.integer}>" if self.is_signed else f"UINT{self.width}"

    def _offset(self, zero_point: npt.ArrayLike) -> IntArray:
        return np.asarray(zero_point, dtype=np.int64)


def parse(text: str) -> FixedFormat | None:
    """`FixedFormat` of ``fixed<8,3>``, ``ufixed<8,0>`` or ``FIXED<8,3>``; None if it is none."""
    match = re.fullmatch(r"(u?)fixed<\s*(\d{1,3})\s*,\s*(-?\d{1,3})\s*>", text.lower())
    if match is None:
        return None
    return FixedFormat(int(match[2]), int(match[3]), not match[1])
