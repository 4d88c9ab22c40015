# SPDX-License-Identifier: Apache-2.0
"""Means, shares and differences with their errors, against scipy and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bitwright.base.figures import Measured
from bitwright.base.statistics import mcnemar, mean_difference, mean_of, share_difference, share_of
from bitwright.report.table import Column, Kind


def test_means_by_hand() -> None:
    """0.9 and 1.0: mean 0.95, deviation 0.0707, error 0.05."""
    found = mean_of((0.9, 1.0))
    assert (found.value, found.error) == pytest.approx((0.95, 0.05))
    values = np.random.default_rng(0).random(10)
    found = mean_of(values)
    assert (found.value, found.error) == pytest.approx((values.mean(), stats.sem(values)))
    assert mean_difference([1.0, 3.0, 4.0], [0.0, 1.0, 3.0]) == mean_of([1.0, 2.0, 1.0])
    with pytest.raises(ValueError, match="no values"):
        mean_of([])
    with pytest.raises(ValueError, match="shorter"):
        mean_difference([1.0], [])


def test_no_error_is_claimed_where_none_is_known() -> None:
    """One value, and two that happen to be equal, must not read as +- 0.00."""
    assert mean_of([0.5]) == Measured(0.5)
    assert mean_of([0.5, 0.5]) == Measured(0.5)
    assert mean_of([0.5, 0.5, 0.5]) == Measured(0.5, 0.0)
    column = Column("a", "a", Kind.SHARE)
    assert column.show(mean_of([0.5, 0.50001])) == "50.00 \u00b1 <0.01 %"
    assert column.show(mean_of([0.5, 0.5])) == "50.00 %"


@pytest.mark.parametrize("count", [1, 10, 360])
def test_the_error_of_a_share_is_never_zero(count: int) -> None:
    """Wilson: as far as the share at which this outcome is one standard deviation away."""
    for right in (np.ones(count, dtype=bool), np.zeros(count, dtype=bool)):
        found = share_of(right)
        assert found.value == right.mean()
        assert found.error == pytest.approx(0.5 / (count + 1))
    half = share_of(np.arange(10_000) % 2 == 0)
    assert half.error == pytest.approx(0.005, rel=1e-3)


def test_the_error_of_a_difference_comes_from_the_images_that_differ() -> None:
    right = np.ones(100, dtype=bool)
    worse = right.copy()
    worse[:4] = False
    found = share_difference(worse, right)
    assert found.value == pytest.approx(-0.04)
    # Agresti and Min: 4.5 images against 0.5, of 102.
    assert found.error == pytest.approx(np.sqrt(5 - 4.0**2 / 102) / 102)
    same = share_difference(right, right)
    assert same.value == 0.0 and 0.005 < same.error < 0.015


@pytest.mark.parametrize(("worse", "better"), [(0, 0), (1, 0), (2, 7), (7, 2), (5, 5), (30, 12)])
def test_mcnemar_is_the_binomial_test(worse: int, better: int) -> None:
    count = worse + better
    expected = stats.binomtest(better, count).pvalue if count else 1.0
    assert mcnemar(worse, better) == pytest.approx(expected)
