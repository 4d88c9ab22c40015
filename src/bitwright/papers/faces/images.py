# SPDX-License-Identifier: Apache-2.0
"""Face images for verification: the value, how pictures become inputs, and the ORL faces.

Every picture is cut out by a similarity transform: with landmarks (centres of the eyes, nose) onto
the places that dlib's face chips have, without onto a given part of the picture. The same settings
serve ORL, LFW and a user's own pictures, and are kept beside every result.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.resources import files as package_files
from math import ceil, floor, hypot, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict

from bitwright.base.archives import opened_zip, read_member
from bitwright.base.bounded import bounded
from bitwright.base.errors import DataError, RecipeError
from bitwright.data.dataset import Dataset
from bitwright.data.decoding import Decoding, check_growth, decode_image, read_header
from bitwright.data.load import ENVIRONMENT

Landmarks = tuple[tuple[float, float], ...]
#: Name of a face: the person and the number of the picture, as in pairs files.
FaceKey = tuple[str, int]
#: Left eye, right eye, nose (as seen) in a face chip, as shares of its side.
CHIP = ((0.3090, 0.3153), (0.6714, 0.3153), (0.4900, 0.5651))
ORL_ARCHIVE = "orl-faces.zip"
ORL_PEOPLE, ORL_EACH = 40, 10
_MOST_PICTURE = 1 << 20
#: Pixels of a picture that a face is cut out of, with its border of its own size: of a camera's.
_MOST_PIXELS = 1 << 28
_WHOLE = 1 << 24  # pixels with the border, up to which all of it is made
_MARGIN = 4  # pixels around what a transform reads: cubic interpolation takes two on each side
_FAR = 1e9  # pixels: no landmark of a picture
_ORL_NAME = re.compile(r"(?:.*/)?s([0-9]{1,4})/([0-9]{1,4})\.pgm")


@dataclass(frozen=True)
class FacePreprocessing:
    """How a picture becomes an input. Kept with results, so that they can be made again.

    Attributes:
        size: side of the square input, pixels.
        align: cut by landmarks where there are some; otherwise by ``crop``.
        crop: (top, left, bottom, right) of the part kept, as shares of the picture; it is widened
            to a square about its centre.
        channels: ``rgb``, ``bgr``, or ``grey`` (one value, three times).
        zoom: of an aligned cut; 1 is the frame of dlib's chips, less shows more of the head.
        scale: real value of one step of a pixel.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    size: int = 80
    align: bool = True
    crop: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    channels: str = "rgb"
    zoom: float = 1.0
    scale: float = 1 / 255

    def __post_init__(self) -> None:
        top, left, bottom, right = self.crop
        if not (0 <= top < bottom <= 1 and 0 <= left < right <= 1):
            raise RecipeError(
                f"crop must be top, left, bottom, right within 0 .. 1, found {self.crop}",
                where="faces.crop",
            )
        if self.size < 1 or not self.scale > 0 or not self.zoom > 0:
            raise RecipeError("size, scale and zoom must be positive", where="faces")
        if self.channels not in ("rgb", "bgr", "grey"):
            raise RecipeError(
                f"unknown channels {self.channels!r}", where="faces.channels", hint="rgb, bgr, grey"
            )

    def record(self) -> dict[str, Any]:
        """The settings as plain values."""
        return {**asdict(self), "crop": list(self.crop)}


@dataclass(frozen=True, eq=False)
class FaceSet:
    """Faces with their names.

    Attributes:
        data: (N, size, size, 3) images; labels are people.
        keys: (person, number) of each image.
        preprocessing: what made them.
    """

    data: Dataset
    keys: tuple[FaceKey, ...]
    preprocessing: FacePreprocessing

    def __post_init__(self) -> None:
        if len(self.keys) != len(self.data) or len(set(self.keys)) != len(self.keys):
            raise DataError("every face needs a name of its own", where=self.data.name)

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def people(self) -> tuple[str, ...]:
        """Names, in the order of their labels."""
        names: tuple[str, ...] = self.data.classes
        return names

    def take(self, rows: Sequence[int] | NDArray[np.int64]) -> FaceSet:
        """Some of the faces; labels stay."""
        keys = tuple(self.keys[row] for row in rows)
        return FaceSet(self.data.take(rows), keys, self.preprocessing)

    def of(self, people: Iterable[str], name: str = "") -> FaceSet:
        """The faces of some people, who get the labels 0, 1, ... in the order given.

        Raises:
            DataError: a person is not there.
        """
        wanted = tuple(people)
        order = {person: label for label, person in enumerate(wanted)}
        strangers = sorted(set(wanted) - set(self.people))
        if strangers:
            raise DataError(f"no faces of {', '.join(strangers)}", where=self.data.name)
        rows = [row for row, key in enumerate(self.keys) if key[0] in order]
        taken = self.take(rows)
        labels = np.array([order[person] for person, _ in taken.keys], dtype=np.int64)
        data = replace(taken.data, labels=labels, classes=wanted, name=name or self.data.name)
        return replace(taken, data=data)

    def index(self) -> Mapping[FaceKey, int]:
        """Row of every face by its name."""
        return {key: row for row, key in enumerate(self.keys)}


