# SPDX-License-Identifier: Apache-2.0
"""``ternary``: -1, 0 and +1 in two bits (two's complement; the pattern 10 is unused)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError
from bitwright.formats.base import Format, IntArray, checked_integers, uniform_codes
from bitwright.formats.integer import IntegerFormat
from bitwright.formats.rounding import FloatArray, Overflow, Rounding


@dataclass(frozen=True, slots=True)
class TernaryFormat(Format):
    """Codes and levels -1, 0, +1. There is no zero point."""

    family: ClassVar[str] = "ternary"
    mean_scaled: ClassVar[bool] = True

    def without_sign(self) -> Format:
        return IntegerFormat(1, False)

    def with_bits(self, bits: int) -> Format:
        return IntegerFormat(bits, True, True) if bits > 1 else self

    @property
    def name(self) -> str:
        return "ternary"

    @property
    def bits(self) -> int:
        return 2

    @property
    def signed(self) -> bool:
        return True

    @property
    def min_code(self) -> int:
        return -1

    @property
    def max_code(self) -> int:
        return 1

    @property
    def min_level(self) -> int:
        return -1

    @property
    def max_level(self) -> int:
        return 1

    @property
    def level_step(self) -> int:
        return 1

    @property
    def lsb(self) -> float:
        return 1.0

    @property
    def qonnx_name(self) -> str:
        return "TERNARY"

    def codes(self, levels: npt.ArrayLike, zero_point: npt.ArrayLike = 0) -> IntArray:
        _refuse_zero_point(zero_point)
        return checked_integers(levels, -1, 1, "ternary level")

    def levels(self, codes: npt.ArrayLike, zero_point: npt.ArrayLike = 0) -> IntArray:
        _refuse_zero_point(zero_point)
        return checked_integers(codes, -1, 1, "ternary code")

    def check(self, overflow: Overflow) -> None:
        if overflow is Overflow.WRAP:
            raise FormatError("ternary cannot wrap", where=self.name, hint="use sat")

    def quantize(
        self,
        ratio: FloatArray,
        zero_point: IntArray,
        rounding: Rounding,
        overflow: Overflow,
        rng: np.random.Generator | None,
    ) -> IntArray:
        _refuse_zero_point(zero_point)
        return uniform_codes(ratio, zero_point, (-1, 1), rounding, overflow, rng)


def _refuse_zero_point(zero_point: npt.ArrayLike) -> None:
    if np.any(np.asarray(zero_point) != 0):
        raise FormatError("ternary has no zero point")


def parse(text: str) -> TernaryFormat | None:
    """`TernaryFormat` of ``ternary`` in either case; None if it is something else."""
    return TernaryFormat() if text.lower() == "ternary" else None
