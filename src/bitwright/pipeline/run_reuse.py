# SPDX-License-Identifier: Apache-2.0
"""Finished steps shared between run directories that lie side by side.

Two runs whose step has the same key and has read the same inputs would make the same artefacts
(see `bitwright.pipeline.run`), so they share them through a store beside the run directories, as
hard links where the file system has them. A step that a run directory holds already is entered into
the store when it is first asked for.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bitwright.base.folders import files_below, remove_folder
from bitwright.base.store import Entry, Store, content_key
from bitwright.pipeline.run_files import is_whole, publish, read_record

_KIND = ".shared/steps"
#: Bytes; links take room only once.
_LIMIT = 32 << 30


@dataclass(frozen=True)
class SharedStep:
    """One step of all run directories in a folder.

    Attributes:
        neighbours: the folder.
        label: name of the step's folder in any run directory.
        key, inputs: what a result must be of to serve, as in `StepRecord`.
    """

    neighbours: Path
    label: str
    key: str
    inputs: Mapping[str, str]

    @cached_property
    def store(self) -> Store:
        """What keeps the steps."""
        return Store(self.neighbours, limit=_LIMIT)

    @cached_property
    def address(self) -> str:
        """Its key in the store."""
        return content_key(self.label, self.key, dict(self.inputs))

    def lock(self, waiting: Callable[[str], None]) -> AbstractContextManager[None]:
        """Be the only run at work on such a step; argument and errors as `Store.lock`."""
        return self.store.lock(_KIND, self.address, waiting)

    def bring(
        self, work: Path, final: Path, may_serve: Callable[[Path], bool] = lambda _: True
    ) -> Path | None:
        """Put a kept step in its place; gives the run directory that did it, None without a hit.

        Args:
            work: a folder for the purpose; what is in it is lost if a step is found.
            may_serve: asked of the folder before it takes its place.

        Raises:
            OSError: the files cannot be written.
        """
        entry = self.store.find(_KIND, self.address) or self._from_neighbour()
        run = entry.value.get("run") if entry and isinstance(entry.value, dict) else None
        if entry is None or not isinstance(run, str):
            return None
        remove_folder(work)
        try:
            entry.bring(work, link=True)
        except FileNotFoundError:  # it has just been dropped
            return None
        if not may_serve(work):
            remove_folder(work)
            return None
        publish(work, final)
        return Path(run)

    def keep(self, folder: Path) -> Entry:
        """Enter the folder of a finished step; errors as `Store.keep`."""
        files = {path.relative_to(folder).as_posix(): path for path in files_below(folder)}
        return self.store.keep(_KIND, self.address, {"run": str(folder.parent)}, files, link=True)

    def _from_neighbour(self) -> Entry | None:
        for folder in sorted(self.neighbours.glob(f"*/{self.label}")):
            record = read_record(folder)
            if record is None or (record.key, dict(record.inputs)) != (self.key, dict(self.inputs)):
                continue
            try:
                if is_whole(folder, record):
                    return self.keep(folder)
            except FileNotFoundError:  # its run is replacing it right now
                continue
            except OSError as error:
                if error.errno != errno.ELOOP:  # a link is no file of a step
                    raise
        return None
