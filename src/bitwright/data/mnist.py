# SPDX-License-Identifier: Apache-2.0
"""MNIST (LeCun, Cortes, Burges): 60 000 + 10 000 handwritten digits, 28 x 28 grey.

Its IDX files: two zero bytes, type, number of axes, big-endian axes, data.
"""

from __future__ import annotations

import gzip
import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitwright.base.archives import gunzip, most_of
from bitwright.base.errors import DataError
from bitwright.base.files import atomic_write, held_size, read_bytes
from bitwright.base.memory import machine_memory
from bitwright.base.progress import Progress
from bitwright.data.dataset import DataSplits
from bitwright.data.files import cache_path, download
from bitwright.data.splits import Labelled, Labels, split_two

MIRRORS = (
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
)
# SHA-256 of the unpacked files: the gzip bytes differ from mirror to mirror.
SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
CLASSES = tuple(str(digit) for digit in range(10))
SCALE = 1 / 255
_IMAGE_AXES = 3
_UINT8 = 0x08
_MAX_AXES = 4
#: Bytes that labels, numbers and orders of an image take while it is given to a split.
_BESIDES = 64


def find(place: Path) -> Path | None:
    """The folder with the four IDX files: ``place`` itself or a sub-folder ``mnist`` of it.

    A folder with only some of the four is taken too, so that reading it names what is missing.
    """
    for folder in (place, place / "mnist", place / "MNIST" / "raw"):
        if any(_file(folder, name) is not None for name in SHA256):
            return folder
    return None


def fetch(progress: Progress) -> Path:
    """Download the four files into the cache and give their folder."""
    for name, digest in SHA256.items():
        urls = [f"{mirror}{name}.gz" for mirror in MIRRORS]
        target = cache_path("mnist", f"{name}.gz")
        download(urls, target, digest, unpack=gunzip, progress=progress)
    return target.parent


def load(folder: Path, *, name: str, validation: float, seed: int) -> DataSplits:
    """Read the four files; validation images are cut from the 60 000 training images.

    Raises:
        DataError: a file is missing, corrupt, or the counts disagree.
    """
    training = _pair(folder, "train")
    test = _pair(folder, "t10k")
    if training.images.shape[1:] != test.images.shape[1:]:
        raise DataError(
            f"training images are {training.images.shape[1:]}, test images {test.images.shape[1:]}",
            where=str(folder),
        )
    shared = Labels(name, CLASSES, SCALE, str(folder))
    return split_two(training, test, shared, validation=validation, seed=seed)


def _file(folder: Path, name: str) -> Path | None:
    for candidate in (folder / f"{name}.gz", folder / name):
        if candidate.is_file():
            return candidate
    return None


def _pair(folder: Path, prefix: str) -> Labelled:
    names = (f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte")
    paths = []
    for name in names:
        path = _file(folder, name)
        if path is None:
            raise DataError(
                f"{name}.gz is missing",
                where=str(folder),
                hint="MNIST needs all four files; remove the folder's name to download them",
            )
        paths.append(path)
    images, labels = (read_idx(path) for path in paths)
    if images.ndim != _IMAGE_AXES or labels.ndim != 1:
        raise DataError(
            f"images have {images.ndim} axes (3 expected), labels {labels.ndim} (1 expected)",
            where=str(paths[0]),
        )
    if len(images) != len(labels) or not len(images):
        raise DataError(
            f"{len(images)} images but {len(labels)} labels",
            where=str(paths[1]),
            hint="the two files belong to different data sets, or one is empty",
        )
    if images.nbytes + _BESIDES * len(images) > most_of(sum(map(held_size, paths))):
        raise DataError(
            f"{len(images)} images of {images.shape[1:]} are more than so short a file of real "
            "ones holds",
            where=str(paths[0]),
        )
    if int(labels.max()) >= len(CLASSES):
        raise DataError(f"label {labels.max()} is no digit", where=str(paths[1]))
    return Labelled(images[..., np.newaxis], labels.astype(np.int64))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, packed with gzip (``.gz``) or not.

    Raises:
        DataError: the file is missing, corrupt, truncated, too long or of another element type.
    """
    try:
        held = held_size(path)
    except OSError:  # which `read_bytes` says in our words
        held = 0
    content = read_bytes(path, most=min(most_of(held), machine_memory() // 4))
    if path.suffix == ".gz":
        content = gunzip(content, str(path), held)
    return parse_idx(content, str(path))


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    """Write an IDX file of unsigned bytes, packed with gzip; the same array gives the same file."""
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, _UINT8, array.ndim, *array.shape)
    atomic_write(path, gzip.compress(head + array.astype(np.uint8).tobytes(), mtime=0))


def parse_idx(content: bytes, where: str) -> NDArray[np.uint8]:
    """The array in the bytes of an IDX file; ``where`` is named in errors."""
    hint = "the file is corrupt or no IDX file; delete it and fetch it again"
    if len(content) < 4 or content[:2] != b"\0\0":
        found = content[:4].hex() or "nothing"
        raise DataError(f"IDX files begin with 0000, found {found}", where=where, hint=hint)
    kind, axes = content[2], content[3]
    if kind != _UINT8 or not 1 <= axes <= _MAX_AXES:
        raise DataError(
            f"expected unsigned bytes (type 0x08) with 1 to {_MAX_AXES} axes, "
            f"found type {kind:#04x} with {axes} axes",
            where=where,
            hint=hint,
        )
    start = 4 + 4 * axes
    if len(content) < start:
        raise DataError("ends inside its header", where=where, hint=hint)
    shape = struct.unpack(f">{axes}I", content[4:start])
    expected, found_bytes = math.prod(shape), len(content) - start
    if expected != found_bytes:
        raise DataError(
            f"the header promises {expected} bytes of data {shape}, the file holds {found_bytes}",
            where=where,
            hint=hint,
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()
