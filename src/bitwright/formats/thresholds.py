# SPDX-License-Identifier: Apache-2.0
"""Affine activation -> integer thresholds, exactly.

An activation of a frozen model is ``level = clip(round(acc * a + b), min, max)`` in two IEEE double
operations (for bipolar: +1 if ``acc * a + b >= 0`` else -1). Multiplication by a constant, addition
of one, rounding and clipping are all monotone in IEEE arithmetic, so the function is a staircase
of ``acc`` and its steps can be found by bisection over the very same function: no margin, no proof.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import GraphError
from bitwright.formats.base import Format, IntArray
from bitwright.formats.rounding import FloatArray, Rounding, round_to_int

EXACT_DOUBLE = 1 << 53
EXACT_FLOAT = 1 << 24


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
    flip = gain < 0
    start = np.where(flip, -high, low)
    end = np.where(flip, -low, high)
    step = number_format.level_step
    base = number_format.min_level
    count = (number_format.max_level - base) // step
    wanted = base + step * np.arange(1, count + 1, dtype=np.int64)
    # acc * a == (-acc) * (-a) exactly, so a falling staircase is a rising one of -acc.
    rising, shift = np.abs(gain)[:, None], offset[:, None]
    below = np.repeat((start - 1)[:, None], count, axis=1)
    above = np.repeat((end + 1)[:, None], count, axis=1)
    for _ in range(int((end - start + 2).max()).bit_length()):
        middle = (below + above) >> 1
        reached = affine_levels(middle, rising, shift, number_format, rounding) >= wanted
        open_ = above - below > 1
        above = np.where(open_ & reached, middle, above)
        below = np.where(open_ & ~reached, middle, below)
    return Thresholds(above, flip, base, step)


class Float32Affine(NamedTuple):
    """A float32 stand-in for the float64 activation, and for which channels it is proven equal.

    With ``v = acc * a + b`` in two IEEE float32 operations, ``clip(rint(v))``, or for bipolar the
    sign of ``v``, equals `affine_levels` for every accumulator of the interval, where ``proven``.
    """

    a: npt.NDArray[np.float32]
    b: npt.NDArray[np.float32]
    proven: npt.NDArray[np.bool_]


def float32_affine(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    lo: npt.ArrayLike,
    hi: npt.ArrayLike,
    number_format: Format,
    rounding: Rounding = Rounding.HALF_EVEN,
) -> Float32Affine:
    """Float32 coefficients that give the same levels, with a proof per channel.

    ``a`` is rounded to float32; ``b`` is free to move inside the interval in which every threshold
    ``t`` still lies at or above its rounding boundary and ``t - 1`` below it, and its middle is
    taken. Then the float32 function is evaluated at every ``t`` and ``t - 1``: both functions are
    monotone staircases, so equality there is equality everywhere. The accumulator must be exact
    in float32 (below 2^24), and ``a`` no subnormal (which a processor may flush to zero).
    """
    gain, offset, low, high = _checked(a, b, lo, hi)
    found = affine_thresholds(gain, offset, low, high, number_format, rounding)
    start = np.where(found.flip, -high, low)[:, None]
    end = np.where(found.flip, -low, high)[:, None]
    steps = np.arange(found.thresholds.shape[1])
    bipolar = number_format.sign_only
    boundary = np.zeros((1, 1)) if bipolar else (found.base + steps + 0.5)[None, :]
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        gain32 = gain.astype(np.float32)
        slope = np.abs(gain32.astype(np.float64))[:, None]
        at, before = boundary - slope * found.thresholds, boundary - slope * (found.thresholds - 1)
        least = np.where(found.thresholds <= end, at, -np.inf).max(axis=1)
        most = np.where(found.thresholds > start, before, np.inf).min(axis=1)
        offset32 = _between(least, most, offset).astype(np.float32)
        sides = np.concatenate([found.thresholds, found.thresholds - 1, start, end], axis=1)
        sides = np.clip(sides, start, end)
        points = np.where(found.flip[:, None], -sides, sides)
        wanted = affine_levels(points, gain[:, None], offset[:, None], number_format, rounding)
        got = _float32_levels(points, gain32[:, None], offset32[:, None], number_format)
    ordinary = (gain32 == 0) | (np.abs(gain32) >= np.finfo(np.float32).tiny)
    exact = np.maximum(np.abs(low), np.abs(high)) < EXACT_FLOAT
    finite = np.isfinite(gain32) & np.isfinite(offset32)
    return Float32Affine(gain32, offset32, (wanted == got).all(axis=1) & ordinary & exact & finite)


def _float32_levels(
    acc: IntArray,
    a: npt.NDArray[np.float32],
    b: npt.NDArray[np.float32],
    number_format: Format,
) -> IntArray:
    value = acc.astype(np.float32) * a
    value = value + b
    if number_format.sign_only:
        return np.where(value >= 0, 1, -1)
    levels = np.clip(np.rint(value), number_format.min_level, number_format.max_level)
    # A NaN (an infinite product against an infinite offset) equals no level.
    return np.where(np.isnan(levels), number_format.max_level + 1, levels).astype(np.int64)


def _between(least: FloatArray, most: FloatArray, otherwise: FloatArray) -> FloatArray:
    """A value well inside ``(least, most)``; next to the finite end if the other is infinite."""
    result = otherwise.copy()
    both = np.isfinite(least) & np.isfinite(most)
    result[both] = (least[both] + most[both]) / 2
    only_least = np.isfinite(least) & ~np.isfinite(most)
    result[only_least] = np.maximum(otherwise, least + 1.0)[only_least]
    only_most = ~np.isfinite(least) & np.isfinite(most)
    result[only_most] = np.minimum(otherwise, most - 1.0)[only_most]
    return result


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
