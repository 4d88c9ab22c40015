# SPDX-License-Identifier: Apache-2.0
"""The names of tasks, and what a recipe says about its task. No torch here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from bitwright.base.described import Strict
from bitwright.data.labels import CLASSES, BoxLabels, LabelKind, MapLabels, ValueLabels

SHARE = "share"
"""The unit of a metric that lies in [0, 1] and is shown in percent."""


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


class TaskSpec(Strict):
    """What the network is for.

    Attributes:
        name: one of ``list_tasks()``, or ``package.module:name`` of the user's own: a
            `tasks.Task`, or what makes one.
        options: of the task, such as ``anchors`` of a detector.
        metric: metrics of the user's own, ``package.module:name``: functions from outputs and
            labels to a value an image, or `tasks.Metric`. They stand in front of the task's own,
            and the first one chooses the weights that are kept.
    """

    name: str = "classification"
    options: dict[str, Any] = Field(default_factory=dict)
    metric: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()


@dataclass(frozen=True)
class TaskInfo:
    """One line of ``bitwright list tasks``.

    Attributes:
        name: what a recipe writes.
        summary: what the network gives, and what it learns from.
        place: ``module:class`` in ``bitwright.tasks``.
        labels: options of the task -> the kind of label: what can be said without torch.
    """

    name: str
    summary: str
    place: str
    labels: Callable[[Mapping[str, Any]], LabelKind]


def _classes(options: Mapping[str, Any]) -> LabelKind:
    del options
    return CLASSES


TASKS = (
    TaskInfo("classification", "a class an image", "classification:Classification", _classes),
    TaskInfo(
        "detection",
        "boxes of one thing an image or of several; options: anchors, objects, classes, ..",
        "detection:Detection",
        lambda _: BoxLabels(),
    ),
    TaskInfo(
        "dense_map",
        "the class of each pixel (segmentation); options: stride",
        "dense_map:DenseMap",
        lambda options: MapLabels(options.get("stride", 1)),
    ),
    TaskInfo(
        "embedding",
        "vectors that lie close for images of one class; options: size, temperature",
        "embedding:Embedding",
        _classes,
    ),
    TaskInfo(
        "regression",
        "real values an image; options: loss, unit",
        "regression:Regression",
        lambda _: ValueLabels(),
    ),
)


def labels_of(spec: TaskSpec) -> LabelKind | None:
    """The kind of label of one of our tasks, without making it; None: only the task itself knows.

    Wrong options are `tasks.factory.make_task`'s to refuse.
    """
    found = next((info for info in TASKS if info.name == spec.name), None)
    return None if found is None else found.labels(spec.options)


def list_tasks() -> tuple[TaskInfo, ...]:
    """The tasks that come with Bitwright."""
    return TASKS
