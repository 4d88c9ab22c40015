# SPDX-License-Identifier: Apache-2.0
"""A key-value database of images: key -> (image, label), in the parts TRAIN and TEST.

It is one SQLite file, written whole or not at all, read in batches without holding it all in
memory. What belongs in is said by a list as Caffe's: one picture and its label a line. A recipe
names it as ``data: {name: database, path: FILE}``; `bitwright database` builds it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkstemp
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.data.dataset import DataSplits
from bitwright.data.decoding import Decoding, decode_image
from bitwright.data.splits import Labelled, Labels, split_two

TRAIN, TEST = "TRAIN", "TEST"
_MAGIC = 0x42574442  # of SQLite's application_id: "BWDB"
_TABLE = """CREATE TABLE images (part TEXT NOT NULL, key TEXT NOT NULL, label INTEGER NOT NULL,
height INTEGER NOT NULL, width INTEGER NOT NULL, channels INTEGER NOT NULL, pixels BLOB NOT NULL,
PRIMARY KEY (part, key)) WITHOUT ROWID"""
_SCALE = 1 / 255
_BATCH = 256
_SHOWN = 5


@dataclass(frozen=True)
class ListEntry:
    """One line of a list: where a picture lies, and its class."""

    path: str
    label: int


@dataclass(frozen=True, eq=False)
class Stored:
    """What the database gives for a key: (H, W, C) uint8 and the class."""

    key: str
    image: NDArray[np.uint8]
    label: int


def parse_list(text: str, where: str = "list") -> tuple[ListEntry, ...]:
    """Read lines ``PATH LABEL``; the path may hold spaces.

    Raises:
        DataError: a line is malformed, names a picture twice, or there is none.
    """
    entries: dict[str, ListEntry] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        path, _, label = line.strip().rpartition(" ")
        if not path.strip() or not label.isdecimal():
            raise DataError(f"expected PATH LABEL, found {line[:60]!r}", where=f"{where}:{number}")
        if path.strip() in entries:
            raise DataError(f"{path.strip()} is named twice", where=f"{where}:{number}")
        entries[path.strip()] = ListEntry(path.strip(), int(label))
    if not entries:
        raise DataError("names no picture", where=where)
    return tuple(entries.values())


def read_list(path: Path) -> tuple[ListEntry, ...]:
    """`parse_list` of a file.

    Raises:
        DataError: it cannot be read, or a line is malformed.
    """
    try:
        return parse_list(path.read_text(encoding="utf-8"), path.name)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read: {error}", where=str(path)) from error


def build_database(
    target: str | Path,
    lists: Mapping[str, Iterable[ListEntry]],
    root: str | Path,
    decoding: Decoding,
) -> int:
    """Write a database from lists of pictures.

    Args:
        lists: for each part (usually TRAIN and TEST) its entries; keys are their paths.
        root: folder that paths are relative to.
        decoding: size and channels of the images.

    Returns:
        The number of images.

    Raises:
        DataError: pictures are missing (all are checked first) or broken, or the file cannot be
            written; then there is no new file.
    """
    folder = Path(root)
    entries = {part: tuple(items) for part, items in lists.items()}
    every = [entry.path for items in entries.values() for entry in items]
    missing = [path for path in dict.fromkeys(every) if not (folder / path).is_file()]
    if missing:
        shown = ", ".join(missing[:_SHOWN]) + (", ..." if len(missing) > _SHOWN else "")
        raise DataError(f"{len(missing)} pictures are missing: {shown}", where=str(folder))
    return write_database(
        target,
        (
            (part, Stored(entry.path, _picture(folder / entry.path, decoding), entry.label))
            for part, items in entries.items()
            for entry in items
        ),
    )


def load(path: Path, *, validation: float, seed: int) -> DataSplits:
    """TEST as it is; validation images are cut from TRAIN. Classes are called by their numbers.

    Raises:
        DataError: the file is missing or damaged, a part is missing, or images differ in shape.
    """
    with ImageDatabase(path) as base:
        training, test = (_whole(base, part) for part in (TRAIN, TEST))
    if training.images.shape[1:] != test.images.shape[1:]:
        raise DataError(
            f"images of TRAIN are {training.images.shape[1:]}, of TEST {test.images.shape[1:]}",
            where=str(path),
        )
    count = 1 + max(int(part.labels.max()) for part in (training, test))
    classes = tuple(str(label) for label in range(count))
    shared = Labels(path.stem, classes, _SCALE, str(path))
    return split_two(training, test, shared, validation=validation, seed=seed)


def _whole(base: ImageDatabase, part: str) -> Labelled:
    images, labels = zip(*base.batches(part, _BATCH), strict=True)
    shapes = {batch.shape[1:] for batch in images}
    if len(shapes) > 1:
        raise DataError(f"images of {part} have the shapes {sorted(shapes)}: no data set")
    return Labelled(np.concatenate(images), np.concatenate(labels))


def write_database(target: str | Path, items: Iterable[tuple[str, Stored]]) -> int:
    """Write (part, image) after (part, image); the file appears when it is whole.

    Raises:
        DataError: a key is there twice in one part, no image at all, or the file cannot be written.
    """
    path = Path(target)
    try:
        handle, name = mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror}", where=str(path)) from error
    count = 0
    try:
        with closing(sqlite3.connect(name)) as base, base:
            base.execute(f"PRAGMA application_id = {_MAGIC}")
            base.execute(_TABLE)
            for part, item in items:
                shape = item.image.shape
                row = (part, item.key, item.label, *shape, item.image.tobytes())
                base.execute("INSERT INTO images VALUES (?, ?, ?, ?, ?, ?, ?)", row)
                count += 1
        if not count:
            raise DataError("no images", where=str(path))
        os.replace(name, path)
    except sqlite3.IntegrityError as error:
        raise DataError(f"a key is there twice: {error}", where=str(path)) from error
    except (sqlite3.Error, OSError) as error:
        raise DataError(f"cannot be written: {error}", where=str(path)) from error
    finally:
        Path(name).unlink(missing_ok=True)
    return count


class ImageDatabase:
    """Reads a database; a context manager.

    Raises:
        DataError: the file is missing, or no whole database of images.
    """

    def __init__(self, path: str | Path) -> None:
        self._where = str(path)
        if not Path(path).is_file():
            raise DataError("no such database", where=self._where)
        self._base = sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)
        try:
            (magic,) = self._base.execute("PRAGMA application_id").fetchone()
            (state,) = self._base.execute("PRAGMA quick_check(1)").fetchone()
        except sqlite3.Error as error:
            self._base.close()
            raise self._broken(str(error)) from error
        if magic != _MAGIC or state != "ok":
            self._base.close()
            raise self._broken("another kind of file" if magic != _MAGIC else str(state))

    def __enter__(self) -> ImageDatabase:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go."""
        self._base.close()

    def parts(self) -> dict[str, int]:
        """The parts and how many images each has."""
        return dict(self._rows("SELECT part, COUNT(*) FROM images GROUP BY part ORDER BY part"))

    def get(self, part: str, key: str) -> Stored:
        """The image of a key.

        Raises:
            DataError: there is none.
        """
        found = list(self._stored("WHERE part = ? AND key = ?", part, key))
        if not found:
            raise DataError(f"has no image {key!r} in {part}", where=self._where)
        return found[0]

    def images(self, part: str) -> Iterator[Stored]:
        """All images of a part, in the order of their keys.

        Raises:
            DataError: there is no such part.
        """
        if part not in self.parts():
            known = ", ".join(self.parts())
            raise DataError(f"has no part {part!r}", where=self._where, hint=f"parts: {known}")
        return self._stored("WHERE part = ? ORDER BY key", part)

    def batches(
        self, part: str, size: int
    ) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.int64]]]:
        """(N, H, W, C) and (N,) with N = ``size``, the last one smaller.

        Raises:
            DataError: there is no such part, ``size`` is below 1, or images differ in shape.
        """
        if size < 1:
            raise DataError(f"a batch of {size} images", where=self._where)
        waiting: list[Stored] = []
        for item in self.images(part):
            if waiting and item.image.shape != waiting[0].image.shape:
                raise DataError(
                    f"{item.key} is {item.image.shape}, {waiting[0].key} is "
                    f"{waiting[0].image.shape}: no batch",
                    where=self._where,
                )
            waiting.append(item)
            if len(waiting) == size:
                yield _stacked(waiting)
                waiting = []
        if waiting:
            yield _stacked(waiting)

    def _stored(self, condition: str, *values: str) -> Iterator[Stored]:
        columns = "key, label, height, width, channels, pixels"
        for key, label, *shape, pixels in self._rows(
            f"SELECT {columns} FROM images {condition}", *values
        ):
            image = np.frombuffer(pixels, np.uint8)
            if image.size != int(np.prod(shape)):
                raise self._broken(f"{key} has {image.size} pixels, not {shape}")
            yield Stored(key, image.reshape(shape), label)

    def _rows(self, query: str, *values: str) -> Iterator[tuple[Any, ...]]:
        try:
            yield from self._base.execute(query, values)
        except sqlite3.Error as error:
            raise self._broken(str(error)) from error

    def _broken(self, why: str) -> DataError:
        return DataError(
            f"is no whole image database: {why}", where=self._where, hint="build it again"
        )


def _stacked(items: list[Stored]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    labels = np.array([item.label for item in items], dtype=np.int64)
    return np.stack([item.image for item in items]), labels


def _picture(path: Path, decoding: Decoding) -> NDArray[np.uint8]:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(path)) from error
    return decode_image(content, decoding, str(path))
