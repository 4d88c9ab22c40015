# SPDX-License-Identifier: Apache-2.0
"""Files of whatever origin: what a stranger may have put in their place is opened as a regular file
or not at all. A named pipe would be waited for without end, a device such as ``/dev/zero`` read
without end.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
}


class _Regular(io.BufferedReader):
    """A file that has no more bytes where the kernel has none for now, as some of /proc."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(size) or b""

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        return super().readinto(buffer) or 0


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading, of whatever origin.

    Raises:
        OSError: it is missing, may not be read, or is no regular file.
    """
    return _Regular(io.FileIO(path, opener=_regular_opener))


def open_unlinked(path: Path) -> io.BufferedReader:
    """As `open_regular`, of the file itself: where a link stands, ``ELOOP``."""
    return _Regular(io.FileIO(path, opener=_unlinked_opener))


def held_bytes(handle: int) -> int:
    """Bytes of an open file that somebody had to write. The others are holes, which a few bytes of
    an archive make as long as they like: they are no reason for a reader to take more.

    Raises:
        OSError: the file cannot be looked at.
    """
    size, begin, held = os.fstat(handle).st_size, 0, 0
    place = os.lseek(handle, 0, os.SEEK_CUR)
    try:
        while begin < size:
            start = os.lseek(handle, begin, os.SEEK_DATA)
            begin = os.lseek(handle, start, os.SEEK_HOLE)
            held += begin - start
    except OSError as error:
        if error.errno == errno.EINVAL:  # a file system that knows of no holes
            return size
        if error.errno != errno.ENXIO:  # no more behind it
            raise
    finally:
        os.lseek(handle, place, os.SEEK_SET)
    return held


def _unlinked_opener(path: str, flags: int) -> int:
    return _regular_opener(path, flags | os.O_NOFOLLOW)


def _regular_opener(path: str, flags: int) -> int:
    handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)  # a pipe's writer is not waited for
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return handle
    os.close(handle)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, f"it is {kind_of(mode)}, expected a regular file", path)


def kind_of(mode: int) -> str:
    """What something is, by its mode."""
    return _KINDS.get(stat.S_IFMT(mode), "something else")
