# SPDX-License-Identifier: Apache-2.0
"""The `Format` value: what a number format is, and the exact way in and out of it.

Words: a *code* is the stored integer, a *level* the exact integer value of a code once the zero
point is taken off, and ``real = scale * lsb * level``. A family defines a few small methods;
`encode` and `decode` are the same for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError
from bitwright.formats.rounding import FloatArray, Overflow, Rounding, round_to_int

IntArray = npt.NDArray[np.int64]

_LEVEL_BITS = 62
_GRID_BITS = 16


class Format(ABC):
    """A number format: a frozen, hashable value that equals its canonical `name` both ways."""

    __slots__ = ()

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
    @abstractmethod
    def level_step(self) -> int:
        """Distance of neighbouring levels; 1 except for formats with gaps (bipolar: 2)."""

    @property
    @abstractmethod
    def lsb(self) -> float:
        """Real value of one level at scale 1: an exact power of two."""

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

    def contains(self, levels: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Whether each integer is a level of this format (zero point 0)."""
        array = np.asarray(levels, dtype=np.int64)
        inside = (array >= self.min_level) & (array <= self.max_level)
        return np.asarray(inside & ((array - self.min_level) % self.level_step == 0))

    @abstractmethod
    def codes(self, levels: npt.ArrayLike, zero_point: npt.ArrayLike = 0) -> IntArray:
        """Codes of exact levels. `FormatError` if a level has no code."""

    @abstractmethod
    def levels(self, codes: npt.ArrayLike, zero_point: npt.ArrayLike = 0) -> IntArray:
        """Exact levels of codes. `FormatError` if a number is no code of this format."""

    @abstractmethod
    def quantize(
        self,
        ratio: FloatArray,
        zero_point: IntArray,
        rounding: Rounding,
        overflow: Overflow,
        rng: np.random.Generator | None,
    ) -> IntArray:
        """Codes of real numbers given in units of one level (``x / (scale * lsb)``, no NaN)."""

    @abstractmethod
    def check(self, overflow: Overflow) -> None:
        """`FormatError` if this format has no such overflow behaviour."""

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
        return self.quantize(ratio, offset, rounding, overflow, rng)

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


def uniform_codes(
    ratio: FloatArray,
    zero_point: IntArray,
    interval: tuple[int, int],
    rounding: Rounding,
    overflow: Overflow,
    rng: np.random.Generator | None,
) -> IntArray:
    """``overflow(round(ratio) + zero_point)`` for the families whose codes are evenly spaced."""
    low, high = interval
    rounded = round_to_int(ratio, rounding, rng)
    if overflow is not Overflow.WRAP:
        if overflow is Overflow.SAT_SYM and low < 0:
            low = -high
        # Clipping first keeps huge values and infinities out of the int64 conversion.
        clipped = np.clip(rounded, low - zero_point, high - zero_point)
        return np.asarray(clipped.astype(np.int64) + zero_point)
    if not np.all(np.isfinite(rounded)):
        raise FormatError("cannot wrap an infinite value")
    span = high - low + 1
    residue = np.fmod(rounded, span).astype(np.int64)  # fmod is exact, int64 could overflow
    return np.asarray((residue + zero_point - low) % span + low)
