# SPDX-License-Identifier: Apache-2.0
"""The training loop, on Lightning Fabric.

A run is a pure function of (model, data, config): every epoch draws its order and its augmentation
from a generator seeded by (seed, epoch), the learning rate is a function of the step, and torch's
own generator is part of the checkpoint. So a run that was stopped anywhere, by Ctrl-C or by a
killed process, goes on from its last whole epoch and ends with the same weights, bit for bit.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.data import DataSplits
from bitwright.low_precision.arithmetic.operands import NotFinite
from bitwright.tasks.base import Task
from bitwright.tasks.classification import CLASSIFICATION
from bitwright.train.checkpoint import load_state
from bitwright.train.config import TrainConfig
from bitwright.train.evaluation import Evaluation, score_images, summarise
from bitwright.train.images import Feed, on_device
from bitwright.train.loss import objective
from bitwright.train.many import gather_gradients, share_buffers, train_on_many
from bitwright.train.records import EpochMetrics, FitResult, OnProgress, TrainProgress
from bitwright.train.schedule import lr_factor
from bitwright.train.stages import enter_epoch
from bitwright.train.start import Job, check, close, make_fabric, norms_of, start
from bitwright.train.state import CHECKPOINT, Best, Run, restore, save
from bitwright.train.teacher_outputs import TeacherOutputs
from bitwright.train.threads import torch_threads

_log = logging.getLogger(__name__)
_EVALUATION_BATCH = 500
_PROGRESS_SECONDS = 0.1
_EPOCH_STRIDE = 1_000_003  # a prime, so that (seed, epoch) pairs do not meet


def fit(  # noqa: PLR0913 - each is one thing that training is made of
    model: nn.Module,
    splits: DataSplits,
    config: TrainConfig,
    *,
    run_dir: str | Path,
    resume: bool = True,
    teacher: nn.Module | TeacherOutputs | None = None,
    peer: nn.Module | None = None,
    on_progress: OnProgress | None = None,
    task: Task = CLASSIFICATION,
) -> FitResult:
    """Train a model in place, and with a peer that one too.

    Writes ``checkpoint.pt`` (after every epoch), ``metrics.jsonl`` and ``tensorboard/`` under
    ``run_dir``. Prints nothing. The caller's random state is left as it was.

    Args:
        model: takes (N, C, H, W) reals in [0, 1], gives what the task needs, such as (N, classes)
            scores; float or quantized.
        splits: trained on ``train``; ``validation`` chooses; ``test`` is not touched.
        config: the settings.
        run_dir: folder of this run, made if missing.
        resume: go on from ``checkpoint.pt`` if there is one; False starts anew.
        teacher: frozen model whose scores are learned too, as ``config.distillation`` says; or its
            scores alone, as `read_outputs` gives them.
        peer: a second model that learns at the same time, as ``config.peer`` says: each learns
            from the labels and from the other's scores (Zhang et al. 2018, deep mutual learning).
            It ends with its last weights, whatever is kept of ``model``.
        on_progress: called a few times a second and after every epoch.
        task: what the model is for.

    Raises:
        RecipeError: distillation without a teacher or peer, a peer without distillation, labels
            that are missing, settings that mean nothing for the task, or a device that is not
            there.
        RunError: the checkpoint was written with other settings or another teacher.
        DataError: the checkpoint is corrupt, the disk is full, or the teacher's scores are those of
            another data set; labels are not of the task's kind.
        ModelError: the teacher has other classes or takes other images, a layer to learn from is
            unknown or does not fit, the checkpoint belongs to another model, or the loss is no
            finite number.
    """
    training, validation = splits.train.of_kind(task.labels), splits.validation.of_kind(task.labels)
    splits = replace(splits, train=training, validation=validation)
    job = Job(model, splits, config, Path(run_dir), resume, teacher, peer, task)
    check(job)
    done_before = None
    if config.devices > 1:
        done_before = train_on_many(job, train, on_progress)
        job = replace(job, resume=True)  # all of it is in the checkpoint now
    fabric = make_fabric(config, job.folder, gather=done_before is not None)
    run, first = train(fabric, job, on_progress)
    return _finish(run, first if done_before is None else done_before)


def train(fabric: Fabric, job: Job, on_progress: OnProgress | None) -> tuple[Run, int]:
    """Train what is not trained yet; gives the run and the number of epochs done before."""
    with _deterministic(job.config):
        run = start(fabric, job, on_progress)
        try:
            first = restore(run) if job.resume else 0
            for epoch in range(first, job.config.epochs):
                if run.precision is not None and run.precision.policy.done(epoch):
                    break
                _epoch(run, epoch)
        finally:
            close(run)
    return run, first


@contextmanager
def _deterministic(config: TrainConfig) -> Iterator[None]:
    """Seed torch for this run; give the caller's generators and switches back afterwards."""
    was_deterministic = torch.are_deterministic_algorithms_enabled()
    on_cpu = config.device == "cpu"
    with torch_threads(config.threads), torch.random.fork_rng(devices=[] if on_cpu else None):
        torch.manual_seed(config.seed)
        if not on_cpu:  # operations on the CPU are deterministic as they are
            torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(was_deterministic)


