# SPDX-License-Identifier: Apache-2.0
"""Finished steps shared between run directories that lie side by side.

Two runs whose step has the same key and has read the same inputs would make the same artefacts
(see `bitwright.pipeline.run`), so they share them through a store beside the run directories, as
hard links where the file system has them. A step that a run directory holds already is entered into
the store when it is first asked for.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from bitwright.base.store import Entry, Store, content_key
from bitwright.pipeline.run_files import is_whole, publish, read_record

_STORE, _KIND = ".shared", "steps"
#: Bytes; links take room only once.
_LIMIT = 32 << 30


@dataclass(frozen=True)
class StepKey:
    """What a result must be of to serve as that of a step.

    Attributes:
        label: name of the step's folder in any run directory.
        key, inputs: as in `StepRecord`.
    """

    label: str
    key: str
    inputs: Mapping[str, str]

    @property
    def address(self) -> str:
        """Its key in the store."""
        return content_key(self.label, self.key, dict(self.inputs))


class SharedSteps:
    """The finished steps of all run directories in one folder."""

    def __init__(self, neighbours: Path) -> None:
        self.neighbours = neighbours
        self.store = Store(neighbours / _STORE, limit=_LIMIT)

    def lock(self, key: StepKey, waiting: Callable[[str], None]) -> AbstractContextManager[None]:
        """Be the only run at work on such a step; arguments and errors as `Store.lock`."""
        return self.store.lock(_KIND, key.address, waiting)

    def bring(self, key: StepKey, work: Path, final: Path) -> Path | None:
        """Put a kept step in its place; gives the run directory that did it, None without a hit.

        Args:
            work: a folder for the purpose; what is in it is lost if a step is found.

        Raises:
            OSError: the files cannot be written.
        """
        entry = self.store.find(_KIND, key.address) or self._from_neighbour(key)
        if entry is None:
            return None
        shutil.rmtree(work, ignore_errors=True)
        try:
            entry.bring(work, link=True)
        except FileNotFoundError:  # it has just been dropped
            return None
        publish(work, final)
        return Path(entry.value["run"])

    def keep(self, key: StepKey, folder: Path) -> Entry:
        """Enter the folder of a finished step; errors as `Store.keep`."""
        paths = (path for path in folder.rglob("*") if path.is_file())
        files = {path.relative_to(folder).as_posix(): path for path in paths}
        value = {"run": str(folder.parent)}
        return self.store.keep(_KIND, key.address, value, files, link=True)

    def _from_neighbour(self, key: StepKey) -> Entry | None:
        for folder in sorted(self.neighbours.glob(f"*/{key.label}")):
            record = read_record(folder)
            if record is None or (record.key, dict(record.inputs)) != (key.key, dict(key.inputs)):
                continue
            try:
                if is_whole(folder, record):
                    return self.keep(key, folder)
            except FileNotFoundError:  # its run is replacing it right now
                continue
        return None
