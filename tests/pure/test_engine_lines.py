# SPDX-License-Identifier: Apache-2.0
"""Thresholds as a multiplication: what counts them on every sum in a range, or nothing at all."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.engine.compiler.lines import line_of

LIMITS = ((1 << 17) - 1, (1 << 44) - 1, 47)


def counted(thresholds: np.ndarray, flip: np.ndarray, sums: np.ndarray) -> Any:
    compared = np.where(flip[:, np.newaxis] == 1, -sums, sums)
    return (compared[:, :, np.newaxis] >= thresholds[:, np.newaxis, :]).sum(axis=2)


def check(thresholds: np.ndarray, flip: np.ndarray, low: int, high: int) -> bool:
    """Whether there is a line; if there is, it gives the counts."""
    line = line_of(thresholds, flip, low, high, LIMITS)
    if line is None:
        return False
    sums = np.arange(low, high + 1)[np.newaxis].repeat(len(thresholds), axis=0)
    value = sums * line.multiplier[:, np.newaxis] + line.offset[:, np.newaxis] >> line.shift
    got = np.clip(value, line.low, line.high)
    assert np.array_equal(got, counted(thresholds, flip, sums))
    assert np.abs(line.multiplier).max() <= LIMITS[0] and np.abs(line.offset).max() <= LIMITS[1]
    return True


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_thresholds(data: st.DataObject) -> None:
    """Few are a line; those that are found to be one give every count, on both ends too."""
    low = data.draw(st.integers(-90, 20))
    high = data.draw(st.integers(low, 90))
    channels, count = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    one = st.lists(st.integers(-130, 130), min_size=count, max_size=count).map(sorted)
    rows = data.draw(st.lists(one, min_size=channels, max_size=channels))
    flip = data.draw(st.lists(st.integers(0, 1), min_size=channels, max_size=channels))
    check(np.array(rows), np.array(flip), low, high)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_rounded_line_is_found(data: st.DataObject) -> None:
    """Thresholds of ``floor((m x + b) / 2^s)``, of as many bits as the engine has or fewer."""
    shift, count = data.draw(st.integers(2, 14)), data.draw(st.sampled_from([1, 3, 15, 40]))
    multiplier = data.draw(st.integers(1, 1 << shift))
    offset = data.draw(st.integers(-(count << shift), count << shift))
    levels = np.arange(1, count + 1)
    thresholds = -((offset - (levels << shift)) // multiplier)[np.newaxis]
    low = data.draw(st.integers(-2000, 0))
    high = low + data.draw(st.integers(0, 4000))
    for flip in (0, 1):
        assert check(thresholds, np.array([flip]), low, high)


def test_a_bend_is_none() -> None:
    assert not check(np.array([[0, 1, 2, 50, 100]]), np.array([0]), -200, 200)
    # Out of reach of the sums, the bend does not matter.
    assert check(np.array([[0, 1, 2, 50, 100]]), np.array([0]), -200, 40)