def _epoch(run: Run, epoch: int) -> None:
    """One pass over the training images, the validation, and the checkpoint."""
    started = time.perf_counter()
    enter_epoch(run, epoch)
    if run.precision is not None and run.precision.enter_epoch(epoch):
        run.best = Best()  # weights that were best in other formats say nothing about these
    loss, value = _train_epoch(run, epoch)
    if not torch.isfinite(torch.tensor(loss)):
        raise ModelError(
            f"training diverged: the loss is {loss}",
            where=f"epoch {epoch + 1}",
            hint="lower the learning rate, add warm-up epochs, or set clip_norm",
        )
    measured = _validate(run)
    first = None if measured is None else measured.first
    entry = EpochMetrics(
        epoch=epoch + 1,
        lr=run.student.optimizer.param_groups[0]["lr"],
        train_loss=loss,
        train_metric=value,
        validation_loss=None if measured is None else measured.loss,
        validation_metric=None if first is None else first.value,
        seconds=time.perf_counter() - started,
        precision=None if run.precision is None else run.precision.level_name,
        metric=run.task.metric.key,
        others={} if measured is None else measured.others,
    )
    run.history.append(entry)
    if run.precision is not None:
        run.precision.after_epoch(epoch, loss, math.nan if measured is None else measured.loss)
    # Without validation images no epoch is known to be the best: the last one is kept.
    goodness = Best().goodness if first is None else first.goodness
    lost = Best().loss if measured is None else measured.loss
    if first is None or run.config.keep == "last" or run.best.is_beaten_by(goodness, lost):
        state = deepcopy(run.student.evaluated.state_dict())  # its metadata says the formats
        run.best = Best(epoch + 1, goodness, lost, state)
    if run.fabric.is_global_zero:
        save(run, epoch + 1)
        _log_scalars(run, entry)
    if run.on_progress is not None:
        run.on_progress(_progress(run, epoch, run.batches, loss, value))


def _log_scalars(run: Run, entry: EpochMetrics) -> None:
    """Curves for TensorBoard. They are a convenience (``metrics.jsonl`` holds the same figures), so
    a disk that fills up right here does not end the run: the next checkpoint will say so.
    """
    found = {**entry.to_record(), **({} if run.precision is None else run.precision.scalars())}
    scalars = {
        name: value
        for name, value in found.items()
        if name != "epoch" and isinstance(value, int | float)
    }
    try:
        run.fabric.log_dict(scalars, step=entry.epoch)
    except OSError as error:
        _log.warning("TensorBoard curves cannot be written: %s", error)


def _train_epoch(run: Run, epoch: int) -> tuple[float, float]:
    """Mean loss, and the value of the metric, over the epoch's training images."""
    labels = run.training[1]
    generator = torch.Generator().manual_seed(run.config.seed * _EPOCH_STRIDE + epoch)
    order = torch.randperm(len(labels), generator=generator).to(labels.device)
    for learner in run.learners:
        learner.forward.train()
        if learner.config.norms_frozen(epoch):
            for norm in norms_of(learner.model):
                norm.eval()
    total_loss = torch.zeros((), dtype=torch.float64, device=labels.device)
    metric = run.task.metric
    sums = torch.zeros((), dtype=torch.float64, device=labels.device)
    next_report = time.perf_counter() + _PROGRESS_SECONDS
    skipped = 0
    losses = [e.validation_loss for e in run.history if e.validation_loss is not None]
    parts = order[: run.batches * run.batch_size].split(run.batch_size)
    how = (run.config.augmentation, run.share, run.config.seed, epoch)
    feed = Feed(run.training[0], run.splits.train.indices, run.splits.scale, *how)
    for batch, (reals, moves) in enumerate(feed.batches(parts, generator)):
        chosen = parts[batch][run.share]
        known = labels[chosen]
        if run.task.moves_labels and run.config.augmentation.moving:
            known = run.task.moved(known, moves)
        step = epoch * run.batches + batch
        factor = lr_factor(run.config, step, run.batches, losses)
        if run.precision is not None:
            run.precision.enter_step(step)
            factor *= run.precision.policy.lr_factor(epoch)
        for learner in run.learners:
            for group in learner.optimizer.param_groups:
                group["lr"] = learner.config.lr * factor
        found = _step(run, reals, known, chosen, step)
        if found is None:  # its gradients were not usable; a message says why
            skipped += 1
            continue
        total_loss += found[0]
        sums = sums + found[1]
        if run.on_progress is not None and time.perf_counter() > next_report:
            done = batch + 1 - skipped
            mean = float(total_loss) / done
            run.on_progress(_progress(run, epoch, batch + 1, mean, metric.value_of(sums)))
            next_report = time.perf_counter() + _PROGRESS_SECONDS
    if run.fabric.world_size > 1:
        total_loss = run.fabric.all_reduce(total_loss, reduce_op="mean")
        sums = run.fabric.all_reduce(sums, reduce_op="sum")
    done = run.batches - skipped
    if not done:
        return float("nan"), 0.0
    return float(total_loss) / done, metric.value_of(sums)


