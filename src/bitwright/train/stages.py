# SPDX-License-Identifier: Apache-2.0
"""Incremental quantization in the training loop: what changes when an epoch begins.

What an epoch trains with is a function of its number alone, and what a stage leaves behind is in
the checkpoint, so a run that was stopped goes on as if it had not been.
"""

from __future__ import annotations

from torch import nn

from bitwright.quantize.incremental import check_stages, fix_portion, set_bits, unfix
from bitwright.train.config import TrainConfig
from bitwright.train.state import Best, Run


def check_incremental(model: nn.Module, config: TrainConfig) -> None:
    """Refuse stages that a model cannot have.

    Raises:
        ModelError: it is not quantized, or a stage changes nothing.
    """
    if config.incremental is not None:
        check_stages(model, config.incremental.bits, bool(config.incremental.portions))


def enter_epoch(run: Run, epoch: int) -> None:
    """Bring the student to the stage of an epoch, from 0.

    With the last stage, the search for the best weights begins anew: those of earlier stages belong
    to another network.
    """
    incremental = run.config.incremental
    if incremental is None:
        return
    now = incremental.stage(epoch, run.config.epochs)
    before = incremental.stage(epoch - 1, run.config.epochs) if epoch else None
    student = run.student
    if incremental.bits:
        widths: dict[int | None, int | None] = {None: None}  # before the first stage: the policy's
        widths |= dict(enumerate((*incremental.bits, None)))
        # First what the state belongs to, which a new process does not know.
        set_bits(student.model, widths[before], carry=False)
        set_bits(student.model, widths[now])
        if student.average is not None:
            set_bits(student.average.module, widths[now], carry=False)
    if now == before:
        return
    if incremental.portions:
        if before is None:
            unfix(student.model)
        fix_portion(student.model, incremental.portions[now])
    if student.average is not None and before is not None:
        # It begins anew: scales of another width say nothing about this one.
        student.average.module.load_state_dict(student.model.state_dict())
        student.average.n_averaged.zero_()
    if now == incremental.stages - 1:
        run.best = Best()
