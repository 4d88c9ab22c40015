# SPDX-License-Identifier: Apache-2.0
"""`Task`: what a network is for. Everything else asks it, and asks nobody else.

A task knows what a label is, what the network must give, how both make a loss, how well the network
does, and how an output is said in words and drawn. Training, the steps of a recipe, searches and
the report work for any of them alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.data import Dataset, DataSplits
from bitwright.data.labels import CLASSES, LabelKind
from bitwright.data.shown import Picture, picture_of
from bitwright.models.output import Output
from bitwright.tasks import losses
from bitwright.tasks.metric import Measurement, Metric


@dataclass(frozen=True)
class LossSettings:
    """What a recipe says of the loss on labels (`TrainConfig`); of scores of classes alone.

    Attributes:
        kind: ``ce`` or another of `tasks.losses.label_loss`.
        label_smoothing: share of the target spread over all classes.
    """

    kind: str = "ce"
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class SoftSettings:
    """What a recipe says of learning from another network's outputs (`Distillation`)."""

    temperature: float = 1.0
    form: str = "kl"
    reduction: str = "batchmean"


@dataclass(frozen=True, eq=False)
class Shown:
    """One image of the report.

    Attributes:
        label: what it is, in words.
        prediction: what the network says, in words.
        picture: the image with what can be drawn of both.
        right: whether it is right; None where there is more or less, but no right and wrong.
    """

    label: str
    prediction: str
    picture: Picture
    right: bool | None = None


