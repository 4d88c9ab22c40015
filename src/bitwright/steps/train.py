# SPDX-License-Identifier: Apache-2.0
"""Step `train`: the float model, trained; an interrupted run goes on from its last whole epoch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bitwright.figures import Figure, Source
from bitwright.run import Progress, StepContext
from bitwright.run_files import LOGS
from bitwright.steps.fingerprint import data_version
from bitwright.steps.results import DataFacts, Epoch, TrainResult
from bitwright.steps.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from bitwright.train import EpochMetrics, OnProgress, TrainProgress

WEIGHTS = "weights.pt"


def train(work: Workspace, context: StepContext) -> None:
    """Train in floating point and measure on the test images."""
    from bitwright.train import evaluate, fit, save_weights

    model = work.fresh_model()
    told = train_progress(context.progress, "training")
    config = work.recipe.train.float_
    fitted = fit(model, work.data, config, run_dir=context.folder / LOGS, on_progress=told)
    save_weights(context.folder / WEIGHTS, model)
    measured = evaluate(model, work.data.test)
    TrainResult(
        data=_data_facts(work),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        accuracy=Figure(measured.accuracy, "share", Source.MEASUREMENT),
        history=epochs_of(fitted.history),
        kept_epoch=fitted.kept_epoch,
    ).save(context.folder)


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


def _data_facts(work: Workspace) -> DataFacts:
    splits = work.data
    return DataFacts(
        name=splits.name,
        source=splits.source,
        digest=data_version(splits),
        classes=splits.classes,
        image_shape=splits.image_shape,
        train=len(splits.train),
        validation=len(splits.validation),
        test=len(splits.test),
    )
