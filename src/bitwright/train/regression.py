# SPDX-License-Identifier: Apache-2.0
"""Distillation without labels: a student learns to give what its teacher gives, by regression.

There is no temperature and no softmax, so it serves detectors and embeddings as well as
classifiers: the loss compares outputs, and if asked for the outputs of layers inside, as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from math import cos, isfinite, pi
from pathlib import Path

import torch
from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.models.common import device_of
from bitwright.train.checkpoint import resume, save_progress
from bitwright.train.features import Watched
from bitwright.train.loss import relative_error

Loss = Callable[[Tensor, Tensor], Tensor]
Batches = Callable[[int], Tensor]
OnStep = Callable[[int, float], None]
#: Tensors of zeros learn as if they had this root mean square.
_SMALLEST = 1e-3
_WHERE = "regression.features"


@dataclass(frozen=True)
class Regression:
    """How long, how fast and on what a student regresses.

    Attributes:
        steps: optimizer steps.
        lr: of Adam, as a share of each tensor's root mean square when training begins: weights,
            factors of batch norms and learned scales differ in size by orders of magnitude, and a
            step changes each by about this share. Falls to ``final_lr`` along half a cosine.
        final_lr: share of ``lr`` that is left at the end.
        features: paths of layers whose outputs are compared too; both models must have them.
        feature_weight: weight of all features together; the output has weight one.
        save_every: steps between checkpoints.
    """

    steps: int
    lr: float = 2e-3
    final_lr: float = 0.01
    features: tuple[str, ...] = ()
    feature_weight: float = 1.0
    save_every: int = 50

    def __post_init__(self) -> None:
        if self.steps < 1 or self.save_every < 1:
            raise ModelError("steps and save_every must be at least 1", where="regression")
        if min(self.lr, self.final_lr) <= 0 or self.feature_weight < 0:
            raise ModelError("learning rates must be positive", where="regression")


def regress(
    student: nn.Module,
    teacher: nn.Module,
    batches: Batches,
    config: Regression,
    *,
    loss: Loss = relative_error,
    checkpoint: Path | None = None,
    on_step: OnStep | None = None,
) -> tuple[float, ...]:
    """Train a student on its teacher's outputs for unlabelled images.

    Both run in evaluation mode: the running statistics of a batch norm stay, its factors train.
    What a run depends on is the step's number alone, so a run that was stopped and goes on from
    its checkpoint gives the same as one that was not.

    Args:
        student: trained in place; left in evaluation mode.
        teacher: not changed.
        batches: gives the images (N, ...) of a step; they are moved to the student, where the
            teacher must be, too.
        config: see `Regression`.
        loss: compares the student's output with the teacher's; features are always compared by
            `relative_error`.
        checkpoint: file to go on from, if it exists, and to write now and then.
        on_step: called with the number of steps done and the loss.

    Returns:
        The loss of each step.

    Raises:
        ModelError: a feature's path is unknown, or the loss is not finite.
        DataError: the checkpoint is broken or belongs to other settings, or cannot be written.
    """
    student.eval()
    teacher.eval()
    place = device_of(student)
    optimizer = torch.optim.Adam(_groups(student, config.lr))
    losses = resume(checkpoint, "model", student, optimizer, config, config.steps)
    with (
        closing(Watched(student, config.features, _WHERE)) as mine,
        closing(Watched(teacher, config.features, _WHERE)) as theirs,
    ):
        for step in range(len(losses), config.steps):
            _set_rates(optimizer, config, step)
            images = batches(step).to(place)
            with torch.no_grad():
                target = teacher(images.clone())  # a layer may write into it
            error = loss(student(images), target) + _feature_error(mine, theirs, config)
            value = float(error.detach())
            if not isfinite(value):
                raise ModelError(
                    f"the loss of step {step} is {value}",
                    where="regression",
                    hint="choose a smaller learning rate",
                )
            optimizer.zero_grad(set_to_none=True)
            error.backward()
            optimizer.step()
            losses.append(value)
            done = step + 1
            if checkpoint is not None and (done % config.save_every == 0 or done == config.steps):
                save_progress(
                    checkpoint, {"model": student.state_dict()}, optimizer, losses, config
                )
            if on_step is not None:
                on_step(done, value)
    return tuple(losses)


def _groups(student: nn.Module, lr: float) -> list[dict[str, object]]:
    groups: list[dict[str, object]] = []
    for parameter in student.parameters():
        if parameter.requires_grad:
            size = max(float(parameter.detach().square().mean().sqrt()), _SMALLEST)
            groups.append({"params": [parameter], "initial_lr": lr * size, "lr": lr * size})
    return groups


def _set_rates(optimizer: torch.optim.Optimizer, config: Regression, step: int) -> None:
    share = config.final_lr + (1 - config.final_lr) * (1 + cos(pi * step / config.steps)) / 2
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * share


def _feature_error(mine: Watched, theirs: Watched, config: Regression) -> Tensor | float:
    if not config.features:
        return 0.0
    errors = [relative_error(mine[path], theirs[path]) for path in config.features]
    return config.feature_weight * torch.stack(errors).mean()