class Task:
    """What a network is for; a task of one's own is a subclass.

    Outputs are tensors as the network gives them, (N, K) or (N, C, H, W); labels as the data set
    has them. Both lie on one device.

    Attributes:
        name: as recipes have it.
        labels: the kind of label.
        metrics: the first one chooses the weights that are kept, and stands in tables.
        gives_scores: outputs are scores of classes along axis 1: their softmax says how likely each
            is, `TrainConfig.loss` and ``label_smoothing`` hold, and of several teachers the
            probabilities are averaged. Else outputs are compared and averaged as they are.
        ranked: the hardware gives the place of the highest output beside the outputs.
        moves_labels: whether changing the place of things on an image (shift, flip, turn, zoom)
            changes its label, too: then `moved` says how, or such augmentation is refused.
        legend: what is drawn on the sample images of the report, in a sentence.
        learns_from_teachers: whether outputs of another network say something.
    """

    name: str = ""
    labels: LabelKind = CLASSES
    metrics: tuple[Metric, ...] = ()
    gives_scores: bool = False
    ranked: bool = False
    moves_labels: bool = True
    learns_from_teachers: bool = True
    legend: str = ""

    def fitted(self, data: DataSplits) -> Self:
        """The task with what it takes from the training data, such as anchors; by default as it is.

        Raises:
            DataError: the data does not tell.
        """
        del data
        return self

    def facts(self) -> dict[str, str]:
        """What one has to know to make something of the outputs, by name: of a detector its
        anchors.
        """
        return {}

    def output(self, data: DataSplits) -> Output:
        """What the network must give for an image of this data."""
        raise NotImplementedError

    def loss(self, outputs: Tensor, labels: Tensor, how: LossSettings) -> Tensor:
        """What training makes small: a scalar, the mean over the images."""
        raise NotImplementedError

    def moved(self, labels: Tensor, moves: Tensor) -> Tensor:
        """Labels of images on which everything has moved; asked if ``moves_labels``.

        Args:
            moves: (N, 2, 3), see `tasks.moves`.
        """
        raise NotImplementedError

    def answer(self, outputs: Tensor) -> Tensor:
        """What outputs say, as labels (N, ...) of this task's kind.

        Raises:
            NotImplementedError: outputs are not of the kind of labels, as those of an embedding.
        """
        raise NotImplementedError

    def soft_loss(self, outputs: Tensor, teacher: Tensor, how: SoftSettings) -> Tensor:
        """The loss on another network's outputs for the same images.

        By default, scores are compared as Hinton et al. (2015) do, class by class, and real outputs
        by their mean squared difference as a share of the mean square.
        """
        if not self.gives_scores:
            return losses.relative_error(outputs, teacher)
        rows, taught = _rows(outputs), _rows(teacher)
        return losses.soft_loss(
            rows, taught, temperature=how.temperature, form=how.form, reduction=how.reduction
        )

    def average(self, outputs: Sequence[Tensor], temperature: float) -> Tensor:
        """The output of several teachers as one."""
        stacked = torch.stack(list(outputs))
        if not self.gives_scores:
            return stacked.mean(dim=0)
        soft = torch.log_softmax(stacked / temperature, dim=2)
        mean = torch.logsumexp(soft, dim=0) - torch.tensor(float(len(soft))).log()
        return temperature * mean

    def say(self, label: NDArray[Any], data: Dataset) -> str:
        """One label, or answer, in words."""
        raise NotImplementedError

    def show(
        self, image: NDArray[Any], label: NDArray[Any], output: Tensor, data: Dataset
    ) -> Shown:
        """How the report shows one image.

        Args:
            image: (H, W, C) levels.
            output: (1, ...), the network's.
        """
        said = self.say_output(output, data)
        return Shown(self.say(label, data), said, picture_of(image, data.scale))

    def say_output(self, output: Tensor, data: Dataset) -> str:
        """What an output (1, ...) means, in words."""
        return self.say(self.answer(output)[0].cpu().numpy(), data)

    def confusion(self, outputs: Tensor, labels: Tensor, classes: int) -> NDArray[np.int64] | None:
        """(classes, classes): how often each class (row) was taken for each (column); None where
        there are no classes.
        """
        del outputs, labels, classes
        return None

    # What follows holds for every task.

    @property
    def metric(self) -> Metric:
        """The metric that chooses.

        Raises:
            ModelError: there is none.
        """
        if not self.metrics:
            raise ModelError("has no metric", where=self.name, hint="a task needs one at least")
        return self.metrics[0]

    def check_loss(self, how: LossSettings, distils: bool, moved: Sequence[str] = ()) -> None:
        """Refuse settings of a training that mean nothing here.

        Args:
            distils: whether another network's outputs are learned.
            moved: names of augmentation that moves what is on an image.

        Raises:
            RecipeError: they do.
        """
        if not self.gives_scores and how != LossSettings():
            raise RecipeError(
                f"loss {how.kind} with label_smoothing {how.label_smoothing:g} is for scores of "
                f"classes, and {self.name} has none",
                where="train.loss",
                hint="leave both out; options of the task may choose another loss",
            )
        if distils and not self.learns_from_teachers:
            raise RecipeError(
                f"outputs of another network say nothing for {self.name}",
                where="distillation",
                hint="remove distillation and teacher",
            )
        if moved and self.moves_labels and type(self).moved is Task.moved:
            raise RecipeError(
                f"{', '.join(moved)} would move what is on an image, and its {self.labels.name} "
                "would stay where they are",
                where="augmentation",
                hint="leave it out",
            )

    def measure(self, outputs: Tensor, labels: Tensor) -> tuple[Measurement, ...]:
        """Every metric that has a value on outputs (N, ...) of images whose labels are known.

        Raises:
            DataError: an image has no label, or there is no image.
            ModelError: a metric fails.
        """
        if not len(labels):
            raise DataError("there is no image to measure", where="evaluation")
        unknown = int((~self.labels.known(labels)).sum())
        if unknown:
            raise DataError(
                f"{unknown} images have no label, so nothing can be measured on them",
                where="evaluation",
            )
        found = [metric.measure(outputs, labels) for metric in (self.metric, *self.metrics[1:])]
        if not found[0].count:
            raise ModelError("no image has a value", where=self.metrics[0].name)
        return tuple(each for each in found if each.count)

    def filled(self, labels: Tensor, teacher: Tensor | None) -> Tensor:
        """Labels with the teacher's answer where none is known."""
        if teacher is None:
            return labels
        unknown = ~self.labels.known(labels)
        if not bool(unknown.any()):
            return labels
        shape = (-1, *(1,) * (labels.dim() - 1))
        return torch.where(unknown.view(shape), self.answer(teacher).to(labels.dtype), labels)


def _rows(outputs: Tensor) -> Tensor:
    """Scores (N, C, ...) as (M, C): one row a pixel."""
    return outputs.movedim(1, -1).reshape(-1, outputs.shape[1])