def _step(
    run: Run, reals: Tensor, labels: Tensor, chosen: Tensor, step: int
) -> tuple[Tensor, Tensor] | None:
    """One update of every learner; gives the student's loss and what its metric adds up
    (`Metric.sums`), or None where no weight may move by this step's gradients.

    Args:
        chosen: positions of the images among the training images.
        step: number of the step in the run.
    """
    for learner in run.learners:
        learner.optimizer.zero_grad(set_to_none=True)
    # First: its memory is free again for the student's.
    teacher_scores = _teacher_scores(run, reals, chosen)
    try:
        return _update(run, reals, labels, teacher_scores, step)
    except NotFinite as error:
        if run.precision is not None and not run.precision.usable(error, step):
            return None
        raise


def _update(
    run: Run, reals: Tensor, labels: Tensor, teacher_scores: Tensor | None, step: int
) -> tuple[Tensor, Tensor] | None:
    """As `_step`, with the teacher's scores of the batch."""
    *others, last = run.learners
    scores = [*(learner.forward(reals.clone()) for learner in others), last.forward(reals)]
    # In a co-study each learns the other's scores, as they are.
    targets = (
        [other.detach() for other in reversed(scores)] if len(scores) > 1 else [teacher_scores]
    )
    losses = []
    for learner, own, target in zip(run.learners, scores, targets, strict=True):
        loss = objective(own, labels, target, learner.config, run.task)
        if learner.matching is not None:
            loss = loss + learner.matching.loss(run.fabric.all_reduce)  # the mean
        losses.append(loss)
    for learner, loss in zip(run.learners, losses, strict=True):
        # Backward and step together: with 16 bits every step changes the scale of gradients.
        run.fabric.backward(loss)
        gather_gradients(run.fabric, learner.matching)
        if run.precision is not None and learner is run.student:
            if not run.precision.usable(None, step):
                return None
            run.precision.after_step(step)
        if learner.config.clip_norm is not None:
            norm = learner.config.clip_norm
            run.fabric.clip_gradients(learner.forward, learner.optimizer, max_norm=norm)
        learner.optimizer.step()
        if learner.average is not None:
            learner.average.update_parameters(learner.model)
    # Without a label, what the teacher says counts as right.
    labels = run.task.filled(labels, targets[0])
    return losses[0].detach(), run.task.metric.sums(scores[0].detach(), labels)


def _teacher_scores(run: Run, reals: Tensor, chosen: Tensor) -> Tensor | None:
    """The teacher's scores of a batch; None without a teacher."""
    if run.table is not None:
        return run.table[chosen]
    if run.teacher is None:
        return None
    with torch.no_grad(), run.fabric.autocast():
        # Whoever comes before another gets a copy: a layer may write into what it gets.
        found: Tensor = run.teacher(reals.clone()).float()
    return found


def _validate(run: Run) -> Evaluation | None:
    """What the network says about the validation images; None where there are none."""
    for learner in run.learners:
        share_buffers(run.fabric, learner.model, learner.evaluated)
    images, labels = run.validation
    if not len(labels):
        return None
    scores = score_images(run.student.evaluated, images, run.splits.scale, _EVALUATION_BATCH).cpu()
    return summarise(scores, labels.cpu(), run.splits.num_classes, run.task)


def _progress(run: Run, epoch: int, batch: int, loss: float, value: float) -> TrainProgress:
    last = run.history[-1] if run.history else None
    epochs, batches = run.config.epochs, run.batches
    return TrainProgress(epoch + 1, epochs, batch, batches, loss, value, last)


def _finish(run: Run, first: int) -> FitResult:
    """Put the kept weights into the model and bring it back to the CPU."""
    if run.best.state:
        load_state(run.student.model, run.best.state, str(run.folder / CHECKPOINT))
    for learner in run.learners:
        learner.model.to("cpu").eval()
    value: float | None = None
    if len(run.splits.validation):
        value = run.task.metric.goodness(run.best.goodness)  # its own inverse
    if not run.history:
        run.validation = on_device(run.splits.validation, "cpu")
        measured = _validate(run)
        value = None if measured is None else measured.first.value
    return FitResult(tuple(run.history), run.best.epoch, value, first)
