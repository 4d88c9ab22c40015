# SPDX-License-Identifier: Apache-2.0
"""What runs on a machine of a Ray cluster for one job; Ray itself is not needed here.

A request is one JSON text, an answer a JSON text and, from machines that do not see the folders of
the caller, the files of the job as bytes.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import bitwright
from bitwright.base.errors import BitwrightError, ToolError
from bitwright.base.files import atomic_write
from bitwright.base.folders import check_no_links, files_below, remove_folder
from bitwright.jobs.job import LOCK, RESULT, Job, JobFailure, JobResult
from bitwright.jobs.process import Limits, run_job

MARK = ".sees-"
_MAX_BYTES = 2**31

Files = dict[str, bytes]


@dataclass(frozen=True)
class Place:
    """The folder that holds the folders of all jobs, as the caller names it.

    Attributes:
        root: its path.
        token: a machine that finds ``MARK + token`` in it sees the caller's files.
    """

    root: str
    token: str

    @property
    def mark(self) -> Path:
        return Path(self.root) / (MARK + self.token)

    @property
    def elsewhere(self) -> Path:
        """What stands for the root on a machine that does not see it."""
        return Path(tempfile.gettempdir()) / f"bitwright-jobs-{self.token}"


def request_of(job: Job, limits: Limits, place: Place) -> str:
    """The text to be sent."""
    relative = job.folder.absolute().relative_to(place.root).as_posix()
    asked = {"name": job.name, **job.request, "folder": relative}
    return json.dumps(
        {
            "job": asked,
            "limits": asdict(limits),
            "place": asdict(place),
            "host": platform.node(),
            "code": code_digest(),
        }
    )


def run_task(request: str) -> tuple[str, Files]:
    """Do the job of a request."""
    fields = json.loads(request)
    place = Place(**fields["place"])
    limits = Limits(**fields["limits"])
    sees = place.mark.is_file()
    root = Path(place.root) if sees else place.elsewhere
    asked = fields["job"]
    folder = root / asked["folder"]
    job = Job(asked["name"], asked["call"], asked["arguments"], folder, asked["version"])
    try:
        if fields["host"] != platform.node():
            _check_code(fields["code"])
        result = run_job(job, limits)
        files = {} if sees else _files(job.folder)
    except BitwrightError as error:
        files = {}
        result = JobResult(job.name, job.folder, failure=JobFailure.of(error), attempts=1)
    if not sees:
        remove_folder(job.folder)
    return json.dumps(result.to_json()), files


def answer_of(job: Job, answer: tuple[str, Files]) -> JobResult:
    """The result of a task, its files put in their place, ``result.json`` last.

    Raises:
        ToolError: a file would lie outside the job's folder.
        RunError: as `check_no_links`.
        OSError: the files cannot be written.
    """
    text, files = answer
    if files:
        check_no_links(job.folder.parent, job.folder, below=True)
    for name in sorted(files, key=lambda name: (name == RESULT, name)):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise ToolError(f"sent a file {name!r}", where=job.name)
        atomic_write(job.folder / path, files[name])
    fields = json.loads(text)
    failure = fields.pop("failure")
    fields["folder"] = job.folder
    return JobResult(**fields, failure=None if failure is None else JobFailure(**failure))


@cache
def code_digest() -> str:
    """Hash of every Python file of this package, as it lies here."""
    package = Path(bitwright.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:32]


def _check_code(wanted: str) -> None:
    if code_digest() != wanted:
        raise ToolError(
            f"the Bitwright of that machine ({bitwright.__version__}) is not the caller's",
            where=str(Path(bitwright.__file__).parent),
            hint="install the same version on every machine of the cluster, then restart it",
        )


def _files(folder: Path) -> Files:
    """Every file of a job.

    Raises:
        ToolError: they are too large to be sent.
    """
    paths = [path for path in files_below(folder) if path.name != LOCK]
    size = sum(path.stat().st_size for path in paths)
    if size > _MAX_BYTES:
        raise ToolError(
            f"made {size / 2**30:.1f} GiB of files, too many to be sent",
            where=str(folder),
            hint="use a folder that all machines of the cluster see",
        )
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
