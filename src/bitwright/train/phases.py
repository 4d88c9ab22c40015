# SPDX-License-Identifier: Apache-2.0
"""Training in few bits phase by phase: self-study, co-study, tutor-study.

Quantization-aware knowledge distillation (Kim, Bhalgat, Lee, Patel, Kwak 2019): the student first
settles on its grid by itself, then student and teacher adapt to each other, then the student learns
from the teacher, who learns no more.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from bitwright.base.errors import RecipeError
from bitwright.data import DataSplits
from bitwright.tasks.base import Task
from bitwright.tasks.classification import CLASSIFICATION
from bitwright.train.config import Phases
from bitwright.train.loop import fit
from bitwright.train.records import FitResult, OnProgress
from bitwright.train.teacher_outputs import TeacherOutputs


@dataclass(frozen=True)
class PhaseResult:
    """One finished phase."""

    name: str
    result: FitResult


def study(
    student: nn.Module,
    splits: DataSplits,
    phases: Phases,
    *,
    run_dir: str | Path,
    resume: bool = True,
    teacher: nn.Module | TeacherOutputs | None = None,
    on_progress: OnProgress | None = None,
    task: Task = CLASSIFICATION,
) -> tuple[PhaseResult, ...]:
    """Train a student in place, in the phases that there are.

    Every phase begins with the weights that the one before has kept, has a folder of its own
    (``run_dir/self_study`` and so on, see `fit`), and goes on from its last whole epoch after an
    interruption; a phase that is done is loaded.

    Args:
        student: the quantized model, calibrated.
        splits: training images without a label serve only phases that learn from the teacher alone.
        phases: settings of each.
        run_dir: folder of the whole study.
        resume, on_progress, task: as for `fit`.
        teacher: the float model that teaches. Co-study trains it in place; tutor-study uses it as
            it is then, or its scores alone.

    Returns:
        One result a phase, in order.

    Raises:
        RecipeError: a phase needs a teacher and there is none.
        RunError, DataError, ModelError: as `fit`.
    """
    if phases.needs_teacher and teacher is None:
        raise RecipeError(
            "co-study and tutor-study need a teacher, and there is none",
            where="train.quantized",
            hint="name a teacher model, or leave these phases out",
        )
    if phases.co_study is not None and not isinstance(teacher, nn.Module):
        raise RecipeError(
            "co-study trains the teacher, and this one is a table of its scores",
            where="train.quantized.co_study",
            hint="name a teacher model, or leave this phase out",
        )
    results = []
    for name, config in phases.present:
        result = fit(
            student,
            splits if config.labels_unused else splits.labelled(),
            config,
            run_dir=Path(run_dir) / name,
            resume=resume,
            teacher=teacher if name == "tutor_study" else None,
            peer=teacher if name == "co_study" and isinstance(teacher, nn.Module) else None,
            on_progress=on_progress,
            task=task,
        )
        results.append(PhaseResult(name, result))
    return tuple(results)
