# SPDX-License-Identifier: Apache-2.0
"""``intN``, ``uintN`` and the narrow ``intNn``: plain integers of 1 to 16 bits.

===========  ================  ====================================================
name         codes             note
===========  ================  ====================================================
``int4``     -8 .. 7           two's complement
``int4n``    -7 .. 7           narrow: symmetric, no -8 (weights)
``uint4``    0 .. 15
``int1``     -1 .. 0           ``int1n`` would hold only 0: refused
``uint4z5``  0 .. 15           affine: code 5 is real zero, so levels are -5 .. 10
===========  ================  ====================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError
from bitwright.formats.base import Format, IntArray
from bitwright.formats.rounding import Overflow

MAX_BITS = 16


@dataclass(frozen=True, slots=True)
class IntegerFormat(Format):
    """An integer of ``width`` bits, signed or not.

    Attributes:
        narrow: leaves out the most negative code.
        zero: the zero point, the code of real zero (affine quantization): level = code - zero.
    """

    family: ClassVar[str] = "integer"
    is_integer: ClassVar[bool] = True
    in_training: ClassVar[bool] = True

    width: int
    is_signed: bool
    narrow: bool = False
    zero: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.width <= MAX_BITS:
            raise FormatError(
                f"{self.name!r} has {self.width} bits", hint=f"integers have 1 to {MAX_BITS} bits"
            )
        if self.narrow and (not self.is_signed or self.width == 1):
            raise FormatError(f"{self.name!r}: only signed integers of 2 bits and more are narrow")
        if self.narrow and self.zero:
            raise FormatError(f"{self.name!r}: a narrow range has no zero point")
        if not self.min_code <= self.zero <= self.max_code:
            raise FormatError(
                f"{self.name!r}: the zero point {self.zero} is no code",
                hint=f"codes are {self.min_code} .. {self.max_code}",
            )

    @property
    def name(self) -> str:
        plain = f"{'' if self.is_signed else 'u'}int{self.width}{'n' if self.narrow else ''}"
        return f"{plain}z{self.zero}" if self.zero else plain

    def with_zero(self, zero: int) -> IntegerFormat:
        """The same codes with another zero point."""
        return replace(self, zero=zero)

    def with_narrow(self, narrow: bool) -> IntegerFormat:
        return replace(self, narrow=narrow) if self.signed else self

    def without_sign(self) -> Format:
        return IntegerFormat(self.bits - 1, False) if self.signed and self.bits > 1 else self

    def with_sign(self) -> Format:
        if self.signed:
            return self
        if self.bits == 1:
            raise FormatError("uint1 cannot hold a negative value", hint="bipolar, ternary or int2")
        return IntegerFormat(self.bits, True)

    def with_bits(self, bits: int) -> IntegerFormat:
        # One signed bit is not narrow only because it cannot be.
        narrow = self.narrow or (self.width == 1 and self.is_signed)
        return replace(self, width=bits, narrow=narrow)

    @property
    def bits(self) -> int:
        return self.width

    @property
    def signed(self) -> bool:
        return self.min_level < 0

    @property
    def min_code(self) -> int:
        return -(1 << (self.width - 1)) + int(self.narrow) if self.is_signed else 0

    @property
    def max_code(self) -> int:
        return (1 << (self.width - int(self.is_signed))) - 1

    @property
    def min_level(self) -> int:
        return self.min_code - self.zero

    @property
    def max_level(self) -> int:
        return self.max_code - self.zero

    @property
    def qonnx_name(self) -> str:
        if self == IntegerFormat(1, False):
            return "BINARY"
        if not self.zero:
            return f"{'' if self.is_signed else 'U'}INT{self.width}"
        # The nearest type whose numbers are the levels.
        low, high = self.min_level, self.max_level
        bits = max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0)
        return f"INT{bits + 1}" if low < 0 else f"UINT{bits}"

    def _offset(self, zero_point: npt.ArrayLike) -> IntArray:
        return np.asarray(zero_point, dtype=np.int64) + self.zero

    def check(self, overflow: Overflow) -> None:
        if overflow is Overflow.WRAP and self.narrow:
            raise FormatError("a narrow range cannot wrap", where=self.name, hint="use sat")
        if self.zero and overflow is not Overflow.SAT:
            raise FormatError(
                "a range with a zero point saturates", where=self.name, hint="use sat"
            )


def parse(text: str) -> IntegerFormat | None:
    """`IntegerFormat` of ``int4``, ``int4n``, ``uint4z5``, ``INT4``, ``BINARY``; else None."""
    if text.lower() == "binary":
        return IntegerFormat(1, False)
    match = re.fullmatch(r"(u?)int(\d{1,3})(n?)(?:z(-?\d{1,5}))?", text.lower())
    if match is None:
        return None
    return IntegerFormat(int(match[2]), not match[1], bool(match[3]), int(match[4] or 0))
