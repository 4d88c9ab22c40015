# SPDX-License-Identifier: Apache-2.0
"""What may be known of an image: its class, boxes on it, the class of each pixel, or real values.

Each kind of label is a value that says how labels of N images lie in one array, what is wrong with
such an array, and which annotation of a source it is made of. Which kind a recipe wants is up to
its task (`bitwright.tasks`); a data set carries its kind along.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError

Labels = NDArray[np.int64] | NDArray[np.float32]
"""Labels (N, ...) of N images; what the axes mean says their kind."""
Classes = tuple[str, ...]
"""Names that labels refer to: of classes, or of a regression's values."""

UNKNOWN = -1
"""The class of an image, pixel or box of which none is known."""
BOX_FIELDS = 5
_MOST_CLASSES = 1 << 16
_MOST_BOXES = 20_000_000  # 400 MB of them


@dataclass(frozen=True, eq=False)
class Annotation:
    """What a source says of one image; each kind of label takes the part that it is of.

    Attributes:
        category: number of its class.
        boxes: (K, 5): class, then xmin, ymin, xmax, ymax as shares of width and height.
        map: (H, W) class of each pixel, -1 where none is known; of any size.
        values: (K,) reals.
    """

    category: int = UNKNOWN
    boxes: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, BOX_FIELDS), "f4"))
    map: NDArray[Any] | None = None
    values: NDArray[np.float32] | None = None


class LabelKind(Protocol):
    """A kind of label. Its arrays hold one row an image, whatever else their axes mean.

    Attributes:
        name: in the plural, for messages: ``boxes``.
        layout: how they lie beside a user's own images, for messages; see `data.annotated`.
    """

    name: ClassVar[str]
    layout: ClassVar[str]

    def check(self, labels: Labels, classes: Classes, size: tuple[int, ...], where: str) -> None:
        """Refuse labels that are none of this kind.

        Args:
            size: (H, W) of the images; of inputs that are no images, what they have.

        Raises:
            DataError: type, shape or values are wrong.
        """
        ...

    def groups(self, labels: Labels) -> NDArray[np.int64]:
        """(N,) numbers: every split gets the same share of the images of each number."""
        ...

    def known(self, labels: Any) -> Any:
        """(N,) bool, of which images anything is known; of an array or a torch tensor."""
        ...

    def cast(self, labels: NDArray[Any]) -> Labels:
        """Labels that a source gives without saying their kind, in the type of this one."""
        ...

    def names(self, labels: Labels) -> Classes:
        """What classes, or values, are called by a source that does not name them."""
        ...

    def nothing(self, labels: Labels, count: int) -> Labels:
        """Labels of as many images of which nothing is known, to stand behind ``labels``."""
        ...

    def pack(self, found: Sequence[Annotation], size: tuple[int, int]) -> Labels:
        """The labels of annotated images of the size (H, W).

        Raises:
            DataError: an annotation lacks what this kind is made of.
        """
        ...


@dataclass(frozen=True)
class ClassLabels:
    """One class an image: (N,) int64 in [0, classes), -1 where none is known. Identities, such as
    those of persons, are classes too.
    """

    name: ClassVar[str] = "classes"
    layout: ClassVar[str] = "folders of classes, CLASS/IMAGE"

    def check(self, labels: Labels, classes: Classes, size: tuple[int, ...], where: str) -> None:
        del size
        if labels.ndim != 1 or labels.dtype.kind != "i":
            _check_array(labels, np.dtype(np.int64), 1, "(N,)", self.name, where)
        _check_classes(labels, classes, where)

    def groups(self, labels: Labels) -> NDArray[np.int64]:
        return np.asarray(labels, dtype=np.int64)

    def known(self, labels: Any) -> Any:
        return labels >= 0

    def cast(self, labels: NDArray[Any]) -> Labels:
        return _whole(labels)

    def names(self, labels: Labels) -> Classes:
        return _numbers(labels)

    def nothing(self, labels: Labels, count: int) -> Labels:
        del labels
        return np.full(count, UNKNOWN, dtype=np.int64)

    def pack(self, found: Sequence[Annotation], size: tuple[int, int]) -> Labels:
        del size
        return np.array([each.category for each in found], dtype=np.int64)


