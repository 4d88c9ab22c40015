# SPDX-License-Identifier: Apache-2.0
"""Optimizers, which parameters decay, and moving averages of weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from bitwright.base.errors import ModelError
from bitwright.train.config import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer that a config asks for.

    Raises:
        ModelError: the model has nothing to train.
    """
    groups = _groups(model, config)
    # A fused optimizer takes the scale of 16 bits off by itself, too late for clipping.
    fused = config.precision != "16" or config.clip_norm is None
    if config.optimizer == "sgd":
        nesterov = config.nesterov and config.momentum > 0
        return torch.optim.SGD(
            groups, lr=config.lr, momentum=config.momentum, nesterov=nesterov, fused=fused
        )  # one pass over memory a step: a quarter of the time on one core
    if config.optimizer == "asgd":
        return torch.optim.ASGD(groups, lr=config.lr)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=config.lr, fused=fused)


def moving_average(model: nn.Module, decay: float) -> AveragedModel:
    """A copy of a model that follows it: every float of it moves by a share of ``1 - decay`` at
    each update, whatever counts is copied.

    The first updates move further, 1 - (1 + n) / (10 + n) at the n-th, so that the average forgets
    the weights that training began with even in a short run (as TensorFlow's moving averages do).
    """

    def follow(average: list[Tensor], now: list[Tensor], updates: Tensor) -> None:
        count = float(updates)
        share = min(decay, (1 + count) / (10 + count))
        if average[0].is_floating_point():
            get_ema_multi_avg_fn(share)(average, now, updates)
        else:
            for mine, other in zip(average, now, strict=True):
                mine.copy_(other)

    return AveragedModel(model, multi_avg_fn=follow, use_buffers=True)


def _groups(model: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """What decays and what does not: with ``weights`` only convolutions and matrices do."""
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_weight = parameter.ndim > 1 and name.rsplit(".", 1)[-1] == "weight"
        decays = is_weight or config.weight_decay_on == "all"
        (decayed if decays else free).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": free, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        raise ModelError("has no parameter to train", where=type(model).__name__)
    return groups
