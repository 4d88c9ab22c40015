# SPDX-License-Identifier: Apache-2.0
"""Thresholds equal the affine function everywhere; float32 only where it is proven."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import GraphError
from bitwright.formats import Rounding, parse_format
from bitwright.formats.thresholds import affine_levels, affine_thresholds

FORMATS = ["uint1", "uint2", "uint4", "int2", "int3n", "int4", "bipolar", "ternary", "uint6"]
MODES = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]
gains = st.one_of(
    st.sampled_from([0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 0.25, 1e-12, -1e-12, 1e6, -1e6]),
    st.floats(-4, 4, allow_subnormal=False),
)
offsets = st.one_of(st.sampled_from([0.0, 0.5, -0.5, 1.5, 7.5, 1e9]), st.floats(-40, 40))


def staircase(found, acc: np.ndarray) -> np.ndarray:
    """What hardware computes: (C, N) levels."""
    y = np.where(found.flip[:, None], -acc, acc)
    count = (y[:, :, None] >= found.thresholds[:, None, :]).sum(axis=2)
    return found.base + found.step * count


@given(
    st.lists(st.tuples(gains, offsets), min_size=1, max_size=5),
    st.sampled_from(FORMATS),
    st.sampled_from(MODES),
    st.integers(-300, 200),
    st.integers(0, 400),
)
def test_thresholds_equal_the_function_on_the_whole_interval(pairs, name, mode, lo, width) -> None:
    a, b = (np.array(column) for column in zip(*pairs, strict=True))
    number_format = parse_format(name)
    found = affine_thresholds(a, b, lo, lo + width, number_format, mode)
    acc = np.tile(np.arange(lo, lo + width + 1), (len(a), 1))
    expected = affine_levels(acc, a[:, None], b[:, None], number_format, mode)
    assert np.array_equal(staircase(found, acc), expected)
    assert (np.diff(found.thresholds, axis=1) >= 0).all()
    assert np.array_equal(found.flip, a < 0)


def test_ties_fall_where_half_even_puts_them() -> None:
    # acc / 2: levels 0.5 -> 0, 1.5 -> 2, 2.5 -> 2, 3.5 -> 4: thresholds 2, 3, 6, 7 ...
    found = affine_thresholds([0.5], [0.0], 0, 20, parse_format("uint2"))
    assert found.thresholds.tolist() == [[2, 3, 6]]
    found = affine_thresholds([0.5], [0.0], 0, 20, parse_format("uint2"), Rounding.HALF_UP)
    assert found.thresholds.tolist() == [[1, 3, 5]]


def test_interval_per_channel_and_constant_channels() -> None:
    found = affine_thresholds([0.0, 0.0], [-1.0, 2.0], [0, -5], [9, 5], parse_format("uint2"))
    assert found.thresholds.tolist() == [[10, 10, 10], [-5, -5, 6]]


def test_wide_intervals() -> None:
    number_format, reach = parse_format("uint4"), (1 << 52) - 1
    found = affine_thresholds([3e-15], [0.0], -reach, reach, number_format)
    assert (found.thresholds[0] <= reach).sum() == 14  # 2^52 * 3e-15 = 13.5
    for column, t in enumerate(found.thresholds[0, :14].tolist()):
        sides = affine_levels(np.array([t - 1, t]), 3e-15, 0.0, number_format)
        assert sides[0] <= column < sides[1]


@pytest.mark.parametrize(
    ("a", "b", "lo", "hi"),
    [(np.nan, 0, 0, 1), (1.0, np.inf, 0, 1), (1.0, 0.0, 2, 1), (1.0, 0.0, 0, 1 << 53)],
)
def test_impossible_parameters_are_refused(a, b, lo, hi) -> None:
    with pytest.raises(GraphError):
        affine_thresholds([a], [b], lo, hi, parse_format("uint2"))
