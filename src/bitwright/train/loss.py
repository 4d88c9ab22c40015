# SPDX-License-Identifier: Apache-2.0
"""Losses: cross entropy, and cross entropy with a teacher."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def cross_entropy(scores: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean over the batch of -log softmax(scores)[label]; scores (N, classes), labels (N,)."""
    return functional.cross_entropy(scores, labels, label_smoothing=label_smoothing)


def distillation_loss(
    scores: Tensor,
    teacher_scores: Tensor,
    labels: Tensor,
    *,
    alpha: float,
    temperature: float,
    label_smoothing: float = 0.0,
) -> Tensor:
    """``(1 - alpha) CE(scores, labels) + alpha T^2 KL(teacher/T || scores/T)``.

    Hinton, Vinyals, Dean 2015, section 2; the factor T^2 keeps the gradients of both parts of the
    same size when the temperature T changes.
    """
    soft = functional.kl_div(
        functional.log_softmax(scores / temperature, dim=1),
        functional.log_softmax(teacher_scores / temperature, dim=1),
        reduction="batchmean",
        log_target=True,
    )
    hard = cross_entropy(scores, labels, label_smoothing)
    return (1 - alpha) * hard + alpha * temperature**2 * soft
