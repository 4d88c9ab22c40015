# SPDX-License-Identifier: Apache-2.0
"""A user's own images with labels in files beside them: boxes, maps of classes, or real values.

==========  ==========================================================================
boxes       ``images/NAME.png`` with ``annotations/NAME.xml`` (Pascal VOC); or a
            ``boxes.csv`` with the columns file, class, xmin, ymin, xmax, ymax (pixels)
maps        ``images/NAME.png`` with ``masks/NAME.png``: a number of a class a pixel,
            255 where it is not known; names of the classes in ``classes.txt``
values      a ``values.csv`` with the columns file and one for each value
==========  ==========================================================================

Folders ``train``, ``test`` and ``validation`` around all that make splits, as with folders of
classes; else the images are cut. File names in a CSV file start where it lies.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from bitwright.base.errors import DataError
from bitwright.base.progress import Progress, no_progress
from bitwright.data.dataset import DataSplits
from bitwright.data.decoding import Decoding, decode_map, read_size
from bitwright.data.detection import annotation_of, check_box, parse_voc
from bitwright.data.folders import Cut, decode_listing, split_parts
from bitwright.data.labels import UNKNOWN, Annotation, Classes, LabelKind
from bitwright.data.listing import SPLITS, Listing, ReadFile, list_images, opened
from bitwright.data.pixels import top_of, warn_of_lost
from bitwright.data.splits import Labelled, Labels

#: Folders of annotations, in which no images are looked for.
_BESIDE = frozenset({"masks", "annotations", "Annotations"})
_BOXES, _VALUES, _CLASSES = "boxes.csv", "values.csv", "classes.txt"
_EDGES = ("xmin", "ymin", "xmax", "ymax")
_MOST_BYTES = 256 << 20  # of a file of annotations
_MOST_LINES = 10_000_000
_NO_CLASS = 255  # in masks: PASCAL VOC's "void"
Found = tuple[list[Annotation], Classes]


@dataclass(frozen=True)
class _Files:
    """A folder or zip file while it is read."""

    listing: Listing
    read: ReadFile

    @property
    def names(self) -> tuple[str, ...]:
        return self.listing.names

    def optional(self, name: str) -> bytes | None:
        """The content of a file that need not be there."""
        path = self.listing.path
        if path.is_dir() and not (path / name).exists():
            return None
        try:
            return self.read(name, _MOST_BYTES)
        except KeyError:  # not in the zip file
            return None

    def where(self, name: str) -> str:
        return f"{self.listing.path}:{name}"


def load(
    path: Path,
    decoding: Decoding,
    kind: LabelKind,
    *,
    name: str,
    validation: float,
    test: float,
    seed: int,
    progress: Progress = no_progress,
) -> DataSplits:
    """Read images and their labels.

    Args:
        path: folder or zip file.
        decoding: the images' size, which the labels follow.

    Raises:
        DataError: an image or its label is missing, damaged or contradicts the other.
    """
    every = list_images(path, expected=kind.layout)
    listing = replace(every, names=tuple(n for n in every.names if not _is_beside(n)))
    if not listing.names or kind.name not in READERS:
        raise DataError(f"holds no images with {kind.name}", where=str(path), hint=kind.layout)
    with opened(listing) as read:
        found, classes = READERS[kind.name](_Files(listing, read))
    images = decode_listing(listing, decoding, progress)
    labels = kind.pack(found, images.shape[1:3])
    warn_of_lost(images, top_of(images), "images", str(path))
    shared = Labels(name, classes, 1 / top_of(images), str(path), kind)
    parts = {
        split: Labelled(images[positions], labels[positions])
        for split, positions in _splits(listing.names).items()
    }
    return split_parts(parts, shared, Cut(validation, test, seed))


def _is_beside(name: str) -> bool:
    return not _BESIDE.isdisjoint(PurePosixPath(name).parts[:-1])


def _splits(names: tuple[str, ...]) -> dict[str, list[int]]:
    """Positions of the images of each split; ``all`` without folders of that name."""
    heads = [PurePosixPath(name).parts[0].lower() for name in names]
    if not all(head in SPLITS for head in heads):
        return {"all": list(range(len(names)))}
    found: dict[str, list[int]] = {}
    for position, head in enumerate(heads):
        found.setdefault(SPLITS[head], []).append(position)
    return found


def _boxes(files: _Files) -> Found:
    rows = _rows(files, _BOXES, ("file", "class", *_EDGES))
    named: list[list[tuple[str, list[float], str]]] = []  # class, edges, where it is said
    for name in files.names:
        if rows is None:
            where, content = annotation_of(files.read, files.listing.path, name)
            corners, labels = parse_voc(content, where)
            pairs = zip(labels, corners.tolist(), strict=True)
            named.append([(label, edges, where) for label, edges in pairs])
        else:
            mine = rows.get(name, [])
            named.append(
                [(r.cells["class"], [r.real(edge) for edge in _EDGES], r.where) for r in mine]
            )
    classes = tuple(sorted({label for each in named for label, *_ in each}))
    numbers = {label: number for number, label in enumerate(classes)}
    found = []
    for name, each in zip(files.names, named, strict=True):
        height, width = read_size(io.BytesIO(files.read(name)), files.where(name))
        sides = np.array([width, height, width, height])
        boxes = np.zeros((len(each), 5), dtype=np.float32)
        for row, (label, edges, where) in zip(boxes, each, strict=True):
            row[0], row[1:] = numbers[label], np.asarray(edges) / sides
            check_box(edges, (height, width), f"{where}: {name}")
        found.append(Annotation(boxes=boxes))
    return found, classes


def _maps(files: _Files) -> Found:
    found, highest = [], 0
    for name in files.names:
        inside = PurePosixPath(name)
        mask = str(inside.parent.parent / "masks" / f"{inside.stem}.png")
        content = files.optional(mask)
        if content is None:
            raise DataError("has no mask", where=files.where(name), hint=f"expected {mask}")
        numbers = decode_map(content, files.where(mask)).astype(np.int64)
        numbers[numbers == _NO_CLASS] = UNKNOWN
        highest = max(highest, int(numbers.max(initial=0)))
        found.append(Annotation(map=numbers))
    given = files.optional(_CLASSES)
    if given is None:
        return found, tuple(str(number) for number in range(highest + 1))
    lines = _text(given, files.where(_CLASSES)).splitlines()
    return found, tuple(line.strip() for line in lines if line.strip())


def _values(files: _Files) -> Found:
    rows = _rows(files, _VALUES, ("file",))
    if rows is None:
        raise DataError(
            f"holds no {_VALUES}", where=str(files.listing.path), hint="columns: file, NAME, .."
        )
    found: list[Annotation] = []
    names: Classes = ()
    for name in files.names:
        mine = rows.get(name, [])
        if len(mine) != 1:
            raise DataError(
                f"has {len(mine)} lines in {_VALUES}, expected one", where=files.where(name)
            )
        names = names or tuple(column for column in mine[0].cells if column != "file")
        reals = [mine[0].real(column) for column in names]
        found.append(Annotation(values=np.array(reals, dtype=np.float32)))
    if not names:
        raise DataError(f"{_VALUES} has no column of values", where=str(files.listing.path))
    return found, names


#: How each kind of label is read.
READERS: dict[str, Callable[[_Files], Found]] = {
    "boxes": _boxes,
    "maps": _maps,
    "values": _values,
}


@dataclass(frozen=True)
class _Row:
    """A line of a CSV file."""

    cells: dict[str, str]
    where: str

    def real(self, column: str) -> float:
        text = self.cells[column]
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not np.isfinite(value):
            raise DataError(f"{column} is no number but {text!r:.80}", where=self.where)
        return value


def _rows(files: _Files, name: str, needed: tuple[str, ...]) -> dict[str, list[_Row]] | None:
    """The lines of a CSV file by the image they are about; None: there is no such file. It may lie
    in each of the folders of splits instead.
    """
    folders = {"", *(PurePosixPath(image).parts[0] for image in files.names if "/" in image)}
    known = frozenset(files.names)
    found: dict[str, list[_Row]] | None = None
    for folder in sorted(folders):
        place = f"{folder}/{name}".lstrip("/")
        content = files.optional(place)
        if content is None:
            continue
        found = {} if found is None else found
        for row in _lines(content, files.where(place), needed):
            image = str(PurePosixPath(folder) / row.cells["file"])
            if image not in known:
                raise DataError(f"names {image!r:.200}, which is no image here", where=row.where)
            found.setdefault(image, []).append(row)
    return found


def _lines(content: bytes, where: str, needed: tuple[str, ...]) -> list[_Row]:
    reader = csv.reader(io.StringIO(_text(content, where)))
    try:
        table = [row for _, row in zip(range(_MOST_LINES), reader, strict=False) if row]
    except csv.Error as error:
        raise DataError(f"is no CSV file: {error}", where=where) from error
    heading = [cell.strip() for cell in table[0]] if table else []
    missing = [column for column in needed if column not in heading]
    if missing or len(set(heading)) != len(heading):
        raise DataError(
            f"its first line names the columns {', '.join(heading) or 'none'}",
            where=where,
            hint=f"expected {', '.join(needed)}",
        )
    rows = []
    for number, cells in enumerate(table[1:], 2):
        if len(cells) != len(heading):
            raise DataError(
                f"has {len(cells)} cells, its heading {len(heading)}", where=f"{where}:{number}"
            )
        pairs = zip(heading, (cell.strip() for cell in cells), strict=True)
        rows.append(_Row(dict(pairs), f"{where}:{number}"))
    return rows


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"is no text in UTF-8: {error}", where=where) from error
