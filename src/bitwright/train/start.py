# SPDX-License-Identifier: Apache-2.0
"""What a training run is asked for, whether that makes sense, and everything it begins with."""

from __future__ import annotations

import logging
import platform
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning_fabric import Fabric
from lightning_fabric.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from bitwright.base.errors import ModelError, RecipeError
from bitwright.data import DataSplits
from bitwright.tasks.base import Task
from bitwright.tasks.classification import CLASSIFICATION
from bitwright.train.config import TrainConfig
from bitwright.train.features import FeatureMatching
from bitwright.train.images import on_device
from bitwright.train.loss import loss_settings
from bitwright.train.meeting import PrivateDDP
from bitwright.train.optimizers import make_optimizer, moving_average
from bitwright.train.precision_control import PrecisionControl, check_low_precision
from bitwright.train.records import OnProgress
from bitwright.train.stages import check_incremental
from bitwright.train.state import Best, Learner, Run
from bitwright.train.teacher_outputs import OUTPUTS, TeacherOutputs, kept_outputs
from bitwright.train.teachers import check_teacher, fingerprint, soften
from bitwright.train.transforms import check_augmentation, to_real

_log = logging.getLogger(__name__)
_CURVES = "tensorboard"
_PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}


@dataclass(frozen=True, eq=False)
class Job:
    """What `fit` is asked for; see there."""

    model: nn.Module
    splits: DataSplits
    config: TrainConfig
    folder: Path
    resume: bool
    teacher: nn.Module | TeacherOutputs | None
    peer: nn.Module | None
    task: Task = CLASSIFICATION


def check(job: Job) -> None:
    """Refuse what cannot be trained, before anything is written.

    Raises:
        RecipeError: roles, settings or labels do not fit together.
        ModelError: a teacher does not take the images or tells other classes apart.
        DataError: the teacher's outputs are those of another data set.
    """
    _check_roles(job)
    _check_labels(job)
    _check_inputs(job)
    check_task(job.task, job.config)
    check_incremental(job.model, job.config)
    check_low_precision(job.model, job.config)
    if isinstance(job.teacher, TeacherOutputs):
        job.teacher.of(job.splits.train, "teacher", job.task.output(job.splits))
    elif job.teacher is not None and job.config.distillation is not None:
        check_teacher(job.teacher, job.splits, task=job.task)
    if job.peer is not None:
        check_teacher(job.peer, job.splits, "peer", job.task)
        if not any(parameter.requires_grad for parameter in job.peer.parameters()):
            raise ModelError(
                "is frozen, but the peer of a co-study learns",
                where="peer",
                hint="set requires_grad on its parameters, or give it as teacher",
            )
    if job.config.freeze_norms is not None and not norms_of(job.model):
        raise RecipeError(
            "the model has no batch norm whose statistics could stay",
            where="freeze_norms",
            hint="remove it; a network whose batch norms were folded has none any more",
        )


def check_task(task: Task, config: TrainConfig) -> None:
    """Refuse settings of a training that mean nothing for a task.

    Raises:
        RecipeError: names them.
    """
    moving = config.augmentation.moving
    task.check_loss(loss_settings(config), config.distillation is not None, moving)