def cut_face(
    picture: NDArray[np.uint8], how: FacePreprocessing, landmarks: Landmarks | None = None
) -> NDArray[np.uint8]:
    """Cut the input out of a picture.

    Args:
        picture: (H, W) grey or (H, W, 3) RGB.
        landmarks: (x, y) pixels of left eye, right eye and nose, as seen in the picture.

    Returns:
        (size, size, 3); outside the picture its edge is continued.

    Raises:
        DataError: the picture is too large, or landmarks lie too far apart.
    """
    from PIL import Image

    shape = picture.shape[:2]
    border = int(max(shape))
    if (shape[0] + 2 * border) * (shape[1] + 2 * border) > _MOST_PIXELS:
        raise DataError(
            f"a picture of {shape[0]} x {shape[1]} pixels is too large or too long for a face",
            where="faces",
            hint="make it smaller, 4000 x 4000 say",
        )
    aligned = how.align and landmarks is not None
    a, b, x0, y0 = _fit(landmarks, how) if aligned and landmarks else _box(shape, how)
    step = hypot(a, b)
    if not step * how.size <= sqrt(_MOST_PIXELS):  # no number, too: of landmarks beyond all numbers
        raise DataError(
            f"landmarks {landmarks} lie too far apart in a picture of {shape[0]} x {shape[1]}",
            where="faces",
        )
    fine = max(1, ceil(step - 1e-9))  # where pixels get fewer, they are averaged
    a, b = a / fine, b / fine
    side = how.size * fine
    wide, left, top = _surroundings(picture, border, (a, b, x0, y0), side)
    matrix = (a, -b, x0 - left, b, a, y0 - top)
    image = Image.fromarray(wide).convert("L" if how.channels == "grey" else "RGB")
    cut = image.transform((side, side), Image.Transform.AFFINE, matrix, Image.Resampling.BICUBIC)
    pixels = np.asarray(cut.reduce(fine) if fine > 1 else cut, dtype=np.uint8)
    if pixels.ndim == 2:
        return np.repeat(pixels[:, :, None], 3, axis=2)
    return np.ascontiguousarray(pixels[:, :, ::-1]) if how.channels == "bgr" else pixels


def _surroundings(
    picture: NDArray[np.uint8],
    border: int,
    similarity: tuple[float, float, float, float],
    side: int,
) -> tuple[NDArray[np.uint8], int, int]:
    """What a transform reads of a picture whose edge is continued over a border.

    Args:
        similarity: a, b, x0, y0: from places in the output to places in the picture.
        side: of the output, pixels.

    Returns:
        The pixels, and the column and the row of the first one in the picture.
    """
    a, b, x0, y0 = similarity
    # Where places begin to count decides about roundings: pictures of usual size stay whole.
    large = (picture.shape[0] + 2 * border) * (picture.shape[1] + 2 * border) > _WHOLE
    starts, indices = [], []
    for length, start, along, across in (
        (picture.shape[0], y0, a, b),
        (picture.shape[1], x0, a, -b),
    ):
        corners = [start + side * (along * i + across * j) for i in (0, 1) for j in (0, 1)]
        first, last = -border, length + border
        if large:
            first = min(max(floor(min(corners)) - _MARGIN, first), last - 1)
            last = max(min(ceil(max(corners)) + _MARGIN, last), first + 1)
        starts.append(first)
        indices.append(np.arange(first, last).clip(0, length - 1))
    return picture[np.ix_(*indices)], starts[1], starts[0]


def _fit(landmarks: Landmarks, how: FacePreprocessing) -> tuple[float, float, float, float]:
    """The least-squares similarity from places in the output to places in the picture.

    Complex numbers: ``source = m * target + shift``, so m and shift are a linear regression.
    """
    places = np.array([complex(x - 0.5, y - 0.5) for x, y in CHIP]) * how.zoom
    target = (places + complex(0.5, 0.5)) * how.size
    source = np.array([complex(x, y) for x, y in landmarks])
    if source.shape != target.shape or not (np.abs(source) < _FAR).all():
        raise DataError(f"landmarks must be 3 finite points, found {landmarks}", where="faces")
    middle = target.mean()
    spread = target - middle
    m = (np.conj(spread) * (source - source.mean())).sum() / (np.abs(spread) ** 2).sum()
    if abs(m) < 1e-6:
        raise DataError(f"landmarks lie in one place: {landmarks}", where="faces")
    shift = source.mean() - m * middle
    return float(m.real), float(m.imag), float(shift.real), float(shift.imag)


def _box(shape: tuple[int, ...], how: FacePreprocessing) -> tuple[float, float, float, float]:
    height, width = shape
    top, left, bottom, right = how.crop
    rows, columns = (bottom - top) * height, (right - left) * width
    side = max(rows, columns)
    y0 = top * height + (rows - side) / 2
    x0 = left * width + (columns - side) / 2
    return side / how.size, 0.0, x0, y0


