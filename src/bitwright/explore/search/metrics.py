# SPDX-License-Identifier: Apache-2.0
"""What a search maximises: a number in 0 .. 1 for a model, larger is better.

A metric is made for a subject by a function: one of `METRICS`, one that a plug-in adds, or the
user's own, named ``package.module:name``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn

from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.base.plugins import load_attribute, load_plugin, plugged, users_code
from bitwright.base.trust import is_plugin
from bitwright.data import Dataset
from bitwright.explore.subject import Subject
from bitwright.models.common import device_of
from bitwright.tasks.base import Task
from bitwright.tasks.catalog import SHARE
from bitwright.tasks.classification import CLASSIFICATION
from bitwright.tasks.metric import Metric as TaskMetric
from bitwright.train.evaluation import run_batches, score_images
from bitwright.train.images import Images, on_device

BATCH = 100
#: Images on which agreement is measured.
_AGREEMENT = 96


class Metric(Protocol):
    """A measure with a name for reports."""

    @property
    def name(self) -> str:
        """What it measures, in a word or two."""
        ...

    def __call__(self, model: nn.Module) -> float:
        """Measure a model in evaluation mode; it is left as it was."""
        ...


@dataclass
class Top1:
    """The first metric of a task: of a classifier the share of images whose highest score is the
    label's.

    Attributes:
        dataset: the images; a validation split, so that the test images stay unseen.
        iterations: batches at most; None: all images.
        batch_size: images a batch.
        of_scores: that the network gives a score for each class.
        task: what the network is for.
    """

    dataset: Dataset
    iterations: int | None = None
    batch_size: int = BATCH
    name: str = "top-1 accuracy"
    of_scores: bool = True
    task: Task = CLASSIFICATION
    _kept: tuple[Images, Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.iterations is not None and self.iterations < 1:
            raise DataError(f"{self.iterations} iterations measure nothing", hint="1 or more")
        if not len(self.dataset):
            raise DataError("holds no image", where=self.dataset.name)

    def __call__(self, model: nn.Module) -> float:
        if self._kept is None:
            count = len(self.dataset)
            if self.iterations is not None:
                count = min(count, self.iterations * self.batch_size)
            self._kept = on_device(self.dataset.take(range(count)), "cpu")
        images, labels = self._kept
        place = device_of(model)
        outputs = score_images(model, images.to(place), self.dataset.scale, self.batch_size)
        return self.task.measure(outputs.cpu(), labels)[0].value


@dataclass
class EmbeddingAgreement:
    """How near a network's vectors stay to the float ones: ``1 - ||y - y0|| / ||y0||``, at least 0.

    Norms are over all images together. It needs no labels and tells more than an accuracy does.

    Attributes:
        inputs: (N, C, H, W) reals.
        reference: (N, D) vectors of the float network.
    """

    inputs: Tensor
    reference: Tensor
    batch_size: int = BATCH
    name: str = "embedding agreement"

    @classmethod
    def of(cls, model: nn.Module, inputs: Tensor, batch_size: int = BATCH) -> EmbeddingAgreement:
        """With the vectors that a float model gives now."""
        return cls(inputs, run_batches(model, inputs, batch_size), batch_size)

    def __call__(self, model: nn.Module) -> float:
        found = run_batches(model, self.inputs, self.batch_size)
        error = (found - self.reference).norm() / self.reference.norm().clamp(min=1e-30)
        return max(0.0, 1.0 - float(error))


@dataclass
class Measured:
    """Any function of a model as a metric."""

    function: Callable[[nn.Module], float]
    name: str = "accuracy"

    def __call__(self, model: nn.Module) -> float:
        hint = "a metric takes a model in evaluation mode and gives a number"
        with users_code("measuring", self.name, hint, __file__):
            return float(self.function(model))


def top1(subject: Subject) -> Top1:
    """`Top1` on the validation images.

    Raises:
        RecipeError: the data has no classes or no validation images, or the network does not choose
            one of them.
    """
    if subject.validation is None or not subject.its_task.ranked:
        raise unmeasurable("top1")
    return of_task(subject)


def of_task(subject: Subject) -> Top1:
    """The first metric of the network's task, on the validation images.

    Raises:
        RecipeError: there are none, or the metric is no share, of which more is better.
    """
    task = subject.its_task
    if subject.validation is None or not _is_searched(task.metric):
        raise unmeasurable("task")
    name = f"top-1 {task.metric.name}" if task.ranked else task.metric.name
    size = subject.batch_size
    return Top1(subject.validation, None, size, name, of_scores=task.ranked, task=task)


def _is_searched(metric: TaskMetric) -> bool:
    """Whether a search can maximise it: a number from 0 to 1."""
    return metric.unit == SHARE and metric.larger_is_better


def agreement(subject: Subject) -> EmbeddingAgreement:
    """`EmbeddingAgreement` with the float network, on the last of the training images."""
    count = min(_AGREEMENT, len(subject.train))
    inputs = torch.from_numpy(subject.train.take(range(len(subject.train))[-count:]).reals())
    return EmbeddingAgreement.of(subject.model, inputs, subject.batch_size)


#: Metrics of the core, by the names that ``--metric`` takes.
METRICS: dict[str, Callable[[Subject], Metric]] = {
    "top1": top1,
    "task": of_task,
    "agreement": agreement,
}


def metric_for(subject: Subject, name: str | None = None) -> Metric:
    """What a search maximises, on images that the final figure is not taken from.

    Args:
        name: of `METRICS` or of a plug-in; or ``package.module:function``, which takes the subject
            and gives a function from a model to a number. None: that of the subject's data.

    Raises:
        RecipeError: unknown, or the data has nothing to measure it with.
        ModelError: the user's function fails, or gives nothing that can be called.
    """
    wanted = name or _usual(subject)
    if wanted in METRICS:
        return METRICS[wanted](subject)
    added = plugged("metrics")
    if wanted in added:
        made: Metric = load_attribute(added[wanted])(subject)
        return made
    if is_plugin(wanted):
        return _own(subject, wanted)
    raise RecipeError(
        f"unknown metric {wanted!r}",
        where="--metric",
        hint=f"one of {', '.join([*METRICS, *added])}, or your own: package.module:function",
    )


def _usual(subject: Subject) -> str:
    """The metric of a subject's data: its task's, or agreement where that is no share."""
    if subject.benchmark is not None:
        return subject.benchmark.metric
    return "task" if _is_searched(subject.its_task.metric) else "agreement"


def _own(subject: Subject, name: str) -> Metric:
    """The user's metric; a plain function gets its name for the reports."""
    make = load_plugin(name, "--metric")
    with users_code("making the metric", name, "it was called with the subject alone", __file__):
        made = make(subject)
    if not callable(made):
        raise ModelError(
            f"gave an object of type {type(made).__name__}; expected a function from a model to a "
            "number",
            where=name,
            hint="def metric(subject): return lambda model: ...",
        )
    label = getattr(made, "name", name.partition(":")[2].replace("_", " "))
    return Measured(made, str(label))


def unmeasurable(name: str) -> RecipeError:
    """That the data of a subject does not fit a metric."""
    return RecipeError(
        f"the data has nothing to measure {name} with",
        where="--metric",
        hint="agreement needs no labels; top1 needs classes, task a metric that is a share, "
        "verification pairs of faces",
    )
