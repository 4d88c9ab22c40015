# SPDX-License-Identifier: Apache-2.0
"""Lock files: who works in a folder, of all processes of those who may."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from bitwright.base.errors import RunError
from bitwright.base.names import visible
from bitwright.base.regular import kind_of

_POLL_S = 0.1
#: What the kernel says where no lock file can be opened, since something else is there.
_NO_LOCK = {errno.ELOOP: "a symbolic link", errno.EISDIR: "a folder", errno.ENXIO: "a socket"}


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
        path: the lock file; made if need be. Who holds it is written inside, as long as it does:
            a folder that is given away does not name the machine it was made on.
        wait_s: how long to wait for another holder; ``math.inf``: as long as it takes.
        waiting: called several times a second meanwhile, with the holder.
        remove: leave no file behind.

    Raises:
        RunError: another process still holds it, or it is no file of its own: a link might lead to
            a file of more worth.
        OSError: the file cannot be made.
    """
    deadline = time.monotonic() + wait_s
    while True:
        with _lock_file(path) as file:
            if _try_lock(file) and _still_there(path, file):
                try:
                    _say_holder(path, file)
                    yield
                finally:
                    os.ftruncate(file.fileno(), 0)
                    if remove:
                        path.unlink(missing_ok=True)
                return
            said = os.pread(file.fileno(), 200, 0).decode(errors="replace")
            owner = visible(said.strip()) or "another process"
        if time.monotonic() >= deadline:
            raise RunError(f"is in use by {owner}", where=str(path))
        if waiting is not None:
            waiting(owner)
        time.sleep(_POLL_S)


def _say_holder(path: Path, file: TextIO) -> None:
    """Write who holds it, past the file's buffer: what a full disk refuses is not tried again."""
    try:
        os.ftruncate(file.fileno(), 0)
        os.write(file.fileno(), f"process {os.getpid()} on {os.uname().nodename}\n".encode())
    except OSError as error:
        error.filename = str(path)
        raise


def _lock_file(path: Path) -> TextIO:
    try:
        return open(path, "a+", opener=_lock_opener)
    except OSError as error:
        if error.errno not in _NO_LOCK:
            raise
        raise _no_lock(path, _NO_LOCK[error.errno]) from error


def _lock_opener(path: str, flags: int) -> int:
    # Whoever may read a file may lock it. A group may where it may write; but not what all are in.
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, 0o620)
    status = os.fstat(handle)
    if stat.S_ISREG(status.st_mode) and status.st_nlink <= 1:  # 0: its holder just removed it
        mode = stat.S_IMODE(status.st_mode)
        wanted = 0o660 if mode & stat.S_IWGRP else 0o600
        if mode != wanted and status.st_uid == os.geteuid():
            os.fchmod(handle, wanted)
        return handle
    os.close(handle)
    regular = stat.S_ISREG(status.st_mode)
    raise _no_lock(path, "a hard link to another file" if regular else kind_of(status.st_mode))


def _no_lock(path: Path | str, what: str) -> RunError:
    return RunError(f"is {what}, expected a lock file", where=str(path), hint="remove it")


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
