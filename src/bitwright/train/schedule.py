# SPDX-License-Identifier: Apache-2.0
"""Learning rates as a pure function of the step, so that a resumed run needs no scheduler state."""

from __future__ import annotations

import math

from bitwright.train.config import TrainConfig

_ONECYCLE_RISE = 0.3  # share of the run (Smith and Topin 2018; the usual default)
_ONECYCLE_START = 0.04


def lr_factor(config: TrainConfig, step: int, steps_per_epoch: int) -> float:
    """Learning rate at ``step`` (from 0), as a share of ``config.lr``."""
    total = max(1, config.epochs * steps_per_epoch)
    rise = config.warmup * steps_per_epoch
    if config.schedule == "onecycle":
        rise = rise or _ONECYCLE_RISE * total
        if step < rise:
            return _ONECYCLE_START + (1 - _ONECYCLE_START) * step / rise
        return _cosine((step - rise) / max(1.0, total - rise), 0.0)
    if step < rise:
        return (step + 1) / (rise + 1)
    if config.schedule == "cosine":
        return _cosine((step - rise) / max(1.0, total - rise), config.final_lr)
    if config.schedule == "step":
        passed = sum(step >= share * total for share in config.milestones)
        return math.pow(config.gamma, passed)
    return 1.0


def _cosine(share: float, end: float) -> float:
    """From 1 at share 0 to ``end`` at share 1 (Loshchilov and Hutter 2017, equation 5)."""
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
