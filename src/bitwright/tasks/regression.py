# SPDX-License-Identifier: Apache-2.0
"""Regression: real values of an image."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from bitwright.base.errors import RecipeError
from bitwright.data import Dataset, DataSplits
from bitwright.data.labels import ValueLabels
from bitwright.models.output import Output
from bitwright.tasks.base import LossSettings, Task
from bitwright.tasks.metric import Metric

LOSSES = {"mse": functional.mse_loss, "mae": functional.l1_loss, "huber": functional.huber_loss}


def absolute_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """(N,): distance from the label, averaged over an image's values."""
    return (outputs - labels).abs().mean(dim=1)


def _moments(outputs: Tensor, labels: Tensor) -> Tensor:
    """(N, 3 K + 1): squared errors, labels and their squares, and one."""
    wide, truth = outputs.double(), labels.double()
    ones = torch.ones_like(wide[:, :1])
    return torch.cat([(wide - truth).square(), truth, truth.square(), ones], dim=1)


def determination(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """The share of the labels' variance that outputs explain, averaged over values; ``1 - sum of
    squared errors / sum of squared distances from the mean``.
    """
    count = sums[..., -1:]
    error, total, square = np.split(sums[..., :-1], 3, axis=-1)
    spread = square - total**2 / count
    left = np.divide(error, spread, out=np.ones_like(error), where=spread > 0)
    mean: NDArray[np.float64] = (1 - left).mean(axis=-1)
    return mean


class Regression(Task):
    """As many outputs as there are values.

    Args:
        loss: ``mse``, ``mae`` or ``huber`` (Huber 1964, quadratic up to an error of 1).
        unit: of the values, for people.
    """

    name = "regression"
    labels = ValueLabels()

    def __init__(self, loss: str = "mse", unit: str = "") -> None:
        if loss not in LOSSES:
            raise RecipeError(
                f"unknown loss {loss!r}", where="task.options", hint=f"one of {', '.join(LOSSES)}"
            )
        self._loss = LOSSES[loss]
        error = Metric("mean absolute error", absolute_error, unit, larger_is_better=False)
        self.metrics = (error, Metric("R2", _moments, "", of_sums=determination))

    def output(self, data: DataSplits) -> Output:
        names = ", ".join(data.classes)
        hint = f"the data set has {data.num_classes} values ({names}); take num_outputs"
        return Output((data.num_classes,), "values", hint)

    def loss(self, outputs: Tensor, labels: Tensor, how: LossSettings) -> Tensor:
        del how
        return self._loss(outputs, labels)

    def answer(self, outputs: Tensor) -> Tensor:
        return outputs

    def say(self, label: NDArray[Any], data: Dataset) -> str:
        unit = f" {self.metrics[0].unit}".rstrip()
        pairs = zip(data.classes, label.reshape(-1).tolist(), strict=True)
        return ", ".join(f"{name} {value:.3g}{unit}" for name, value in pairs)
