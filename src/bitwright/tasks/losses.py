# SPDX-License-Identifier: Apache-2.0
"""Losses that tasks are made of: on labels, and on a teacher's outputs."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def cross_entropy(scores: Tensor, labels: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean over the batch of ``-sum target log softmax(scores)``.

    Args:
        scores: (N, classes).
        labels: (N,) class numbers, or (N, classes) probabilities.
        label_smoothing: share of the target spread over all classes.
    """
    return functional.cross_entropy(scores, labels, label_smoothing=label_smoothing)


def divergence(output: Tensor, target: Tensor) -> Tensor:
    """Kullback-Leibler: mean over the batch of ``sum target (log target - log output)``.

    Both (N, classes) probabilities; a target probability of zero adds nothing.
    """
    logs = output.clamp(min=torch.finfo(output.dtype).tiny).log()
    return functional.kl_div(logs, target, reduction="batchmean")


def squared_log_error(output: Tensor, target: Tensor) -> Tensor:
    """``sum (log(target + 1) - log(output + 1))^2 / n`` over all n values, which are above -1."""
    return functional.mse_loss(output.log1p(), target.log1p())


def relative_error(output: Tensor, target: Tensor, power: Tensor | None = None) -> Tensor:
    """Mean squared error as a share of the mean square target, or of another ``power``."""
    power = target.square().mean() if power is None else power
    return (output - target).square().mean() / power.clamp(min=torch.finfo(target.dtype).tiny)


def squared_hinge(scores: Tensor, target: Tensor) -> Tensor:
    """``max(0, 1 - target * score)^2``, the mean over images and classes.

    Of targets +1 for the class and -1 for the rest: what binarized networks were first trained with
    (Courbariaux et al. 2016, section 2.1).
    """
    return (1 - target * scores).clamp(min=0).square().mean()


_ON_PROBABILITIES = {
    "kld": divergence,
    "mse": functional.mse_loss,
    "msle": squared_log_error,
    "mae": functional.l1_loss,
}


def label_loss(
    scores: Tensor, labels: Tensor, kind: str = "ce", label_smoothing: float = 0.0
) -> Tensor:
    """What ``TrainConfig.loss`` names: ``ce`` and ``squared_hinge`` on scores, the others on
    ``softmax(scores)`` against the labels as probabilities (one for the class, zero for the rest,
    smoothed).
    """
    if kind == "ce":
        return cross_entropy(scores, labels, label_smoothing)
    classes = scores.shape[1]
    target = functional.one_hot(labels, classes).to(scores.dtype)
    target = target * (1 - label_smoothing) + label_smoothing / classes
    if kind == "squared_hinge":
        return squared_hinge(scores, 2 * target - 1)
    return _ON_PROBABILITIES[kind](functional.softmax(scores, dim=1), target)


def soft_loss(
    scores: Tensor,
    teacher_scores: Tensor,
    *,
    temperature: float,
    form: str = "kl",
    reduction: str = "batchmean",
) -> Tensor:
    """``T^2 KL(softmax(teacher / T) || softmax(scores / T))``, or with ``form`` ``ce`` the cross
    entropy of the two, whose gradient is the same.

    Hinton, Vinyals, Dean 2015, section 2; the factor T^2 keeps the gradients of the same size when
    the temperature T changes. ``reduction``: ``batchmean`` averages over images, ``mean`` over
    images and classes.
    """
    output = functional.log_softmax(scores / temperature, dim=1)
    if form == "kl":
        target = functional.log_softmax(teacher_scores / temperature, dim=1)
        total = functional.kl_div(output, target, reduction="sum", log_target=True)
    else:
        total = -(functional.softmax(teacher_scores / temperature, dim=1) * output).sum()
    return temperature**2 * total / (scores.numel() if reduction == "mean" else len(scores))
