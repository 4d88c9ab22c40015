# SPDX-License-Identifier: Apache-2.0
"""From a detector's output to boxes, their overlap, and the contest's result files.

The decoding is YOLOv2's (Redmon and Farhadi 2017, section 2) with SkyNet's two anchors and one box
an image: that of the largest confidence, without threshold or suppression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bitwright.base.errors import DataError
from bitwright.base.files import atomic_write
from bitwright.base.folders import make_folder
from bitwright.data.detection import Floats

#: SkyNet's anchors (width, height), in output pixels.
ANCHORS = (
    (1.4940052559648322, 2.3598481287086823),
    (4.0113013112315155, 5.760873975661669),
)
#: Numbers an anchor before scores of classes: x, y, width, height, confidence.
BOX_OUTPUTS = 5
_FIELDS = BOX_OUTPUTS
#: Size (width, height) of the contest's images.
CONTEST_SIZE = (640, 360)


@dataclass(frozen=True, eq=False)
class Detections:
    """One box for each of N images.

    Attributes:
        boxes: (N, 4) float64, xmin, ymin, xmax, ymax as shares of width and height; a box may
            reach over the edge of the image.
        confidence: (N,) float64 between 0 and 1.
        anchor, row, column: (N,) int64, the output that the box comes from.
    """

    boxes: Floats
    confidence: Floats
    anchor: NDArray[np.int64]
    row: NDArray[np.int64]
    column: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.boxes)


def decode(
    output: ArrayLike, anchors: Sequence[tuple[float, float]] = ANCHORS, reach: float = 1.0
) -> Detections:
    """The most confident box of each image.

    With t the five numbers of an anchor at column cx and row cy of a grid of W x H:
    ``x = (sigmoid(t0) + cx) / W``, ``y = (sigmoid(t1) + cy) / H``, ``w = exp(t2) * aw / W``,
    ``h = exp(t3) * ah / H``, ``confidence = sigmoid(t4)``. Of equal confidences the first counts,
    anchor by anchor, row by row. With another ``reach`` than 1 the sigmoids of x and y are replaced
    by ``(sigmoid(t) - 0.5) * reach + 0.5``, so that the centre may lie in a neighbouring cell.

    Args:
        output: (N, 5 * anchors, H, W), raw numbers of the last convolution.
        anchors: (width, height) in output pixels.
        reach: side of the square around a cell's middle in which centres may lie, in cells.

    Raises:
        DataError: the output has another shape or holds NaN.
    """
    fields = _fields(output, anchors, 0)
    count, _, _, height, width = fields.shape
    best = fields[:, :, 4].reshape(count, -1).argmax(axis=1)
    anchor, row, column = np.unravel_index(best, (len(anchors), height, width))
    t = fields[np.arange(count), anchor, :, row, column]
    sizes = np.asarray(anchors, dtype=np.float64)[anchor]
    cells = np.stack([column, row], axis=1)
    boxes = _corners(t[:, :4], sizes, cells, (width, height), reach)
    return Detections(boxes, _sigmoid(t[:, 4]), anchor, row, column)


@dataclass(frozen=True, eq=False)
class Candidates:
    """Every box that a detector proposes for N images: M = anchors x H x W each.

    Attributes:
        boxes: (N, M, 4) float64, xmin, ymin, xmax, ymax as shares of width and height.
        scores: (N, M, classes) float64: confidence times the class's probability; of a detector
            without classes (N, M, 1), the confidence.
    """

    boxes: Floats
    scores: Floats


def decode_all(
    output: ArrayLike,
    anchors: Sequence[tuple[float, float]] = ANCHORS,
    classes: int = 0,
    reach: float = 1.0,
) -> Candidates:
    """Boxes and scores of every anchor and cell, as `decode` computes them; scores of classes go
    through a softmax (Redmon and Farhadi 2017, section 2).

    Args:
        output: (N, (5 + classes) * anchors, H, W), raw numbers of the last convolution.
        anchors: (width, height) in output pixels.
        classes: scores of classes behind the five numbers of each anchor.
        reach: as in `decode`.

    Raises:
        DataError: the output has another shape or holds NaN.
    """
    fields = _fields(output, anchors, classes)
    count, _, _, height, width = fields.shape
    flat = fields.transpose(0, 1, 3, 4, 2).reshape(count, -1, fields.shape[2])
    anchor, row, column = np.indices((len(anchors), height, width)).reshape(3, -1)
    sizes = np.asarray(anchors, dtype=np.float64)[anchor]
    cells = np.stack([column, row], axis=1)
    boxes = _corners(flat[..., :4], sizes, cells, (width, height), reach)
    scores = _sigmoid(flat[..., 4:5])
    if classes:
        raw = flat[..., BOX_OUTPUTS:]
        powers = np.exp(raw - raw.max(axis=-1, keepdims=True))
        scores = scores * powers / powers.sum(axis=-1, keepdims=True)
    return Candidates(boxes, scores)


def _fields(output: ArrayLike, anchors: Sequence[tuple[float, float]], classes: int) -> Floats:
    """(N, anchors, 5 + classes, H, W)."""
    raw = np.asarray(output, dtype=np.float64)
    each = BOX_OUTPUTS + classes
    if raw.ndim != 4 or raw.shape[1] != each * len(anchors) or 0 in raw.shape[2:]:
        raise DataError(
            f"a detector with {len(anchors)} anchors gives (N, {each * len(anchors)}, H, W), "
            f"found {raw.shape}",
            where="decode",
        )
    if np.isnan(raw).any():
        raise DataError("the output holds NaN", where="decode")
    count, _, height, width = raw.shape
    return raw.reshape(count, len(anchors), each, height, width)


def _corners(
    t: Floats, sizes: Floats, cells: NDArray[np.int64], grid: tuple[int, int], reach: float
) -> Floats:
    """Boxes (..., 4) of raw numbers (..., 4), anchors and cells (..., 2), in a grid (W, H)."""
    place = _sigmoid(t[..., :2])
    if reach != 1:  # so that published boxes keep every bit
        place = (place - 0.5) * reach + 0.5
    centre = (place + cells) / grid
    half = np.exp(np.minimum(t[..., 2:4], _LARGEST)) * sizes / grid / 2
    return np.concatenate([centre - half, centre + half], axis=-1)


#: Beyond, exp would overflow; no box is e^50 times its anchor.
_LARGEST = 50.0


def _sigmoid(x: Floats) -> Floats:
    positive = 1 / (1 + np.exp(-np.abs(x)))
    result: Floats = np.where(x >= 0, positive, 1 - positive)
    return result


def to_pixels(boxes: ArrayLike, size: tuple[int, int] = CONTEST_SIZE) -> Floats:
    """Boxes given as shares, in pixels of an image of (width, height)."""
    width, height = size
    scaled: Floats = np.asarray(boxes, dtype=np.float64) * (width, height, width, height)
    return scaled


def iou(first: ArrayLike, second: ArrayLike) -> Floats:
    """Intersection over union of boxes (..., 4), pairwise with broadcasting; 0 if both are empty.

    Raises:
        DataError: they are no boxes, or an edge lies behind its opposite.
    """
    shared, first_area, second_area = _areas(first, second)
    union = first_area + second_area - shared
    return np.divide(shared, union, out=np.zeros_like(union), where=union > 0)


def overlap_over_truth(found: ArrayLike, truth: ArrayLike) -> Floats:
    """Intersection over the area of the true box, pairwise with broadcasting: what the thesis on
    SkyNet (equation 2.7) writes where the contest and everybody else have `iou`. A box as large as
    the image reaches 1.

    Raises:
        DataError: as `iou`.
    """
    shared, _, area = _areas(found, truth)
    return np.divide(shared, area, out=np.zeros_like(shared), where=area > 0)


def _areas(first: ArrayLike, second: ArrayLike) -> tuple[Floats, Floats, Floats]:
    """What two boxes (..., 4) share, and what each covers."""
    a, b = _boxes(first), _boxes(second)
    low, high = np.maximum(a[..., :2], b[..., :2]), np.minimum(a[..., 2:], b[..., 2:])
    shared = np.maximum(high - low, 0).prod(axis=-1)
    each = ((box[..., 2:] - box[..., :2]).prod(axis=-1) for box in (a, b))
    first_area, second_area = (np.broadcast_to(area, shared.shape) for area in each)
    return shared, first_area, second_area


def _boxes(boxes: ArrayLike) -> Floats:
    b = np.asarray(boxes, dtype=np.float64)
    if b.ndim < 1 or b.shape[-1] != 4:
        raise DataError(f"boxes are (..., 4), found {b.shape}", where="boxes")
    if not np.isfinite(b).all() or (b[..., :2] > b[..., 2:]).any():
        raise DataError(
            "a box is not finite, or has its right edge left of its left one", where="boxes"
        )
    return b


def contest_xml(name: str, box: ArrayLike, size: tuple[int, int] = CONTEST_SIZE) -> str:
    """The contest's result for one image: an XML document with one box in whole pixels.

    Args:
        name: the image's file name.
        box: (4,) in pixels; cut to the image and rounded to the nearest pixel.
        size: (width, height) of the image.

    Raises:
        DataError: that is no box.
    """
    edges = _boxes(box)
    if edges.shape != (4,):
        raise DataError(f"one box is (4,), found {edges.shape}", where=name)
    limits = (size[0], size[1], size[0], size[1])
    pixels = [
        math.floor(min(max(edge, 0.0), limit) + 0.5)
        for edge, limit in zip(edges.tolist(), limits, strict=True)
    ]
    root = ElementTree.Element("annotation")
    ElementTree.SubElement(root, "filename").text = name
    frame = ElementTree.SubElement(root, "size")
    for field, value in zip(("width", "height"), size, strict=True):
        ElementTree.SubElement(frame, field).text = str(value)
    bounds = ElementTree.SubElement(ElementTree.SubElement(root, "object"), "bndbox")
    for field, value in zip(("xmin", "ymin", "xmax", "ymax"), pixels, strict=True):
        ElementTree.SubElement(bounds, field).text = str(value)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def write_contest_results(
    folder: Path, names: Sequence[str], found: Detections, size: tuple[int, int] = CONTEST_SIZE
) -> tuple[Path, ...]:
    """Write one XML file an image, named after it; returns the files.

    Raises:
        DataError: names and boxes differ in number, two names give the same file, or the folder
            cannot be written.
    """
    if len(names) != len(found):
        raise DataError(f"{len(names)} names for {len(found)} boxes", where=str(folder))
    paths = [folder / f"{Path(name).stem}.xml" for name in names]
    if len(set(paths)) != len(paths):
        raise DataError("two images have the same name", where=str(folder))
    pixels = to_pixels(found.boxes, size)
    texts = [
        contest_xml(Path(name).name, box, size) for name, box in zip(names, pixels, strict=True)
    ]
    try:
        make_folder(folder)
        for path, text in zip(paths, texts, strict=True):
            atomic_write(path, text.encode())
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror}", where=str(folder)) from error
    return tuple(paths)
