# SPDX-License-Identifier: Apache-2.0
"""``ternary``: -1, 0 and +1 in two bits (two's complement; the pattern 10 is unused)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bitwright.formats.base import Format
from bitwright.formats.integer import IntegerFormat


@dataclass(frozen=True, slots=True)
class TernaryFormat(Format):
    """Codes and levels -1, 0, +1. There is no zero point."""

    family: ClassVar[str] = "ternary"
    mean_scaled: ClassVar[bool] = True
    wraps: ClassVar[bool] = False

    name = "ternary"
    qonnx_name = "TERNARY"
    bits = 2
    signed = True
    min_code, max_code = -1, 1
    min_level, max_level = -1, 1

    def without_sign(self) -> Format:
        return IntegerFormat(1, False)

    def with_bits(self, bits: int) -> Format:
        return IntegerFormat(bits, True, True) if bits > 1 else self


def parse(text: str) -> TernaryFormat | None:
    """`TernaryFormat` of ``ternary`` in either case; None if it is something else."""
    return TernaryFormat() if text.lower() == "ternary" else None
