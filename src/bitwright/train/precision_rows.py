# SPDX-License-Identifier: Apache-2.0
"""A training in low precision, epoch by epoch: what was decided, and how well it went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import SerializerFunctionWrapHandler, model_serializer, model_validator

from bitwright.base.described import Strict
from bitwright.low_precision.log import LOG, read_log
from bitwright.low_precision.policy import Entry
from bitwright.train.records import METRICS, EpochMetrics, named, read_metrics, unnamed


class PrecisionRow(Strict):
    """One epoch of training in low precision.

    Attributes:
        level: the precision it ran in; ``switched_to`` that of the next epoch, if another.
        reason: the policy's decision in words.
        diversity, p, threshold, violations: what it went by, of policies that have them.
        train_metric, validation_metric: by the metric that chooses, whose key is ``metric``.
        validation_top5: share of images whose class is among the five highest scores.
    """

    epoch: int
    level: str
    reason: str
    switched_to: str | None = None
    diversity: float | None = None
    p: float | None = None
    threshold: float | None = None
    violations: int | None = None
    lr: float
    train_loss: float
    validation_loss: float | None
    train_metric: float
    validation_metric: float | None
    metric: str = "accuracy"
    validation_top5: float | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_record(cls, record: Any) -> Any:
        return unnamed(record) if isinstance(record, Mapping) else record

    @model_serializer(mode="wrap")
    def _to_record(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return named(fields(self))


def precision_rows(
    log: Sequence[Entry], history: Sequence[EpochMetrics]
) -> tuple[PrecisionRow, ...]:
    """Decisions and figures of the same epochs; an epoch that lacks one of the two is left out.

    A policy that does not say what it switches to has switched where the next level differs.
    """
    figures = {
        entry.epoch: {**vars(entry), "validation_top5": entry.validation_top5} for entry in history
    }
    following = {entry.epoch - 1: entry.level for entry in log}
    rows = []
    for entry in log:
        if entry.epoch in figures:
            after = following.get(entry.epoch)
            switched = entry.switched_to or (None if after == entry.level else after)
            known = {**figures[entry.epoch], **vars(entry), "switched_to": switched}
            rows.append(PrecisionRow(**{name: known[name] for name in PrecisionRow.model_fields}))
    return tuple(rows)


def read_precision(folder: Path) -> tuple[PrecisionRow, ...]:
    """What a run in low precision left in its folder; nothing if it was not in low precision.

    Raises:
        DataError: a file is damaged.
    """
    if not (folder / LOG).is_file():
        return ()
    return precision_rows(read_log(folder / LOG), read_metrics(folder / METRICS))
