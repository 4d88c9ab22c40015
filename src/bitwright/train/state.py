# SPDX-License-Identifier: Apache-2.0
"""What a training run carries from epoch to epoch, and how it gets into a checkpoint and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from bitwright.base.described import validated
from bitwright.base.errors import DataError, RunError
from bitwright.data import DataSplits
from bitwright.tasks.base import Task
from bitwright.tasks.classification import CLASSIFICATION
from bitwright.train.checkpoint import (
    load_checkpoint,
    load_optimizer,
    load_state,
    save_checkpoint,
)
from bitwright.train.config import TrainConfig
from bitwright.train.differences import differences, in_words
from bitwright.train.features import FeatureMatching
from bitwright.train.images import Images
from bitwright.train.precision_control import PrecisionControl
from bitwright.train.records import METRICS, EpochMetrics, OnProgress, write_metrics

CHECKPOINT = "checkpoint.pt"
_SCHEMA = 3
_FIELDS = ("schema", "config", "epoch", "learners", "precision", "rng", "best", "history")


@dataclass
class Best:
    """Weights of the best epoch so far; the loss decides between equal values of the metric.

    Attributes:
        goodness: the metric's value, such that more is better (`tasks.Metric.goodness`).
    """

    epoch: int = 0
    goodness: float = -float("inf")
    loss: float = float("inf")
    state: dict[str, Any] = field(default_factory=dict)

    def is_beaten_by(self, goodness: float, loss: float) -> bool:
        return (goodness, -loss) > (self.goodness, -self.loss)


@dataclass
class Learner:
    """One network in training.

    Attributes:
        name: ``student`` or ``peer``.
        config: its own settings.
        model: the network as the caller knows it.
        forward: the same as Fabric runs it.
        optimizer: of its parameters.
        matching: its layers that learn from layers; None without any.
        average: moving average of its weights; None without one.
    """

    name: str
    config: TrainConfig
    model: nn.Module
    forward: Any
    optimizer: Any
    matching: FeatureMatching | None = None
    average: AveragedModel | None = None

    @property
    def evaluated(self) -> nn.Module:
        """The network that is measured and kept: the average, where there is one."""
        if self.average is None:
            return self.model
        averaged: nn.Module = self.average.module
        return averaged

    @property
    def parts(self) -> dict[str, Any]:
        """By name, all that has a state."""
        found = {
            "model": self.model,
            "optimizer": self.optimizer,
            "matching": self.matching,
            "average": self.average,
        }
        return {name: part for name, part in found.items() if part is not None}


@dataclass
class Run:
    """Everything that one run carries from epoch to epoch.

    Attributes:
        learners: the student, and in a co-study its peer.
        teacher: learns no more; None without one.
        table: (N, ...), its outputs for the training images, where they were computed before.
        teacher_fingerprint: `fingerprint` of the teacher; None without one.
        data: digest of the training images and labels.
        precision: of the student's products, while they run in few bits; None: float32.
        task: what the networks are for.
    """

    config: TrainConfig
    splits: DataSplits
    folder: Path
    fabric: Fabric
    learners: tuple[Learner, ...]
    teacher: nn.Module | None
    table: Tensor | None
    training: tuple[Images, Tensor]
    validation: tuple[Images, Tensor]
    on_progress: OnProgress | None
    best: Best
    history: list[EpochMetrics]
    teacher_fingerprint: str | None = None
    data: str | None = None
    precision: PrecisionControl | None = None
    task: Task = CLASSIFICATION

    @property
    def student(self) -> Learner:
        return self.learners[0]

    @property
    def batch_size(self) -> int:
        """Of all devices together."""
        size: int = min(self.config.batch_size, len(self.training[1]))
        size -= size % self.fabric.world_size
        return size

    @property
    def share(self) -> slice:
        """The part of a batch that this process trains on."""
        each = self.batch_size // self.fabric.world_size
        return slice(each * self.fabric.global_rank, each * (self.fabric.global_rank + 1))

    @property
    def batches(self) -> int:
        return len(self.training[1]) // self.batch_size


def save(run: Run, epochs_done: int) -> None:
    """Write the checkpoint and the metrics, each completely or not at all."""
    rng = {"cpu": torch.get_rng_state()}
    if run.fabric.device.type == "cuda":
        rng["cuda"] = torch.cuda.get_rng_state(run.fabric.device)
    content = {
        "schema": _SCHEMA,
        "config": run.config.model_dump_json(),
        "taught_by": run.teacher_fingerprint,
        "data": run.data,
        "epoch": epochs_done,
        "learners": {
            learner.name: {name: part.state_dict() for name, part in learner.parts.items()}
            for learner in run.learners
        },
        "precision": run.fabric.strategy.precision.state_dict(),
        "rng": rng,
        "best": dict(vars(run.best)),  # `asdict` would lose the metadata of the state
        "history": [entry.to_record() for entry in run.history],
        "task": _task_of(run),
    }
    if run.precision is not None:
        content["low_precision"] = run.precision.state_dict()
        run.precision.write(run.folder)
    save_checkpoint(run.folder / CHECKPOINT, content)
    write_metrics(run.folder / METRICS, run.history)


def restore(run: Run) -> int:
    """Load the checkpoint if there is one; gives the number of epochs already done."""
    path = run.folder / CHECKPOINT
    if not path.exists():
        return 0
    content = load_checkpoint(path, fields=_FIELDS)
    try:
        _check_settings(run, content, path)
        for learner in run.learners:
            for name, part in learner.parts.items():
                state = content["learners"][learner.name][name]
                if isinstance(part, nn.Module):
                    load_state(part, state, str(path))
                elif isinstance(part, torch.optim.Optimizer):
                    load_optimizer(part, state)
                else:
                    part.load_state_dict(state)
        run.fabric.strategy.precision.load_state_dict(content["precision"])
        torch.set_rng_state(content["rng"]["cpu"])
        if "cuda" in content["rng"] and run.fabric.device.type == "cuda":
            torch.cuda.set_rng_state(content["rng"]["cuda"], run.fabric.device)
        run.best = _best_of(content["best"])
        run.history = [EpochMetrics.from_record(entry) for entry in content["history"]]
        if run.precision is not None:
            run.precision.load_state_dict(content["low_precision"])
        epochs_done = _count(content["epoch"])
        if epochs_done != len(run.history):
            raise ValueError(f"the epoch is {epochs_done}, and {len(run.history)} are told of")
    except (
        ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError,
    ) as error:  # fmt: skip
        raise DataError(
            f"holds something unexpected: {error}",
            where=str(path),
            hint="it was written by another version or by hand; delete it and train again",
        ) from error
    write_metrics(run.folder / METRICS, run.history)
    return epochs_done


def _best_of(found: Mapping[str, Any]) -> Best:
    """The best epoch as a checkpoint has it.

    Raises:
        KeyError, TypeError: something is missing, or of another kind.
    """
    goodness = found["goodness"] if "goodness" in found else found["accuracy"]
    state = found["state"]  # itself: a copy would lose its metadata
    if not isinstance(state, dict):
        raise TypeError(f"the best epoch's state is {type(state).__name__}, no weights")
    return Best(_count(found["epoch"]), _real(goodness), _real(found["loss"]), state)


def _count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"an epoch is {value!r:.40}, no count")
    return value


def _real(value: object) -> float:
    if type(value) not in (int, float):
        raise TypeError(f"a figure of the best epoch is {value!r:.40}, no number")
    return float(value)


def _task_of(run: Run) -> str:
    """By what a resumed run knows its task again."""
    return f"{run.task.name}: {', '.join(metric.key for metric in run.task.metrics)}"


def _check_settings(run: Run, content: dict[str, Any], path: Path) -> None:
    hint = "use another run directory, or delete this file to train anew"
    if content["schema"] != _SCHEMA:
        found = content["schema"]
        raise RunError(
            f"has schema {found}, this version writes {_SCHEMA}", where=str(path), hint=hint
        )
    if content.get("taught_by", run.teacher_fingerprint) != run.teacher_fingerprint:
        raise RunError("was written with another teacher", where=str(path), hint=hint)
    if content.get("data", run.data) != run.data:
        raise RunError("was written with other training images", where=str(path), hint=hint)
    if content.get("task", _task_of(run)) != _task_of(run):
        found = f"was written for the task {content['task']!r:.80}"
        raise RunError(found, where=str(path), hint=hint)
    before = validated(TrainConfig, content["config"])
    found = differences(before, run.config)
    if found:
        raise RunError(f"was {in_words(found)}", where=str(path), hint=hint)
