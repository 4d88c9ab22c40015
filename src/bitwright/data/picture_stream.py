# SPDX-License-Identifier: Apache-2.0
"""The file of a picture as Pillow reads it: not more often, and no more of it in front of the
pixels, than files of pictures need.

Pillow keeps every piece of a file that it does not know, in some hundred bytes each, and reads it
in some microseconds. A zip file of 260 kB may hold a picture of 67 million pieces without a byte.
"""

from __future__ import annotations

import io
import os
from typing import IO

from bitwright.base.errors import DataError

#: Reads of a file: two or three a piece, of which PNG files have one for some thousand bytes.
MOST_READS = 200_000
#: Bytes that are read in front of the pixels: colour profiles, thumbnails, notes. What comes in
#: several pieces is joined piece by piece, and places in the file may be read many times.
MOST_HEAD = 4 << 20


class Watched(io.RawIOBase):
    """A stream that is refused where a picture takes too many reads, or too much before its pixels.

    Args:
        stream: that can be gone back in.
        where: the file, for the message.
    """

    def __init__(self, stream: IO[bytes], where: str) -> None:
        self._stream, self._where = stream, where
        self._reads: int | None = MOST_READS
        self._head: int | None = MOST_HEAD

    def opened(self, *, slow: bool) -> None:
        """What was read so far was in front of the pixels.

        Args:
            slow: Python itself decodes it, byte by byte; what that takes is bounded elsewhere.
        """
        self._head = None
        self._reads = None if slow else self._reads

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def read(self, size: int = -1) -> bytes:
        """So many bytes, or all.

        Raises:
            DataError: they are too many.
        """
        content = self._stream.read(size)
        if self._reads is not None:
            self._reads -= 1
            if self._reads < 0:
                raise self._refused("is in too many pieces for a picture")
        if self._head is not None and size >= 0:  # the whole file is asked for without a size
            self._head -= len(content)
            if self._head < 0:
                raise self._refused(f"has more than {MOST_HEAD} bytes in front of its pixels")
        return content

    def getvalue(self) -> bytes:
        """All of it, which libraries in C want at once."""
        if isinstance(self._stream, io.BytesIO):
            return self._stream.getvalue()  # no copy
        self._stream.seek(0)
        return self._stream.read()

    def _refused(self, reason: str) -> DataError:
        return DataError(reason, where=self._where, hint="save the picture again, as PNG")
