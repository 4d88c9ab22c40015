# SPDX-License-Identifier: Apache-2.0
"""Step `train`: the float model, trained; an interrupted run goes on from its last whole epoch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bitwright.base.progress import Progress
from bitwright.models.pretrained import Pretrained, load_into
from bitwright.pipeline.context import LOGS, StepContext
from bitwright.pipeline.steps.results import DataFacts, Epoch, Shipped, TrainResult
from bitwright.pipeline.steps.workspace import Workspace
from bitwright.train.precision_rows import read_precision

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from bitwright.train import EpochMetrics, OnProgress, TrainProgress
    from bitwright.train.teacher_outputs import TeacherOutputs

WEIGHTS = "weights.pt"


def train(work: Workspace, context: StepContext) -> None:
    """Train in floating point, or take what was trained already; measure on the test images."""
    from bitwright.train import evaluate, fit, save_weights

    model = work.fresh_model()
    if (entry := work.shipped) is not None:
        load_into(model, entry)
        history = tuple(Epoch.model_validate(row) for row in entry.history)
        kept = entry.kept_epoch
    else:
        told = train_progress(context.progress, "training")
        config = work.recipe.train.float_
        fitted = fit(
            model,
            work.data if config.labels_unused else work.data.labelled(),
            config,
            run_dir=context.folder / LOGS,
            teacher=teacher_of(work, context),
            on_progress=told,
            task=work.task,
        )
        history, kept = epochs_of(fitted.history), fitted.kept_epoch
    save_weights(context.folder / WEIGHTS, model)
    measured = evaluate(model, work.data.test, task=work.task)
    TrainResult(
        data=_data_facts(work),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        metrics=measured.figures,
        history=history,
        kept_epoch=kept,
        shipped=_shipped(entry),
        precision=read_precision(context.folder / LOGS),
    ).save(context.folder)


def teacher_of(work: Workspace, context: StepContext) -> nn.Module | TeacherOutputs | None:
    """The teacher that the recipe names, as its step left it; None if this step needs none."""
    if "teach" not in context.inputs:
        return None
    from bitwright.pipeline.steps.teacher import taught

    return taught(work, context.inputs["teach"])


def trained_model(work: Workspace, folder: Path) -> nn.Module:
    """The float model as the step left it, in evaluation mode."""
    from bitwright.train import load_weights

    model = work.fresh_model()
    load_weights(folder / WEIGHTS, model)
    return model.eval()


def train_progress(progress: Progress, what: str) -> OnProgress:
    """Training progress as the steps of one bar."""

    def told(state: TrainProgress) -> None:
        progress(f"{what}, {state.epochs} epochs", round(1000 * state.done), 1000)

    return told


def epochs_of(history: Sequence[EpochMetrics]) -> tuple[Epoch, ...]:
    """Training curves without wall times, so that equal runs give equal files."""
    names = Epoch.model_fields
    return tuple(Epoch(**{name: getattr(entry, name) for name in names}) for entry in history)


def _shipped(entry: Pretrained | None) -> Shipped | None:
    if entry is None:
        return None
    return Shipped(
        name=entry.name, command=entry.command, accuracy=entry.accuracy, sha256=entry.sha256
    )


def _data_facts(work: Workspace) -> DataFacts:
    splits = work.data
    return DataFacts(
        name=splits.name,
        # The digest says which images; where they lay is nobody's business who gets the run.
        source=Path(splits.source).name if Path(splits.source).is_absolute() else splits.source,
        digest=splits.digest(),
        classes=splits.classes,
        image_shape=splits.image_shape,
        train=len(splits.train),
        validation=len(splits.validation),
        test=len(splits.test),
        inputs="" if splits.preparation is None else f"{splits.preparation}, by the training part",
    )
