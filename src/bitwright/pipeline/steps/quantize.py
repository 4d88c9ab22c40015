# SPDX-License-Identifier: Apache-2.0
"""Step `quantize`: calibrate, train in few bits if the recipe says so, integerize, measure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bitwright.base.errors import RecipeError
from bitwright.base.figures import Figure
from bitwright.base.progress import Progress
from bitwright.base.records import OperandRow
from bitwright.base.trust import importable
from bitwright.pipeline.context import LOGS, StepContext
from bitwright.pipeline.steps.results import PhaseRow, QuantizeResult, load_result
from bitwright.pipeline.steps.train import epochs_of, teacher_of, train_progress, trained_model
from bitwright.pipeline.steps.workspace import Workspace

if TYPE_CHECKING:
    from torch import nn

    from bitwright.quantize import IntegerModel, QuantizedModel

WEIGHTS = "quantized.pt"
INTEGERS = "integers.bwg"
"""The integer graph, as it came from the model: the definition of the network from here on."""
TEACHER = "teacher.pt"
"""The teacher as a co-study left it."""
CALIBRATION_IMAGES = 1024
_BATCH = 128


def quantize(work: Workspace, context: StepContext) -> None:
    """From the trained float model to weights and scales, and to the integer graph they mean."""
    from bitwright.ir import save_graph
    from bitwright.train import evaluate, save_weights

    base = trained_model(work, context.inputs["train"])
    model = calibrated(work, base, context.progress)
    before = evaluate(integer_model(work, model), work.data.test, task=work.task)
    phases: tuple[PhaseRow, ...] = ()
    if work.recipe.train.quantized is not None:
        phases = _study(work, context, model, base)
    save_weights(context.folder / WEIGHTS, model)
    integers = integer_model(work, model)
    save_graph(integers.graph, context.folder / INTEGERS)
    after = evaluate(integers, work.data.test, task=work.task)
    QuantizeResult(
        metrics=after.figures,
        calibrated=before.first.figure(),
        phases=phases,
        operands=explain(work, work.fresh_model()),
        input_rounding=integers.rounding.value,
    ).save(context.folder)


def _study(
    work: Workspace, context: StepContext, model: QuantizedModel, base: nn.Module
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
        task=work.task,
    )
    if settings.co_study is not None and teacher is not None:
        save_weights(context.folder / TEACHER, teacher)
        learned["co_study"] = evaluate(teacher, work.data.test, task=work.task).first.figure()
    return tuple(
        PhaseRow(
            name=entry.name,
            history=epochs_of(entry.result.history),
            kept_epoch=entry.result.kept_epoch,
            validation_metric=entry.result.validation_metric,
            teacher_figure=learned.get(entry.name),
        )
        for entry in results
    )


def calibrated(
    work: Workspace,
    model: nn.Module,
    progress: Progress,
    *,
    images: int = CALIBRATION_IMAGES,
    quick: bool = False,
) -> QuantizedModel:
    """A float model in the recipe's formats, by its ``quant.methods`` and from training images:
    every activation scale is set, and it is ready to train on. With the threads of the training
    that follows, or of that before.

    Args:
        images: how many are used.
        quick: leave out the methods that take long; the structure of the network is the same.
    """
    import torch

    from bitwright.quantize import method_words
    from bitwright.quantize.ptq.post_training import post_training_quantize
    from bitwright.train.threads import torch_threads

    train = work.recipe.train
    phases = () if train.quantized is None else (phase for _, phase in train.quantized.present)
    threads = next((c.threads for c in (*phases, train.float_) if c.threads is not None), None)
    order = torch.randperm(
        len(work.data.train), generator=torch.Generator().manual_seed(work.recipe.seed)
    )
    reals = torch.from_numpy(work.data.train.take(order[:images].numpy()).reals())
    words = work.policy.methods
    methods = method_words.quick(words) if quick else words
    progress(f"{', '.join(methods)} on {len(reals)} images", 0, 0)
    with importable(work.recipe.base_dir), torch_threads(threads):
        converted, _ = post_training_quantize(model, work.policy, reals, methods, batch_size=_BATCH)
    if work.recipe.train.quantized is not None:
        _check_trainable(converted, [word for word in words if method_words.is_own(word)])
    return converted


def _check_trainable(model: QuantizedModel, own: Sequence[str]) -> None:
    """Refuse methods of the user's own that fixed weights which are to be trained; those of the
    package are refused by their words (`method_words.check_trainable`).
    """
    from bitwright.quantize.layers import QuantLayer

    for path, layer in model.named_modules():
        if own and isinstance(layer, QuantLayer) and layer.weight_quantizer.fixed:
            raise RecipeError(
                f"{' or '.join(own)} fixes the weights of {path}, "
                "which train.quantized is to train",
                where="quant.methods",
                hint="leave out the method, or train.quantized",
            )


def integer_model(work: Workspace, model: QuantizedModel) -> IntegerModel:
    """The integer network of a quantized model: what it computes in evaluation.

    Raises:
        ModelError: it has none, as operands are kept float, say.
    """
    from bitwright.quantize import integerize

    return integerize(model.eval(), work.policy, work.sample_shape)


def quantized_model(work: Workspace, folder: Path) -> QuantizedModel:
    """The quantized model, ready to train on, as the step left it."""
    import torch

    from bitwright.quantize import apply
    from bitwright.quantize.ptq.post_training import prepare_network
    from bitwright.train import load_weights

    example = torch.zeros((1, *work.sample_shape))
    with importable(work.recipe.base_dir):
        prepared, _ = prepare_network(work.fresh_model(), work.policy.methods, example)
    model = apply(prepared, work.policy, "train", sample_shape=work.sample_shape)
    load_weights(folder / WEIGHTS, model)
    return model


def read_integers(folder: Path) -> IntegerModel:
    """The integer network as the step left it.

    Raises:
        RunError: the step was done by a version that left none.
    """
    from bitwright.base.errors import RunError
    from bitwright.formats import Rounding
    from bitwright.ir import INTEGER, load_graph
    from bitwright.quantize import IntegerModel

    if not (folder / INTEGERS).is_file():
        raise RunError(
            f"holds no {INTEGERS}: it was made by an older version",
            where=str(folder),
            hint="bitwright quantize makes it anew, from the weights trained before",
        )
    graph = load_graph(folder / INTEGERS, {"integer": INTEGER}, chosen=True)
    return IntegerModel(graph, Rounding(load_result(QuantizeResult, folder).input_rounding))


def explain(work: Workspace, model: nn.Module) -> tuple[OperandRow, ...]:
    """What each operand becomes, and why."""
    import torch

    from bitwright.quantize import explain as explain_model

    example = torch.zeros((1, *work.sample_shape))
    rows = explain_model(model, work.policy, example)
    return tuple(OperandRow(**row.to_json()) for row in rows)
