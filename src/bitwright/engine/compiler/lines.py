# SPDX-License-Identifier: Apache-2.0
"""Thresholds that are a rounded line, as multiplier, offset and shift.

Counting thresholds ``t_1 <= .. <= t_T`` is ``clip(floor((m*x + b) / S), 0, T)``, S = 2^shift, for
all sums x in ``low .. high`` exactly if for each i (m >= 0)

    m*x + b >= i*S   at the smallest sum that counts,  x = max(t_i, low), unless t_i > high
    m*x + b <  i*S   at the largest that does not, x = min(t_i, high + 1) - 1, unless t_i <= low

Any two of these leave b room exactly if m lies in an interval that follows from them, so an m that
lies in all intervals has its b. What a larger shift allows a smaller one need not, never the other
way round: the largest one whose multipliers fit decides. A line takes an eighth of the thresholds'
parameters, and two post lanes of a pixel work on it.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from bitwright.ir import IntArray

_NONE = 1 << 60  # a bound that is none
_PAIRS = 1 << 20  # of thresholds, compared at a time
_MOST_PAIRS = 1 << 26  # more would take a minute
_MOST_KNOWN = 1024
#: What was found before, by a hash of what it depends on.
_KNOWN: dict[bytes, Line | None] = {}


class Line(NamedTuple):
    """``clip(floor((multiplier * x + offset) / 2^shift), low, high)``, of each channel."""

    multiplier: IntArray
    offset: IntArray
    shift: int
    low: int
    high: int


def line_of(
    thresholds: IntArray, flip: IntArray, low: int, high: int, limits: tuple[int, int, int]
) -> Line | None:
    """The line of each channel's thresholds; None if one channel's has none. Looked for once: nodes
    may share their thresholds, and who asks what an engine takes asks for the same node often.

    Args:
        thresholds: (channels, T), ascending in each row.
        flip: (channels,), 1 where -x is what is compared.
        low, high: of the sums x.
        limits: largest multiplier, largest offset, largest shift.
    """
    # One row a kind of channel: that of a tensor is given for each of its channels.
    table = np.column_stack([thresholds, flip]).astype(np.int64)
    rows, kinds = np.unique(table, axis=0, return_inverse=True)
    asked = f"{rows.shape} {low} {high} {limits} ".encode()
    key = sha256(asked + rows.tobytes()).digest()
    if key not in _KNOWN:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[key] = _line_of(rows[:, :-1], rows[:, -1], low, high, limits)
    line, kinds = _KNOWN[key], kinds.reshape(-1)
    if line is None:
        return None
    return line._replace(multiplier=line.multiplier[kinds], offset=line.offset[kinds])


def _line_of(
    thresholds: IntArray, flip: IntArray, low: int, high: int, limits: tuple[int, int, int]
) -> Line | None:
    """Of rows that differ."""
    flipped = flip == 1
    lows = np.where(flipped, -high, low)
    highs = np.where(flipped, -low, high)
    # What all sums of all channels reach, or none, is left to the clipping.
    below = int((thresholds <= lows[:, np.newaxis]).all(axis=0).sum())
    above = int((thresholds <= highs[:, np.newaxis]).any(axis=0).sum())
    thresholds = thresholds[:, below:above]
    pairs = max(1, thresholds.shape[1]) ** 2
    if len(thresholds) * pairs > _MOST_PAIRS:
        return None
    starts = range(0, len(thresholds), max(1, _PAIRS // pairs))
    ends = (*starts[1:], len(thresholds))

    def rows() -> Iterator[_Rows]:
        for a, b in zip(starts, ends, strict=True):
            yield _Rows(thresholds[a:b], lows[a:b], highs[a:b])

    most, most_offset, most_shift = limits
    steepest = max(part.slope() for part in rows())
    shift = most_shift if steepest <= 0 else min(most_shift, int(np.log2(most / steepest)) + 1)
    for each in range(max(shift, 0), -1, -1):
        if any(part.least(each).max() > most for part in rows()):
            continue
        lines = [part.line(each, most) for part in rows()]
        found = [line for line in lines if line is not None]
        if len(found) < len(lines):
            return None
        multiplier, offset = (np.concatenate(parts) for parts in zip(*found, strict=True))
        offset = offset + (below << each)
        if np.abs(offset).max() <= most_offset:
            multiplier = np.where(flipped, -multiplier, multiplier)
            return Line(multiplier, offset, each, below, above)
    return None


class _Rows:
    """Some channels: what bounds their lines."""

    def __init__(self, thresholds: IntArray, lows: IntArray, highs: IntArray) -> None:
        low, high = lows[:, np.newaxis], highs[:, np.newaxis]
        self.reached, self.reaches = np.maximum(thresholds, low), thresholds <= high
        self.missed, self.misses = np.minimum(thresholds, high + 1) - 1, thresholds > low
        self.count = np.arange(1, thresholds.shape[1] + 1)
        # Of what is reached, the second axis, and what is missed, the third.
        self.distance = self.reached[:, :, np.newaxis] - self.missed[:, np.newaxis, :]
        self.levels = self.count[:, np.newaxis] - self.count
        self.both = self.reaches[:, :, np.newaxis] & self.misses[:, np.newaxis, :]

    def slope(self) -> float:
        """The least slope of the steepest channel's line, about."""
        rises = self.both & (self.distance > 0)
        slopes = np.where(rises, self.levels / np.maximum(self.distance, 1), 0.0)
        return float(slopes.max(initial=0.0))

    def least(self, shift: int) -> IntArray:
        """The smallest multiplier: ``m * distance >= levels * S + 1`` of what lies farther up."""
        needed = (self.levels << shift) + 1
        rises = self.both & (self.distance > 0)
        bounds = np.where(rises, -(-needed // np.maximum(self.distance, 1)), 0)
        return np.asarray(bounds.max(axis=(1, 2), initial=0))

    def line(self, shift: int, most: int) -> tuple[IntArray, IntArray] | None:
        """Multiplier and offset of each channel; None if one has none."""
        least, needed = self.least(shift), (self.levels << shift) + 1
        falls = self.both & (self.distance < 0)
        bounds = np.where(falls, needed // np.minimum(self.distance, -1), _NONE)
        largest = bounds.min(axis=(1, 2), initial=_NONE)
        if (least > largest).any() or (self.both & (self.distance == 0) & (needed > 0)).any():
            return None
        middle = (np.minimum(largest, most) - least) // 2
        m = least + np.where(largest < _NONE, middle, 0)
        steps = self.count << shift
        up = np.where(self.reaches, steps - m[:, np.newaxis] * self.reached, -_NONE).max(
            axis=1, initial=-_NONE
        )
        down = np.where(self.misses, steps - 1 - m[:, np.newaxis] * self.missed, _NONE).min(
            axis=1, initial=_NONE
        )
        return m, np.where(down < _NONE, down, np.maximum(up, 0))
