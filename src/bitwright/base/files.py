# SPDX-License-Identifier: Apache-2.0
"""Writing files so that what is there is whole: temporary file, flush to disk, rename; locks."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar

from bitwright.base.errors import DataError, RunError

T = TypeVar("T")
_LOCK_POLL_S = 0.1


def atomic_write(path: Path, body: bytes | str) -> None:
    """Write a file completely or not at all.

    Raises:
        OSError: the disk is full or the folder is not writable; the old file is untouched, unless
            the disk fails after the new one has taken its name.
    """
    data = body.encode() if isinstance(body, str) else body
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}")
    try:
        # Not mkstemp, whose files are the owner's alone: the kernel takes off what umask says, and
        # to ask for that, it must be changed for a moment, for all threads.
        with open(temporary, "xb", opener=_opener) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        flush_entries(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def flush_entries(folder: Path) -> None:
    """Flush the names in a folder to disk: what was renamed into it stays there."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:  # files may be put into it, but nobody may list it: the system will
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has no such thing
            raise
    finally:
        os.close(handle)


def read_bytes(path: Path, *, hint: str | None = None, most: int | None = None) -> bytes:
    """The content of a file.

    Args:
        most: bytes that it may have.

    Raises:
        DataError: it is missing, cannot be read, or is longer.
    """
    try:
        if most is not None and path.stat().st_size > most:
            raise DataError(f"has more than {most} bytes", where=str(path), hint=hint)
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"cannot be read: {reason}", where=str(path), hint=hint) from error


def read_text(path: Path, *, hint: str | None = None, most: int | None = None) -> str:
    """The text of a UTF-8 file; see `read_bytes`.

    Raises:
        DataError: it is missing, cannot be read, or is no text.
    """
    try:
        return read_bytes(path, hint=hint, most=most).decode("utf-8")
    except UnicodeDecodeError as error:
        what = "cannot be read: it is no text in UTF-8"
        raise DataError(what, where=str(path), hint=hint) from error


def parse_json(text: str | bytes) -> Any:
    """A JSON value.

    Raises:
        ValueError: the text is none, or is nested deeper than Python follows.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def parse_toml(text: str) -> dict[str, Any]:
    """The table of a TOML text; see `parse_json`."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def write_records(path: Path, records: Iterable[Mapping[str, object]], what: str) -> None:
    """Write one JSON object a line, all of them or none.

    Args:
        what: it is, for the message: ``metrics``.

    Raises:
        DataError: the file cannot be written.
    """
    try:
        atomic_write(path, "".join(json.dumps(dict(record)) + "\n" for record in records))
    except OSError as error:
        raise DataError(
            f"{what} cannot be written: {error.strerror or error}",
            where=str(path),
            hint="free some disk space and run again: finished epochs are kept",
        ) from error


def read_records(path: Path, made: Callable[[dict[str, Any]], T], hint: str) -> tuple[T, ...]:
    """Read what `write_records` wrote.

    Args:
        made: makes something of each record; `ValueError` or `TypeError` if it is none.
        hint: what to do if the file cannot be read.

    Raises:
        DataError: the file is missing or no such file.
    """
    try:
        return tuple(made(parse_json(line)) for line in path.read_text().splitlines())
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot be read: {reason}", where=str(path), hint=hint) from error


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(folder: Path) -> None:
    """Flush all files of a folder to disk, so that an index never outlives what it vouches for."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            continue
        if path.is_dir():
            flush_entries(path)
        elif path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def cache_root() -> Path:
    """The user's cache folder; ``BITWRIGHT_CACHE`` names another."""
    root = os.environ.get("BITWRIGHT_CACHE")
    if root:
        return Path(root)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "bitwright"


def cache_dir(kind: str) -> Path:
    """The part of the user's cache folder for one kind of thing, made if need be."""
    folder = cache_root() / kind
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def exclusive(
    path: Path,
    *,
    wait_s: float = 0.0,
    waiting: Callable[[str], None] | None = None,
    remove: bool = False,
) -> Iterator[None]:
    """Hold a lock file; the kernel lets go of it when a process dies, however it dies.

    Args:
        path: the lock file; made if need be. Who holds it is written inside.
        wait_s: how long to wait for another holder; ``math.inf``: as long as it takes.
        waiting: called several times a second meanwhile, with the holder.
        remove: leave no file behind.

    Raises:
        RunError: another process still holds it, or it is a symbolic link, which might lead to a
            file of more worth.
        OSError: the file cannot be made.
    """
    deadline = time.monotonic() + wait_s
    while True:
        with _lock_file(path) as file:
            if _try_lock(file) and _still_there(path, file):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {os.uname().nodename}\n")
                file.flush()
                try:
                    yield
                finally:
                    if remove:
                        path.unlink(missing_ok=True)
                return
            file.seek(0)
            owner = file.read().strip() or "another process"
        if time.monotonic() >= deadline:
            raise RunError(f"is in use by {owner}", where=str(path))
        if waiting is not None:
            waiting(owner)
        time.sleep(_LOCK_POLL_S)


def _lock_file(path: Path) -> TextIO:
    try:
        return open(path, "a+", opener=_opener)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise RunError(
            "is a symbolic link, expected a lock file", where=str(path), hint="remove it"
        ) from error


def _try_lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def _still_there(path: Path, file: TextIO) -> bool:
    """Whether the locked file is the one of that name: its last holder may have removed it."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