def load_orl(
    path: str | Path | None = None,
    how: FacePreprocessing | None = None,
    *,
    people: Iterable[int] | None = None,
) -> FaceSet:
    """The ORL (AT&T) faces: 40 people, 10 grey pictures of 92 x 112 each.

    The landmarks that align them are part of this package; dlib's 5-point predictor found them.

    Args:
        path: ``orl-faces.zip`` or the folder that holds it; by default BITWRIGHT_DATA.
        people: numbers of those wanted; by default all.

    Raises:
        DataError: the archive is missing, broken, or lacks pictures.
    """
    how = how or FacePreprocessing()
    file = Path(path or os.environ.get(ENVIRONMENT, "")).expanduser()
    file = file / ORL_ARCHIVE if file.is_dir() else file
    # How large faces are is what the caller asks for.
    return bounded(lambda: _load_orl(file, how, people), file, memory=False)


def _load_orl(file: Path, how: FacePreprocessing, people: Iterable[int] | None) -> FaceSet:
    wanted = tuple(range(1, ORL_PEOPLE + 1) if people is None else people)
    pictures = _orl_pictures(file)
    keys = [(f"s{person}", number) for person in wanted for number in range(1, ORL_EACH + 1)]
    missing = [
        f"{person}/{number}.pgm" for person, number in keys if (person, number) not in pictures
    ]
    if missing:
        some = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise DataError(f"{len(missing)} pictures are missing: {some}", where=str(file))
    marks, packed, made = orl_landmarks(), file.stat().st_size, 0
    images = []
    for key in keys:
        where = f"{file}, {key[0]}/{key[1]}"
        made += read_header(io.BytesIO(pictures[key]), where).numbers
        check_growth(made, packed, f"{len(images) + 1} pictures", where, "leave it out")
        face = decode_image(pictures[key], Decoding(grey=True), where)[..., 0]
        images.append(cut_face(face, how, marks.get(key)))
    return face_set("orl", images, keys, how)


def face_set(
    name: str,
    images: Iterable[NDArray[np.uint8]],
    keys: Iterable[FaceKey],
    how: FacePreprocessing,
) -> FaceSet:
    """Put cut faces together; people get their labels in order of appearance.

    Raises:
        DataError: there are none.
    """
    names = tuple(keys)
    people = tuple(dict.fromkeys(person for person, _ in names))
    if not names:
        raise DataError("no faces", where=name)
    order = {person: label for label, person in enumerate(people)}
    labels = np.array([order[person] for person, _ in names], dtype=np.int64)
    rows = np.arange(len(names), dtype=np.int64)
    data = Dataset(name, np.stack(list(images)), labels, people, how.scale, rows)
    return FaceSet(data, names, how)


@cache
def orl_landmarks() -> Mapping[FaceKey, Landmarks]:
    """Left eye, right eye and nose of every ORL picture, in pixels."""
    text = (package_files("bitwright.papers.faces") / "orl_landmarks.csv").read_text(
        encoding="utf-8"
    )
    return read_landmarks(text, "orl_landmarks.csv")


def read_landmarks(text: str, where: str) -> Mapping[FaceKey, Landmarks]:
    """Parse ``image,left_eye_x,left_eye_y,right_eye_x,right_eye_y,nose_x,nose_y`` with a heading.

    ``image`` is ``PERSON/ANYTHING_NUMBER.EXTENSION``, as in LFW, or ``PERSON/NUMBER.EXTENSION``.

    Raises:
        DataError: a line is malformed.
    """
    marks: dict[FaceKey, Landmarks] = {}
    try:
        rows = list(csv.reader(io.StringIO(text)))[1:]
    except csv.Error as error:
        raise DataError(f"is no table: {error}", where=where) from error
    for line, row in enumerate(rows, start=2):
        try:
            name, *values = row
            x = [float(value) for value in values]
            person, stem = Path(name).parent.name, Path(name).stem
            number = int(stem.rpartition("_")[2])
            left, right, nose = zip(x[0::2], x[1::2], strict=True)
        except ValueError as error:
            raise DataError(
                "expected an image name and six numbers", where=f"{where}:{line}"
            ) from error
        marks[person, number] = (left, right, nose)
    return marks


def _orl_pictures(file: Path) -> Mapping[FaceKey, bytes]:
    if not file.is_file():
        raise DataError(
            "no such archive",
            where=str(file),
            hint=f"put {ORL_ARCHIVE} (sN/M.pgm inside) into the folder named by {ENVIRONMENT}",
        )
    pictures: dict[FaceKey, bytes] = {}
    with opened_zip(file) as archive:
        for name in archive.namelist():
            if match := _ORL_NAME.fullmatch(name):
                picture = read_member(archive, name, str(file), _MOST_PICTURE)
                pictures[f"s{int(match[1])}", int(match[2])] = picture
    return pictures
