# SPDX-License-Identifier: Apache-2.0
"""The log of decisions, ``precision.jsonl``: one line an epoch. No torch here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from bitwright.base.errors import DataError
from bitwright.base.files import atomic_write
from bitwright.low_precision.policy import Entry

LOG = "precision.jsonl"


def write_log(path: Path, entries: Sequence[Entry]) -> None:
    """Write one JSON object a line, one line an epoch; the whole file or nothing of it.

    Raises:
        DataError: the file cannot be written.
    """
    lines = [json.dumps(entry.to_dict(), allow_nan=False) + "\n" for entry in entries]
    try:
        atomic_write(path, "".join(lines))
    except OSError as error:
        raise DataError(
            f"the log of precisions cannot be written: {error.strerror or error}",
            where=str(path),
            hint="free some disk space and run again: finished epochs are kept",
        ) from error


def read_log(path: Path) -> tuple[Entry, ...]:
    """Read what `write_log` wrote: at least one epoch, all of them, in order.

    Raises:
        DataError: the file is missing or no such file.
    """
    hint = "a run with low_precision writes it beside metrics.jsonl"
    try:
        entries = tuple(Entry.from_dict(json.loads(line)) for line in path.read_text().splitlines())
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot be read: {reason}", where=str(path), hint=hint) from error
    if [entry.epoch for entry in entries] != list(range(1, len(entries) + 1)) or not entries:
        raise DataError("does not hold the epochs from 1 on", where=str(path), hint=hint)
    return entries
