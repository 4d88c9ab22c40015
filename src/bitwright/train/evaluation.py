# SPDX-License-Identifier: Apache-2.0
"""Measuring a model on a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bitwright.base.errors import DataError
from bitwright.base.figures import Figure
from bitwright.data import Dataset
from bitwright.models.common import device_of
from bitwright.models.modes import evaluating
from bitwright.tasks.base import LossSettings, Task
from bitwright.tasks.classification import CLASSIFICATION
from bitwright.tasks.metric import Measurement
from bitwright.train.images import Images, on_device
from bitwright.train.transforms import to_real

#: Anything that takes a batch and gives one: a module, or a plain function.
Model = nn.Module | Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a model says about N images of a data set.

    Attributes:
        task: what the model is for.
        outputs: (N, ...) float32, as the model gives them.
        labels: (N, ...), of the task's kind.
        classes: how many there are.
        measured: every metric of the task that has a value; the first one chooses.
    """

    task: Task
    outputs: Tensor
    labels: Tensor
    classes: int
    measured: tuple[Measurement, ...]

    @property
    def first(self) -> Measurement:
        """By the metric that chooses."""
        return self.measured[0]

    @property
    def others(self) -> dict[str, float]:
        """By the key of each further metric its value."""
        return {each.metric.key: each.value for each in self.measured[1:]}

    @cached_property
    def loss(self) -> float:
        """The task's loss on the labels, without smoothing: of a classifier mean cross entropy."""
        return float(self.task.loss(self.outputs, self.labels, LossSettings()))

    @property
    def figures(self) -> dict[str, Figure]:
        """Name of each metric -> its value with error and number of images; the first one first."""
        return {each.metric.name: each.figure() for each in self.measured}

    @property
    def scores(self) -> NDArray[np.float32]:
        """``outputs`` as an array."""
        found: NDArray[np.float32] = self.outputs.numpy()
        return found

    @property
    def predictions(self) -> NDArray[np.int64]:
        """What the outputs say, as labels: of a classifier (N,) the first of the highest scores."""
        return np.asarray(self.task.answer(self.outputs).numpy())

    @property
    def confusion(self) -> NDArray[np.int64] | None:
        """(classes, classes) int64; row = label, column = prediction; None without classes."""
        return self.task.confusion(self.outputs, self.labels, self.classes)

    @property
    def accuracy(self) -> float:
        """The value of the first metric; of a classifier in [0, 1]."""
        return self.first.value

    @property
    def top5(self) -> float | None:
        """Of a classifier: share of images whose label is among the five highest scores; None with
        at most five classes, where it would say nothing.
        """
        return next((each.value for each in self.measured if each.metric.key == "top5"), None)


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    *,
    batch_size: int = 500,
    device: torch.device | str | None = None,
    task: Task = CLASSIFICATION,
) -> Evaluation:
    """Run a model in evaluation mode over a data set; the model's mode is restored.

    Args:
        device: where to run; by default where the model's first parameter or buffer is.
        task: what the model is for.

    Raises:
        DataError: the data set is empty, or its labels are not of the task's kind.
    """
    if not len(dataset):
        raise DataError("holds no image", where=dataset.name)
    place = torch.device(device) if device is not None else device_of(model)
    images, labels = on_device(dataset.of_kind(task.labels), place)
    scores = score_images(model, images, dataset.scale, batch_size).cpu()
    return summarise(scores, labels.cpu(), len(dataset.classes), task)


def run_batches(model: Model, inputs: Tensor, batch_size: int) -> Tensor:
    """(N, ...) outputs for inputs (N, ...), batch by batch where the model lives, no gradients.

    A module runs in evaluation mode, and every mode is restored. The outputs lie where the inputs
    lie.
    """
    if not isinstance(model, nn.Module):
        with torch.no_grad():
            return torch.cat([model(batch.clone()) for batch in inputs.split(batch_size)])
    place = device_of(model)
    with evaluating(model):
        # Copies: a layer may write into what it gets.
        parts = [
            model(batch.to(place, copy=True)).to(inputs.device)
            for batch in inputs.split(batch_size)
        ]
    return torch.cat(parts)


def score_images(model: nn.Module, images: Images, scale: float, batch_size: int) -> Tensor:
    """(N, ...) float32 outputs for uint8 images, batch by batch where the model lives; every
    mode is restored, and the outputs lie there.
    """
    place = device_of(model)
    with evaluating(model):
        parts = [model(to_real(batch.to(place), scale)) for batch in images.split(batch_size)]
    return torch.cat(parts).to(torch.float32)


def summarise(
    outputs: Tensor, labels: Tensor, num_classes: int, task: Task = CLASSIFICATION
) -> Evaluation:
    """Every metric of a task on outputs (N, ...), both on the CPU.

    Raises:
        DataError: an image has no label.
        ModelError: a metric fails.
    """
    return Evaluation(task, outputs, labels, num_classes, task.measure(outputs, labels))
