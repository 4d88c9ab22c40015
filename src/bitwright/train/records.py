# SPDX-License-Identifier: Apache-2.0
"""What a training run tells while it goes on and when it is done. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from bitwright.base.files import read_records, write_records

METRICS = "metrics.jsonl"


_METRIC = "accuracy"  # of records that name none
_TRAIN, _VALIDATION = "train_", "validation_"
_TIMES = ("lr", "seconds")
_FIGURES = (*_TIMES, "train_loss", "train_metric", "validation_loss", "validation_metric")


def named(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields ``metric``, ``train_metric`` and ``validation_metric`` as a record has them, by the
    metric's own name: ``train_accuracy`` and ``validation_accuracy``.
    """
    key = fields["metric"]
    names = {f"{_TRAIN}metric": f"{_TRAIN}{key}", f"{_VALIDATION}metric": f"{_VALIDATION}{key}"}
    return {names.get(name, name): value for name, value in fields.items() if name != "metric"}


def unnamed(record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a record that `named` gave."""
    others = (f"{_TRAIN}loss", f"{_TRAIN}metric")
    found = (name for name in record if name.startswith(_TRAIN) and name not in others)
    key = next(found, f"{_TRAIN}metric").removeprefix(_TRAIN)
    if key == "metric":
        return dict(record)
    names = {f"{_TRAIN}{key}": f"{_TRAIN}metric", f"{_VALIDATION}{key}": f"{_VALIDATION}metric"}
    return {names.get(name, name): value for name, value in record.items()} | {"metric": key}


@dataclass(frozen=True)
class EpochMetrics:
    """Figures of one epoch; losses and metrics are means over images, unless the metric is none.

    Attributes:
        epoch: from 1.
        lr: learning rate of its last step.
        train_metric: of the augmented training images; by the metric that chooses weights.
        seconds: wall time, validation included.
        validation_loss, validation_metric: None without validation images.
        precision: name of the level that most products ran in; None without low precision.
        metric: which one: `tasks.Metric.key`.
        others: further metrics of the validation images, by their keys.
    """

    epoch: int
    lr: float
    train_loss: float
    train_metric: float
    validation_loss: float | None
    validation_metric: float | None
    seconds: float
    precision: str | None = None
    metric: str = _METRIC
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def train_accuracy(self) -> float:
        """``train_metric``, as it is called of a classifier."""
        return self.train_metric

    @property
    def validation_accuracy(self) -> float | None:
        """``validation_metric``, as it is called of a classifier."""
        return self.validation_metric

    @property
    def validation_top5(self) -> float | None:
        """Of a classifier: share of images whose class is among the five highest scores."""
        return self.others.get("top5")

    def to_record(self) -> dict[str, Any]:
        """As a line of ``metrics.jsonl``: ``validation_NAME`` for each further metric."""
        fields = named(asdict(self))
        others = fields.pop("others")
        return fields | {f"{_VALIDATION}{name}": value for name, value in others.items()}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> EpochMetrics:
        """What `to_record` gave; TypeError or ValueError if it is no such record. Losses may be NaN
        or infinite, as those of a run that diverged.
        """
        fields = unnamed(record)
        own = {each.name for each in dataclass_fields(cls)}
        others = {
            name.removeprefix(_VALIDATION): fields.pop(name)
            for name in [*fields]
            if name.startswith(_VALIDATION) and name not in own
        }
        known = {name: value for name, value in others.items() if value is not None}
        found = cls(**fields, others=known)
        _check_figures(found)
        return found


def _check_figures(found: EpochMetrics) -> None:
    if type(found.epoch) is not int or found.epoch < 1:
        raise ValueError(f"epoch is {found.epoch!r:.80}, expected 1 or more")
    for name, word in (("metric", found.metric), ("precision", found.precision)):
        if not isinstance(word, str) and (word is not None or name == "metric"):
            raise TypeError(f"{name} is {word!r:.80}, expected a name")
    figures = {name: getattr(found, name) for name in _FIGURES} | dict(found.others)
    for name, value in figures.items():
        if value is None and name.startswith(_VALIDATION):
            continue
        if type(value) not in (int, float):
            raise TypeError(f"{name} is {value!r:.80}, expected a number")
        if name in _TIMES and not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value}, expected a figure of 0 or more")


@dataclass(frozen=True)
class TrainProgress:
    """Where a run is; given to the progress callback a few times a second and after each epoch.

    Attributes:
        epoch: the epoch in work, from 1.
        batch: batches done in this epoch.
        loss: running mean of this epoch.
        metric: running value of this epoch, on the augmented training images.
        last: figures of the last finished epoch.
    """

    epoch: int
    epochs: int
    batch: int
    batches: int
    loss: float
    metric: float
    last: EpochMetrics | None

    @property
    def done(self) -> float:
        """Share of the whole run that is done."""
        return ((self.epoch - 1) + self.batch / max(1, self.batches)) / max(1, self.epochs)


OnProgress = Callable[[TrainProgress], None]


@dataclass(frozen=True)
class FitResult:
    """A finished run; the model that was given holds the kept weights.

    Attributes:
        history: one entry an epoch.
        kept_epoch: the epoch, from 1, whose weights were kept; 0 if nothing was trained.
        validation_metric: of the kept weights, by the metric that chooses; None without validation
            images.
        resumed_from: epochs that were already done when this call began.
    """

    history: tuple[EpochMetrics, ...]
    kept_epoch: int
    validation_metric: float | None
    resumed_from: int

    @property
    def validation_accuracy(self) -> float | None:
        """``validation_metric``, as it is called of a classifier."""
        return self.validation_metric


def write_metrics(path: Path, history: Sequence[EpochMetrics]) -> None:
    """Write one JSON object a line, one line an epoch.

    Raises:
        DataError: the file cannot be written.
    """
    write_records(path, (entry.to_record() for entry in history), "metrics")


def read_metrics(path: Path) -> tuple[EpochMetrics, ...]:
    """Read what ``write_metrics`` wrote.

    Raises:
        DataError: the file is missing or no such file.
    """
    return read_records(path, EpochMetrics.from_record, "delete it and train again")
