# SPDX-License-Identifier: Apache-2.0
"""Classification: one class an image."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitwright.data import Dataset, DataSplits
from bitwright.data.labels import CLASSES
from bitwright.models.output import Output, scores
from bitwright.tasks.base import LossSettings, Shown, Task
from bitwright.tasks.losses import label_loss
from bitwright.tasks.metric import Metric

_TOP = 5


def right(outputs: Tensor, labels: Tensor) -> Tensor:
    """(N,) bool: whose highest score, the first of equal ones, is the label's."""
    return outputs.argmax(dim=1) == labels


def among_five(outputs: Tensor, labels: Tensor) -> Tensor:
    """(N,): whose label is among the five highest scores; NaN with at most five classes, where it
    would say nothing.
    """
    if outputs.shape[1] <= _TOP:
        return torch.full((len(outputs),), float("nan"))
    best = outputs.topk(_TOP, dim=1).indices
    return (best == labels[:, None]).any(dim=1)


ACCURACY = Metric("accuracy", right)
TOP5 = Metric("top-5", among_five)


def count_confusion(found: Tensor, labels: Tensor, classes: int) -> NDArray[np.int64]:
    """(classes, classes): row = label, column = prediction; of what is not known nothing."""
    truth, predicted = labels.reshape(-1), found.reshape(-1)
    known = truth >= 0
    places = truth[known] * classes + predicted[known]
    counts = torch.bincount(places, minlength=classes * classes)
    table: NDArray[np.int64] = counts.view(classes, classes).cpu().numpy().astype(np.int64)
    return table


class Classification(Task):
    """A score for each class; the highest is the class."""

    name = "classification"
    labels = CLASSES
    metrics = (ACCURACY, TOP5)
    gives_scores = True
    ranked = True
    moves_labels = False

    def output(self, data: DataSplits) -> Output:
        return scores(data.num_classes)

    def loss(self, outputs: Tensor, labels: Tensor, how: LossSettings) -> Tensor:
        return label_loss(outputs, labels, how.kind, how.label_smoothing)

    def answer(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(dim=1)

    def say(self, label: NDArray[Any], data: Dataset) -> str:
        return data.classes[int(label)]

    def show(
        self, image: NDArray[Any], label: NDArray[Any], output: Tensor, data: Dataset
    ) -> Shown:
        shown = super().show(image, label, output, data)
        is_right = int(self.answer(output)[0]) == int(label)
        return Shown(shown.label, shown.prediction, shown.picture, is_right)

    def confusion(self, outputs: Tensor, labels: Tensor, classes: int) -> NDArray[np.int64] | None:
        return count_confusion(self.answer(outputs), labels, classes)


CLASSIFICATION = Classification()
"""The task of whoever says none."""
