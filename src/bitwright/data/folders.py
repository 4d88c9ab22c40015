# SPDX-License-Identifier: Apache-2.0
"""A user's own images: class folders, in a folder or a zip file, decoded once and cached."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.base.memory import check_room
from bitwright.base.progress import Progress, no_progress
from bitwright.base.source import code_key
from bitwright.base.store import Store, content_key
from bitwright.data.dataset import Dataset, DataSplits, Images
from bitwright.data.decoding import Decoding, check_growth, decode_image, read_header
from bitwright.data.listing import Layout, Listing, Written, find_layout, list_images, opened
from bitwright.data.pixels import Levels, top_of, warn_of_lost
from bitwright.data.splits import Labelled, Labels, keep_three, split_three, split_two

_KIND, _IMAGES = "images", "images.npy"
_CACHE_FROM = 500  # images; fewer are decoded faster than anyone notices
_PROGRESS_EVERY = 256
_IMAGE_AXES = 3
_log = logging.getLogger(__name__)


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
    images = decode_listing(listing, decoding, progress)
    cut = Cut(validation, test, seed)
    warn_of_lost(images, top_of(images), "images", str(path))
    return split_layout(
        images, layout, Labels(name, layout.classes, 1 / top_of(images), str(path)), cut
    )


@dataclass(frozen=True)
class Cut:
    """How images without splits of their own are cut.

    Attributes:
        validation, test: shares, as in `DatasetSpec`.
        seed: of the cut.
        has_no_test: images of a folder ``val`` beside ``train`` are what everybody measures on, as
            ImageNet's are: they are the test images, and validation images are cut off.
    """

    validation: float
    test: float
    seed: int
    has_no_test: bool = False


def split_layout(images: Images, layout: Layout, shared: Labels, cut: Cut) -> DataSplits:
    """Give every image of a listing to its split, mixed.

    Raises:
        DataError: the splits that are there make no training and test set.
    """
    parts = {
        split: Labelled(images[_in_order(positions)], np.asarray(labels, dtype=np.int64))
        for split, (positions, labels) in layout.members.items()
    }
    return split_parts(parts, shared, cut)


def _in_order(positions: Sequence[int]) -> slice | NDArray[np.int64]:
    """Positions as a slice, which copies nothing, where they are one."""
    found = np.asarray(positions, dtype=np.int64)
    start, count = int(found[0]) if len(found) else 0, len(found)
    one = (found == np.arange(start, start + count)).all()
    return slice(start, start + count) if one else found


def split_parts(parts: dict[str, Labelled], shared: Labels, cut: Cut) -> DataSplits:
    """The splits of what a source holds, or of ``all`` that it holds. Files come sorted by class:
    they are mixed, so that the first few images show every class.

    Raises:
        DataError: the splits that are there make no training and test set.
    """
    validation, test, seed = cut.validation, cut.test, cut.seed
    match sorted(parts):
        case ["all"] | ["train"] as only:
            pool = parts[only[0]]
            return split_three(
                pool, shared, validation=validation, test=test, seed=seed, mixed=True
            )
        case ["test", "train"]:
            both = (parts["train"], parts["test"])
            return split_two(*both, shared, validation=validation, seed=seed, mixed=True)
        case ["test", "train", "validation"]:
            three = (parts["train"], parts["validation"], parts["test"])
            return keep_three(*three, shared, mixed=True)
        case ["train", "validation"] if cut.has_no_test:
            both = (parts["train"], parts["validation"])
            return split_two(*both, shared, validation=validation, seed=seed, mixed=True)
        case found:
            raise DataError(
                f"holds the splits {found}, which do not make a training and a test set",
                where=shared.source,
                hint="name the folders train and test (and validation, if there is one); "
                "the data set 'imagenet' measures on val",
            )


def add_unlabelled(
    splits: DataSplits, path: Path, *, progress: Progress = no_progress
) -> DataSplits:
    """More training images, of no known class: every image below a folder, or in a zip file.

    They are resized to the data set's size and numbered after its last image.

    Raises:
        DataError: there is no image, or one is corrupt.
    """
    if len(splits.image_shape) != _IMAGE_AXES:
        raise DataError("more images, but the data set has none", where=str(path))
    height, width, channels = splits.image_shape
    listing = list_images(
        path, expected="images to learn from without labels, in any folders below"
    )
    train = splits.train
    bits = 8 * train.images.dtype.itemsize
    images = decode_listing(listing, Decoding((height, width), channels == 1, bits), progress)
    if images.shape[3] != channels:
        raise DataError(
            f"the data set has {channels} channels, images have 1 or 3", where=str(path)
        )
    raw = np.rint(images / (top_of(images) * train.scale)).astype(images.dtype)
    parts = (train, splits.validation, splits.test)
    first = 1 + max(int(part.indices.max()) for part in parts if len(part))
    joined = Dataset(
        train.name,
        np.concatenate([train.pixels, raw]),
        np.concatenate([train.labels, train.kind.nothing(train.labels, len(raw))]),
        train.classes,
        train.scale,
        np.concatenate([train.indices, np.arange(first, first + len(raw), dtype=np.int64)]),
        train.kind,
    )
    return replace(splits, train=joined)


def decode_listing(listing: Listing, decoding: Decoding, progress: Progress) -> Levels:
    """All images of a listing, from the cache when they are there."""
    if len(listing.names) < _CACHE_FROM:
        return _decode_all(listing, decoding, progress)
    key = content_key(code_key("bitwright.data.decoding"), listing.fingerprint, str(decoding))
    fresh: list[Levels] = []

    def decoded(work: Path) -> None:
        fresh.append(_decode_all(listing, decoding, progress))
        np.save(work / _IMAGES, fresh[0], allow_pickle=False)

    try:
        entry = Store().made(_KIND, key, decoded)
        images: Levels = np.load(entry.folder / _IMAGES, allow_pickle=False)
    except OSError as error:
        _log.warning("decoded images are not kept for the next time: %s", error)
        return fresh[0] if fresh else _decode_all(listing, decoding, progress)
    return images


def _decode_all(listing: Listing, decoding: Decoding, progress: Progress) -> Levels:
    count, stored, written = len(listing.names), 0, Written(listing)
    with opened(listing) as read:
        where = f"{listing.path}:{listing.names[0]}"
        first = decode_image(read(listing.names[0]), decoding, where)
        what, smaller = f"{count} images of {first.shape}", "choose a smaller image_size"
        check_room(count * first.nbytes, what, str(listing.path), smaller)
        try:
            images = np.empty((count, *first.shape), dtype=first.dtype)
        except MemoryError as error:
            raise DataError(
                f"{what} do not fit into memory", where=str(listing.path), hint=smaller
            ) from error
        for position, name in enumerate(listing.names):
            where = f"{listing.path}:{name}"
            content = read(name)
            packed = written.add(name, content)
            # What grows because the user asks for a size is bounded by the memory alone.
            if decoding.size is None:
                made, what = (
                    (position + 1) * first.nbytes,
                    f"{position + 1} images of {first.shape}",
                )
                hint = "if they are what you want, name their size (image_size)"
                check_growth(made, packed, what, where, hint)
            # Work, which whoever names a size has not asked for; in a zip file a picture of zeros
            # shrinks once more.
            stored += read_header(io.BytesIO(content), where).numbers
            check_growth(stored, packed, f"{position + 1} images", where, "leave it out")
            image = decode_image(content, decoding, where) if position else first
            if image.dtype != first.dtype:
                raise DataError(
                    f"has {image.dtype.itemsize * 8} bits a channel, but {listing.names[0]} "
                    f"{first.dtype.itemsize * 8}",
                    where=where,
                    hint="set data.bits to 8 or 16",
                )
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


def _shape(image: Levels) -> str:
    height, width, channels = image.shape
    return f"{height} x {width} x {channels} (height x width x channels)"
