# SPDX-License-Identifier: Apache-2.0
"""A user's own images with labels in files beside them: boxes, maps of classes, or real values.

==========  ==========================================================================
boxes       ``images/NAME.png`` with ``annotations/NAME.xml`` (Pascal VOC); or a COCO
            file (`COCO_FILES`); or a ``boxes.csv`` with the columns file, class, xmin,
            ymin, xmax, ymax (pixels); ``classes.txt`` may say which classes there are
maps        ``images/NAME.png`` with ``masks/NAME.png``: a number of a class a pixel,
            255 where it is not known; names of the classes in ``classes.txt``
values      a ``values.csv`` with the columns file and one for each value
==========  ==========================================================================

Folders ``train``, ``test`` and ``validation`` around all that make splits, as with folders of
classes; so do Pascal VOC's lists ``ImageSets/Main/train.txt``, ``val.txt``, ``test.txt``; else the
images are cut. File names in a CSV file start where it lies.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np

from bitwright.base.errors import DataError
from bitwright.base.progress import Progress, no_progress
from bitwright.data.coco import ImageNames, parse_coco
from bitwright.data.dataset import DataSplits
from bitwright.data.decoding import Decoding, check_growth, decode_map, read_size
from bitwright.data.detection import Room, annotation_of, check_box, read_voc
from bitwright.data.folders import Cut, decode_listing, split_parts
from bitwright.data.labels import UNKNOWN, Annotation, Classes, LabelKind, MapLabels
from bitwright.data.listing import SPLITS, Listing, ReadFile, Written, list_images, opened
from bitwright.data.pixels import top_of, warn_of_lost
from bitwright.data.splits import Labelled, Labels

#: Folders of annotations, in which no images are looked for.
_BESIDE = frozenset({"masks", "annotations", "Annotations"})
_BOXES, _VALUES, _CLASSES = "boxes.csv", "values.csv", "classes.txt"
#: Where a COCO file is looked for, at the top and in each folder of splits.
COCO_FILES = (
    "_annotations.coco.json",
    "annotations.json",
    "instances.json",
    "annotations/instances.json",
    *(f"annotations/instances_{part}.json" for part in ("default", "train", "val", "test")),
)
_LISTS = "ImageSets/Main"
_EDGES = ("xmin", "ymin", "xmax", "ymax")
_MOST_BYTES = 64 << 20  # of a file of annotations
_MOST_CELLS, _MOST_COLUMNS = 3_000_000, 4096
_MASK_BYTES = 2  # of a pixel, while labels are made of it
_NO_CLASS = 255  # in masks: PASCAL VOC's "void"
Found = tuple[list[Annotation], Classes]
_Box = tuple[str, Sequence[float], str]


@dataclass(frozen=True)
class _Files:
    """A folder or zip file while it is read, what is made of it, and (H, W) of its images then."""

    listing: Listing
    read: ReadFile
    kind: LabelKind
    size: tuple[int, int]

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
    images = decode_listing(listing, decoding, progress)
    with opened(listing) as read:
        files = _Files(listing, read, kind, images.shape[1:3])
        found, classes = READERS[kind.name](files)
        splits = _splits(files)
    try:
        labels = kind.pack(found, images.shape[1:3])
    except DataError as error:
        raise DataError(error.message, where=f"{path}, {error.where}", hint=error.hint) from error
    warn_of_lost(images, top_of(images), "images", str(path))
    shared = Labels(name, classes, 1 / top_of(images), str(path), kind)
    parts = {
        split: Labelled(images[positions], labels[positions]) for split, positions in splits.items()
    }
    return split_parts(parts, shared, Cut(validation, test, seed))


def _is_beside(name: str) -> bool:
    return not _BESIDE.isdisjoint(PurePosixPath(name).parts[:-1])


def _splits(files: _Files) -> dict[str, list[int]]:
    """Positions of the images of each split; ``all`` without folders of that name, and lists."""
    names = files.names
    heads = [PurePosixPath(name).parts[0].lower() for name in names]
    found: dict[str, list[int]] = {}
    if all(head in SPLITS for head in heads):
        for position, head in enumerate(heads):
            found.setdefault(SPLITS[head], []).append(position)
        return found
    stems = {PurePosixPath(name).stem: position for position, name in enumerate(names)}
    taken: dict[str, str] = {}
    for head, split in SPLITS.items():
        place = f"{_LISTS}/{head}.txt"
        content = files.optional(place)
        for line in () if content is None else _lines_of(content, files.where(place)):
            stem = line.split()[0]  # VOC's lists of a class have a second column
            if stem not in stems:
                raise DataError(f"names {stem!r:.200}, no image here", where=files.where(place))
            if (other := taken.setdefault(stem, place)) != place:
                raise DataError(
                    f"names {stem!r:.200}, as {other} does: what is measured would be trained on",
                    where=files.where(place),
                )
            found.setdefault(split, []).append(stems[stem])
    return found or {"all": list(range(len(names)))}


def _boxes(files: _Files) -> Found:
    named = _from_csv(files) or _from_coco(files) or _from_voc(files)
    if not any(named.values()):
        raise DataError(
            f"none of {len(named)} images has a box", where=str(files.listing.path),
            hint=files.kind.layout,
        )  # fmt: skip
    classes = _box_classes(files, named)
    numbers = {label: number for number, label in enumerate(classes)}
    found = []
    for name, each in named.items():
        height, width = read_size(io.BytesIO(files.read(name)), files.where(name))
        sides = np.array([width, height, width, height])
        boxes = np.zeros((len(each), 5), dtype=np.float32)
        for row, (label, edges, where) in zip(boxes, each, strict=True):
            row[0], row[1:] = numbers[label], np.asarray(edges) / sides
            check_box(edges, (height, width), f"{where}: {name}")
        found.append(Annotation(boxes=boxes))
    return found, classes


_Named = dict[str, list[_Box]]
"""By image its boxes."""


def _from_csv(files: _Files) -> _Named | None:
    named: _Named = {name: [] for name in files.names}
    has_table = False
    for row in _rows(files, _BOXES, ("file", "class", *_EDGES)):
        has_table = True
        if row is not None:
            edges = tuple(row.real(edge) for edge in _EDGES)
            named[row.image].append((sys.intern(row.cells["class"]), edges, row.where))
    return named if has_table else None


def _from_coco(files: _Files) -> _Named | None:
    named: _Named = {}
    has_table = False
    room = Room.of(files.listing.path)
    for folder, below in _folders(files.names).items():
        for file in COCO_FILES:
            place = f"{folder}/{file}".lstrip("/")
            content = files.optional(place)
            if content is None:
                continue
            has_table = True
            room.take(len(content), files.where(place))
            inside = ImageNames(below)
            for said, boxes in parse_coco(content, files.where(place)).items():
                image = inside.named(said, files.where(place))
                if image in named:
                    raise DataError("lists an image a second time", where=files.where(place))
                named[image] = [(sys.intern(b.category), b.edges, b.where) for b in boxes]
    if not has_table:
        return None
    left_out = next((name for name in files.names if name not in named), None)
    if left_out is not None:
        raise DataError(
            "is in no COCO file here",
            where=files.where(left_out),
            hint="list it under images, with no annotation if nothing is on it, or take it away",
        )
    return {name: named[name] for name in files.names}


def _from_voc(files: _Files) -> _Named:
    named: _Named = {}
    stems = {PurePosixPath(name).stem for name in files.names}
    room = Room.of(files.listing.path)
    for name in files.names:
        where, content = annotation_of(files.read, files.listing.path, name)
        found = read_voc(content, where, room=room)
        said = PurePosixPath(found.image).stem
        if said != PurePosixPath(name).stem and said in stems:
            raise DataError(
                f"names the image {said!r:.200}, but lies beside {PurePosixPath(name).name}",
                where=where,
                hint="the annotations of two images were mixed up: correct name or <filename>",
            )
        pairs = zip(found.labels, found.boxes.tolist(), strict=True)
        named[name] = [(label, tuple(edges), where) for label, edges in pairs]
    return named


def _box_classes(files: _Files, named: _Named) -> Classes:
    """Those of ``classes.txt``, in its order; without, those that boxes have."""
    given = files.optional(_CLASSES)
    if given is None:
        return tuple(sorted({label for each in named.values() for label, *_ in each}))
    classes = _lines_of(given, files.where(_CLASSES))
    known = frozenset(classes)
    for each in named.values():
        for label, _, where in each:
            if label not in known:
                raise DataError(
                    f"has a box of the class {label!r:.80}",
                    where=where,
                    hint=f"{_CLASSES} names {', '.join(classes[:20])}",
                )
    return classes


def _maps(files: _Files) -> Found:
    assert isinstance(files.kind, MapLabels)
    found, highest, made, written = [], 0, 0, Written(files.listing)
    known: dict[str, Annotation] = {}  # images of one name in several folders have one mask
    for number, name in enumerate(files.names, 1):
        inside = PurePosixPath(name)
        mask = str(inside.parent.parent / "masks" / f"{inside.stem}.png")
        if mask in known:
            found.append(known[mask])
            continue
        content = files.optional(mask)
        if content is None:
            raise DataError("has no mask", where=files.where(name), hint=f"expected {mask}")
        pixels = decode_map(content, files.where(mask))
        made, packed = made + _MASK_BYTES * pixels.nbytes, written.add(mask, content)
        hint = "make the masks smaller"
        check_growth(made, packed, f"{number} masks", files.where(mask), hint)
        highest = max(highest, int(pixels.max(initial=0, where=pixels != _NO_CLASS)))
        numbers = files.kind.sampled(pixels, files.size).astype(np.int16)
        numbers[numbers == _NO_CLASS] = UNKNOWN
        known[mask] = Annotation(map=numbers)
        found.append(known[mask])
    given = files.optional(_CLASSES)
    if given is None:
        return found, tuple(str(number) for number in range(highest + 1))
    return found, _lines_of(given, files.where(_CLASSES))


def _values(files: _Files) -> Found:
    reals: dict[str, list[float]] = {}
    names: Classes = ()
    has_table = False
    for row in _rows(files, _VALUES, ("file",)):
        has_table = True
        if row is None:
            continue
        names = names or tuple(column for column in row.cells if column != "file")
        if row.image in reals:
            raise DataError(f"has more than one line in {_VALUES}", where=files.where(row.image))
        reals[row.image] = [row.real(column) for column in names]
    if not has_table:
        raise DataError(
            f"holds no {_VALUES}", where=str(files.listing.path), hint="columns: file, NAME, .."
        )
    missing = next((name for name in files.names if name not in reals), None)
    if missing is not None:
        raise DataError(f"has no line in {_VALUES}, expected one", where=files.where(missing))
    if not names:
        raise DataError(f"{_VALUES} has no column of values", where=str(files.listing.path))
    every = (np.array(reals[name], dtype=np.float32) for name in files.names)
    return [Annotation(values=values) for values in every], names


#: How each kind of label is read.
READERS: dict[str, Callable[[_Files], Found]] = {
    "boxes": _boxes,
    "maps": _maps,
    "values": _values,
}


@dataclass(frozen=True)
class _Row:
    """A line of a CSV file, and the image that it is about."""

    cells: dict[str, str]
    where: str
    image: str

    def real(self, column: str) -> float:
        text = self.cells[column]
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not np.isfinite(value):
            raise DataError(f"{column} is no number but {text!r:.80}", where=self.where)
        return value


def _rows(files: _Files, name: str, needed: tuple[str, ...]) -> Iterator[_Row | None]:
    """The lines of a CSV file, and None for each file: there may be one in each of the folders of
    splits instead. One at a time: a few bytes of a line become hundreds.
    """
    known, left = frozenset(files.names), _MOST_CELLS
    for folder in _folders(files.names):
        place = f"{folder}/{name}".lstrip("/")
        content = files.optional(place)
        if content is None:
            continue
        yield None
        images: dict[str, str] = {}
        for cells, where in _lines(content, files.where(place), needed):
            left -= len(cells)
            if left < 0:
                raise DataError(f"more than {_MOST_CELLS} cells are not read", where=where)
            file = cells["file"]
            if file not in images:
                image = str(PurePosixPath(folder) / file)
                if image not in known:
                    raise DataError(f"names {image!r:.200}, which is no image here", where=where)
                images[file] = image
            yield _Row(cells, where, images[file])


def _lines(
    content: bytes, where: str, needed: tuple[str, ...]
) -> Iterator[tuple[dict[str, str], str]]:
    reader = csv.reader(io.StringIO(_text(content, where)))
    heading: list[str] = []
    try:
        for cells in filter(None, reader):
            place = f"{where}:{reader.line_num}"
            if not heading:
                heading = _heading(cells, place, needed)
                continue
            if len(cells) != len(heading):
                said = f"has {len(cells)} cells, its heading {len(heading)}"
                raise DataError(said, where=place)
            pairs = zip(heading, (cell.strip() for cell in cells), strict=True)
            yield dict(pairs), place
    except csv.Error as error:
        place = f"{where}:{reader.line_num}"
        raise DataError(f"is no CSV file: {error}", where=place) from error
    if not heading:
        _heading([], where, needed)


def _heading(cells: list[str], where: str, needed: tuple[str, ...]) -> list[str]:
    names = [cell.strip() for cell in cells]
    wrong = set(needed) - {*names} or len({*names}) != len(names) or len(names) > _MOST_COLUMNS
    if wrong:
        raise DataError(
            f"its first line names the columns {', '.join(names) or 'none'}",
            where=where,
            hint=f"expected {', '.join(needed)}, each once, and at most {_MOST_COLUMNS} columns",
        )
    return names


def _lines_of(content: bytes, where: str) -> tuple[str, ...]:
    """The lines of a text that are not empty."""
    lines = _text(content, where).splitlines()
    return tuple(line.strip() for line in lines if line.strip())


def _folders(names: Sequence[str]) -> dict[str, list[str]]:
    """Where files of labels may lie, at the top and in each folder there, -> the images below."""
    found: dict[str, list[str]] = {"": list(names)}
    for name in names:
        if "/" in name:
            found.setdefault(PurePosixPath(name).parts[0], []).append(name)
    return dict(sorted(found.items()))


def _text(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"is no text in UTF-8: {error}", where=where) from error
