# SPDX-License-Identifier: Apache-2.0
"""Step `teach`: the teachers that the recipe names, trained or read, and measured."""

from __future__ import annotations

from bitwright.pipeline.context import LOGS, StepContext
from bitwright.pipeline.steps.results import Epoch, TeacherRow, TeachResult
from bitwright.pipeline.steps.teacher import LOGITS, float_teacher, weights_file
from bitwright.pipeline.steps.train import epochs_of, train_progress
from bitwright.pipeline.steps.workspace import Workspace


def teach(work: Workspace, context: StepContext) -> None:
    """Train every teacher as its section says, and measure each and all on the test images; scores
    that were computed elsewhere are kept as they are.
    """
    from bitwright.train import evaluate, fit, save_weights
    from bitwright.train.teacher_outputs import write_outputs

    outputs = work.teacher_logits()
    if outputs is not None:
        write_outputs(context.folder / LOGITS, outputs)
        row = TeacherRow(model="logits", parameters=0, metrics={}, history=(), kept_epoch=0)
        TeachResult(teachers=(row,), metrics={}).save(context.folder)
        return
    rows = []
    for number, (section, model) in enumerate(
        zip(work.recipe.teacher, work.fresh_teachers(), strict=True)
    ):
        assert section.model is not None
        history: tuple[Epoch, ...] = ()
        kept = 0
        if section.train is not None:
            fitted = fit(
                model,
                work.data.labelled(),
                section.train,
                run_dir=context.folder / LOGS / str(number),
                on_progress=train_progress(context.progress, f"teacher {section.model.name}"),
                task=work.task,
            )
            history, kept = epochs_of(fitted.history), fitted.kept_epoch
        save_weights(context.folder / weights_file(number), model)
        measured = evaluate(model, work.data.test, task=work.task)
        rows.append(
            TeacherRow(
                model=section.model.name,
                parameters=sum(parameter.numel() for parameter in model.parameters()),
                metrics=measured.figures,
                history=history,
                kept_epoch=kept,
            )
        )
    teacher = float_teacher(work, context.folder)
    together = evaluate(teacher, work.data.test, task=work.task)
    TeachResult(teachers=tuple(rows), metrics=together.figures).save(context.folder)
