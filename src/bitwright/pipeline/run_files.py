# SPDX-License-Identifier: Apache-2.0
"""What lies in a run directory: records of steps, the header, the lock, whole folders."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bitwright.base.errors import BitwrightError, RecipeError, RunError
from bitwright.base.files import (
    atomic_write,
    flush,
    flush_entries,
    parse_json,
    regular_bytes,
    sha256_file,
)
from bitwright.base.folders import check_no_links, files_below, make_way, own_file, remove_folder
from bitwright.base.locks import exclusive
from bitwright.base.places import claim, default_place
from bitwright.base.version import __version__
from bitwright.jobs.job import JOB_FILES
from bitwright.pipeline.context import LOGS

SCHEMA = 1
RUNS = Path("runs")
GRAPH = "graph.bwg"
"""Of a design folder, and of the step lower of a run."""
MODEL = "model.safetensors"
"""Of a folder that `import` made."""
_STEP = re.compile(r"\d\d-[a-z]+")
_ALMOST_FULL = 1 << 20
_PACKAGE = Path(__file__).resolve().parents[1]
_OURS = "<bitwright>/"


@dataclass(frozen=True)
class StepRecord:
    """``step.json``.

    Attributes:
        key: hash of what the step depends on.
        inputs: content hash of every step it read.
        artefacts: file -> (size in bytes, SHA-256), relative to the step's folder.
        seconds: wall-clock time of the work.
        parts: hash of each thing that the step depends on; empty in records of early versions.
    """

    name: str
    key: str
    inputs: Mapping[str, str]
    artefacts: Mapping[str, tuple[int, str]]
    seconds: float
    parts: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> str:
        """Hash over the artefacts; logs tell times and do not count."""
        entries = ((name, sha) for name, (_, sha) in self.artefacts.items())
        return digest_of(sorted(e for e in entries if not e[0].startswith(f"{LOGS}/")))

    def to_json(self) -> str:
        fields = {"schema": SCHEMA, **asdict(self), "seconds": round(self.seconds, 3)}
        return json.dumps(fields, indent=1, sort_keys=True) + "\n"


def digest_of(value: Any) -> str:
    """Hash of plain JSON values, the same on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def run_called(name: str) -> Path | None:
    """The run of this name in ``runs/``; None if there is none."""
    if Path(name).name != name or not is_run(RUNS / name):
        return None
    return run_place(name)


def run_place(name: str) -> Path:
    """Where the run of this name lies if nobody says so; errors as `default_place`."""
    return default_place(RUNS / name, "--run-dir")


