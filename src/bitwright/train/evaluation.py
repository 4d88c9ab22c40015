# SPDX-License-Identifier: Apache-2.0
"""Measuring a model on a data set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bitwright.base.errors import DataError
from bitwright.data import Dataset
from bitwright.models.common import device_of
from bitwright.models.modes import evaluating
from bitwright.train.images import Images, on_device
from bitwright.train.transforms import to_real

#: Anything that takes a batch and gives one: a module, or a plain function.
Model = nn.Module | Callable[[Tensor], Tensor]
_TOP = 5


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a model says about N images of a data set.

    Attributes:
        accuracy: share of images whose highest score is the label's, in [0, 1].
        loss: mean cross entropy.
        confusion: (classes, classes) int64; row = label, column = prediction.
        predictions: (N,) int64, the first of the highest scores.
        scores: (N, classes) float32.
        top5: share of images whose label is among the five highest scores; None with at most five
            classes, where it would say nothing.
    """

    accuracy: float
    loss: float
    confusion: NDArray[np.int64]
    predictions: NDArray[np.int64]
    scores: NDArray[np.float32]
    top5: float | None = None


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    *,
    batch_size: int = 500,
    device: torch.device | str | None = None,
) -> Evaluation:
    """Run a model in evaluation mode over a data set; the model's mode is restored.

    Args:
        device: where to run; by default where the model's first parameter or buffer is.

    Raises:
        DataError: the data set is empty.
    """
    if not len(dataset):
        raise DataError("holds no image", where=dataset.name)
    place = torch.device(device) if device is not None else device_of(model)
    images, labels = on_device(dataset, place)
    scores = score_images(model, images, dataset.scale, batch_size).cpu()
    return summarise(scores, labels.cpu(), len(dataset.classes))


def run_batches(model: Model, inputs: Tensor, batch_size: int) -> Tensor:
    """(N, ...) outputs for inputs (N, ...), batch by batch where the model lives, no gradients.

    A module runs in evaluation mode, and every mode is restored. The outputs lie where the inputs
    lie.
    """
    if not isinstance(model, nn.Module):
        with torch.no_grad():
            return torch.cat([model(batch) for batch in inputs.split(batch_size)])
    place = device_of(model)
    with evaluating(model):
        parts = [model(batch.to(place)).to(inputs.device) for batch in inputs.split(batch_size)]
    return torch.cat(parts)


def score_images(model: nn.Module, images: Images, scale: float, batch_size: int) -> Tensor:
    """(N, classes) float32 scores of uint8 images, batch by batch where the model lives; every
    mode is restored, and the scores lie there.
    """
    place = device_of(model)
    with evaluating(model):
        parts = [model(to_real(batch.to(place), scale)) for batch in images.split(batch_size)]
    return torch.cat(parts).to(torch.float32)


def summarise(scores: Tensor, labels: Tensor, num_classes: int) -> Evaluation:
    """Accuracy, loss and confusion matrix of scores.

    Raises:
        DataError: an image has no label.
    """
    if bool((labels < 0).any()):
        raise DataError(
            f"{int((labels < 0).sum())} images have no label, so nothing can be measured on them",
            where="evaluation",
        )
    loss = float(torch.nn.functional.cross_entropy(scores, labels))
    values = scores.numpy()
    predictions = values.argmax(axis=1).astype(np.int64)
    truth = labels.numpy()
    confusion = np.zeros((num_classes, num_classes), dtype=np.int64)
    np.add.at(confusion, (truth, predictions), 1)
    accuracy = float((predictions == truth).mean())
    top5 = None
    if num_classes > _TOP:
        best = scores.topk(_TOP, dim=1).indices
        top5 = float((best == labels[:, None]).any(dim=1).double().mean())
    return Evaluation(accuracy, loss, confusion, predictions, values, top5)
