# SPDX-License-Identifier: Apache-2.0
"""A job as plain values, and the files in its folder by which it can be redone or found done.

::

    FOLDER/job.json      what is asked; written before the job's process starts
    FOLDER/job.log       everything the process said
    FOLDER/failure.json  why it failed, if it did
    FOLDER/result.json   what came of it; written last: where it is, the job is done
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bitwright.base.errors import BitwrightError, RunError
from bitwright.base.files import atomic_write, parse_json, regular_bytes
from bitwright.base.folders import check_no_links, make_folder
from bitwright.base.ownership import check_owner
from bitwright.base.records import is_of

SCHEMA = 1
JOB, LOG, RESULT, FAILURE, LOCK = "job.json", "job.log", "result.json", "failure.json", ".job.lock"
#: What a folder holds of its job; all else in it is the job's own work.
JOB_FILES = frozenset({JOB, LOG, RESULT, FAILURE, LOCK})
#: Exit status of a job's process that was asked to end (SIGTERM).
TERMINATED = 143


@dataclass(frozen=True)
class Job:
    """One task that depends on no other.

    Attributes:
        name: for people.
        call: ``package.module:function``; it gets ``(arguments, folder)``, may write whatever it
            likes into the folder and gives back JSON values.
        arguments: JSON values.
        folder: the job's own; a job that was stopped finds in it what it left.
        version: fingerprint of what the result depends on besides the arguments, such as our code;
            a result of another version does not count.
        kind: of what the function gives back; a result with anything else does not count.
    """

    name: str
    call: str
    arguments: Mapping[str, Any]
    folder: Path
    version: str = ""
    kind: TypeAdapter[Any] | None = field(default=None, compare=False, repr=False)

    @property
    def request(self) -> dict[str, Any]:
        """What a result must answer to be this job's."""
        return {"call": self.call, "arguments": dict(self.arguments), "version": self.version}

    def finished(self) -> dict[str, Any] | None:
        """The content of ``result.json`` if it is whole and of this very job.

        What a link leads to is no result: it may be dropped, and `prepare` refuses links.
        """
        places = (self.folder.parent, self.folder, self.folder / RESULT)
        if any(place.is_symlink() for place in places):
            return None
        found = _read(self.folder / RESULT)
        if found is None or found.get("schema") != SCHEMA or not _is_told(found):
            return None
        if not is_of(self.kind, found.get("value")):
            return None
        asked = json.loads(json.dumps(self.request))
        return found if all(found.get(key) == value for key, value in asked.items()) else None

    def other_call(self) -> str:
        """The function that made the ``result.json`` in the folder, if it is not this job's."""
        found = _read(self.folder / RESULT)
        call = "" if found is None else str(found.get("call", ""))
        return "" if call == self.call else call

    def failure(self) -> JobFailure | None:
        """What ``failure.json`` says."""
        found = _read(self.folder / FAILURE)
        if found is None:
            return None
        try:
            failure = JobFailure(**found)
        except TypeError:
            return None
        words = (failure.kind, failure.message, failure.where or "", failure.hint or "")
        return failure if all(isinstance(word, str) for word in words) else None

    def prepare(self, threads: int) -> str:
        """Make the folder and say in it what is to be done.

        Returns:
            Hash of what it says, by which the process that does it knows it again.

        Raises:
            RunError: it cannot be written, there is a link by which a job would write elsewhere,
                or it is another user's.
        """
        fields = {"schema": SCHEMA, "name": self.name, **self.request, "threads": threads}
        try:
            check_no_links(self.folder.parent, self.folder)
            for place in (self.folder.parent, self.folder):
                if place.exists():
                    check_owner(place)
            make_folder(self.folder)
            check_no_links(self.folder.parent, self.folder, below=True)
            for name in (RESULT, FAILURE):
                (self.folder / name).unlink(missing_ok=True)
            text = json.dumps(fields, indent=1) + "\n"
            atomic_write(self.folder / JOB, text)
            return hashlib.sha256(text.encode()).hexdigest()
        except OSError as error:
            raise RunError(
                f"cannot be written: {error.strerror or error}",
                where=str(error.filename or self.folder),
                hint="name a folder that you may write to, on a disk with room",
            ) from error


@dataclass(frozen=True)
class JobFailure:
    """Why a job gave nothing.

    Attributes:
        kind: class of the error, or ``Killed``, ``TimeUp``, ``Bug``.
    """

    kind: str
    message: str
    where: str | None = None
    hint: str | None = None

    @classmethod
    def of(cls, error: BitwrightError) -> JobFailure:
        return cls(type(error).__name__, error.message, error.where, error.hint)

    @property
    def reason(self) -> str:
        """Message and place in one line."""
        text = self.message if self.where is None else f"{self.where}: {self.message}"
        return " ".join(text.split())


@dataclass(frozen=True)
class JobResult:
    """What came of a job.

    Attributes:
        value: what the function gave; None if it failed.
        failure: why it failed; None if it did not.
        was_done: an earlier call had done it.
        attempts: processes it took; more than 1 if one was killed.
        seconds: wall-clock time of the last process.
        cpu_seconds: processor time of the process that finished it, and of its children.
        threads: CPU threads that it was given.
        host: the machine that did it.
    """

    name: str
    folder: Path
    value: Any = None
    failure: JobFailure | None = None
    was_done: bool = False
    attempts: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    threads: int = 0
    host: str = ""

    @property
    def log(self) -> Path:
        return self.folder / LOG

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"folder": str(self.folder)}


def result_of(job: Job, found: Mapping[str, Any], *, was_done: bool, attempts: int) -> JobResult:
    """A job's result from the content of its ``result.json``."""
    return JobResult(
        job.name,
        job.folder,
        found.get("value"),
        was_done=was_done,
        attempts=attempts,
        seconds=float(found.get("seconds", 0.0)),
        cpu_seconds=float(found.get("cpu_seconds", 0.0)),
        threads=int(found.get("threads", 0)),
        host=str(found.get("host", "")),
    )


def _is_told(found: Mapping[str, Any]) -> bool:
    """Whether the figures of a result are figures."""
    return all(
        type(found.get(name, 0)) in (int, float) and 0 <= found.get(name, 0) < 1 << 63
        for name in ("seconds", "cpu_seconds", "threads")
    )


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = parse_json(regular_bytes(path))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