def check_only_ours(name: str | Path, what: str) -> None:
    """Refuse a name of ours that something in the current folder has, too: it may be a stranger's
    and name code, and whoever gives the name does not say that he means it.

    Args:
        what: it is with us.

    Raises:
        RecipeError: there is such a file or folder.
    """
    if Path(name).name == str(name) and Path(name).exists():
        raise RecipeError(
            f"{str(name)!r} is {what}, and something in the current folder is called so, too",
            hint=f"./{name} means what is here; for the other, go to another folder",
        )


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory, whose recipe may name code: no design folder and none
    that `import` made is, which may be a stranger's, whatever else lies in it.
    """
    strangers = any((folder / name).is_file() for name in (GRAPH, MODEL))
    return (folder / "run.json").is_file() and not strangers


def check_run_folder(folder: Path) -> dict[str, Any] | None:
    """The content of run.json, or None where there is no run yet.

    Raises:
        RunError: the folder is something else, a design folder with a run.json in it (see
            `is_run`), or a run that this version cannot continue.
    """
    path = folder / "run.json"
    if not path.is_file():
        if folder.is_dir() and any(_is_foreign(entry) for entry in folder.iterdir()):
            raise RunError(
                "is not empty and is no run directory",
                where=str(folder),
                hint="name an empty or new folder with --run-dir",
            )
        if folder.exists() and not folder.is_dir():
            raise RunError("is a file", where=str(folder), hint="name a folder with --run-dir")
        return None
    if not is_run(folder):
        raise RunError(
            f"holds {GRAPH}, as a design folder does, and is no run directory",
            where=str(folder),
            hint="design folders and runs are two folders: remove run.json from the one",
        )
    try:
        header = parse_json(regular_bytes(path))
        schema = header["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"cannot be read: {error}",
            where=str(path),
            hint="name another folder with --run-dir, or delete this one to start afresh",
        ) from error
    if schema != SCHEMA:
        raise RunError(
            f"was written by Bitwright {header.get('bitwright', '?')} (run schema {schema}); "
            f"this is {__version__} (schema {SCHEMA})",
            where=str(folder),
            hint="name a new folder with --run-dir, or install that version to continue this one",
        )
    result: dict[str, Any] = header
    return result


def recipe_folder(run: Path) -> Path:
    """Where the relative paths and the user's modules of a run's recipe start."""
    header = check_run_folder(run) if (run / "run.json").is_file() else None
    return run if header is None else folder_of_recipe(run, header)


def folder_of_recipe(run: Path, header: Mapping[str, Any]) -> Path:
    """As `recipe_folder`, of a header that was read; older runs name it from the root."""
    named = str(header.get("recipe_dir", "."))
    inside = named.removeprefix(_OURS)
    start = run.resolve() if inside == named else _PACKAGE
    return Path(os.path.normpath(start / inside))


def named_from(run: Path, folder: Path) -> str:
    """What a run's header says of its recipe's folder: the way there, or where in our package."""
    place = folder.resolve()
    if place.is_relative_to(_PACKAGE):
        return f"{_OURS}{place.relative_to(_PACKAGE).as_posix()}"
    return os.path.relpath(place, run.resolve())


def _is_foreign(entry: Path) -> bool:
    """Whether it makes a folder no place for a run; the files of the job that makes one do not."""
    return not entry.name.startswith(".") and entry.name not in JOB_FILES


def read_record(folder: Path) -> StepRecord | None:
    """The record of a finished step, or None if there is none that can be read."""
    try:
        fields = parse_json(regular_bytes(folder / "step.json"))
        if fields["schema"] != SCHEMA:
            return None
        artefacts = {
            str(n): (int(size), str(sha)) for n, (size, sha) in fields["artefacts"].items()
        }
        inputs = {str(name): str(content) for name, content in fields["inputs"].items()}
        parts = {str(name): str(digest) for name, digest in fields.get("parts", {}).items()}
        name, key, seconds = str(fields["name"]), str(fields["key"]), float(fields["seconds"])
        return StepRecord(name, key, inputs, artefacts, seconds, parts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None


def is_whole(folder: Path, record: StepRecord) -> bool:
    """Whether every artefact is there, in that folder, with its size and hash."""
    try:
        return all(
            own_file(folder, name).stat().st_size == size and sha256_file(folder / name) == sha
            for name, (size, sha) in record.artefacts.items()
        )
    except (OSError, RunError, ValueError):
        return False


def hash_files(folder: Path) -> dict[str, tuple[int, str]]:
    own = {folder / "step.json", folder / ".key"}
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_size, sha256_file(path))
        for path in files_below(folder)
        if path not in own
    }


def publish(work: Path, final: Path) -> None:
    """Put a whole folder in its place. Killed between the two renames, `recover` ends it."""
    flush(work)
    (work / ".key").unlink(missing_ok=True)
    old = final.with_name(f".old-{final.name}")
    remove_folder(old)
    if final.exists():
        final.rename(old)
    work.rename(final)
    flush_entries(final.parent)
    remove_folder(old)


def recover(folder: Path) -> None:
    """End what a killed process began: publish what is whole, bring back what was moved aside."""
    for work, final in _aside(folder, ".work-"):
        record = read_record(work)
        if record is not None and is_whole(work, record):
            publish(work, final)
    for old, final in _aside(folder, ".old-"):
        if final.exists():
            remove_folder(old)
        else:
            old.rename(final)


def _aside(folder: Path, prefix: str) -> Iterator[tuple[Path, Path]]:
    """Folders of ours that are not in their place, and that place: no other name is touched."""
    for path in sorted(folder.glob(f"{prefix}*")):
        name = path.name.removeprefix(prefix)
        if _STEP.fullmatch(name):
            yield path, folder / name


def write_headers(folder: Path, files: Mapping[str, str], notes: Mapping[str, Any]) -> None:
    header = {"schema": SCHEMA, "bitwright": __version__, **notes}
    atomic_write(folder / "run.json", json.dumps(header, indent=1, sort_keys=True) + "\n")
    for name, text in files.items():
        atomic_write(folder / name, text)


@contextmanager
def locked(folder: Path, option: str = "--run-dir") -> Iterator[None]:
    """Make the directory and hold its lock; the kernel lets go of it when a process dies.

    Raises:
        RunError: it is in use, or a step would be written through a link.
        OSError: it cannot be written.
    """
    make_way(folder)
    with ExitStack() as stack:
        claim(folder)
        try:
            stack.enter_context(exclusive(folder / ".lock"))
        except RunError as error:
            if error.hint is not None:
                raise
            hint = f"wait for it, stop it, or name another folder with {option}"
            raise RunError(error.message, where=str(folder), hint=hint) from error
        for entry in folder.iterdir():
            if entry.name.startswith((".work-", ".old-")):
                check_no_links(entry, below=True)
        yield


def cannot_write(folder: Path, error: OSError, option: str = "--run-dir") -> RunError:
    return RunError(
        f"cannot be written: {error.strerror or error}",
        where=str(error.filename or folder),
        hint=f"name a folder that you may write to with {option}",
    )


def disk_full(error: Exception, folder: Path, step: str) -> RunError | None:
    """The error to raise instead, if the disk is full: many libraries do not say so themselves."""
    causes: list[BaseException] = [error]
    while (before := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(before)
    codes = {cause.errno for cause in causes if isinstance(cause, OSError)}
    if not codes & {errno.ENOSPC, errno.EDQUOT}:
        try:
            free = shutil.disk_usage(folder).free
        except OSError:
            return None
        if free > _ALMOST_FULL or not isinstance(error, BitwrightError | OSError | RuntimeError):
            return None
    return RunError(
        f"the disk is full{f' (in step {step})' if step else ''}; finished steps are kept",
        where=str(folder),
        hint="free some space and give the same command again: it goes on where it stopped",
    )