@dataclass(frozen=True)
class BoxLabels:
    """Boxes on an image: (N, K, 5) float32, each a row of class, xmin, ymin, xmax and ymax; edges
    are shares of width and height. K is the largest number on one image; rows of class -1 fill up.
    Of an image of which nothing is known all is NaN.
    """

    name: ClassVar[str] = "boxes"
    layout: ClassVar[str] = (
        "images/NAME with annotations/NAME.xml (Pascal VOC), or annotations.json (COCO), or "
        "boxes.csv with the columns file, class, xmin, ymin, xmax, ymax in pixels"
    )

    def check(self, labels: Labels, classes: Classes, size: tuple[int, ...], where: str) -> None:
        del size
        _check_array(labels, np.dtype(np.float32), 3, "(N, K, 5)", self.name, where)
        if labels.shape[2] != BOX_FIELDS:
            raise DataError(f"boxes are (N, K, 5), found {labels.shape}", where=where)
        rows = labels[self.known(labels)].reshape(-1, BOX_FIELDS)
        rows = rows[rows[:, 0] != UNKNOWN]
        _check_classes(rows[:, 0], classes, where)
        low, high = rows[:, 1:3], rows[:, 3:5]
        centre = (low + high) / 2
        if not ((low < high) & (centre >= 0) & (centre < 1)).all():
            raise DataError(
                "a box is empty or has its centre outside of the image",
                where=where,
                hint="edges are xmin, ymin, xmax, ymax as shares of width and height",
            )

    def groups(self, labels: Labels) -> NDArray[np.int64]:
        return np.zeros(len(labels), dtype=np.int64)

    def known(self, labels: Any) -> Any:
        return _finite(labels)

    def cast(self, labels: NDArray[Any]) -> Labels:
        return np.asarray(labels, dtype=np.float32)

    def names(self, labels: Labels) -> Classes:
        return _numbers(labels[..., 0])

    def nothing(self, labels: Labels, count: int) -> Labels:
        return np.full((count, *labels.shape[1:]), np.nan, dtype=np.float32)

    def pack(self, found: Sequence[Annotation], size: tuple[int, int]) -> Labels:
        del size
        most = max([len(each.boxes) for each in found] + [1])
        if len(found) * most > _MOST_BOXES:
            raise DataError(
                f"{len(found)} images of which one has {most} boxes: more than {_MOST_BOXES} rows "
                "of boxes, as many for each image",
                where="boxes",
                hint="leave out images with very many boxes, or all but the largest of them",
            )
        packed = np.zeros((len(found), most, BOX_FIELDS), dtype=np.float32)
        packed[:, :, 0] = UNKNOWN
        for row, each in zip(packed, found, strict=True):
            row[: len(each.boxes)] = each.boxes
        return packed


