# SPDX-License-Identifier: Apache-2.0
"""A user's own images: class folders, in a folder or a zip file, decoded once and cached."""

from __future__ import annotations

import hashlib
import io
import logging
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitwright.data.dataset import UNLABELLED, Dataset, DataSplits
from bitwright.data.files import Progress, cache_path, no_progress, store
from bitwright.data.listing import Layout, Listing, find_layout, list_images, opened
from bitwright.data.splits import Labelled, Labels, keep_three, split_three, split_two
from bitwright.errors import DataError

SCALE = 1 / 255
_CACHE_VERSION = 1
_CACHE_FROM = 500  # images; fewer are decoded faster than anyone notices
_PROGRESS_EVERY = 256
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decoding:
    """How image files become arrays.

    Attributes:
        size: (H, W) to resize to (bilinear); None keeps the size, which must then be one for all.
        grey: one channel (True), three (False), or as the first image has it (None).
    """

    size: tuple[int, int] | None = None
    grey: bool | None = None


def load(
    path: Path,
    decoding: Decoding,
    *,
    name: str,
    validation: float,
    test: float,
    seed: int,
    progress: Progress = no_progress,
) -> DataSplits:
    """Read class folders.

    With ``train/`` and ``test/`` folders the test images are kept apart as given; without, a share
    ``test`` is cut off, stratified. The same holds for ``validation/``.

    Raises:
        DataError: the path, a class folder or an image is missing, empty, corrupt or of another
            size than the rest.
    """
    listing = list_images(path)
    layout = find_layout(listing)
    images = _images(listing, decoding, progress)
    parts = {split: _labelled(images, layout, split) for split in layout.members}
    shared = Labels(name, layout.classes, SCALE, str(path))
    return _mixed(_split(parts, shared, validation=validation, test=test, seed=seed))


def add_unlabelled(
    splits: DataSplits, path: Path, *, progress: Progress = no_progress
) -> DataSplits:
    """More training images, of no known class: every image below a folder, or in a zip file.

    They are resized to the data set's size and numbered after its last image.

    Raises:
        DataError: there is no image, or one is corrupt.
    """
    height, width, channels = splits.image_shape
    listing = list_images(
        path, expected="images to learn from without labels, in any folders below"
    )
    images = _images(listing, Decoding((height, width), channels == 1), progress)
    train = splits.train
    if images.shape[3] != channels:
        raise DataError(
            f"the data set has {channels} channels, images have 1 or 3", where=str(path)
        )
    raw = np.rint(images * (SCALE / train.scale)).astype(np.uint8)
    parts = (train, splits.validation, splits.test)
    first = 1 + max(int(part.indices.max()) for part in parts if len(part))
    joined = Dataset(
        train.name,
        np.concatenate([train.images, raw]),
        np.concatenate([train.labels, np.full(len(raw), UNLABELLED, np.int64)]),
        train.classes,
        train.scale,
        np.concatenate([train.indices, np.arange(first, first + len(raw), dtype=np.int64)]),
    )
    return replace(splits, train=joined)


def _split(
    parts: dict[str, Labelled], shared: Labels, *, validation: float, test: float, seed: int
) -> DataSplits:
    match sorted(parts):
        case ["all"] | ["train"] as only:
            pool = parts[only[0]]
            return split_three(pool, shared, validation=validation, test=test, seed=seed)
        case ["test", "train"]:
            both = (parts["train"], parts["test"])
            return split_two(*both, shared, validation=validation, seed=seed)
        case ["test", "train", "validation"]:
            return keep_three(parts["train"], parts["validation"], parts["test"], shared)
        case found:
            raise DataError(
                f"holds the splits {found}, which do not make a training and a test set",
                where=shared.source,
                hint="name the folders train and test (and validation, if there is one)",
            )


def _mixed(splits: DataSplits) -> DataSplits:
    """Files come sorted by class: mix them, so that the first few images show every class."""

    def mixed(part: Dataset) -> Dataset:
        return part.take(np.random.RandomState(0).permutation(len(part)))

    return replace(
        splits,
        train=mixed(splits.train),
        validation=mixed(splits.validation),
        test=mixed(splits.test),
    )


