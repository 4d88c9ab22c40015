# SPDX-License-Identifier: Apache-2.0
"""What a training run tells while it goes on and when it is done. No torch here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bitwright.base.files import read_records, write_records

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class EpochMetrics:
    """Figures of one epoch; losses are means over images, accuracies shares in [0, 1].

    Attributes:
        epoch: from 1.
        lr: learning rate of its last step.
        seconds: wall time, validation included.
        validation_loss, validation_accuracy: None without validation images.
        validation_top5: share of images whose class is among the five highest scores; None with
            fewer than six classes, without validation images, and in records of older versions.
        precision: name of the level that most products ran in; None without low precision.
    """

    epoch: int
    lr: float
    train_loss: float
    train_accuracy: float
    validation_loss: float | None
    validation_accuracy: float | None
    seconds: float
    validation_top5: float | None = None
    precision: str | None = None


@dataclass(frozen=True)
class TrainProgress:
    """Where a run is; given to the progress callback a few times a second and after each epoch.

    Attributes:
        epoch: the epoch in work, from 1.
        batch: batches done in this epoch.
        loss: running mean of this epoch.
        accuracy: running share of this epoch, on the augmented training images.
        last: figures of the last finished epoch.
    """

    epoch: int
    epochs: int
    batch: int
    batches: int
    loss: float
    accuracy: float
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
        validation_accuracy: of the kept weights; None without validation images.
        resumed_from: epochs that were already done when this call began.
    """

    history: tuple[EpochMetrics, ...]
    kept_epoch: int
    validation_accuracy: float | None
    resumed_from: int


def write_metrics(path: Path, history: Sequence[EpochMetrics]) -> None:
    """Write one JSON object a line, one line an epoch.

    Raises:
        DataError: the file cannot be written.
    """
    write_records(path, map(asdict, history), "metrics")


def read_metrics(path: Path) -> tuple[EpochMetrics, ...]:
    """Read what ``write_metrics`` wrote.

    Raises:
        DataError: the file is missing or no such file.
    """
    return read_records(path, epoch_of, "delete it and train again")


def epoch_of(given: Mapping[str, Any]) -> EpochMetrics:
    """The figures of a record; losses may be NaN or infinite, as those of a run that diverged."""
    found = EpochMetrics(**given)
    if type(found.epoch) is not int or found.epoch < 1:
        raise ValueError(f"epoch is {found.epoch!r:.80}, expected 1 or more")
    for name, value in asdict(found).items():
        if name == "precision" or (name.startswith("validation_") and value is None):
            continue
        if type(value) not in (int, float):
            raise TypeError(f"{name} is {value!r:.80}, expected a number")
        if not name.endswith("_loss") and not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value}, expected a figure")
    if not isinstance(found.precision, str | None):
        raise TypeError(f"precision is {found.precision!r:.80}, expected a name")
    return found
