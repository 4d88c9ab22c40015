# SPDX-License-Identifier: Apache-2.0
"""The teacher that the step `teach` has left, for the steps that learn from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bitwright.pipeline.steps.workspace import Workspace

if TYPE_CHECKING:
    from torch import nn

    from bitwright.train.teacher_outputs import TeacherOutputs

LOGITS = "logits.pt"


def taught(work: Workspace, folder: Path) -> nn.Module | TeacherOutputs:
    """The teacher as the step left it: a network, or scores."""
    from bitwright.train.teacher_outputs import read_outputs

    path = folder / LOGITS
    return read_outputs(path) if path.is_file() else float_teacher(work, folder)


def float_teacher(work: Workspace, folder: Path) -> nn.Module:
    """The networks that the step left, in evaluation mode; several are one that averages."""
    from bitwright.train import load_weights
    from bitwright.train.teachers import Ensemble

    models = work.fresh_teachers()
    for number, model in enumerate(models):
        load_weights(folder / weights_file(number), model)
    teacher = models[0] if len(models) == 1 else Ensemble(models, task=work.task)
    return teacher.eval()


def weights_file(number: int) -> str:
    """Name of the weights of one teacher."""
    return f"teacher-{number}.pt"
