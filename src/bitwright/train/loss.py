# SPDX-License-Identifier: Apache-2.0
"""Losses on labels, on a teacher's scores, and on its layers."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from bitwright.train.config import TrainConfig

_TINY = 1e-12


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


_ON_PROBABILITIES = {
    "kld": divergence,
    "mse": functional.mse_loss,
    "msle": squared_log_error,
    "mae": functional.l1_loss,
}


def label_loss(
    scores: Tensor, labels: Tensor, kind: str = "ce", label_smoothing: float = 0.0
) -> Tensor:
    """What ``TrainConfig.loss`` names: ``ce`` on scores, the others on ``softmax(scores)`` against
    the labels as probabilities (one for the class, zero for the rest, smoothed).
    """
    if kind == "ce":
        return cross_entropy(scores, labels, label_smoothing)
    classes = scores.shape[1]
    target = functional.one_hot(labels, classes).to(scores.dtype)
    target = target * (1 - label_smoothing) + label_smoothing / classes
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


def objective(scores: Tensor, labels: Tensor, target: Tensor | None, config: TrainConfig) -> Tensor:
    """What one learner minimises on a batch, its features aside:
    ``(1 - alpha) * label_loss + alpha * soft_loss``, or `label_loss` alone.

    A part of no weight is not computed: ``alpha`` 1 looks at no label, and ``alpha`` 0 is the loss
    on the labels, bit for bit.

    Args:
        scores: its own.
        labels: class numbers.
        target: the scores it learns from, without a gradient; None without any.
        config: its settings.
    """
    learned = config.distillation
    alpha = learned.alpha if learned is not None and target is not None else 0.0
    parts = []
    if alpha < 1:
        on_labels = label_loss(scores, labels, config.loss, config.label_smoothing)
        parts.append((1 - alpha) * on_labels)
    if alpha > 0:
        assert learned is not None and target is not None
        soft = soft_loss(
            scores,
            target,
            temperature=learned.temperature,
            form=learned.form,
            reduction=learned.reduction,
        )
        parts.append(alpha * soft)
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


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
