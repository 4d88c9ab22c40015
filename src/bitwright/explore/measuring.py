# SPDX-License-Identifier: Apache-2.0
"""How good a network is, with the error of that figure, and how much was lost against another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bitwright.base.figures import Measured
from bitwright.base.statistics import mean_difference, share_difference


@dataclass(frozen=True, eq=False)
class Outcome:
    """The figure of one network.

    Attributes:
        accuracy: the value of the task's metric with its standard error: of a classifier that of a
            proportion (`share_of`), of a verification test that of the mean of its folds, as LFW
            defines it.
        right: (N,) which images or pairs were classified correctly; of other metrics than such a
            share the value of each image.
        folds: (F,) accuracy of each fold of a verification test; empty else.
        kind: in words.
        unit: of the value; see `tasks.Metric`.
    """

    accuracy: Measured
    right: NDArray[np.bool_] | NDArray[np.float64] = field(repr=False)
    folds: NDArray[np.float64] = field(repr=False)
    kind: str = "accuracy"
    unit: str = "share"

    def loss_against(self, reference: Outcome) -> Measured:
        """The value minus the reference's, with the standard error of the paired difference.

        Of shares of images that of `share_difference`, else that of `mean_difference`, over folds
        or over images.
        """
        if len(self.folds):
            return mean_difference(self.folds.tolist(), reference.folds.tolist())
        if self.right.dtype == reference.right.dtype == np.bool_:
            return share_difference(self.right.astype(bool), reference.right.astype(bool))
        return mean_difference(self.right.tolist(), reference.right.tolist())


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
