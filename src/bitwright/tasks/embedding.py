# SPDX-License-Identifier: Apache-2.0
"""Embedding: vectors that lie close to each other for images of one class or identity."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from bitwright.base.errors import RecipeError
from bitwright.data import Dataset, DataSplits
from bitwright.data.labels import CLASSES
from bitwright.data.shown import picture_of
from bitwright.models.output import Output
from bitwright.tasks.base import LossSettings, Shown, Task
from bitwright.tasks.metric import Metric

_ROWS = 1024  # of distances at a time


def nearest_is_one_of_the_same(outputs: Tensor, labels: Tensor) -> Tensor:
    """(N,): whether the nearest other vector, by angle, has the same label; NaN where no other
    image has it, or the image itself has none. Images without a label are nobody's neighbours.
    """
    unit = functional.normalize(outputs.float(), dim=1)
    known = CLASSES.known(labels)
    right = []
    for start in range(0, len(unit), _ROWS):
        near = (unit[start : start + _ROWS] @ unit.T).masked_fill(~known, -float("inf"))
        rows = torch.arange(len(near), device=near.device)
        near[rows, start + rows] = -float("inf")
        right.append(labels[near.argmax(dim=1)] == labels[start : start + _ROWS])
    found = torch.cat(right).double()
    _, place, count = labels.unique(return_inverse=True, return_counts=True)
    found[(count[place] < 2) | ~known] = float("nan")
    return found


class Embedding(Task):
    """A vector an image. Trained by the supervised contrastive loss (Khosla et al. 2020, eq. 2):
    among the other images of a batch, those of the same class are to be likely, by the angle
    between vectors. So a batch needs several images of a class.

    Args:
        size: of a vector.
        temperature: divides the cosines in the loss.
    """

    name = "embedding"
    labels = CLASSES
    metrics = (Metric("nearest neighbour", nearest_is_one_of_the_same),)
    moves_labels = False

    def __init__(self, size: int = 16, temperature: float = 0.1) -> None:
        if type(size) is not int or size < 2 or not temperature > 0:
            raise RecipeError(
                f"size is {size!r}, temperature {temperature!r}",
                where="task.options",
                hint="a size from 2 on, a positive temperature",
            )
        self.size, self.temperature = size, temperature

    def output(self, data: DataSplits) -> Output:
        del data
        hint = f"task.options.size is {self.size}: take num_outputs as an argument"
        return Output((self.size,), "a vector", hint)

    def loss(self, outputs: Tensor, labels: Tensor, how: LossSettings) -> Tensor:
        del how
        known = CLASSES.known(labels)
        outputs, labels = outputs[known], labels[known]
        unit = functional.normalize(outputs, dim=1)
        near = unit @ unit.T / self.temperature
        self_ = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
        same = (labels[:, None] == labels[None]) & ~self_
        logs = functional.log_softmax(near.masked_fill(self_, -1e9), dim=1)
        pairs = same.sum(dim=1)
        each = -(logs * same).sum(dim=1) / pairs.clamp(min=1)
        return each.sum() / (pairs > 0).sum().clamp(min=1)

    def filled(self, labels: Tensor, teacher: Tensor | None) -> Tensor:
        """A teacher's vector names no class: images without one are left out of the loss."""
        return labels

    def say(self, label: NDArray[Any], data: Dataset) -> str:
        return data.classes[int(label)]

    def say_output(self, output: Tensor, data: Dataset) -> str:
        del data
        first = ", ".join(f"{value:.2f}" for value in output[0, :3].tolist())
        return f"({first}, ..) of length {float(output[0].norm()):.3g}"

    def show(
        self, image: NDArray[Any], label: NDArray[Any], output: Tensor, data: Dataset
    ) -> Shown:
        said = self.say_output(output, data)
        return Shown(self.say(label, data), said, picture_of(image, data.scale))