@dataclass(frozen=True)
class MapLabels:
    """The class of each pixel: (N, H, W) int64 in [0, classes), -1 where none is known.

    Attributes:
        stride: pixels of the image by pixel of the map, along each axis: a network that gives a
            map of half the height and width has stride 2. The pixel at the middle is taken.
    """

    stride: int = 1
    name: ClassVar[str] = "maps"
    layout: ClassVar[str] = (
        "images/NAME with masks/NAME.png, whose pixels are the numbers of classes (255: not known)"
    )

    def check(self, labels: Labels, classes: Classes, size: tuple[int, ...], where: str) -> None:
        _check_array(labels, np.dtype(np.int64), 3, "(N, H, W)", self.name, where)
        _check_classes(labels, classes, where)
        wanted = tuple(side // self.stride for side in size[:2])
        if labels.shape[1:] != wanted:
            raise DataError(
                f"maps of {labels.shape[1:]} for images of {tuple(size[:2])} (H, W): with stride "
                f"{self.stride} they are {wanted}",
                where=where,
                hint="give the maps this size, or the task another stride",
            )

    def groups(self, labels: Labels) -> NDArray[np.int64]:
        return np.zeros(len(labels), dtype=np.int64)

    def known(self, labels: Any) -> Any:
        return (labels.reshape(len(labels), -1) >= 0).any(1)

    def cast(self, labels: NDArray[Any]) -> Labels:
        return _whole(labels)

    def names(self, labels: Labels) -> Classes:
        return _numbers(labels)

    def nothing(self, labels: Labels, count: int) -> Labels:
        return np.full((count, *labels.shape[1:]), UNKNOWN, dtype=np.int64)

    def pack(self, found: Sequence[Annotation], size: tuple[int, int]) -> Labels:
        packed = np.empty((len(found), *self._map_size(size)), dtype=np.int64)
        for row, each in zip(packed, found, strict=True):
            if each.map is None:
                raise DataError("an image has no map", where="maps")
            row[:] = self.sampled(each.map, size)
        return packed

    def sampled(self, numbers: NDArray[Any], size: tuple[int, int]) -> NDArray[Any]:
        """A map (H, W) of any size as that of an image of another size; one that is it stays."""
        rows, columns = (
            ((2 * np.arange(count) + 1) * side) // (2 * count)
            for count, side in zip(self._map_size(size), numbers.shape, strict=True)
        )
        found: NDArray[Any] = numbers[np.ix_(rows, columns)]
        return found

    def _map_size(self, size: tuple[int, int]) -> tuple[int, int]:
        return size[0] // self.stride, size[1] // self.stride


@dataclass(frozen=True)
class ValueLabels:
    """Real numbers of an image: (N, K) float32, NaN where one is not known. The names of the K
    values stand where classification has the names of its classes.
    """

    name: ClassVar[str] = "values"
    layout: ClassVar[str] = "images, and values.csv with the columns file, NAME, NAME, .."

    def check(self, labels: Labels, classes: Classes, size: tuple[int, ...], where: str) -> None:
        del size
        _check_array(labels, np.dtype(np.float32), 2, "(N, K)", self.name, where)
        if labels.shape[1] != len(classes):
            raise DataError(
                f"{labels.shape[1]} values an image, but {len(classes)} names of them",
                where=where,
                hint="name each value where a classifier names its classes",
            )
        if np.isinf(labels).any():
            raise DataError("a value is infinite", where=where)

    def groups(self, labels: Labels) -> NDArray[np.int64]:
        return np.zeros(len(labels), dtype=np.int64)

    def known(self, labels: Any) -> Any:
        return _finite(labels)

    def cast(self, labels: NDArray[Any]) -> Labels:
        found = np.asarray(labels, dtype=np.float32)
        return found[:, None] if found.ndim == 1 else found

    def names(self, labels: Labels) -> Classes:
        return tuple(f"value {number}" for number in range(labels.shape[-1]))

    def nothing(self, labels: Labels, count: int) -> Labels:
        return np.full((count, labels.shape[1]), np.nan, dtype=np.float32)

    def pack(self, found: Sequence[Annotation], size: tuple[int, int]) -> Labels:
        del size
        rows = [each.values for each in found]
        if any(row is None for row in rows):
            raise DataError("an image has no values", where="values")
        return np.asarray(rows, dtype=np.float32)


@dataclass(frozen=True)
class AnyLabels:
    """Labels of which nobody has said yet what they are: what a task makes of them is checked when
    it gets them (`Dataset.of_kind`).
    """

    name: ClassVar[str] = "labels"
    layout: ClassVar[str] = "as the task of the recipe says"

    def check(self, labels: Labels, classes: Classes, size: tuple[int, ...], where: str) -> None:
        """Anything goes."""

    def groups(self, labels: Labels) -> NDArray[np.int64]:
        return np.zeros(len(labels), dtype=np.int64)

    def known(self, labels: Any) -> Any:
        return _finite(labels)

    def cast(self, labels: NDArray[Any]) -> Labels:
        found: Labels = labels
        return found

    def names(self, labels: Labels) -> Classes:
        del labels
        return ()

    def nothing(self, labels: Labels, count: int) -> Labels:
        raise DataError(
            f"{count} images of which nothing is known cannot be added",
            where="labels",
            hint="give the data set the kind of its labels (bitwright.data.labels)",
        )

    def pack(self, found: Sequence[Annotation], size: tuple[int, int]) -> Labels:
        del found, size
        raise DataError("no annotations are known for them", where="labels")


CLASSES = ClassLabels()
"""The kind of a data set that says none."""
ANY = AnyLabels()


def _whole(labels: NDArray[Any]) -> Labels:
    """As int64, if they are whole numbers; else as they are, to be refused."""
    found: Labels = labels.astype(np.int64) if labels.dtype.kind in "iu" else labels
    return found


def _numbers(labels: Labels) -> Classes:
    """Classes by their numbers, up to the largest one that a source may leave without a name."""
    known = labels[np.isfinite(labels)]
    highest = min(_MOST_CLASSES, int(known.max(initial=0)))
    return tuple(str(number) for number in range(1 + highest))


def _finite(labels: Any) -> Any:
    """(N,) bool: which rows of an array or tensor hold no NaN."""
    rows = labels.reshape(len(labels), math.prod(labels.shape[1:]))  # of no row, too
    return (abs(rows) < float("inf")).all(1)


def _check_array(
    labels: Labels, kind: np.dtype[Any], axes: int, shape: str, name: str, where: str
) -> None:
    if labels.dtype != kind or labels.ndim != axes:
        raise DataError(
            f"labels are {labels.dtype} {labels.shape}; {name} are {kind} {shape}",
            where=where,
            hint="the task of the recipe says which kind of labels it learns from",
        )


def _check_classes(labels: Labels, classes: Classes, where: str) -> None:
    lowest, highest = (labels.min(), labels.max()) if labels.size else (0, 0)
    if not (lowest >= UNKNOWN and (not labels.size or highest < len(classes))):
        raise DataError(
            f"labels run from {lowest:g} to {highest:g}, but there are {len(classes)} classes",
            where=where,
        )
