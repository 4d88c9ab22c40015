# SPDX-License-Identifier: Apache-2.0
"""``bipolar``: one bit that means -1 or +1.

====  =====  ================================================
code  level  encoded from
====  =====  ================================================
0     -1     x < 0
1     +1     x >= 0 (also -0.0)
====  =====  ================================================

Deterministic rounding modes all give the sign. ``stochastic`` draws +1 with probability
``clip((x / scale + 1) / 2, 0, 1)`` (BinaryConnect, Courbariaux et al. 2015, eq. 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError
from bitwright.formats.base import Format, IntArray, checked_integers
from bitwright.formats.integer import IntegerFormat
from bitwright.formats.rounding import FloatArray, Rounding, Rules, drawn


@dataclass(frozen=True, slots=True)
class BipolarFormat(Format):
    """Levels -1 and +1, stored as 0 and 1. There is no zero and no zero point."""

    family: ClassVar[str] = "bipolar"
    sign_only: ClassVar[bool] = True
    mean_scaled: ClassVar[bool] = True

    name = "bipolar"
    qonnx_name = "BIPOLAR"
    bits = 1
    signed = True
    min_code, max_code = 0, 1
    min_level, max_level = -1, 1
    level_step = 2

    def with_bits(self, bits: int) -> Format:
        return IntegerFormat(bits, True, True) if bits > 1 else self

    def codes(self, levels: npt.ArrayLike, zero_point: npt.ArrayLike = 0) -> IntArray:
        array = checked_integers(levels, -1, 1, "bipolar level")
        if np.any(array == 0):
            raise FormatError("0 is no bipolar level: expected -1 or +1")
        return np.asarray((array + 1) >> 1)

    def levels(self, codes: npt.ArrayLike, zero_point: npt.ArrayLike = 0) -> IntArray:
        self._offset(zero_point)
        return checked_integers(codes, 0, 1, "bipolar code") * 2 - 1

    def quantize(self, ratio: FloatArray, zero_point: IntArray, rules: Rules) -> IntArray:
        self._offset(zero_point)  # every overflow mode is the same: the sign never overflows
        if rules.rounding is not Rounding.STOCHASTIC:
            return (ratio >= 0).astype(np.int64)
        return (drawn(ratio.shape, rules.rng) < (ratio + 1) * 0.5).astype(np.int64)


def parse(text: str) -> BipolarFormat | None:
    """`BipolarFormat` of ``bipolar`` in either case; None if it is something else."""
    return BipolarFormat() if text.lower() == "bipolar" else None
