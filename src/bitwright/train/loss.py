# SPDX-License-Identifier: Apache-2.0
"""Losses on labels, on a teacher's scores, and on its layers."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from bitwright.tasks.base import LossSettings, SoftSettings, Task
from bitwright.tasks.classification import CLASSIFICATION
from bitwright.tasks.losses import (
    cross_entropy,
    divergence,
    label_loss,
    relative_error,
    soft_loss,
    squared_log_error,
)
from bitwright.train.config import TrainConfig

__all__ = [
    "attention_loss",
    "attention_map",
    "cross_entropy",
    "distillation_loss",
    "divergence",
    "label_loss",
    "loss_settings",
    "objective",
    "relative_error",
    "soft_loss",
    "squared_log_error",
]

_TINY = 1e-12


def distillation_loss(
    scores: Tensor,
    teacher_scores: Tensor,
    labels: Tensor,
    *,
    alpha: float,
    temperature: float,
    form: str = "kl",
    reduction: str = "batchmean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """``(1 - alpha) * cross_entropy + alpha * soft_loss``, as `objective` computes it."""
    learned = {"alpha": alpha, "temperature": temperature, "form": form, "reduction": reduction}
    config = {"distillation": learned, "label_smoothing": label_smoothing}
    return objective(scores, labels, teacher_scores, TrainConfig.model_validate(config))


def objective(
    outputs: Tensor,
    labels: Tensor,
    target: Tensor | None,
    config: TrainConfig,
    task: Task = CLASSIFICATION,
) -> Tensor:
    """What one learner minimises on a batch, its features aside:
    ``(1 - alpha) * task.loss + alpha * task.soft_loss``, or the first alone.

    A part of no weight is not computed: ``alpha`` 1 looks at no label, and ``alpha`` 0 is the loss
    on the labels, bit for bit.

    Args:
        outputs: its own.
        labels: of the task's kind.
        target: the outputs it learns from, without a gradient; None without any.
        config: its settings.
    """
    learned = config.distillation
    alpha = learned.alpha if learned is not None and target is not None else 0.0
    parts = []
    if alpha < 1:
        parts.append((1 - alpha) * task.loss(outputs, labels, loss_settings(config)))
    if alpha > 0:
        assert learned is not None and target is not None
        soft = SoftSettings(learned.temperature, learned.form, learned.reduction)
        parts.append(alpha * task.soft_loss(outputs, target, soft))
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def loss_settings(config: TrainConfig) -> LossSettings:
    """What a training says of its loss on labels."""
    return LossSettings(config.loss, config.label_smoothing)


def attention_map(output: Tensor) -> Tensor:
    """(N, C, H, W) -> (N, H * W): squares summed over channels, each image's of length one.

    Zagoruyko and Komodakis 2017, section 3.1, with p = 2.
    """
    return functional.normalize(output.square().sum(dim=1).flatten(1), eps=_TINY)


def attention_loss(output: Tensor, target: Tensor) -> Tensor:
    """Mean over the batch of the squared distance of two attention maps (channels may differ).

    The authors' program also divides by the number of places; here the weight says how much.
    """
    return (attention_map(output) - attention_map(target)).square().sum(dim=1).mean()
