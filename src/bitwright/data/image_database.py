# SPDX-License-Identifier: Apache-2.0
"""A key-value database of images: key -> (image, label), in the parts TRAIN and TEST.

It is one SQLite file, written whole or not at all. What belongs in is said by a list as Caffe's:
one picture and its label a line. A recipe names it as ``data: {name: database, path: FILE}``;
`bitwright database` builds it. A file of a stranger computes nothing: its only table must be the
very one that is written here, no view, without generated columns and checks; journals are not
looked at.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.base.files import atomic_copy, file_inside, held_size, read_bytes, read_text
from bitwright.base.ownership import check_way
from bitwright.data.dataset import DataSplits
from bitwright.data.decoding import Decoding, decode_image
from bitwright.data.image_files import named
from bitwright.data.splits import Labelled, Labels, split_two

TRAIN, TEST = "TRAIN", "TEST"
_MAGIC = 0x42574442  # of SQLite's application_id: "BWDB"
_TABLE = """CREATE TABLE images (part TEXT NOT NULL, key TEXT NOT NULL, label INTEGER NOT NULL,
height INTEGER NOT NULL, width INTEGER NOT NULL, channels INTEGER NOT NULL, pixels BLOB NOT NULL,
PRIMARY KEY (part, key)) WITHOUT ROWID"""
_SCALE = 1 / 255
#: Classes that there may be: each has a name, whether it has images or not. The largest sets of
#: faces have fewer.
MOST_CLASSES = 1 << 20
_STEPS = 100_000  # of SQLite's machine between two looks at how many there were
_STEPS_A_BYTE = 20  # of the file, by far more than reading and checking take
_LEAST_LIMIT = 1 << 16  # bytes of a value, of which the table's own text is one
_COLUMNS = "part, key, label, height, width, channels, pixels"


#: A line of a list: where a picture lies, and its class.
ListEntry = tuple[str, int]


@dataclass(frozen=True, eq=False)
class Stored:
    """What the database holds for a key: (H, W, C) uint8 and the class."""

    key: str
    image: NDArray[np.uint8]
    label: int


def parse_list(text: str, where: str = "list") -> tuple[ListEntry, ...]:
    """Read lines ``PATH LABEL``; the path may hold spaces.

    Raises:
        DataError: a line is malformed, names a picture twice, or there is none.
    """
    entries: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        path, _, label = line.strip().rpartition(" ")
        if not path.strip() or not label.isdecimal():
            raise DataError(f"expected PATH LABEL, found {line[:60]!r}", where=f"{where}:{number}")
        # Looked at as text first: Python refuses to read numbers of thousands of digits.
        if len(label) > len(str(MOST_CLASSES)) or int(label) >= MOST_CLASSES:
            raise DataError(
                f"label {label[:20]} is beyond {MOST_CLASSES - 1}", where=f"{where}:{number}"
            )
        if path.strip() in entries:
            raise DataError(f"{path.strip()} is named twice", where=f"{where}:{number}")
        entries[path.strip()] = int(label)
    if not entries:
        raise DataError("names no picture", where=where)
    return tuple(entries.items())


def read_list(path: Path) -> tuple[ListEntry, ...]:
    """`parse_list` of a file.

    Raises:
        DataError: it cannot be read, or a line is malformed.
    """
    return parse_list(read_text(path), path.name)


def build_database(
    target: str | Path,
    lists: Mapping[str, Iterable[ListEntry]],
    root: str | Path,
    decoding: Decoding,
) -> int:
    """Write a database from lists of pictures.

    Args:
        lists: for each part (usually TRAIN and TEST) its entries; keys are their paths.
        root: folder that paths are relative to, and that none may lead out of.
        decoding: size and channels of the images.

    Returns:
        The number of images.

    Raises:
        DataError: pictures are missing, lie outside the folder (all are checked first) or are
            broken, or the file cannot be written; then there is no new file.
    """
    folder = Path(root)
    entries = {part: tuple(items) for part, items in lists.items()}
    every = [path for items in entries.values() for path, _ in items]
    found = _found(dict.fromkeys(every), folder)

    def stored(path: str, label: int) -> Stored:
        content = read_bytes(found[path])
        return Stored(path, decode_image(content, decoding, str(folder / path)), label)

    items = ((part, stored(*entry)) for part, of_part in entries.items() for entry in of_part)
    return write_database(target, items)


def _found(names: Iterable[str], folder: Path) -> dict[str, Path]:
    """Where each picture lies: a list may be a stranger's, and what is packed is given away."""
    found: dict[str, Path] = {}
    outside: list[str] = []
    missing: list[str] = []
    for name in names:
        try:
            found[name] = file_inside(folder, name)
        except ValueError:
            outside.append(name)
        except OSError:
            missing.append(name)
    if outside:
        raise DataError(
            f"{len(outside)} pictures lie outside the folder: {named(outside)}",
            where=str(folder),
            hint="name as root (--root) a folder that holds them all, where links lead to, too",
        )
    if missing:
        raise DataError(f"{len(missing)} pictures are missing: {named(missing)}", where=str(folder))
    return found


