# SPDX-License-Identifier: Apache-2.0
"""Dense maps: the class of each pixel, as in segmentation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitwright.base.errors import RecipeError
from bitwright.data import Dataset, DataSplits
from bitwright.data.labels import MapLabels
from bitwright.models.output import Output
from bitwright.tasks.base import LossSettings, Shown, Task
from bitwright.tasks.classification import count_confusion
from bitwright.tasks.drawing import with_maps
from bitwright.tasks.losses import label_loss
from bitwright.tasks.metric import Metric
from bitwright.tasks.moves import move_maps


def overlaps(outputs: Tensor, labels: Tensor) -> Tensor:
    """(N, 2 C): of each class the pixels that both label and output give it, and that either does;
    pixels without a label do not count.
    """
    classes, known = outputs.shape[1], labels >= 0
    found = outputs.argmax(dim=1)
    both, either = [], []
    for number in range(classes):
        is_true, is_found = (labels == number) & known, (found == number) & known
        both.append((is_true & is_found).flatten(1).sum(dim=1))
        either.append((is_true | is_found).flatten(1).sum(dim=1))
    return torch.stack(both + either, dim=1)


def mean_overlap(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union, averaged over the classes that are there (..., 2 C) -> (...)."""
    both, either = np.split(sums, 2, axis=-1)
    share = np.divide(both, either, out=np.zeros_like(both), where=either > 0)
    there = (either > 0).sum(axis=-1)
    mean: NDArray[np.float64] = share.sum(axis=-1) / np.maximum(there, 1)
    return mean


def right_pixels(outputs: Tensor, labels: Tensor) -> Tensor:
    """(N,): share of the pixels with a label whose class is right; NaN without any."""
    known = labels >= 0
    right = ((outputs.argmax(dim=1) == labels) & known).flatten(1).sum(dim=1)
    return right / known.flatten(1).sum(dim=1)


MEAN_IOU = Metric("mean IoU", overlaps, of_sums=mean_overlap)
PIXELS = Metric("pixel accuracy", right_pixels)


class DenseMap(Task):
    """A score for each class at each pixel.

    Args:
        stride: pixels of the image by pixel of the map, along each axis.
    """

    name = "dense_map"
    metrics = (MEAN_IOU, PIXELS)
    gives_scores = True
    legend = "Each image, with its true map, and with the map that was found."

    def __init__(self, stride: int = 1) -> None:
        if type(stride) is not int or stride < 1:
            raise RecipeError(f"stride is {stride!r}", where="task.options", hint="1, 2, 4, ..")
        self.labels, self._stride = MapLabels(stride), stride

    def output(self, data: DataSplits) -> Output:
        height, width = (side // self._stride for side in data.image_shape[:2])
        hint = (
            f"the data set has {data.num_classes} classes, and maps are {height} x {width}: take "
            "num_classes as an argument; task.options.stride makes maps smaller"
        )
        return Output((data.num_classes, height, width), "a score a class and pixel", hint)

    def loss(self, outputs: Tensor, labels: Tensor, how: LossSettings) -> Tensor:
        known = labels >= 0
        return label_loss(
            outputs.movedim(1, -1)[known], labels[known], how.kind, how.label_smoothing
        )

    def moved(self, labels: Tensor, moves: Tensor) -> Tensor:
        return move_maps(labels, moves)

    def answer(self, outputs: Tensor) -> Tensor:
        return outputs.argmax(dim=1)

    def say(self, label: NDArray[Any], data: Dataset) -> str:
        known = label[label >= 0]
        counts = np.bincount(known.reshape(-1), minlength=len(data.classes))
        order = [int(i) for i in np.argsort(-counts, kind="stable") if counts[i]]
        total = max(1, known.size)
        parts = [f"{100 * counts[i] / total:.0f} % {data.classes[i]}" for i in order[:4]]
        return ", ".join(parts) or "nothing known"

    def show(
        self, image: NDArray[Any], label: NDArray[Any], output: Tensor, data: Dataset
    ) -> Shown:
        shown = super().show(image, label, output, data)
        found = self.answer(output)[0].cpu().numpy()
        return Shown(shown.label, shown.prediction, with_maps(shown.picture, [label, found]))

    def confusion(self, outputs: Tensor, labels: Tensor, classes: int) -> NDArray[np.int64] | None:
        return count_confusion(self.answer(outputs), labels, classes)
