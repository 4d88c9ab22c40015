# SPDX-License-Identifier: Apache-2.0
"""The log of decisions, ``precision.jsonl``: one line an epoch. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bitwright.base.errors import DataError
from bitwright.base.files import read_records, write_records
from bitwright.low_precision.policy import Entry

LOG = "precision.jsonl"


def write_log(path: Path, entries: Sequence[Entry]) -> None:
    """Write one JSON object a line, one line an epoch; the whole file or nothing of it.

    Raises:
        DataError: the file cannot be written.
    """
    write_records(path, (entry.to_dict() for entry in entries), "the log of precisions")


def read_log(path: Path) -> tuple[Entry, ...]:
    """Read what `write_log` wrote: at least one epoch, all of them, in order.

    Raises:
        DataError: the file is missing or no such file.
    """
    hint = "a run with low_precision writes it beside metrics.jsonl"
    entries = read_records(path, Entry.from_dict, hint)
    if [entry.epoch for entry in entries] != list(range(1, len(entries) + 1)) or not entries:
        raise DataError("does not hold the epochs from 1 on", where=str(path), hint=hint)
    return entries
