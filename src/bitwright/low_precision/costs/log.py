# SPDX-License-Identifier: Apache-2.0
"""Modelled time beside the measured one: while a run goes on, and after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bitwright.base.errors import DataError
from bitwright.base.figures import Figure, Source
from bitwright.low_precision.costs.model import FLOAT32, CostTable
from bitwright.low_precision.log import LOG
from bitwright.low_precision.policy import Entry


def epoch_seconds(entry: Entry, table: CostTable) -> float | None:
    """Estimated seconds of a logged epoch; None where a level has no numbers."""
    level = entry.level
    if entry.products is not None:
        pairs = ((key.rpartition("/"), given) for key, given in entry.products.items())
        levels = {(layer, product): given for (layer, _, product), given in pairs}
        if not set(levels.values()) <= set(table.levels):
            return None
        table = table.mixture(level, levels)
    elif level not in table.levels:
        return None
    return table.epoch(level, adaptive=level != FLOAT32).total.seconds


@dataclass(frozen=True)
class EpochTimes:
    """One epoch of a run.

    Attributes:
        measured: seconds, validation included.
        modelled: seconds of the training itself; None where the model has no numbers.
    """

    epoch: int
    level: str
    measured: float
    modelled: float | None

    def to_json(self) -> dict[str, Any]:
        known = self.modelled is not None
        return {
            "epoch": self.epoch,
            "level": self.level,
            "measured": Figure(self.measured, "s", Source.MEASUREMENT).to_json(),
            "modelled": Figure(self.modelled, "s", Source.MODEL).to_json() if known else None,
        }


def side_by_side(
    entries: Sequence[Entry], measured: Mapping[int, float], table: CostTable
) -> tuple[EpochTimes, ...]:
    """Measured and modelled time of every epoch that a run has logged.

    Args:
        entries: the run's log of decisions, see `read_log`.
        measured: number of an epoch, from 1 -> its seconds, validation included.

    Raises:
        DataError: these are epochs of different runs.
    """
    if list(measured) != [each.epoch for each in entries]:
        raise DataError(
            f"the metrics have {len(measured)} epochs, {LOG} has {len(entries)}",
            where=LOG,
            hint="both are written by one run; delete both and train again",
        )
    return tuple(
        EpochTimes(entry.epoch, entry.level, measured[entry.epoch], epoch_seconds(entry, table))
        for entry in entries
    )


def totals(rows: tuple[EpochTimes, ...]) -> dict[str, tuple[int, float, float | None]]:
    """Level -> epochs, measured seconds, modelled seconds; ``total`` last."""
    found: dict[str, tuple[int, float, float | None]] = {}
    for row in (*rows, *(EpochTimes(r.epoch, "total", r.measured, r.modelled) for r in rows)):
        epochs, measured, modelled = found.get(row.level, (0, 0.0, 0.0))
        known = modelled is not None and row.modelled is not None
        more = modelled + row.modelled if known else None  # type: ignore[operator]
        found[row.level] = (epochs + 1, measured + row.measured, more)
    return found
