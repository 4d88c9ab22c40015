# SPDX-License-Identifier: Apache-2.0
"""Optimizers, and which parameters decay."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bitwright.errors import ModelError
from bitwright.train.config import TrainConfig


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer that a config asks for.

    Raises:
        ModelError: the model has nothing to train.
    """
    groups = _groups(model, config)
    if config.optimizer == "sgd":
        nesterov = config.nesterov and config.momentum > 0
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=nesterov)
    if config.optimizer == "asgd":
        return torch.optim.ASGD(groups, lr=config.lr)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(groups, lr=config.lr, fused=True)  # one pass over memory a step


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
