# SPDX-License-Identifier: Apache-2.0
"""Teachers: several as one, and whether a teacher fits the student and the data."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.data import DataSplits
from bitwright.models.common import device_of
from bitwright.models.modes import evaluating
from bitwright.tasks.base import Task
from bitwright.tasks.classification import CLASSIFICATION
from bitwright.train.images import on_device
from bitwright.train.transforms import to_real


class Ensemble(nn.Module):
    """Several teachers as one, by `Task.average`: of scores the mean of softened probabilities.

    Scores such that ``softmax(scores / temperature)`` is the mean over the members of
    ``softmax(member(x) / temperature)``; with temperature 1 they are the logarithms of the mean
    probabilities. `soften` gives the same ensemble at another temperature.
    """

    def __init__(
        self,
        members: Sequence[nn.Module],
        temperature: float = 1.0,
        task: Task = CLASSIFICATION,
    ) -> None:
        super().__init__()
        if not members:
            raise ModelError("has no member", where="ensemble", hint="name one teacher at least")
        self.members = nn.ModuleList(members)
        self.temperature, self.task = temperature, task

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, ...)."""
        return self.task.average([member(x) for member in self.members], self.temperature)


def soften(teacher: nn.Module, temperature: float) -> nn.Module:
    """The teacher whose scores are divided by this temperature; the weights are shared."""
    if isinstance(teacher, Ensemble):
        return Ensemble(list(teacher.members), temperature, teacher.task)
    return teacher


def check_teacher(
    teacher: nn.Module, splits: DataSplits, where: str = "teacher", task: Task = CLASSIFICATION
) -> None:
    """Whether a teacher takes the images of a data set and gives what the task needs.

    Raises:
        ModelError: it does not.
    """
    device = device_of(teacher)
    images, _ = on_device(splits.train.take(range(min(2, len(splits.train)))), device)
    try:
        with evaluating(teacher):
            scores = teacher(to_real(images[:2], splits.scale))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise ModelError(
            f"does not take images of {' x '.join(map(str, splits.image_shape))}: "
            f"{(str(error).strip() or type(error).__name__).splitlines()[0]}",
            where=where,
            hint="use a teacher made for images of this shape",
        ) from error
    given = tuple(scores.shape[1:]) if isinstance(scores, Tensor) else type(scores).__name__
    output = task.output(splits)
    if not isinstance(given, tuple) or not output.fits(given):
        raise ModelError(
            f"gives {output.said(given)}, but {splits.name} has {output.said(output.shape)}",
            where=where,
            hint="use a teacher that was trained for the same as the student",
        )


def fingerprint(model: nn.Module) -> str:
    """Hash of a model's kind and of every number in it."""
    digest = hashlib.sha256(type(model).__qualname__.encode())
    digest.update(repr(getattr(model, "temperature", None)).encode())
    for name, value in model.state_dict().items():
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(
            value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    return digest.hexdigest()[:32]
