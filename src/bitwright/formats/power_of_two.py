# SPDX-License-Identifier: Apache-2.0
"""Powers of two: ``po2_N`` is a sign and N - 1 exponent bits, so a product is a shift.

The levels are ``+-2^k``; the window of exponents is set by the scale, whose exponent is that of the
smallest magnitude. Rounding works on the logarithm (LogNet, Ristretto): the limit between ``2^k``
and ``2^(k+1)`` is their geometric mean. With ``linear`` it is the arithmetic mean, which has the
smaller squared error.

=================  ===========================================================  ==================
name               levels                                                       windows
=================  ===========================================================  ==================
``po2_4``          +-1, +-2, .. +-128                                           8 powers, no zero
``po2_4<zero>``    0, +-1, .. +-64: the lowest exponent code means zero (INQ)   7 powers
``po2_6``          +-1 .. +-2^31                                                32 powers
=================  ===========================================================  ==================
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError
from bitwright.formats.base import IntArray
from bitwright.formats.grid import GridFormat, nearest_index
from bitwright.formats.rounding import FloatArray, Rounding, Rules, drawn

MIN_BITS, MAX_BITS = 2, 6
#: The geometric mean of two powers, as a mantissa in [0.5, 1): no float equals it, so no ties.
LOG_MIDDLE = math.sqrt(0.5)


@dataclass(frozen=True, slots=True)
class PowerOfTwoFormat(GridFormat):
    """Sign and ``width - 1`` exponent bits; see the module.

    Args:
        width: bits of a code, 2 to 6.
        zero: whether exponent field 0 means zero.
        linear: round to the nearest value, not the nearest exponent.
    """

    family: ClassVar[str] = "power of two"
    is_exponent: ClassVar[bool] = True
    in_training: ClassVar[bool] = True

    width: int
    zero: bool = False
    linear: bool = False

    def __post_init__(self) -> None:
        if not MIN_BITS <= self.width <= MAX_BITS:
            raise FormatError(
                f"no power-of-two format has {self.width} bits",
                hint=f"{MIN_BITS} to {MAX_BITS}: a sign and 1 to {MAX_BITS - 1} exponent bits, "
                "since 2^(2^6) is beyond exact integers",
            )

    @property
    def name(self) -> str:
        chosen = (("zero", self.zero), ("linear", self.linear))
        options = ",".join(word for word, given in chosen if given)
        return f"po2_{self.width}" + (f"<{options}>" if options else "")

    @property
    def bits(self) -> int:
        return self.width

    @property
    def exponent_bits(self) -> int:
        return self.width - 1

    @property
    def significand_bits(self) -> int:
        return 1

    @property
    def powers(self) -> int:
        """How many magnitudes there are."""
        return (1 << (self.width - 1)) - int(self.zero)

    @property
    def max_level(self) -> int:
        return 1 << (self.powers - 1)

    @property
    def min_level(self) -> int:
        return -self.max_level

    @property
    def qonnx_name(self) -> str:
        return f"INT{self.powers + 1}"

    def quantize(self, ratio: FloatArray, zero_point: IntArray, rules: Rules) -> IntArray:
        self._offset(zero_point)
        if self.linear:
            return GridFormat.quantize(self, ratio, zero_point, rules)
        return self.canonical_codes(self._logarithmic(ratio, rules.rounding, rules.rng))

    def _logarithmic(
        self, ratio: FloatArray, rounding: Rounding, rng: np.random.Generator | None
    ) -> FloatArray:
        magnitude = np.minimum(np.abs(ratio), float(self.max_level))
        mantissa, binade = np.frexp(magnitude)
        draw = None
        if rounding is Rounding.STOCHASTIC:
            draw = drawn(magnitude.shape, rng)
            share = np.log2(np.where(mantissa > 0, mantissa, 1.0)) + 1
            up = draw < np.where(mantissa > 0, share, 0.0)
        elif rounding in (Rounding.UP, Rounding.DOWN, Rounding.CEIL, Rounding.FLOOR):
            away = rounding is Rounding.UP
            if rounding in (Rounding.CEIL, Rounding.FLOOR):
                away = (ratio > 0) == (rounding is Rounding.CEIL)
            up = away & (mantissa > 0.5)
        else:
            up = mantissa >= LOG_MIDDLE
        power = np.clip(binade - 1 + up, 0, self.powers - 1)
        level = np.ldexp(1.0, power)
        if self.zero:
            level = np.where(self._vanishes(ratio, rounding, draw), 0.0, level)
        return np.asarray(np.where(ratio < 0, -level, level) + 0.0)

    @staticmethod
    def _vanishes(
        ratio: FloatArray, rounding: Rounding, draw: FloatArray | None
    ) -> npt.NDArray[np.bool_]:
        """Which values below the smallest power are zero: that step is an ordinary one."""
        rest = np.abs(ratio)
        if draw is not None:
            return np.asarray((rest < 1) & (draw >= rest))
        grid = np.array([-1.0, 0.0, 1.0])
        # The even index of the grid of three is an end: mirror it, so that ties go to zero.
        tie = Rounding.HALF_ZERO if rounding is Rounding.HALF_EVEN else rounding
        return np.asarray(grid[nearest_index(ratio, grid, tie, None)] == 0)

    def canonical_codes(self, levels: FloatArray) -> IntArray:
        power = np.frexp(np.where(levels == 0, 1.0, np.abs(levels)))[1].astype(np.int64) - 1
        field = np.where(levels == 0, 0, power + int(self.zero))
        return np.asarray(field | ((levels < 0).astype(np.int64) << (self.width - 1)))

    def float_levels(self, codes: IntArray) -> FloatArray:
        field = codes & ((1 << (self.width - 1)) - 1)
        level = np.ldexp(1.0, np.maximum(field - int(self.zero), 0))
        if self.zero:
            level = np.where(field == 0, 0.0, level)
        return np.asarray(np.where(codes >> (self.width - 1) == 1, -level, level) + 0.0)


def parse(text: str) -> PowerOfTwoFormat | None:
    """`PowerOfTwoFormat` of ``po2_4``, ``po2_4<zero,linear>``; None if it is none."""
    match = re.fullmatch(r"po2_(\d{1,3})(?:<(.*)>)?", text.lower().replace(" ", ""))
    if match is None:
        return None
    options = match[2].split(",") if match[2] is not None else []
    for option in options:
        if option not in ("zero", "linear"):
            raise FormatError(f"{text!r}: unknown option {option!r}", hint="zero, linear")
    return PowerOfTwoFormat(int(match[1]), "zero" in options, "linear" in options)
