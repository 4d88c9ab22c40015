# SPDX-License-Identifier: Apache-2.0
"""Learning rates as a pure function of the step and of what was measured before it, so that a
resumed run needs no scheduler state.

With the epoch E, counted from 0 and whole, the factors on ``config.lr`` are::

    constant     1
    step         drop ^ (milestones passed), or drop ^ floor(E / every)
    time         1 / (1 + decay * E)
    exponential  exp(-decay * E)
    plateau      drop ^ (times the validation loss has not fallen for more than `patience` epochs)
    cosine       final_lr + (1 - final_lr) (1 + cos(pi * share)) / 2, batch by batch
    onecycle     linear up, then cosine down to nothing, batch by batch

A warm-up multiplies them by i / (warmup * batches) in its i-th batch, counted from 1. The epochs of
the schedule run meanwhile, except for ``cosine``, which comes down over what the warm-up leaves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from bitwright.train.config import TrainConfig

_ONECYCLE_RISE = 0.3  # share of the run (Smith and Topin 2018; the usual default)
_ONECYCLE_START = 0.04
_PLATEAU_GAIN = 1e-4  # share by which a loss must fall to count (the default of torch)


def lr_factor(
    config: TrainConfig, step: int, steps_per_epoch: int, losses: Sequence[float] = ()
) -> float:
    """Learning rate at ``step`` (from 0), as a share of ``config.lr``.

    Args:
        losses: of validation, one for each epoch that is done; only ``plateau`` looks at them.
    """
    total = max(1, config.epochs * steps_per_epoch)
    rise = config.warmup * steps_per_epoch
    if config.schedule == "onecycle":
        rise = rise or _ONECYCLE_RISE * total
        if step < rise:
            return _ONECYCLE_START + (1 - _ONECYCLE_START) * step / rise
        return _cosine((step - rise) / max(1.0, total - rise), 0.0)
    ramp = min(1.0, (step + 1) / rise) if rise else 1.0
    if config.schedule == "cosine":
        past = max(0.0, step - rise)
        return ramp * _cosine(past / max(1.0, total - rise), config.final_lr)
    return ramp * _by_epoch(config, step, steps_per_epoch, losses)


def _by_epoch(
    config: TrainConfig, step: int, steps_per_epoch: int, losses: Sequence[float]
) -> float:
    epoch = step // steps_per_epoch
    match config.schedule:
        case "step" if config.every is not None:
            return math.pow(config.drop, epoch // config.every)
        case "step":
            starts = (place if place >= 1 else place * config.epochs for place in config.milestones)
            passed = sum(step >= start * steps_per_epoch for start in starts)
            return math.pow(config.drop, passed)
        case "time":
            return 1 / (1 + config.decay * epoch)
        case "exponential":
            return math.exp(-config.decay * epoch)
        case "plateau":
            return math.pow(config.drop, plateaus(losses, config.patience))
    return 1.0


def plateaus(losses: Sequence[float], patience: int) -> int:
    """How often these losses have stayed where they were for more than ``patience`` epochs.

    A loss counts as fallen when it is below the lowest one before by a ten-thousandth of that; the
    waiting begins anew after each plateau (the rule of torch's ``ReduceLROnPlateau``).
    """
    lowest, waited, found = math.inf, 0, 0
    for loss in losses:
        if loss < lowest * (1 - _PLATEAU_GAIN):
            lowest, waited = loss, 0
        else:
            waited += 1
        if waited > patience:
            found, waited = found + 1, 0
    return found


def _cosine(share: float, end: float) -> float:
    """From 1 at share 0 to ``end`` at share 1 (Loshchilov and Hutter 2017, equation 5)."""
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * min(1.0, share)))
