# SPDX-License-Identifier: Apache-2.0
"""Affine activation -> integer thresholds, exactly.

An activation of a frozen model is ``level = clip(round(acc * a + b), min, max)`` in two IEEE double
operations (for bipolar: +1 if ``acc * a + b >= 0`` else -1). Multiplication by a constant, addition
of one, rounding and clipping are all monotone in IEEE arithmetic, so the function is a staircase
of ``acc`` and its steps can be found by bisection over the very same function: no margin, no proof.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import GraphError
from bitwright.formats.base import Format, IntArray
from bitwright.formats.rounding import FloatArray, Rounding, round_to_int

EXACT_DOUBLE = 1 << 53


class Thresholds(NamedTuple):
    """``level = base + step * count(y >= t)`` with ``y = -acc`` where ``flip``, else ``acc``.

    Attributes:
        thresholds: (C, T) int64, ascending. A step that is never reached inside the interval of
            ``y`` has the threshold one above the interval's end; one always taken, its beginning.
        flip: (C,) bool, the channels with a falling staircase (``a < 0``).
        base: level below every threshold.
        step: level difference at each threshold (2 for bipolar, else 1).
    """

    thresholds: IntArray
    flip: npt.NDArray[np.bool_]
    base: int
    step: int


def affine_levels(
    acc: IntArray,
    a: FloatArray,
    b: FloatArray,
    number_format: Format,
    rounding: Rounding = Rounding.HALF_EVEN,
) -> IntArray:
    """The definition: levels of accumulators. ``a`` and ``b`` broadcast against ``acc``."""
    with np.errstate(over="ignore"):
        value = acc.astype(np.float64) * a
        value = value + b
    return even_levels(value, number_format, rounding)


def even_levels(value: FloatArray, number_format: Format, rounding: Rounding) -> IntArray:
    """Evenly spaced levels of reals in units of one; of a format of signs, the sign."""
    if number_format.sign_only:
        return np.where(value >= 0, 1, -1)
    rounded = round_to_int(value, rounding)
    clipped = np.clip(rounded, number_format.min_level, number_format.max_level)
    return np.asarray(clipped.astype(np.int64))


def affine_thresholds(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    lo: npt.ArrayLike,
    hi: npt.ArrayLike,
    number_format: Format,
    rounding: Rounding = Rounding.HALF_EVEN,
) -> Thresholds:
    """Thresholds equal to `affine_levels` for every accumulator in ``lo .. hi``.

    Args:
        a, b: (C,) float64, finite.
        lo, hi: interval of the accumulator, one for all or (C,); within +-2^53.
        number_format: format of the levels.
        rounding: the activation's rounding (not stochastic).

    Raises:
        GraphError: a coefficient is not finite, or the interval is empty or beyond 2^53.
    """
    gain, offset, low, high = _checked(a, b, lo, hi)
    # acc * a == (-acc) * (-a) exactly, so a falling staircase is a rising one of -acc.
    rising, shift = np.abs(gain)[:, None], offset[:, None]

    def levels(acc: IntArray) -> IntArray:
        return affine_levels(acc, rising, shift, number_format, rounding)

    return find_thresholds(levels, gain < 0, low, high, number_format)


def find_thresholds(
    levels: Callable[[IntArray], IntArray],
    flip: npt.NDArray[np.bool_],
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    number_format: Format,
) -> Thresholds:
    """For each channel and level the smallest integer that reaches it, by bisection.

    Args:
        levels: of integers (C, T), rising along each row; of a flipped channel with the sign of
            its accumulators changed.
        flip: (C,), which channels these are.
        low, high: interval of the accumulator, one for all or (C,).
        number_format: format of the levels.
    """
    start, end = np.where(flip, np.negative(high), low), np.where(flip, np.negative(low), high)
    step, base = number_format.level_step, number_format.min_level
    count = (number_format.max_level - base) // step
    wanted = base + step * np.arange(1, count + 1, dtype=np.int64)
    below = np.repeat((start - 1)[:, None], count, axis=1)
    above = np.repeat((end + 1)[:, None], count, axis=1)
    for _ in range(int((end - start + 2).max()).bit_length()):
        middle = (below + above) >> 1
        reached = levels(middle) >= wanted
        unsettled = above - below > 1
        above = np.where(unsettled & reached, middle, above)
        below = np.where(unsettled & ~reached, middle, below)
    return Thresholds(above, flip, base, step)


def _checked(
    a: npt.ArrayLike, b: npt.ArrayLike, lo: npt.ArrayLike, hi: npt.ArrayLike
) -> tuple[FloatArray, FloatArray, IntArray, IntArray]:
    gain = np.atleast_1d(np.asarray(a, dtype=np.float64))
    offset = np.broadcast_to(np.asarray(b, dtype=np.float64), gain.shape)
    low = np.broadcast_to(np.asarray(lo, dtype=np.int64), gain.shape)
    high = np.broadcast_to(np.asarray(hi, dtype=np.int64), gain.shape)
    if not (np.isfinite(gain).all() and np.isfinite(offset).all()):
        raise GraphError("an activation has a coefficient that is not finite")
    if (
        (low > high).any()
        or (np.abs(low) >= EXACT_DOUBLE).any()
        or (np.abs(high) >= EXACT_DOUBLE).any()
    ):
        raise GraphError(f"cannot find thresholds over the interval {low.min()} .. {high.max()}")
    return gain, offset, low, high
