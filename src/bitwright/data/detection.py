# SPDX-License-Identifier: Apache-2.0
"""Images with boxes: Pascal VOC folders and zip files, and what a detector is fed.

A box is (xmin, ymin, xmax, ymax), a row of a float64 array; whether in pixels or as a share of the
image stands with the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from bitwright.base.archives import most_of
from bitwright.base.errors import DataError
from bitwright.base.files import held_size, read_bytes
from bitwright.base.progress import Progress, no_progress
from bitwright.data.decoding import Decoding, check_growth, decode_image
from bitwright.data.listing import ReadFile, Written, list_images, opened

Floats = NDArray[np.float64]
Pixels = NDArray[np.uint8]

_RGB = Decoding(grey=False)
_EDGES = ("xmin", "ymin", "xmax", "ymax")
_ANNOTATIONS = ("annotations", "Annotations")
_PROGRESS_EVERY = 32
_MOST_ELEMENTS = 20_000  # of one: those of two thousand objects
_MOST_BYTES = 4 << 20  # of an annotation, of which an object takes some 300
#: Of all annotations of a zip file together, which shrink to a thousandth there: elements in any
#: case, and bytes of the file for each one more. A real one takes some eight, its image many more.
_FREE_ELEMENTS, _BYTES_AN_ELEMENT = 1_000_000, 4
_UNBOUNDED = 1 << 62  # what lies in a folder is as long as it is


@dataclass(frozen=True, eq=False)
class DetectionImage:
    """An image and what is on it.

    Attributes:
        name: file name inside the data set.
        image: (H, W, 3) uint8.
        boxes: (K, 4) float64 in pixels.
        labels: K names of kinds.
    """

    name: str
    image: Pixels
    boxes: Floats
    labels: tuple[str, ...] = ()


def load_voc(path: Path, *, progress: Progress = no_progress) -> tuple[DetectionImage, ...]:
    """Read images with Pascal VOC annotations, sorted by name.

    Args:
        path: a folder or zip file with a folder of images and, beside it, ``annotations`` (or
            ``Annotations``) with an XML file of the same name for each.

    Raises:
        DataError: the path, an image or an annotation is missing, corrupt or contradicts another.
    """
    listing = list_images(path)
    found = []
    made, written = 0, Written(listing)
    room = Room.of(path)
    with opened(listing) as read:
        for number, name in enumerate(listing.names):
            picture = read(name)
            image = decode_image(picture, _RGB, f"{path}:{name}")
            made, packed = made + image.nbytes, written.add(name, picture)
            hint = "make the pictures smaller"
            check_growth(made, packed, f"{number + 1} images", f"{path}:{name}", hint)
            where, content = annotation_of(read, path, name)
            boxes, labels = parse_voc(content, where, image.shape[:2], room)
            found.append(DetectionImage(name, image, boxes, labels))
            if number % _PROGRESS_EVERY == 0 or number + 1 == len(listing.names):
                progress("decoding images", number + 1, len(listing.names))
    return tuple(found)


def load_images(paths: Sequence[Path]) -> tuple[DetectionImage, ...]:
    """Read image files that have no boxes, in the order given.

    Raises:
        DataError: a file is missing or corrupt.
    """
    return tuple(
        DetectionImage(path.name, decode_image(read_bytes(path), _RGB, str(path)), np.zeros((0, 4)))
        for path in paths
    )


def annotation_of(read: ReadFile, path: Path, image: str) -> tuple[str, bytes]:
    """Name and content of the Pascal VOC annotation of an image.

    Raises:
        DataError: there is none, or it cannot be read.
    """
    inside = PurePosixPath(image)
    folders = (*(inside.parent.parent / folder for folder in _ANNOTATIONS), inside.parent)
    for folder in folders:
        name = str(folder / f"{inside.stem}.xml")
        try:
            return f"{path}:{name}", read(name, _MOST_BYTES)
        except KeyError:  # not in the zip file
            continue
        except DataError:
            if (path / name).exists() or path.is_file():
                raise
    raise DataError(
        "has no annotation",
        where=f"{path}:{image}",
        hint=f"expected {inside.parent.parent / 'annotations' / inside.stem}.xml, or beside it",
    )


@dataclass
class Room:
    """What the annotations of a data set may still have together."""

    elements: int
    bytes: int

    @staticmethod
    def of(path: Path) -> Room:
        """For a folder or a zip file of them."""
        if not path.is_file():
            return Room(_UNBOUNDED, _UNBOUNDED)
        size = held_size(path)
        return Room(max(_FREE_ELEMENTS, size // _BYTES_AN_ELEMENT), most_of(size))

    def take(self, count: int, where: str) -> None:
        """So many bytes less.

        Raises:
            DataError: there are not as many.
        """
        self.bytes -= count
        if self.bytes < 0:
            raise DataError(
                "is too long, with those before it, for what they are packed in", where=where
            )


class _Plain(ElementTree.TreeBuilder):
    """Elements without a document type, in whatever encoding it would be, and not too many."""

    def __init__(self, room: Room) -> None:
        super().__init__()
        self._room, self._left = room, _MOST_ELEMENTS

    def doctype(self, *_: object) -> None:
        """Called before anything of it is read."""
        raise ValueError("declares a document type, which an annotation has no use for")

    def start(self, tag: str, attrs: dict[str, str], /) -> ElementTree.Element:
        self._left -= 1
        self._room.elements -= 1
        if self._left < 0:
            raise ValueError(f"has more than {_MOST_ELEMENTS} elements")
        if self._room.elements < 0:
            raise ValueError("with those before it has more elements than the file's size allows")
        return super().start(tag, attrs)


@dataclass(frozen=True, eq=False)
class VocAnnotation:
    """What a Pascal VOC annotation says.

    Attributes:
        image: the file that it is of, without folders; empty if it says none.
        boxes: (K, 4) float64 in pixels.
        labels: K names of kinds.
    """

    image: str
    boxes: Floats
    labels: tuple[str, ...]


def parse_voc(
    content: bytes, where: str, size: tuple[int, int] | None = None, room: Room | None = None
) -> tuple[Floats, tuple[str, ...]]:
    """Boxes (K, 4) in pixels and labels of a Pascal VOC annotation; arguments and errors are those
    of `read_voc`.
    """
    found = read_voc(content, where, size, room)
    return found.boxes, found.labels


def read_voc(
    content: bytes, where: str, size: tuple[int, int] | None = None, room: Room | None = None
) -> VocAnnotation:
    """A Pascal VOC annotation.

    Args:
        content: the XML file.
        where: its name, for errors.
        size: (H, W) of the image, if known: no box may lie outside.
        room: that this and other annotations share; it gets smaller.

    Raises:
        DataError: the file is no such annotation, there is no room for it, or a box is empty or
            outside the image.
    """
    room = Room(_UNBOUNDED, _UNBOUNDED) if room is None else room
    room.take(len(content), where)
    try:
        root = ElementTree.fromstring(content, ElementTree.XMLParser(target=_Plain(room)))
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise DataError(f"is no XML file: {error}", where=where) from error
    boxes, labels = [], []
    for number, thing in enumerate(root.iter("object")):
        place = f"{where}, object {number + 1}"
        boxes.append(_box(thing.find("bndbox"), place, size))
        labels.append((thing.findtext("name") or "").strip())
    image = (root.findtext("filename") or "").strip().replace("\\", "/").rpartition("/")[2]
    corners = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    return VocAnnotation(image, corners, tuple(labels))


def _box(
    element: ElementTree.Element | None, where: str, size: tuple[int, int] | None
) -> list[float]:
    if element is None:
        raise DataError("has no bndbox", where=where)
    edges = []
    for name in _EDGES:
        text = (element.findtext(name) or "").strip()
        try:
            edges.append(float(text))
        except ValueError:
            raise DataError(f"{name} is no number but {text!r}", where=where) from None
    check_box(edges, size, where)
    return edges


def check_box(edges: Sequence[float], size: tuple[int, int] | None, where: str) -> None:
    """A box in pixels has an area, and lies inside of its image if the size is known.

    Args:
        edges: xmin, ymin, xmax, ymax.
        size: (H, W) of the image.
        where: what says so, for the error.

    Raises:
        DataError: it is empty or outside.
    """
    xmin, ymin, xmax, ymax = edges
    if not (np.isfinite(edges).all() and xmin < xmax and ymin < ymax):
        swapped = xmin > xmax or ymin > ymax
        raise DataError(
            f"the box {edges} (xmin, ymin, xmax, ymax) is empty"
            + (": its corners are swapped" if swapped else ""),
            where=where,
        )
    if size is not None and (xmin < 0 or ymin < 0 or xmax > size[1] or ymax > size[0]):
        raise DataError(
            f"the box {edges} lies outside the image of {size[0]} x {size[1]} (H x W)", where=where
        )


def resize(image: Pixels, size: tuple[int, int]) -> Pixels:
    """An (H, W, 3) image at another size (H, W), bilinear."""
    from PIL import Image

    if image.shape[:2] == size:
        return image
    resized = Image.fromarray(image).resize(size[::-1], Image.Resampling.BILINEAR)
    return np.asarray(resized, dtype=np.uint8)


def preprocess(images: Sequence[Pixels], size: tuple[int, int] = (160, 320)) -> NDArray[np.float32]:
    """What SkyNet is fed: images resized, ``(x / 255 - 0.5) / 0.25``.

    Args:
        images: (H, W, 3) uint8 each, of any sizes.
        size: (H, W) of the network's input.

    Returns:
        (N, 3, H, W) float32, between -2 and 2.

    Raises:
        DataError: there is no image, or one is not uint8 RGB.
    """
    if not len(images):
        raise DataError("there is no image", where="preprocess")
    for image in images:
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise DataError(
                f"an image is {image.dtype} {image.shape}, expected uint8 (H, W, 3)",
                where="preprocess",
            )
    batch = np.stack([resize(image, size) for image in images]).transpose(0, 3, 1, 2)
    scaled = (batch.astype(np.float64) / 255 - 0.5) / 0.25
    return np.ascontiguousarray(scaled.astype(np.float32))