def _labelled(images: NDArray[np.uint8], layout: Layout, split: str) -> Labelled:
    positions, labels = layout.members[split]
    return Labelled(images[np.asarray(positions)], np.asarray(labels, dtype=np.int64))


def _images(listing: Listing, decoding: Decoding, progress: Progress) -> NDArray[np.uint8]:
    """All images of a listing, from the cache when they are there."""
    if len(listing.names) < _CACHE_FROM:
        return _decode_all(listing, decoding, progress)
    identity = f"{_CACHE_VERSION} {listing.fingerprint} {decoding}"
    key = hashlib.sha256(identity.encode()).hexdigest()[:32]
    images = _read_cache(key, len(listing.names))
    if images is None:
        images = _decode_all(listing, decoding, progress)
        _write_cache(key, images)
    return images


def _write_cache(key: str, images: NDArray[np.uint8]) -> None:
    buffer = io.BytesIO()
    np.save(buffer, images, allow_pickle=False)
    try:
        store(cache_path("images", f"{key}.npy"), buffer.getvalue())
    except DataError as error:
        _log.warning("decoded images are not kept for the next time: %s", error)


def _read_cache(key: str, count: int) -> NDArray[np.uint8] | None:
    try:
        path = cache_path("images", f"{key}.npy")
        if not path.is_file():
            return None
        images: NDArray[np.uint8] = np.load(path, allow_pickle=False)
    except (DataError, OSError, ValueError, EOFError) as error:
        _log.warning("cached images are unusable and will be decoded anew: %s", error)
        return None
    whole = images.dtype == np.uint8 and images.ndim == 4 and len(images) == count
    return images if whole else None


def _decode_all(listing: Listing, decoding: Decoding, progress: Progress) -> NDArray[np.uint8]:
    count = len(listing.names)
    with opened(listing) as read:
        where = f"{listing.path}:{listing.names[0]}"
        first = decode_image(read(listing.names[0]), decoding, where)
        try:
            images = np.empty((count, *first.shape), dtype=np.uint8)
        except MemoryError as error:
            raise DataError(
                f"{count} images of {first.shape} do not fit into memory",
                where=str(listing.path),
                hint="choose a smaller image_size",
            ) from error
        for position, name in enumerate(listing.names):
            where = f"{listing.path}:{name}"
            image = decode_image(read(name), decoding, where)
            if image.shape != first.shape:
                raise DataError(
                    f"is {_shape(image)}, but {listing.names[0]} is {_shape(first)}",
                    where=where,
                    hint="set image_size to resize all images, and grey to true or false",
                )
            images[position] = image
            if position % _PROGRESS_EVERY == 0 or position + 1 == count:
                progress("decoding images", position + 1, count)
    return images


def _shape(image: NDArray[np.uint8]) -> str:
    height, width, channels = image.shape
    return f"{height} x {width} x {channels} (height x width x channels)"


def decode_image(content: bytes, decoding: Decoding, where: str) -> NDArray[np.uint8]:
    """One image file as (H, W, C) uint8.

    Raises:
        DataError: it is corrupt or cut short.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(content)) as opened_image:
            image = ImageOps.exif_transpose(opened_image)
            grey = image.mode in {"1", "L", "LA"} if decoding.grey is None else decoding.grey
            image = image.convert("L" if grey else "RGB")
            if decoding.size is not None and image.size != decoding.size[::-1]:
                image = image.resize(decoding.size[::-1], Image.Resampling.BILINEAR)
            pixels = np.asarray(image, dtype=np.uint8)
    except (
        OSError,
        SyntaxError,  # what Pillow raises on broken PNG chunks
        ValueError,
        EOFError,
        struct.error,
        zlib.error,
        Image.DecompressionBombError,
    ) as error:
        raise DataError(
            f"cannot be decoded: {error}",
            where=where,
            hint="the image is corrupt or cut short; replace or remove it",
        ) from error
    return pixels[..., np.newaxis] if pixels.ndim == 2 else pixels
