# SPDX-License-Identifier: Apache-2.0
"""Verification protocols ready to run: ORL, LFW, and synthetic faces for tests."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitwright.base.bounded import bounded
from bitwright.base.errors import DataError, RecipeError
from bitwright.base.files import read_bytes, read_text
from bitwright.base.memory import check_room
from bitwright.data.decoding import Decoding, check_growth, decode_image, read_header
from bitwright.data.load import ENVIRONMENT
from bitwright.papers.faces.images import (
    ORL_PEOPLE,
    FaceKey,
    FacePreprocessing,
    FaceSet,
    Landmarks,
    cut_face,
    face_set,
    load_orl,
    read_landmarks,
)
from bitwright.papers.faces.pairs import FaceProtocol, Pair, make_pairs, read_pairs, resolve_pairs

LFW_VIEW1, LFW_VIEW2 = "pairsDevTrain.txt", "pairs.txt"
#: The middle of LFW's 250 x 250 pictures that holds the face, where no landmarks are given.
LFW_CROP = (0.25, 0.25, 0.75, 0.75)
_COPIES = 2  # of all faces, while they are put together
#: Subfolders of an LFW folder in which people's folders may lie.
_LFW_IMAGES = ("lfw", "lfw-deepfunneled", "lfw_funneled", ".")


@dataclass(frozen=True)
class OrlSplit:
    """Whom the networks learn from, who chooses thresholds, who is measured.

    Attributes:
        train, view1, view2: numbers of people; no one may be in two of them.
        folds: of view 2.
        seed: of the mismatched pairs.
    """

    train: tuple[int, ...] = tuple(range(1, 26))
    view1: tuple[int, ...] = tuple(range(26, 31))
    view2: tuple[int, ...] = tuple(range(31, 41))
    folds: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        people = [*self.train, *self.view1, *self.view2]
        if len(set(people)) != len(people) or not set(people) <= set(range(1, ORL_PEOPLE + 1)):
            raise RecipeError(
                f"people must be different numbers from 1 to {ORL_PEOPLE}", where="orl split"
            )

    @property
    def known(self) -> tuple[int, ...]:
        """Those who are not measured: for the closed-set classifier and the searches."""
        return (*self.train, *self.view1)


def orl_protocol(
    path: str | Path | None = None,
    how: FacePreprocessing | None = None,
    split: OrlSplit | None = None,
) -> FaceProtocol:
    """The protocol of LFW on people of ORL whom no network has seen.

    With the usual split view 1 has 225 + 225 pairs of 5 people, view 2 ten folds of 45 + 45 pairs
    of 10 people: all matched pairs, and as many mismatched ones.

    Raises:
        DataError: the archive is missing or broken.
    """
    split = split or OrlSplit()
    faces = load_orl(path, how, people=(*split.view1, *split.view2))
    by_number = {
        number: [key for key in faces.keys if key[0] == f"s{number}"]
        for number in (*split.view1, *split.view2)
    }
    first = [key for number in split.view1 for key in by_number[number]]
    second = [key for number in split.view2 for key in by_number[number]]
    view1 = make_pairs(first, 1, seed=split.seed)
    view2 = make_pairs(second, split.folds, seed=split.seed)
    return protocol("orl", faces, view1, view2)


def orl_known(
    path: str | Path | None = None,
    how: FacePreprocessing | None = None,
    split: OrlSplit | None = None,
) -> FaceSet:
    """The faces of the people who are not measured (30 with the usual split)."""
    split = split or OrlSplit()
    return load_orl(path, how, people=split.known)


def protocol(
    name: str,
    faces: FaceSet,
    view1: Sequence[Sequence[Pair]],
    view2: Sequence[Sequence[Pair]],
    *,
    drop_missing: bool = False,
) -> FaceProtocol:
    """Put faces and pairs together.

    Raises:
        DataError: pictures are missing; see `resolve_pairs`.
    """
    rows1, note1 = resolve_pairs(view1, faces, where=f"{name} view 1", drop_missing=drop_missing)
    rows2, note2 = resolve_pairs(view2, faces, where=f"{name} view 2", drop_missing=drop_missing)
    if rows1.folds > 1:
        rows1 = type(rows1)(rows1.first, rows1.second, rows1.matched, np.zeros_like(rows1.fold))
    dropped = "; ".join(f"{v}: {n}" for v, n in (("view 1", note1), ("view 2", note2)) if n)
    return FaceProtocol(name, faces, rows1, rows2, dropped)


def lfw_protocol(
    folder: str | Path | None = None,
    how: FacePreprocessing | None = None,
    *,
    view1: str = LFW_VIEW1,
    view2: str = LFW_VIEW2,
    landmarks: str | Path | None = None,
    drop_missing: bool = False,
) -> FaceProtocol:
    """Labeled Faces in the Wild with its official files.

    Args:
        folder: holds the pairs files and the pictures, ``NAME/NAME_0001.jpg`` or below ``lfw/``;
            by default ``lfw`` in the folder named by BITWRIGHT_DATA.
        how: by default the middle half of every picture, since LFW has no landmarks of its own.
        view1, view2: names of the pairs files; view 1 is the one with 2 200 pairs.
        landmarks: a CSV file with eyes and nose of the pictures; see `read_landmarks`.
        drop_missing: leave out pairs whose pictures are missing, and say so in ``dropped``.

    Raises:
        DataError: files are missing or malformed.
    """
    place = _lfw_folder(folder)
    how = how or FacePreprocessing(crop=LFW_CROP)
    lists = place / view1, place / view2
    pairs1, pairs2 = bounded(lambda: (read_pairs(lists[0]), read_pairs(lists[1])), *lists)
    marks = {}
    if landmarks is not None:
        marks = dict(read_landmarks(read_text(Path(landmarks)), str(landmarks)))
    every = (key for fold in (*pairs1, *pairs2) for p in fold for key in (p.first, p.second))
    wanted = tuple(dict.fromkeys(every))
    # How large faces are is what the caller asks for.
    faces = bounded(lambda: _lfw_faces(place, wanted, how, marks), *lists, memory=False)
    return protocol("lfw", faces, pairs1, pairs2, drop_missing=drop_missing)


def _lfw_faces(
    place: Path,
    wanted: Sequence[FaceKey],
    how: FacePreprocessing,
    marks: Mapping[FaceKey, Landmarks],
) -> FaceSet:
    """The faces whose pictures are there. Links may make many of one file, which counts once."""
    found = {key: file for key in wanted if (file := _lfw_picture(place, key)) is not None}
    if not found:
        raise DataError(
            "none of the pictures that the pairs name is here",
            where=str(place),
            hint="expected NAME/NAME_0001.jpg, here or in a folder lfw",
        )
    some = f"{len(found)} faces of {how.size} x {how.size}"
    check_room(_COPIES * len(found) * 3 * how.size**2, some, str(place), "choose a smaller size")
    images: list[NDArray[np.uint8]] = []
    files: set[tuple[int, int]] = set()
    packed = made = 0

    def face(file: Path, key: FaceKey) -> NDArray[np.uint8]:
        nonlocal packed, made
        content, facts = read_bytes(file), file.stat()
        if (facts.st_dev, facts.st_ino) not in files:
            files.add((facts.st_dev, facts.st_ino))
            packed += len(content)
        made += read_header(io.BytesIO(content), str(file)).numbers
        what = f"{len(images) + 1} pictures"
        check_growth(made, packed, what, str(file), "leave it out", one_by_one=True)
        return cut_face(decode_image(content, Decoding(grey=False), str(file)), how, marks.get(key))

    for key, file in found.items():
        images.append(bounded(partial(face, file, key), file))
    return face_set("lfw", images, found, how)


def _lfw_folder(folder: str | Path | None) -> Path:
    if folder is None:
        root = os.environ.get(ENVIRONMENT)
        folder = Path(root) / "lfw" if root else None
    if folder is None or not Path(folder).is_dir():
        raise DataError(
            "no LFW here",
            where=str(folder or ENVIRONMENT),
            hint=f"put {LFW_VIEW1}, {LFW_VIEW2} and the people's folders into $BITWRIGHT_DATA/lfw",
        )
    return Path(folder)


def _lfw_picture(place: Path, key: FaceKey) -> Path | None:
    """A picture, or what a link in its place leads to: names have no parts that lead elsewhere."""
    for inside in _LFW_IMAGES:
        path = place / inside / key[0] / f"{key[0]}_{key[1]:04d}.jpg"
        with suppress(OSError):  # its name is too long
            if path.is_file():
                return path
    return None
