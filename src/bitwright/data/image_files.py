# SPDX-License-Identifier: Apache-2.0
"""Images that stay in their files: a data set far larger than memory, read as it is asked for."""

from __future__ import annotations

import hashlib
import logging
import math
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.base.files import held_size
from bitwright.base.memory import check_room, ran_out
from bitwright.base.progress import Progress, no_progress
from bitwright.base.source import code_key
from bitwright.base.store import Store, content_key
from bitwright.data.decoding import Framing, RandomCrop, check_growth, frame_image, read_header
from bitwright.data.listing import Listing, opened, peeked
from bitwright.data.pixels import Levels

_AT_ONCE = 4096
_CACHE_FROM = 2000  # files; the headers of fewer are read faster than anyone notices
_KIND = "image-headers"
_SHOWN = 5
_log = logging.getLogger(__name__)


class Source:
    """The files behind images: opened when first read, and again in another process."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self._lock = threading.Lock()
        self._open: tuple[ExitStack, Any] | None = None

    def read(self, number: int) -> bytes:
        """The content of a file of the listing; threads may read at the same time.

        Raises:
            DataError: it cannot be read.
        """
        with self._lock:
            if self._open is None:
                stack = ExitStack()
                self._open = stack, stack.enter_context(opened(self.listing))
        content: bytes = self._open[1](self.listing.names[number])
        return content

    def where(self, number: int) -> str:
        return f"{self.listing.path}:{self.listing.names[number]}"

    def __reduce__(self) -> tuple[type[Source], tuple[Listing]]:
        return Source, (self.listing,)


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Images (N, H, W, C), uint8 or uint16, as an array has them, but for where they are.

    ``images[3]`` is an array (H, W, C), read and decoded at once. A slice or an array of positions
    gives other ``ImageFiles`` and reads nothing; ``numpy.asarray`` reads all that there are. Each
    image is the middle of its file, as ``framing`` says; `window` gives a random one as well.

    Attributes:
        source: the files.
        framing: how each becomes an image of the common size.
        numbers: (N,) int64, which file of the listing each image is.
        skips: whether training may go on with another image where a file turns out to be damaged.
        threads: that decode when many images are asked for; at least 1.
        ahead: batches that are decoded while the present one is trained on.
    """

    source: Source
    framing: Framing
    numbers: NDArray[np.int64]
    skips: bool = False
    threads: int = 4
    ahead: int = 2

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"uint{self.framing.bits}")

    @property
    def ndim(self) -> int:
        return 4

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, H, W, C)."""
        return len(self.numbers), *self.framing.size, 1 if self.framing.grey else 3

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int | np.integer):
            return self.window(int(key))
        return replace(self, numbers=self.numbers[key])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Every image; (N, H, W, C).

        Raises:
            DataError: one is damaged, or all together do not fit into memory.
        """
        if copy is False:
            raise ValueError("images in files are always read anew")
        check_room(
            math.prod(self.shape) * self.dtype.itemsize,
            f"{len(self)} images of {self.shape[1:]}",
            str(self.source.listing.path),
            "take fewer of them (data.keep)",
        )
        found = np.empty(self.shape, self.dtype)
        with ThreadPoolExecutor(self.threads) as pool:
            for at, image in enumerate(pool.map(self.window, range(len(self)))):
                found[at] = image
        return found if dtype is None else found.astype(dtype)

    def window(self, position: int, crop: RandomCrop | None = None, index: int = 0) -> Levels:
        """One image (H, W, C): the middle of its file, or a random window.

        Args:
            position: of the image among these.
            crop: how to draw the window.
            index: number of the image that it is drawn for.

        Raises:
            DataError: the file is damaged or gone.
        """
        number = int(self.numbers[position])
        content, where = self.source.read(number), self.source.where(number)
        return frame_image(content, self.framing, where, crop=crop, index=index)

    def digest(self) -> bytes:
        """Hash of which images these are: of names and sizes of the files and of the framing, not
        of all that is in them, which would take hours.
        """
        known = f"{self.source.listing.contents} {self.framing}".replace(", bits=8)", ")").encode()
        return hashlib.sha256(known + self.numbers.astype("<i8").tobytes()).digest()


def damaged_files(
    listing: Listing, threads: int, progress: Progress = no_progress
) -> dict[str, str]:
    """Files whose beginning is that of no image, with the reason; of each only the header is read.

    What has been found is kept for the next time, by names, sizes and times.

    Raises:
        DataError: they lie in a zip file, and are more than real images of so many bytes have.
    """
    count = len(listing.names)
    key = ""
    if count >= _CACHE_FROM:
        key = content_key(code_key("bitwright.data.decoding"), listing.fingerprint)
        if (kept := Store().find(_KIND, key)) is not None:
            return dict(kept.value)
    found: dict[str, str] = {}
    stored = 0
    with peeked(listing) as peek, ThreadPoolExecutor(threads) as pool:

        def looked_at(name: str) -> tuple[str | None, int]:
            try:
                with peek(name) as stream:
                    return None, read_header(stream, name).numbers
            except DataError as error:
                cause = error.__cause__
                passing = isinstance(cause, OSError) and cause.errno is not None
                if passing or (cause is not None and ran_out(cause)):
                    raise  # no room, too many open files: that says nothing of the image
                return error.message, 0

        for start in range(0, count, _AT_ONCE):
            names = listing.names[start : start + _AT_ONCE]
            for name, (wrong, numbers) in zip(names, pool.map(looked_at, names), strict=True):
                stored += numbers
                if wrong is not None:
                    found[name] = wrong
            if not listing.path.is_dir():
                what = f"{start + len(names)} images"
                packed = held_size(listing.path)
                check_growth(stored, packed, what, str(listing.path), "leave them out")
            progress("looking at images", start + len(names), count)
    if key:
        Store().offer(_KIND, key, found)
    return found


def named(names: Iterable[str]) -> str:
    """The first of some files, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more
