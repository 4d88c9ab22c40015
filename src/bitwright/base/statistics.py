# SPDX-License-Identifier: Apache-2.0
"""Means, shares and differences with their standard errors. Every table takes them from here."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bitwright.base.figures import Measured


def mean_of(values: ArrayLike) -> Measured:
    """The mean of n values, of seeds or folds, and its standard error ``s / sqrt(n)``.

    ``s`` is the deviation with n - 1. There is no error of one value, nor of two that happen to be
    equal: 0 would say that a third one would be the same.

    Raises:
        ValueError: no value.
    """
    found = np.asarray(values, dtype=np.float64).reshape(-1)
    if not len(found):
        raise ValueError("the mean of no values")
    known = len(found) > 2 or (len(found) == 2 and found[0] != found[1])
    error = float(found.std(ddof=1)) / sqrt(len(found)) if known else None
    return Measured(float(found.mean()), error)


def mean_difference(values: Sequence[float], reference: Sequence[float]) -> Measured:
    """`mean_of` the differences of values that belong together, as of the same seeds or folds.

    Raises:
        ValueError: not as many of both, or none.
    """
    return mean_of([a - b for a, b in zip(values, reference, strict=True)])


def share_of(right: NDArray[np.bool_]) -> Measured:
    """The share of what is true, such as images that were classified correctly.

    Its standard error is half the width of Wilson's score interval (Wilson 1927) at one standard
    deviation, ``sqrt(p (1 - p) / n + 1 / (4 n^2)) / (1 + 1 / n)``: that of a proportion in the
    middle, but never 0, whether all of a few images are right or none.
    """
    share, count = float(right.mean()), len(right)
    error = sqrt(share * (1 - share) / count + 1 / (4 * count**2)) / (1 + 1 / count)
    return Measured(share, error)


def share_difference(right: NDArray[np.bool_], reference: NDArray[np.bool_]) -> Measured:
    """Difference of two shares of the same images, with the standard error of paired proportions.

    The error comes from the images that only one of the two classified correctly: far less than
    from two independent samples. Half an image is added to each of the four ways in which two
    networks can classify an image (Agresti and Min 2005), so that two networks that agree on every
    image seen are not taken to be the same.
    """
    won = int((right & ~reference).sum()) + 0.5
    lost = int((reference & ~right).sum()) + 0.5
    count = len(right) + 2.0
    error = sqrt(won + lost - (won - lost) ** 2 / count) / count
    return Measured(float(right.mean()) - float(reference.mean()), error)


def mcnemar(worse: int, better: int) -> float:
    """p-value of McNemar's exact test (McNemar 1947; binomial), two-sided.

    Args:
        worse, better: how many images only the reference, only the variant classified correctly.

    Returns:
        The chance of a difference at least this large if both were equally good.
    """
    count = worse + better
    if not count:
        return 1.0
    tail: float = sum(comb(count, i) for i in range(min(worse, better) + 1)) / 2**count
    return min(1.0, 2 * tail)
