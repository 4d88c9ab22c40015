# SPDX-License-Identifier: Apache-2.0
"""Exact intervals: of channels, and of dot products with all that lies on the way to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import ArrayLike

from bitwright.base.errors import GraphError
from bitwright.ir.node import IntArray

_INT64_SAFE = float(1 << 62)
_STRIP = 1 << 22  # weights that are looked at at a time


@dataclass(frozen=True, eq=False)
class ChannelRange:
    """Smallest and largest level of each channel: two integer arrays of shape (channels,)."""

    lo: IntArray
    hi: IntArray

    @property
    def hull(self) -> tuple[int, int]:
        """The interval that holds every channel."""
        return int(self.lo.min()), int(self.hi.max())

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ChannelRange)
            and np.array_equal(self.lo, other.lo)
            and np.array_equal(self.hi, other.hi)
        )

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True)
class DotInterval:
    """Intervals of a dot product, per row of the weights.

    Attributes:
        final: the finished sum, bias included.
        partial: every value the sum can have on the way, whatever the order of the terms and
            whether the bias comes first, last or is added elsewhere.
    """

    final: ChannelRange
    partial: ChannelRange


def dot_interval(
    weight: IntArray, lo: ArrayLike, hi: ArrayLike, bias: IntArray | None = None
) -> DotInterval:
    """Exact intervals of ``weight @ x + bias`` over all x in [lo, hi], for each row.

    A weight above zero takes its largest product at x = hi, one below zero at x = lo, so both ends
    of the finished sum are attained.

    A partial sum is the sum over some subset S of the terms ``t_i = w_i x_i``, with or without the
    bias. Each term lies in ``[l_i, h_i]``; the largest sum over all subsets takes exactly the terms
    with ``h_i > 0``, so it is ``sum max(0, h_i) + max(0, bias)``, and the smallest is
    ``sum min(0, l_i) + min(0, bias)``. Both are attained by some subset and some order, so the
    bound is exact for "any order". If every input interval contains 0 (or is bipolar, [-1, 1]) then
    ``l_i <= 0 <= h_i`` and this is the interval of the finished sum, only widened to hold 0 and
    the sum without bias; if it does not (inputs in [3, 7], say), a partial sum can leave the
    interval of the finished sum: 3 terms of +7 before 3 terms of -7. Taps that fall on zero padding
    are terms left out, which the subsets cover; for the finished sum of a padded convolution, let
    [lo, hi] hold 0 or leave those taps out of ``weight``.

    Args:
        weight: ``(rows, ...)`` levels, in any layout.
        lo, hi: the inputs' interval: one for all, or arrays that broadcast to the last axes of
            ``weight`` (``(C,)`` for ``(O, KH, KW, C)``, ``(C, 1, 1)`` for ``(O, C, KH, KW)``), or
            to all of them where each row has inputs of its own (``(O, 1, 1, C)``).
        bias: ``(rows,)`` levels.

    Returns:
        Arrays of int64; of Python's integers (dtype object) where sums reach 2^62.

    Raises:
        GraphError: they reach 2^62 in a row of more than 4 million weights.
    """
    low, high = np.asarray(lo), np.asarray(hi)
    rows, per_column = weight.shape[0], max(low.ndim, high.ndim)
    own = per_column == weight.ndim
    strip = max(1, _STRIP // max(1, prod(weight.shape[1:])))
    if rows > strip and not own:  # the temporary arrays of a large layer are many times its size
        return _stacked(
            [
                dot_interval(
                    weight[at : at + strip], lo, hi, None if bias is None else bias[at : at + strip]
                )
                for at in range(0, rows, strip)
            ]
        )
    columns = weight.shape[weight.ndim - per_column :]
    flat = (rows, -1) if own else (-1,)
    low, high = (np.broadcast_to(end, columns).reshape(flat) for end in (low, high))
    shift = np.zeros(rows, np.int64) if bias is None else bias
    exact = np.int64 if _bound(weight, low, high, shift) < _INT64_SAFE else object
    if exact is object and weight.size > _STRIP:
        said = f"sums of {weight.size // rows} products may need more than 62 bits"
        raise GraphError(said, hint="use fewer bits or a smaller layer")
    low, high, shift = low.astype(exact), high.astype(exact), shift.astype(exact)
    same_input = tuple(range(1, weight.ndim - per_column))
    positive, negative = (
        part.sum(axis=same_input, dtype=exact).reshape(rows, -1)
        for part in (np.maximum(weight, 0), np.minimum(weight, 0))
    )
    above, below = np.maximum(high, 0), np.minimum(low, 0)

    def total(at_positive: IntArray, at_negative: IntArray) -> IntArray:
        if own:
            return np.asarray((positive * at_positive + negative * at_negative).sum(axis=1))
        return np.asarray(positive @ at_positive + negative @ at_negative)

    return DotInterval(
        ChannelRange(total(low, high) + shift, total(high, low) + shift),
        ChannelRange(
            total(below, above) + np.minimum(shift, 0), total(above, below) + np.maximum(shift, 0)
        ),
    )


def _stacked(parts: Sequence[DotInterval]) -> DotInterval:
    final, partial = (
        ChannelRange(
            np.concatenate([getattr(part, name).lo for part in parts]),
            np.concatenate([getattr(part, name).hi for part in parts]),
        )
        for name in ("final", "partial")
    )
    return DotInterval(final, partial)


def _bound(weight: IntArray, low: IntArray, high: IntArray, shift: IntArray) -> float:
    """At least every sum of magnitudes, but for float64's rounding (2^62 leaves room for that)."""
    if not weight.size:
        return 0.0
    largest = np.maximum(np.abs(low.astype(np.float64)), np.abs(high.astype(np.float64))).max(
        axis=-1
    )
    sums = np.abs(weight.astype(np.float64)).reshape(weight.shape[0], -1).sum(axis=1)
    return float((sums * largest + np.abs(shift.astype(np.float64))).max())