def load(path: Path, *, validation: float, seed: int) -> DataSplits:
    """TEST as it is; validation images are cut from TRAIN. Classes are called by their numbers.

    Raises:
        DataError: the file is missing or damaged, a part is missing, or images differ in shape.
    """
    parts = read_database(path)
    for part in (TRAIN, TEST):
        if part not in parts:
            hint = f"parts: {', '.join(parts)}"
            raise DataError(f"has no part {part!r}", where=str(path), hint=hint)
    training, test = parts[TRAIN], parts[TEST]
    if training.images.shape[1:] != test.images.shape[1:]:
        raise DataError(
            f"images of TRAIN are {training.images.shape[1:]}, of TEST {test.images.shape[1:]}",
            where=str(path),
        )
    count = 1 + max(int(part.labels.max()) for part in (training, test))
    classes = tuple(str(label) for label in range(count))
    shared = Labels(path.stem, classes, _SCALE, str(path))
    return split_two(training, test, shared, validation=validation, seed=seed)


def write_database(target: str | Path, items: Iterable[tuple[str, Stored]]) -> int:
    """Write (part, image) after (part, image); the file appears when it is whole.

    Raises:
        DataError: a key is there twice in one part, no image at all, or the file cannot be written.
    """
    path, count = Path(target), 0
    check_way(path)
    if not path.parent.is_dir():
        raise DataError("cannot be written: there is no such folder", where=str(path.parent))
    try:
        # SQLite looks for its journal under a name that others would know beside the file. Not
        # where temporary files are, which may be memory.
        with TemporaryDirectory(prefix=".bitwright-", dir=path.parent) as folder:
            made = Path(folder, "images.db")
            with closing(sqlite3.connect(made)) as base, base:
                base.execute(f"PRAGMA application_id = {_MAGIC}")
                base.execute(_TABLE)
                for part, item in items:
                    shape = item.image.shape
                    row = (part, item.key, item.label, *shape, item.image.tobytes())
                    base.execute("INSERT INTO images VALUES (?, ?, ?, ?, ?, ?, ?)", row)
                    count += 1
            if not count:
                raise DataError("no images", where=str(path))
            atomic_copy(made, path)
    except sqlite3.IntegrityError as error:
        raise DataError(f"a key is there twice: {error}", where=str(path)) from error
    except sqlite3.Error as error:
        raise DataError(f"cannot be written: {error}", where=str(path)) from error
    except OSError as error:
        said = error.strerror or str(error)
        raise DataError(f"cannot be written: {said}", where=str(path)) from error
    return count


def read_database(path: Path) -> dict[str, Labelled]:
    """Part -> its images (N, H, W, C) and labels, in the order of their keys.

    Raises:
        DataError: the file is missing, no whole database of images, or the images of a part differ
            in shape.
    """
    if not path.is_file():
        raise DataError("no such database", where=str(path))
    try:
        size = held_size(path)
        # Immutable: journals beside it, which may be anything, are not opened.
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as base:
            _bound(base, size)
            _check_table(base)
            (state,) = base.execute("PRAGMA quick_check(1)").fetchone()
            if state != "ok":
                raise sqlite3.DatabaseError(state)
            rows = base.execute(f"SELECT {_COLUMNS} FROM images ORDER BY part, key")
            return {
                part: _labelled(part, rows_of_part, str(path))
                for part, rows_of_part in groupby(rows, itemgetter(0))
            }
    except (sqlite3.Error, OSError, UnicodeError) as error:  # its own messages quote broken text
        reason = f"is no whole image database: {error}"
        raise DataError(reason, where=str(path), hint="build it again") from error


def _bound(base: sqlite3.Connection, size: int) -> None:
    """No value is longer than the file, and nothing goes on without end."""
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, max(size, _LEAST_LIMIT))
    base.execute("PRAGMA trusted_schema = OFF")
    left = iter(range(100 + size * _STEPS_A_BYTE // _STEPS))
    base.set_progress_handler(lambda: int(next(left, None) is None), _STEPS)


def _check_table(base: sqlite3.Connection) -> None:
    (magic,) = base.execute("PRAGMA application_id").fetchone()
    if magic != _MAGIC:
        raise sqlite3.DatabaseError("another kind of file")
    found = base.execute("SELECT type, sql FROM sqlite_master").fetchmany(2)
    if [(kind, str(text).split()) for kind, text in found] != [("table", _TABLE.split())]:
        raise sqlite3.DatabaseError(
            "it has no table of images as this program writes it, and nothing else"
        )


def _check_row(row: tuple[Any, ...]) -> None:
    part, key, label, *shape, pixels = row
    if not isinstance(part, str) or not isinstance(key, str) or not isinstance(pixels, bytes):
        raise sqlite3.DatabaseError("a part or key is no text, or pixels are no bytes")
    if not isinstance(label, int) or not 0 <= label < MOST_CLASSES:
        reason = f"the label of {key} is {label!r:.40}, expected 0 .. {MOST_CLASSES - 1}"
        raise sqlite3.DatabaseError(reason)
    if not all(isinstance(side, int) and side > 0 for side in shape):
        reason = f"{key} has the shape {shape!r:.80}, expected positive integers"
        raise sqlite3.DatabaseError(reason)
    if len(pixels) != math.prod(shape):
        raise sqlite3.DatabaseError(f"{key} has {len(pixels)} pixels, not {shape}")


def _labelled(part: str, rows: Iterable[tuple[Any, ...]], where: str) -> Labelled:
    images: list[NDArray[np.uint8]] = []
    labels = []
    for row in rows:
        _check_row(row)
        _, key, label, *shape, pixels = row
        image = np.frombuffer(pixels, np.uint8)
        if images and tuple(shape) != images[0].shape:
            raise DataError(
                f"{key} is {tuple(shape)}, the images of {part} before it are {images[0].shape}",
                where=where,
                hint="build it again with --input-shape",
            )
        images.append(image.reshape(shape))
        labels.append(label)
    return Labelled(np.stack(images), np.array(labels, dtype=np.int64))