def norms_of(model: nn.Module) -> list[nn.Module]:
    """Every layer that keeps running statistics of what passes."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    norms = (module for module in model.modules() if isinstance(module, kinds))
    return [norm for norm in norms if norm.track_running_stats]


def _check_roles(job: Job) -> None:
    learned = job.config.distillation
    if learned is not None and job.teacher is None and job.peer is None:
        raise RecipeError(
            "distillation is asked for, but there is no teacher",
            where="distillation",
            hint="name a teacher model or remove the distillation settings",
        )
    if job.peer is not None and (learned is None or job.teacher is not None):
        raise RecipeError(
            "a peer learns from scores and gives its own: it needs distillation, and no teacher",
            where="distillation",
            hint="give distillation settings, and either a teacher or a peer",
        )
    if job.peer is not None and learned is not None and learned.is_cached:
        raise RecipeError(
            "a peer's scores change with every step, so they cannot be computed beforehand",
            where="distillation.outputs",
            hint="use outputs: fresh for a co-study",
        )
    is_table = isinstance(job.teacher, TeacherOutputs)
    if is_table and learned is not None and not learned.is_cached:
        raise RecipeError(
            "the teacher is a table of scores of the images as they are, which is not fresh",
            where="distillation.outputs",
            hint="use outputs: cached (cached_plain along with augmentation)",
        )


def _check_labels(job: Job) -> None:
    train = job.splits.train
    missing = int((~train.kind.known(train.labels)).sum())
    if missing and not job.config.labels_unused:
        raise RecipeError(
            f"{missing} training images have no label, but the loss needs labels",
            where="distillation.alpha",
            hint="learn from the teacher alone (alpha: 1), or train on splits.labelled()",
        )


def _check_inputs(job: Job) -> None:
    """What is done to inputs fits their kind, and what looks at validation has some."""
    check_augmentation(job.config.augmentation, job.splits.sample_shape, "train")
    if len(job.splits.validation):
        return
    if job.config.schedule == "plateau":
        raise RecipeError(
            "plateau waits for the loss on validation images, and there are none",
            where="train.schedule",
            hint="use another schedule, or data.validation above 0",
        )
    if job.config.keep == "best":
        _log.warning(
            "%s: no validation images, so no epoch is known to be the best: the weights of the "
            "last one are kept",
            job.splits.name,
        )


def make_fabric(
    config: TrainConfig, folder: Path, *, gather: bool = False, meeting: Path | None = None
) -> Fabric:
    """The devices that a config asks for.

    Args:
        meeting: a file, in a folder of this user alone, where processes of several devices meet.
        gather: only the CPU, to load what was trained elsewhere.

    Raises:
        RecipeError: they are not there, or not able to.
    """
    logger = TensorBoardLogger(root_dir=folder, name="", version=_CURVES)
    device, devices = ("cpu", 1) if gather else (config.device, config.devices)
    many = None
    if meeting is not None:
        # Ranges of some layers may not take part in every loss; DDP must know.
        many = PrivateDDP(meeting, start_method="spawn", find_unused_parameters=True)
    try:
        if config.precision == "16" and not gather:
            _needs_gpu(Fabric(accelerator=device, devices=1).device)
        return Fabric(
            accelerator=device,
            devices=devices,
            strategy=many or "auto",
            precision="32-true" if gather else _PRECISIONS[config.precision],
            loggers=logger,
        )
    except (RuntimeError, ValueError) as error:
        raise RecipeError(
            f"device {device!r} is not usable: {error}",
            where="device",
            hint="use 'cpu' or 'auto'" + (", or fewer devices" if devices > 1 else ""),
        ) from error


def _needs_gpu(device: torch.device) -> None:
    if device.type == "cpu":
        raise RecipeError(
            "precision 16 needs a GPU",
            where="precision",
            hint="use bf16, which a CPU computes too, or 32",
        )


def start(fabric: Fabric, job: Job, on_progress: OnProgress | None) -> Run:
    """Everything that the first step needs."""
    config, splits, device = job.config, job.splits, fabric.device
    teacher, table = _teacher(job, device)
    training = on_device(splits.train, device)
    job.model.to(device)
    average = None if config.ema is None else moving_average(job.model, config.ema)
    matching = None
    pairs = config.distillation.features if config.distillation is not None else ()
    shown = job.peer if job.peer is not None else teacher
    if pairs and shown is not None:
        example = to_real(training[0][:2], splits.scale)
        matching = FeatureMatching(pairs, job.model, shown.to(device), example).to(device)
    try:
        learners = [_learner(fabric, "student", job.model, config, matching, average)]
        if job.peer is not None:
            learners.append(_learner(fabric, "peer", job.peer, config.for_peer()))
    except BaseException:
        if matching is not None:
            matching.close()
        raise
    run = Run(
        config,
        splits,
        job.folder,
        fabric,
        tuple(learners),
        teacher,
        table,
        training,
        on_device(splits.validation, device),
        on_progress,
        Best(),
        [],
        _teacher_fingerprint(job),
        splits.train.digest(),
        task=job.task,
    )
    if config.low_precision is not None:
        try:
            run.precision = PrecisionControl(
                job.model,
                config,
                run.batches,
                to_real(training[0][:1], splits.scale),
                batch_size=run.share.stop - run.share.start,
                worker=fabric.global_rank,
            )
        except BaseException:
            close(run)
            raise
    return run


def close(run: Run) -> None:
    """Take off what the run has put on the networks, and end the curves."""
    if run.precision is not None:
        run.precision.close()
    for learner in run.learners:
        if learner.matching is not None:
            learner.matching.close()
    for logger in run.fabric.loggers:
        try:
            logger.finalize("stopped")
            if run.fabric.is_global_zero:
                _without_host(Path(logger.root_dir or ".") / _CURVES)
        except OSError as error:
            _log.warning("TensorBoard curves cannot be written: %s", error)


def _without_host(folder: Path) -> None:
    """Files of curves are named after the machine: not what belongs into a run that is given away.

    TensorBoard takes every name with ``tfevents`` in it.
    """
    for path in folder.glob(f"*tfevents*.{platform.node()}*"):
        path.rename(path.with_name(path.name.replace(f".{platform.node()}", "", 1)))


def _teacher(job: Job, device: torch.device) -> tuple[nn.Module | None, Tensor | None]:
    """The teacher as it is asked, or the table that stands for it."""
    learned, teacher = job.config.distillation, job.teacher
    if learned is None or teacher is None or not (learned.alpha or learned.features):
        return None, None
    if isinstance(teacher, TeacherOutputs):
        output = job.task.output(job.splits)
        return None, teacher.of(job.splits.train, "teacher", output).to(device)
    teacher = soften(teacher, learned.temperature).to(device).eval()
    if not learned.is_cached:
        return teacher, None
    path = job.folder / OUTPUTS
    kept = kept_outputs(teacher, job.splits.train, path)
    output = job.task.output(job.splits)
    return None, kept.of(job.splits.train, output=output).to(device)


def _teacher_fingerprint(job: Job) -> str | None:
    """By what a resumed run knows its teacher again."""
    if job.config.distillation is None or job.teacher is None:
        return None
    given = job.teacher
    return given.teacher if isinstance(given, TeacherOutputs) else fingerprint(given)


def _learner(
    fabric: Fabric,
    name: str,
    model: nn.Module,
    config: TrainConfig,
    matching: FeatureMatching | None = None,
    average: AveragedModel | None = None,
) -> Learner:
    trained = model if matching is None else nn.ModuleList([model, matching])
    forward, optimizer = fabric.setup(model, make_optimizer(trained, config))
    return Learner(name, config, model, forward, optimizer, matching, average)
