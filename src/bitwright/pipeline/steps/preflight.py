# SPDX-License-Identifier: Apache-2.0
"""Whatever can go wrong is tried on the untrained network first, before hours of training."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import partial

from bitwright.ir import Graph
from bitwright.pipeline.context import LOGS
from bitwright.pipeline.run import Run
from bitwright.pipeline.steps.results_hardware import EngineExplanation, EngineResult, MapResult
from bitwright.pipeline.steps.workspace import Workspace

_CALIBRATION_IMAGES = 32
_COMPARED_BYTES = 4 << 30
_VALUE_BYTES = 12  # a real and an int64 level


def preflight(work: Workspace, run: Run, chosen: Sequence[str]) -> None:
    """Report whatever will stop the chosen steps, before any of them starts.

    Raises:
        BitwrightError: an unknown target, a missing tool, a model that cannot be converted or
            lowered, or a design that does not fit.
    """
    pending = [name for name in chosen if not run.is_fresh(name)]
    _check_tools(work, pending)
    _check_test_images(work, pending)
    if not {"teach", "train", "quantize"} & set(pending):
        return  # the network itself has been through all this
    check_task(work)
    _check_memory(work, pending)
    check_model(work)
    _check_precision(work, pending)
    _check_interrupted(work, run, pending)
    _check_features(work)  # a teacher's file of another network shows here too
    work.teacher_logits()  # and one of another data set
    if "map" in pending:
        dry_run(work)
    elif "lower" in pending:
        untrained_graph(work)


def _check_test_images(work: Workspace, pending: Sequence[str]) -> None:
    """Lowering compares the integers of every test image, and later steps want them again.

    Raises:
        RecipeError: they are more than memory should have to hold.
    """
    from bitwright.base.errors import RecipeError

    if "lower" not in pending:
        return
    most = _COMPARED_BYTES // (_VALUE_BYTES * math.prod(work.data.image_shape))
    if len(work.data.test) > most:
        raise RecipeError(
            f"every one of {len(work.data.test)} test images is compared when lowering, and of "
            f"their size {most} are what memory holds",
            where="data.keep.test",
            hint=f"--set data.keep.test={max(1, most // 10)} keeps fewer; "
            "--until quantize lowers nothing",
        )


def _check_memory(work: Workspace, pending: Sequence[str]) -> None:
    """Training the network takes no more memory than there is.

    Raises:
        ModelError: it does.
    """
    from torch.accelerator import is_available

    from bitwright.models.memory import check_memory

    train = work.recipe.train
    phases = [train.float_] if "train" in pending and work.shipped is None else []
    if "quantize" in pending and train.quantized is not None:
        phases += [config for _, config in train.quantized.present]
    model = work.fresh_model()
    for phase in phases:
        # The memory of a GPU is another.
        on_gpu = phase.device != "cpu" and (phase.device != "auto" or is_available())
        each = 2 if "16" in str(phase.precision) else 4
        images = 0 if on_gpu else phase.batch_size
        spec = work.recipe.model
        check_memory(model, work.sample_shape, spec.name, images, each, known=not spec.is_file)


def check_task(work: Workspace) -> None:
    """What the recipe says of training means something for its task, and the network gives what
    the task needs: building it tells.

    Raises:
        RecipeError, ModelError: names what does not fit, and what would.
    """
    from bitwright.train.start import check_task as check_settings

    train = work.recipe.train
    phases = [train.float_, *(entry.train for entry in work.recipe.teacher if entry.train)]
    if train.quantized is not None:
        phases += [config for _, config in train.quantized.present]
    for config in phases:
        check_settings(work.task, config)
    work.task.metric  # noqa: B018 - raises where there is none
    work.fresh_model()


def check_model(work: Workspace) -> None:
    """Every operation of the model can be converted to integers under this policy.

    Raises:
        ModelError: names each operation that cannot, the line, the reason and what to do.
        RecipeError: the policy does not fit the model.
    """
    import torch

    from bitwright.base.errors import ModelError
    from bitwright.quantize import inspect_model

    example = torch.zeros((1, *work.sample_shape))
    without_hardware = inspect_model(work.fresh_model(), work.policy, example)
    if without_hardware:
        raise ModelError(
            "no hardware for:\n" + "\n".join(f"  - {line}" for line in without_hardware),
            where=work.recipe.model.name,
            hint="replace these operations in the model",
        )


def _check_precision(work: Workspace, pending: Sequence[str]) -> None:
    """Levels, accumulators, device, and the user's own policy and metric fit the network.

    Raises:
        BitwrightError: what the training step would refuse, as `PrecisionControl`.
    """
    import torch

    from bitwright.train.precision_control import PrecisionControl, check_low_precision

    config = work.recipe.train.float_
    if config.low_precision is None or "train" not in pending or work.shipped is not None:
        return
    model = work.fresh_model()
    check_low_precision(model, config)
    batches = len(work.data.train) // config.batch_size
    example = torch.zeros((1, *work.sample_shape))
    share = config.batch_size // config.devices
    PrecisionControl(model, config, batches, example, batch_size=share).close()


def _check_interrupted(work: Workspace, run: Run, pending: Sequence[str]) -> None:
    """Training in low precision that was interrupted is not thrown away for other settings.

    Raises:
        RunError: names the settings that differ.
    """
    from bitwright.base.described import validated
    from bitwright.base.errors import DataError, RunError
    from bitwright.low_precision.log import LOG
    from bitwright.train.checkpoint import load_checkpoint
    from bitwright.train.config import TrainConfig
    from bitwright.train.differences import differences, in_words
    from bitwright.train.state import CHECKPOINT

    logs = run.work_of("train") / LOGS
    path = logs / CHECKPOINT
    if "train" not in pending or not (logs / LOG).is_file() or not path.is_file():
        return
    try:
        before = validated(TrainConfig, load_checkpoint(path)["config"])
    except (DataError, KeyError, ValueError):
        return  # no training could go on from that
    found = differences(before, work.recipe.train.float_)
    if found:
        raise RunError(
            f"was {in_words(found)}",
            where=str(path),
            hint="go on with the former settings, use another name or run directory, or delete "
            "this file to train anew",
        )


def _check_features(work: Workspace) -> None:
    """The layers that are to learn from layers are there, in student and teacher.

    Raises:
        ModelError: one is not, or a teacher cannot be built.
    """
    from bitwright.train.features import check_paths
    from bitwright.train.teachers import Ensemble

    teachers = work.fresh_teachers()
    student = work.fresh_model()
    teacher = (
        Ensemble(teachers, task=work.task) if len(teachers) > 1 else next(iter(teachers), student)
    )
    train = work.recipe.train
    phases = (
        () if train.quantized is None else tuple(config for _, config in train.quantized.present)
    )
    for config in (train.float_, *phases):
        pairs = config.distillation.features if config.distillation else ()
        check_paths(student, [p.student for p in pairs], "distillation.features (student)")
        check_paths(teacher, [p.teacher for p in pairs], "distillation.features (teacher)")


def dry_run(work: Workspace) -> MapResult | EngineResult:
    """The path from the untrained network to the hardware graph or the program, nothing written.

    Raises:
        BitwrightError: whatever a real run would raise on the way.
    """
    from bitwright.build.target import load_target
    from bitwright.pipeline.steps.map import choose_mapping, describe_mapping, register_blocks

    wanted = work.recipe.hardware
    if wanted.kind == "engine":
        return _dry_program(work)
    target = load_target(wanted.target)
    graph = untrained_graph(work)
    register_blocks(work)
    hardware = choose_mapping(graph, work.recipe.hardware, target, work.progress)
    return describe_mapping(hardware, target, work.recipe.hardware)


def _dry_program(work: Workspace) -> EngineResult:
    from bitwright.engine.compiler import compile_graph
    from bitwright.pipeline.steps.map_engine import describe_program, engine_config

    config = engine_config(work.recipe.hardware)
    image = compile_graph(untrained_graph(work), config)
    return describe_program(image, work.recipe.hardware)


def explain_program(work: Workspace) -> EngineExplanation:
    """How the untrained network is mapped to the recipe's engine, layer by layer, or which of its
    nodes are not and why.

    Raises:
        BitwrightError: there is no such engine, it does not fit the target, or the network cannot
            be converted to integers.
    """

    from bitwright.base.errors import ModelError, NoHardware
    from bitwright.engine.compiler import compile_program
    from bitwright.engine.compiler.front import network_of
    from bitwright.engine.compiler.mapping import layer_mappings
    from bitwright.lower.placement import refusals
    from bitwright.pipeline.steps.map_engine import describe_program, engine_config

    wanted = work.recipe.hardware
    config = engine_config(wanted)
    known = EngineExplanation(
        engine=wanted.engine, sizes=json.loads(config.to_json()), products=config.products
    )
    graph = untrained_graph(work)
    try:
        made = compile_program(graph, config)
    except NoHardware:
        refused = refusals(graph, partial(network_of, config=config))
        return known.model_copy(update={"refused": refused})
    except ModelError as error:
        where = error.where or graph.name
        return known.model_copy(update={"refused": {where: f"{error.message} ({error.hint})"}})
    rows = layer_mappings(made.plan)
    program = describe_program(made.image, wanted, work.progress)
    return known.model_copy(update={"layers": tuple(rows), "program": program})


def untrained_graph(work: Workspace) -> Graph:
    """The integer graph of the recipe's network before training."""
    from bitwright.lower import optimise
    from bitwright.pipeline.steps.lower import named_graph
    from bitwright.pipeline.steps.quantize import calibrated, integer_model

    work.progress("checking the whole path on the untrained network", 0, 0)
    model = calibrated(
        work, work.fresh_model(), work.progress, images=_CALIBRATION_IMAGES, quick=True
    )
    graph: Graph = optimise(named_graph(work, integer_model(work, model)))
    return graph


def _check_tools(work: Workspace, pending: Sequence[str]) -> None:
    """The target and the board are known, and the tools that they need are there.

    Raises:
        TargetError: unknown target or board, or a board that is not made with this target.
        ToolError: a tool is missing; says how to install it.
    """
    from bitwright.base.tools.finder import require
    from bitwright.build.pnr_tools import pnr_tools
    from bitwright.build.target import load_board, load_target

    if not {"map", "simulate", "implement"} & set(pending):
        return
    target = load_target(work.recipe.hardware.target)
    if work.recipe.implement.board is not None:
        load_board(work.recipe.implement.board).mounted(target)
    if "simulate" in pending:
        require("verilator")
    if "implement" in pending:
        require("yosys")
        if target.places_and_routes:
            require(pnr_tools(target).nextpnr)
