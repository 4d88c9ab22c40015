# SPDX-License-Identifier: Apache-2.0
"""Finished steps shared between run directories that lie side by side.

Two runs whose step has the same key and has read the same inputs would make the same artefacts
(see `bitwright.pipeline.run`), so the second takes them over: as hard links, or as copies where the
file system has none. Of two that come to such a step at the same time, one does it while the other
waits.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bitwright.base.files import exclusive
from bitwright.pipeline.run_files import StepRecord, digest_of, is_whole, publish, read_record

_TURNS = ".turns"
_STEP_FILE = "step.json"


@dataclass(frozen=True)
class Wanted:
    """A step to be done or taken over.

    Attributes:
        label: name of its folder in any run directory.
        key, inputs: as in `StepRecord`.
    """

    label: str
    key: str
    inputs: Mapping[str, str]

    def is_met_by(self, record: StepRecord) -> bool:
        return record.key == self.key and dict(record.inputs) == dict(self.inputs)


@contextmanager
def turn(neighbours: Path, wanted: Wanted, waiting: Callable[[str], None]) -> Iterator[None]:
    """Be the only one of the runs below ``neighbours`` at work on such a step.

    Args:
        waiting: called several times a second with the process that is at work on it.

    Raises:
        OSError: the lock file cannot be made.
    """
    address = digest_of([wanted.label, wanted.key, sorted(wanted.inputs.items())])
    folder = neighbours / _TURNS
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(folder / address, wait_s=math.inf, waiting=waiting, remove=True):
        yield


def take_over(neighbours: Path, wanted: Wanted, work: Path, final: Path) -> Path | None:
    """Put a neighbour's finished step in place; gives its run directory, None if there is none.

    Args:
        work: a folder for the purpose; what is in it is lost if a step is found.

    Raises:
        OSError: the files cannot be written.
    """
    for folder in sorted(neighbours.glob(f"*/{wanted.label}")):
        record = read_record(folder)
        if folder.absolute() == final.absolute() or record is None or not wanted.is_met_by(record):
            continue
        shutil.rmtree(work, ignore_errors=True)
        if _linked(folder, work, record):
            publish(work, final)
            return folder.parent
        shutil.rmtree(work, ignore_errors=True)
    return None


def _linked(folder: Path, work: Path, record: StepRecord) -> bool:
    """Whether all artefacts came over whole; the neighbour may be replacing them right now."""
    try:
        for name in (*record.artefacts, _STEP_FILE):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            _link(folder / name, work / name)
    except FileNotFoundError:
        return False
    return read_record(work) == record and is_whole(work, record)


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another disk, or a file system without links
        shutil.copy2(source, target)
