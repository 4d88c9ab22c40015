# SPDX-License-Identifier: Apache-2.0
"""What families with unevenly spaced levels share: codes are patterns, rounding is to a grid."""

from __future__ import annotations

from abc import abstractmethod
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError
from bitwright.formats.base import Format, IntArray, checked_integers
from bitwright.formats.rounding import FloatArray, Rounding, Rules, drawn


class GridFormat(Format):
    """A format whose codes are the patterns ``0 .. 2^bits - 1`` and whose levels form a grid.

    It has no zero point and always saturates: wrapping round has no meaning between unequal steps.
    A family of at most 16 bits needs `name`, `bits`, `lsb`, `qonnx_name` and `float_levels` only:
    the rest follows from the list of its levels.
    """

    __slots__ = ()

    wraps: ClassVar[bool] = False

    @property
    def uniform(self) -> bool:
        return False

    @property
    def signed(self) -> bool:
        return self.min_level < 0

    @property
    def min_code(self) -> int:
        return 0

    @property
    def max_code(self) -> int:
        return (1 << self.bits) - 1

    @property
    def zero_is_representable(self) -> bool:
        return bool(self.contains(0))

    @property
    def min_level(self) -> int:
        return int(_listed(self)[0][0])

    @property
    def max_level(self) -> int:
        return int(_listed(self)[0][-1])

    def canonical_codes(self, levels: FloatArray) -> IntArray:
        """Codes of levels of this format, given as float64 (each is exact in it); of several codes
        that mean the same, the smallest.
        """
        known, codes = _listed(self)
        return np.asarray(codes[np.searchsorted(known, levels)])

    def quantize(self, ratio: FloatArray, zero_point: IntArray, rules: Rules) -> IntArray:
        self._offset(zero_point)
        known, codes = _listed(self)
        return np.asarray(codes[nearest_index(ratio, known, rules.rounding, rules.rng)])

    @abstractmethod
    def float_levels(self, codes: IntArray) -> FloatArray:
        """Levels of valid codes as float64, exact; NaN and infinities for special codes."""

    def patterns_of(self, levels: FloatArray) -> IntArray:
        return self.canonical_codes(levels)

    def levels_of(self, patterns: IntArray) -> FloatArray:
        return self.float_levels(patterns)

    def codes(self, levels: npt.ArrayLike, zero_point: npt.ArrayLike = 0) -> IntArray:
        self._offset(zero_point)
        array = np.asarray(levels)
        if not np.array_equal(array.astype(np.int64), array):
            raise FormatError(f"a {self.name} level must be an integer")
        known = self.contains(array)
        if not known.all():
            raise FormatError(f"{array[~known].flat[0]} is no {self.name} level")
        return self.canonical_codes(array.astype(np.float64))

    def levels(self, codes: npt.ArrayLike, zero_point: npt.ArrayLike = 0) -> IntArray:
        self._offset(zero_point)
        if not self.exact_levels:
            raise FormatError(f"the levels of {self.name} do not fit 62 bits", hint="use decode")
        array = checked_integers(codes, self.min_code, self.max_code, f"{self.name} code")
        found = self.float_levels(array)
        if not np.isfinite(found).all():
            raise FormatError(f"a {self.name} code for infinity or NaN has no level")
        return found.astype(np.int64)

    def decode(
        self, codes: npt.ArrayLike, scale: npt.ArrayLike = 1.0, zero_point: npt.ArrayLike = 0
    ) -> FloatArray:
        """Reals of codes; those of special codes are infinities and NaN."""
        self._offset(zero_point)
        array = checked_integers(codes, self.min_code, self.max_code, f"{self.name} code")
        unit = np.asarray(scale, dtype=np.float64) * self.lsb
        return np.asarray(unit * self.float_levels(array), dtype=np.float64)

    def grid(self) -> IntArray:
        if self.bits > 16 or not self.exact_levels:
            return super().grid()  # says why not
        found = self.float_levels(np.arange(1 << self.bits, dtype=np.int64))
        return np.unique(found[np.isfinite(found)].astype(np.int64))

    def contains(self, levels: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        return np.isin(np.asarray(levels, dtype=np.int64), self.grid())


@lru_cache(maxsize=64)
def _listed(number_format: GridFormat) -> tuple[FloatArray, IntArray]:
    """All finite levels, ascending, and the smallest code of each."""
    found = number_format.float_levels(np.arange(1 << number_format.bits, dtype=np.int64))
    finite = np.flatnonzero(np.isfinite(found))
    levels, first = np.unique(found[finite] + 0.0, return_index=True)
    return levels, finite[first]


def nearest_index(
    ratio: FloatArray, grid: FloatArray, rounding: Rounding, rng: np.random.Generator | None
) -> IntArray:
    """Index of the grid value that each real is rounded to; beyond the ends, that of the end.

    Ties of ``half_even`` go to the even index. Decisions are exact: a real is compared with the
    midpoint through its double.

    Args:
        ratio: reals, any shape, no NaN.
        grid: ascending distinct values; neighbours add up exactly in float64.
        rng: for ``stochastic``; the upper neighbour is taken with probability of the distance.
    """
    clipped = np.clip(ratio, grid[0], grid[-1])
    low = np.clip(np.searchsorted(grid, clipped, side="right") - 1, 0, max(len(grid) - 2, 0))
    if len(grid) == 1:
        return np.zeros(clipped.shape, dtype=np.int64)
    below, above = grid[low], grid[low + 1]
    if rounding is Rounding.STOCHASTIC:
        up = drawn(clipped.shape, rng) < (clipped - below) / (above - below)
    else:
        up = goes_up(np, clipped, below, above, low, rounding)
    return np.asarray(low + up, dtype=np.int64)


def goes_up(xp: Any, x: Any, below: Any, above: Any, low: Any, rounding: Rounding) -> Any:
    """Which values go to the upper of their neighbours; any rule but ``stochastic``.

    Args:
        xp: numpy or torch, whose arrays the others are.
        low: index of the neighbour ``below``.
    """
    around_zero, every, none = (below < 0) & (above > 0), low >= 0, low < 0
    if rounding in (Rounding.FLOOR, Rounding.CEIL, Rounding.UP, Rounding.DOWN):
        # Where an interval holds zero, the side is that of the value.
        side = xp.where(around_zero, x > 0, above > 0)
        directed = {Rounding.FLOOR: none, Rounding.CEIL: every, Rounding.UP: side}
        return ((x == above) | directed.get(rounding, xp.logical_not(side))) & (x != below)
    side = xp.where(around_zero, x >= 0, above > 0)
    ties = {
        Rounding.HALF_EVEN: low % 2 == 1,
        Rounding.HALF_AWAY: side,
        Rounding.HALF_ZERO: xp.logical_not(side),
        Rounding.HALF_UP: every,
        Rounding.HALF_DOWN: none,
    }[rounding]
    double, middle = 2 * x, below + above
    return (double > middle) | ((double == middle) & ties)
