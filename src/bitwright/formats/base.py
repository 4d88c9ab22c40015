# SPDX-License-Identifier: Apache-2.0
"""The `Format` value: what a number format is, and the exact way in and out of it.

Words: a *code* is the stored integer, a *level* the exact integer value of a code once the zero
point is taken off, and ``real = scale * lsb * level``. A family defines a few small methods;
`encode` and `decode` are the same for all of them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError
from bitwright.formats.rounding import FloatArray, Overflow, Rounding, Rules, round_to_int

IntArray = npt.NDArray[np.int64]

_LEVEL_BITS = 62
_GRID_BITS = 16


class Format(ABC):
    """A number format: a frozen, hashable value that equals its canonical `name` both ways.

    Class attributes say what a family is; whoever quantizes, plans or builds asks them, never for
    the class itself, so that a format of a user's own needs no change elsewhere.

    Attributes:
        family: the word for it in tables and plots.
        is_integer: plain integers; they may have a zero point (`with_zero`).
        is_float: sign, exponent and mantissa.
        is_exponent: levels are powers of two, so the scale is one, too.
        is_codebook: levels are those of a table.
        sign_only: the code is the sign alone: two levels, no zero, no zero point.
        mean_scaled: weights in it take the mean magnitude as their scale (XNOR-Net, TWN).
        in_training: the products of training in few bits can have it.
        wraps: values beyond the range can wrap; else they saturate.
    """

    __slots__ = ()

    family: ClassVar[str] = "other"
    is_integer: ClassVar[bool] = False
    is_float: ClassVar[bool] = False
    is_exponent: ClassVar[bool] = False
    is_codebook: ClassVar[bool] = False
    sign_only: ClassVar[bool] = False
    mean_scaled: ClassVar[bool] = False
    in_training: ClassVar[bool] = False
    wraps: ClassVar[bool] = True

    @property
    @abstractmethod
    def name(self) -> str:
        """Canonical name; ``parse_format(f.name) == f``."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Width of a stored code."""

    @property
    @abstractmethod
    def signed(self) -> bool:
        """Whether some level lies below zero."""

    @property
    @abstractmethod
    def min_code(self) -> int:
        """Smallest code."""

    @property
    @abstractmethod
    def max_code(self) -> int:
        """Largest code."""

    @property
    @abstractmethod
    def min_level(self) -> int:
        """Smallest level at zero point 0."""

    @property
    @abstractmethod
    def max_level(self) -> int:
        """Largest level at zero point 0."""

    @property
    def level_step(self) -> int:
        """Distance of neighbouring levels; 1 except for formats with gaps (bipolar: 2)."""
        return 1

    @property
    def lsb(self) -> float:
        """Real value of one level at scale 1: an exact power of two."""
        return 1.0

    @property
    @abstractmethod
    def qonnx_name(self) -> str:
        """Nearest name in QONNX's type language."""

    @property
    def uniform(self) -> bool:
        """Whether the levels are exactly ``min_level, min_level + level_step, .. max_level``."""
        return True

    @property
    def exact_levels(self) -> bool:
        """Whether all levels fit 62 bits, so that integers can compute with them."""
        return max(-self.min_level, self.max_level) < 1 << _LEVEL_BITS

    @property
    def block(self) -> int:
        """How many neighbours along the input channels share a scale; 0 if that is no rule."""
        return 0

    @property
    def top_exponent(self) -> int:
        """Exponent of the largest value at scale 1: 8 for e4m3, 2 for e2m1."""
        return math.frexp(self.max_level * self.lsb)[1] - 1

    @property
    def stored(self) -> Format:
        """The format of one stored value: of a block its element, else the format itself."""
        return self

    @property
    def number(self) -> Format:
        """The format of the numbers that are multiplied: an element, a centroid, or itself."""
        return self

    @property
    def exponent_bits(self) -> int:
        """Bits of the exponent in a code, 0 where there is none."""
        return 0

    @property
    def significand_bits(self) -> int:
        """Bits of the significant digits of a value, the hidden one included, without a sign."""
        return self.bits - int(self.signed)

    @property
    def needs_table(self) -> bool:
        """Whether it is a codebook whose table is still to be found."""
        return False

    @property
    def entries(self) -> int:
        """Entries of the table of a codebook, else 0."""
        return 0

    @property
    def has_own_scale(self) -> bool:
        """Whether its values are real numbers as they are, at scale 1: fixed point, wide floats."""
        return not self.exact_levels

    @property
    def largest_level(self) -> int:
        """The level that the largest magnitude is mapped to: the positive end of the range. Of an
        uneven format, which may be lopsided, the end farther from zero.
        """
        if self.uniform:
            return max(self.max_level, 1)
        return max(-self.min_level, self.max_level, 1)

    @property
    def reach(self) -> float:
        """Real value of `largest_level` at scale 1."""
        return self.largest_level * self.lsb

    @property
    def top_step(self) -> int:
        """Distance between the two largest levels: the coarsest step of the format."""
        if self.uniform:
            return self.level_step
        last = [int(level) for level in self.grid()[-2:]]
        return max(1, last[-1] - last[0])

    def with_zero(self, zero: int) -> Format:
        """The same codes with a zero point; `FormatError` where there is none."""
        raise FormatError(f"{self.name} has no zero point", hint="use zero point 0")

    def with_narrow(self, narrow: bool) -> Format:
        """With or without the most negative code; itself where that is no choice."""
        return self

    def without_sign(self) -> Format:
        """The non-negative half of a signed format, the same levels in one bit less; itself where
        there is none.
        """
        return self

    def with_sign(self) -> Format:
        """The signed format of the same width; itself where there is none.

        Raises:
            FormatError: a sign would leave no bit for a value.
        """
        return self

    def with_bits(self, bits: int) -> Format:
        """The format of the same kind with this many bits; itself where there is none."""
        return self

    @property
    def zero_is_representable(self) -> bool:
        """Whether some code has level 0 (so that zero padding and pruning are possible)."""
        return self.min_level <= 0 <= self.max_level and self.min_level % self.level_step == 0

    def grid(self) -> IntArray:
        """All levels at zero point 0, distinct and ascending.

        Raises:
            FormatError: the format has more than 16 bits, or levels that no integer holds.
        """
        if self.bits > _GRID_BITS or not self.exact_levels:
            raise FormatError(
                f"{self.name} has too many or too large levels to list",
                hint=f"up to {_GRID_BITS} bits and levels below 2^{_LEVEL_BITS} can be listed",
            )
        return np.arange(self.min_level, self.max_level + 1, self.level_step, dtype=np.int64)

    def float_grid(self) -> FloatArray:
        """All levels, ascending, float64: also such as no integer holds.

        Raises:
            FormatError: too many levels, or a codebook without a table.
        """
        return self.grid().astype(np.float64)

    def contains(self, levels: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether each integer is a level of this format (zero point 0)."""
        array = np.asarray(levels, dtype=np.int64)
        inside = (array >= self.min_level) & (array <= self.max_level)
        if self.level_step == 1:  # a remainder takes most of the time
            return np.asarray(inside)
        return np.asarray(inside & ((array - self.min_level) % self.level_step == 0))

    def codes(self, levels: npt.ArrayLike, zero_point: npt.ArrayLike = 0) -> IntArray:
        """Codes of exact levels. `FormatError` if a level has no code."""
        shifted = np.asarray(levels) + self._offset(zero_point)
        return checked_integers(shifted, self.min_code, self.max_code, f"{self.name} code")

    def levels(self, codes: npt.ArrayLike, zero_point: npt.ArrayLike = 0) -> IntArray:
        """Exact levels of codes. `FormatError` if a number is no code of this format."""
        array = checked_integers(codes, self.min_code, self.max_code, f"{self.name} code")
        return np.asarray(array - self._offset(zero_point))

    def quantize(self, ratio: FloatArray, zero_point: IntArray, rules: Rules) -> IntArray:
        """Codes of real numbers given in units of one level (``x / (scale * lsb)``, no NaN):
        ``overflow(round(ratio) + zero_point)`` where the codes are evenly spaced.
        """
        low, high, zero = self.min_code, self.max_code, self._offset(zero_point)
        overflow, rounded = rules.overflow, round_to_int(ratio, rules.rounding, rules.rng)
        if overflow is not Overflow.WRAP:
            if overflow is Overflow.SAT_SYM and low < 0:
                low = -high
            # Clipping first keeps huge values and infinities out of the int64 conversion.
            clipped = np.clip(rounded, low - zero, high - zero)
            return np.asarray(clipped.astype(np.int64) + zero)
        if not np.all(np.isfinite(rounded)):
            raise FormatError("cannot wrap an infinite value")
        span = high - low + 1
        residue = np.fmod(rounded, span).astype(np.int64)  # fmod is exact, int64 could overflow
        return np.asarray((residue + zero - low) % span + low)

    def _offset(self, zero_point: npt.ArrayLike) -> IntArray:
        """The code of level 0 for a zero point, which most formats do not have."""
        if np.any(np.asarray(zero_point) != 0):
            raise FormatError(f"{self.name} has no zero point", hint="use zero point 0")
        return np.asarray(0, dtype=np.int64)

    def check(self, overflow: Overflow) -> None:
        """`FormatError` if this format has no such overflow behaviour."""
        if overflow is Overflow.WRAP and not self.wraps:
            raise FormatError(f"{self.name} cannot wrap", where=self.name, hint="use sat")

    def patterns_of(self, levels: FloatArray) -> IntArray:
        """`to_bits` of the codes of levels (float64, exact, also of formats with wide levels)."""
        return self.to_bits(self.codes(levels.astype(np.int64)))

    def levels_of(self, patterns: IntArray) -> FloatArray:
        """Levels, float64, of what `patterns_of` gave; NaN and infinities for special codes."""
        return np.asarray(self.levels(self.from_bits(patterns)), dtype=np.float64)

    def special(self, pattern: int) -> str:
        """What a wire pattern says that is no number."""
        return "unused"

    def encode(
        self,
        x: npt.ArrayLike,
        scale: npt.ArrayLike = 1.0,
        zero_point: npt.ArrayLike = 0,
        rounding: Rounding = Rounding.HALF_EVEN,
        overflow: Overflow = Overflow.SAT,
        rng: np.random.Generator | None = None,
    ) -> IntArray:
        """Codes of reals: ``overflow(round(x / (scale * lsb)) + zero_point)`` in float64.

        Args:
            x: reals, any shape; infinities saturate.
            scale: positive, broadcast against ``x`` (shape it (C, 1, 1) for a channel axis).
            zero_point: the code of level 0, broadcast likewise; 0 where a family has none.
            rounding: see `Rounding`.
            overflow: see `Overflow`.
            rng: for stochastic rounding.

        Returns:
            int64 codes of the shape of ``x`` broadcast with ``scale``.

        Raises:
            FormatError: NaN, a scale that is not positive and finite, or wrapping an infinity.
        """
        self.check(overflow)
        values = np.asarray(x, dtype=np.float64)
        unit = np.asarray(scale, dtype=np.float64) * self.lsb
        if not (np.all(np.isfinite(unit)) and np.all(unit > 0)):
            raise FormatError("scale must be positive and finite", where=self.name)
        if np.isnan(values).any():
            raise FormatError("cannot encode NaN", where=self.name)
        with np.errstate(over="ignore"):
            ratio = values / unit
        offset = np.asarray(zero_point, dtype=np.int64)
        return self.quantize(ratio, offset, Rules(rounding, overflow, rng))

    def decode(
        self, codes: npt.ArrayLike, scale: npt.ArrayLike = 1.0, zero_point: npt.ArrayLike = 0
    ) -> FloatArray:
        """Reals of codes: ``(scale * lsb) * level``, float64."""
        unit = np.asarray(scale, dtype=np.float64) * self.lsb
        return np.asarray(unit * self.levels(codes, zero_point), dtype=np.float64)

    def quantized(
        self,
        x: npt.ArrayLike,
        scale: npt.ArrayLike = 1.0,
        rounding: Rounding = Rounding.HALF_EVEN,
        overflow: Overflow = Overflow.SAT,
        rng: np.random.Generator | None = None,
    ) -> FloatArray:
        """Reals on the format's grid, float64: ``decode(encode(x))``; arguments as `encode`."""
        codes = self.encode(x, scale, 0, rounding, overflow, rng)
        return self.decode(codes, scale)

    def to_bits(self, codes: npt.ArrayLike) -> IntArray:
        """Wire patterns: each code as an unsigned number of `bits` bits (two's complement)."""
        array = checked_integers(codes, self.min_code, self.max_code, f"{self.name} code")
        return array & ((1 << self.bits) - 1)

    def from_bits(self, bits: npt.ArrayLike) -> IntArray:
        """Codes of wire patterns, the inverse of `to_bits`; `FormatError` if there is none."""
        pattern = checked_integers(bits, 0, (1 << self.bits) - 1, f"{self.name} bit pattern")
        if self.min_code < 0:
            pattern = np.where(pattern >= 1 << (self.bits - 1), pattern - (1 << self.bits), pattern)
        return checked_integers(pattern, self.min_code, self.max_code, f"{self.name} code")

    def __str__(self) -> str:
        return self.name


def checked_integers(values: npt.ArrayLike, low: int, high: int, what: str) -> IntArray:
    """``values`` as int64, or `FormatError` if one is no integer in ``low .. high``."""
    given = np.asarray(values)
    array = given.astype(np.int64)
    if not np.array_equal(array, given):
        raise FormatError(f"a {what} must be an integer")
    if array.size and (array.min() < low or array.max() > high):
        bad = int(array.min() if array.min() < low else array.max())
        raise FormatError(f"{bad} is no {what}: expected {low} .. {high}")
    return array
