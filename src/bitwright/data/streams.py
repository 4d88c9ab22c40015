# SPDX-License-Identifier: Apache-2.0
"""Class folders whose images stay in their files (`ImageFiles`)."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np

from bitwright.base.errors import DataError
from bitwright.base.progress import Progress, no_progress
from bitwright.data.dataset import DataSplits
from bitwright.data.decoding import Framing, read_header
from bitwright.data.folders import Cut, split_layout
from bitwright.data.image_files import ImageFiles, Source, damaged_files, named
from bitwright.data.listing import Listing, find_layout, list_images, peeked, without
from bitwright.data.pixels import TOP
from bitwright.data.spec import IMAGENET, DatasetSpec, Stream
from bitwright.data.splits import Labels

_MOST_THREADS = 32
_log = logging.getLogger(__name__)


def load(
    path: Path, spec: DatasetSpec, *, seed: int, progress: Progress = no_progress
) -> DataSplits:
    """Splits as `folders.load` finds them; of the files only the headers are read.

    Args:
        spec: with ``stream`` and ``image_size``.

    Raises:
        DataError: the path or a class folder is missing or empty, or files are no images and
            ``stream.bad_files`` refuses them.
    """
    how = spec.stream
    assert how is not None and spec.image_size is not None
    threads = how.threads or min(os.cpu_count() or 1, _MOST_THREADS)
    listing = list_images(path)
    find_layout(listing)  # what is wrong with the folders is said before any file is looked at
    listing = _sound(listing, how, threads, progress)
    layout = find_layout(listing)
    grey, bits = spec.grey, spec.bits
    if grey is None or bits is None:
        first = listing.names[0]
        with peeked(listing) as peek, peek(first) as stream:
            header = read_header(stream, f"{listing.path}:{first}")
        grey = header.grey if grey is None else grey
        bits = header.bits if bits is None else bits
    framing = Framing(spec.image_size, how.short_side, grey, bits)
    images = ImageFiles(
        Source(listing),
        framing,
        np.arange(len(listing.names), dtype=np.int64),
        skips=how.bad_files == "skip",
        threads=threads,
        ahead=how.ahead,
    )
    is_imagenet = spec.name == IMAGENET
    name = IMAGENET if is_imagenet else path.stem or "folder"
    shared = Labels(name, layout.classes, 1 / TOP[bits], str(path))
    cut = Cut(spec.validation, spec.test, seed, has_no_test=is_imagenet)
    return split_layout(images, layout, shared, cut)


def _sound(listing: Listing, how: Stream, threads: int, progress: Progress) -> Listing:
    """The listing without files that are no images.

    Raises:
        DataError: there are some, and they are not to be skipped.
    """
    damaged = damaged_files(listing, threads, progress)
    if not damaged:
        return listing
    files = "1 file is no image" if len(damaged) == 1 else f"{len(damaged)} files are no images"
    first = next(iter(damaged))
    if how.bad_files == "refuse":
        raise DataError(
            f"{files}: {named(damaged)}; the first one {damaged[first]}",
            where=str(listing.path),
            hint="replace or remove them, or set data.stream.bad_files to skip",
        )
    _log.warning("%s: %s and left out: %s", listing.path, files, named(damaged))
    return without(listing, damaged.keys())
