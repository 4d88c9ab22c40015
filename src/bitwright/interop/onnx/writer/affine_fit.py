# SPDX-License-Identifier: Apache-2.0
"""Thresholds -> multiply, add, round: the line that keeps the largest distance to every step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bitwright.ir import IntArray

Floats32 = NDArray[np.float32]
_ITERATIONS = 160


class Line(NamedTuple):
    """``level = clip(rint(y * gain + offset))`` in float32; each (rows,)."""

    gain: Floats32
    offset: Floats32


def fit_line(thresholds: IntArray, lo: IntArray, hi: IntArray, base: int) -> Line | None:
    """A line through the steps ``base + count(y >= t)``, or None if there is none.

    Steps of a quantized affine function lie within half a level of a line. Step k must be at or
    above ``base + k + 1/2`` at its threshold and below it one earlier; for a given slope this
    leaves an interval of offsets, whose width is concave in the slope: ternary search. What is
    found is then evaluated in float32 on both sides of every step, so a line is never wrong.

    Args:
        thresholds: (rows, T), ascending, within ``lo .. hi + 1``.
        lo, hi: (rows,) the interval of y.
    """
    count = thresholds.shape[1]
    rises = base + np.arange(count) + 0.5
    low, high = lo[:, None], hi[:, None]
    reached, before = thresholds <= high, thresholds > low

    def room(slope: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        at = rises - slope[:, None] * thresholds
        earlier = rises - slope[:, None] * (thresholds - 1)
        least = np.where(reached, at, -np.inf).max(axis=1)
        most = np.where(before, earlier, np.inf).min(axis=1)
        return np.maximum(least, -1e30), np.minimum(most, 1e30)

    left, right = np.zeros(len(thresholds)), np.full(len(thresholds), count + 1.0)
    for _ in range(_ITERATIONS):
        first, second = left + (right - left) / 3, right - (right - left) / 3
        ends = [room(s) for s in (first, second)]
        better = ends[0][1] - ends[0][0] < ends[1][1] - ends[1][0]
        left, right = np.where(better, first, left), np.where(better, right, second)
    slope = (left + right) / 2
    least, most = room(slope)
    if not (most > least).all():
        return None
    # One side may be open: stay next to the other.
    least = np.where(least <= -1e30, most - 1, least)
    most = np.where(most >= 1e30, least + 1, most)
    line = Line(slope.astype(np.float32), ((least + most) / 2).astype(np.float32))
    return line if _holds(line, thresholds, lo, hi, base) else None


def _holds(line: Line, thresholds: IntArray, lo: IntArray, hi: IntArray, base: int) -> bool:
    low, high = lo[:, None], hi[:, None]
    points = np.concatenate([thresholds, thresholds - 1, low, high], axis=1)
    points = np.clip(points, low, high)
    wanted = base + (points[:, :, None] >= thresholds[:, None, :]).sum(axis=2)
    value = points.astype(np.float32) * line.gain[:, None]
    value = value + line.offset[:, None]
    found = np.clip(np.rint(value), base, base + thresholds.shape[1])
    return bool((found == wanted).all())
