# SPDX-License-Identifier: Apache-2.0
"""How good a network is, with the error of that figure, and how much was lost against another."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bitwright.report.table import Measured


@dataclass(frozen=True, eq=False)
class Outcome:
    """The figure of one network.

    Attributes:
        accuracy: a share with its standard error: of a classifier that of a proportion
            (`share_of`), of a verification test that of the mean of its folds, as LFW defines it.
        right: (N,) which images or pairs were classified correctly.
        folds: (F,) accuracy of each fold of a verification test; empty for a classifier.
        kind: in words.
    """

    accuracy: Measured
    right: NDArray[np.bool_] = field(repr=False)
    folds: NDArray[np.float64] = field(repr=False)
    kind: str = "accuracy"

    def loss_against(self, reference: Outcome) -> Measured:
        """Accuracy minus the reference's, with the standard error of the paired difference.

        Both saw the same images, so the error comes from those that only one classified correctly
        (or from the differences of the folds): far less than from two independent samples. Half an
        image is added to each of the four ways in which two networks can classify an image (Agresti
        and Min 2005), so that two networks that agree on every image seen are not taken to be the
        same.
        """
        difference = self.accuracy.value - reference.accuracy.value
        if len(self.folds):
            apart = self.folds - reference.folds
            return Measured(difference, float(apart.std(ddof=1) / sqrt(len(apart))))
        won = int((self.right & ~reference.right).sum()) + 0.5
        lost = int((reference.right & ~self.right).sum()) + 0.5
        count = len(self.right) + 2.0
        return Measured(difference, sqrt(won + lost - (won - lost) ** 2 / count) / count)


def share_of(right: NDArray[np.bool_]) -> Measured:
    """The share of what was classified correctly.

    Its standard error is half the width of Wilson's score interval (Wilson 1927) at one standard
    deviation, ``sqrt(p (1 - p) / n + 1 / (4 n^2)) / (1 + 1 / n)``: that of a proportion in the
    middle, but never 0, whether all of a few images are right or none.
    """
    share, count = float(right.mean()), len(right)
    error = sqrt(share * (1 - share) / count + 1 / (4 * count**2)) / (1 + 1 / count)
    return Measured(share, error)


class Benchmark(Protocol):
    """How good a network is, for data whose figure is not the accuracy of a classifier."""

    @property
    def metric(self) -> str:
        """Name of the metric that searches maximise on such data."""
        ...

    def measure(self, model: Any) -> Outcome:
        """The figure of a model (`torch.nn.Module`), on images that no choice was made on."""
        ...

    def digest(self) -> str:
        """Of data, settings and code that the figure depends on."""
        ...
