# SPDX-License-Identifier: Apache-2.0
"""Step `quantize`: calibrate, train in few bits if the recipe says so, freeze and measure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bitwright.base.figures import Figure, Source
from bitwright.base.progress import Progress
from bitwright.pipeline.context import LOGS, StepContext
from bitwright.pipeline.steps.results import OperandRow, PhaseRow, QuantizeResult
from bitwright.pipeline.steps.train import epochs_of, teacher_of, train_progress, trained_model
from bitwright.pipeline.steps.workspace import Workspace

if TYPE_CHECKING:
    from torch import fx, nn

    from bitwright.quantize import FrozenModel

WEIGHTS = "quantized.pt"
TEACHER = "teacher.pt"
"""The teacher as a co-study left it."""
CALIBRATION_IMAGES = 1024
_BATCH = 128


def quantize(work: Workspace, context: StepContext) -> None:
    """From the trained float model to weights and scales that freeze into integers."""
    from bitwright.train import evaluate, save_weights

    base = trained_model(work, context.inputs["train"])
    model = calibrated(work, base, context.progress)
    before = evaluate(frozen_from(work, model), work.data.test)
    phases: tuple[PhaseRow, ...] = ()
    if work.recipe.train.quantized is not None:
        phases = _study(work, context, model, base)
    save_weights(context.folder / WEIGHTS, model)
    after = evaluate(frozen_from(work, model), work.data.test)
    QuantizeResult(
        accuracy=Figure(after.accuracy, "share", Source.MEASUREMENT),
        accuracy_calibrated=Figure(before.accuracy, "share", Source.MEASUREMENT),
        phases=phases,
        operands=explain(work, work.fresh_model()),
    ).save(context.folder)


def _study(
    work: Workspace, context: StepContext, model: fx.GraphModule, base: nn.Module
) -> tuple[PhaseRow, ...]:
    """Train in few bits; the teacher is the recipe's, or else the float model itself."""
    from bitwright.train import evaluate, save_weights, study

    settings = work.recipe.train.quantized
    assert settings is not None
    teacher = (teacher_of(work, context) or base) if settings.needs_teacher else None
    learned: dict[str, Figure] = {}
    told = train_progress(context.progress, "training in few bits")
    results = study(
        model,
        work.data,
        settings,
        run_dir=context.folder / LOGS,
        teacher=teacher,
        on_progress=told,
    )
    if settings.co_study is not None and teacher is not None:
        save_weights(context.folder / TEACHER, teacher)
        share = evaluate(teacher, work.data.test).accuracy
        learned["co_study"] = Figure(share, "share", Source.MEASUREMENT)
    return tuple(
        PhaseRow(
            name=entry.name,
            history=epochs_of(entry.result.history),
            kept_epoch=entry.result.kept_epoch,
            validation_accuracy=entry.result.validation_accuracy,
            teacher_accuracy=learned.get(entry.name),
        )
        for entry in results
    )


def calibrated(
    work: Workspace, model: nn.Module, progress: Progress, *, images: int = CALIBRATION_IMAGES
) -> fx.GraphModule:
    """The converted model with every activation scale set from training images, ready to train."""
    import torch

    from bitwright.quantize import apply

    shape = work.sample_shape
    converted = apply(model, work.policy, "calibrate", sample_shape=shape).eval()
    order = torch.randperm(
        len(work.data.train), generator=torch.Generator().manual_seed(work.recipe.seed)
    )
    reals = torch.from_numpy(work.data.train.take(order[:images].numpy()).reals())
    with torch.no_grad():
        for start in range(0, len(reals), _BATCH):
            converted(reals[start : start + _BATCH])
            progress("calibrating", min(start + _BATCH, len(reals)), len(reals))
    return apply(converted, work.policy, "train")


def frozen_from(work: Workspace, model: fx.GraphModule) -> FrozenModel:
    """The integer form of a quantized model."""
    from bitwright.quantize import apply

    frozen: FrozenModel = apply(model, work.policy, "freeze")
    return frozen


def quantized_model(work: Workspace, folder: Path) -> fx.GraphModule:
    """The quantized model, ready to train on, as the step left it."""
    from bitwright.quantize import apply
    from bitwright.train import load_weights

    model = apply(work.fresh_model(), work.policy, "train", sample_shape=work.sample_shape)
    load_weights(folder / WEIGHTS, model)
    return model


def frozen_model(work: Workspace, folder: Path) -> FrozenModel:
    """The frozen model as the step left it."""
    return frozen_from(work, quantized_model(work, folder))


def explain(work: Workspace, model: nn.Module) -> tuple[OperandRow, ...]:
    """What each operand becomes, and why."""
    import torch

    from bitwright.quantize import explain as explain_model

    example = torch.zeros((1, *work.sample_shape))
    rows = explain_model(model, work.policy, example)
    return tuple(OperandRow(**row.to_json()) for row in rows)
