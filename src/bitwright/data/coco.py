# SPDX-License-Identifier: Apache-2.0
"""Boxes of a COCO file (Lin et al. 2014): JSON with ``images``, ``annotations``, ``categories``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from bitwright.base.errors import DataError
from bitwright.base.files import parse_json

_ROUNDING = 1.0  # pixels by which a box may reach over the edge of its image; it is cut off
_LARGEST = 1 << 32  # side of an image; no file has one


@dataclass(frozen=True)
class CocoBox:
    """One box: its class, xmin, ymin, xmax, ymax in pixels, and where it stands, for messages."""

    category: str
    edges: tuple[float, ...]
    where: str


def parse_coco(content: bytes, where: str) -> dict[str, list[CocoBox]]:
    """Boxes by the ``file_name`` of their image, in the order of the file. Boxes of crowds
    (``iscrowd``) are left out.

    Raises:
        DataError: the file is no such JSON, or its parts contradict each other.
    """
    try:
        table = parse_json(content)
    except (ValueError, DataError) as error:
        raise DataError(f"is no JSON file: {error}", where=where) from error
    images = _named(table, "images", "file_name", where)
    categories = _named(table, "categories", "name", where)
    sizes = {row.get("id"): (row.get("width"), row.get("height")) for row in table["images"]}
    found: dict[str, list[CocoBox]] = {name: [] for name in images.values()}
    if len(found) != len(images):
        raise DataError("two images have the same file_name", where=where)
    for number, row in enumerate(_rows(table, "annotations", where), 1):
        place = f"{where}, annotation {row.get('id', number)}"
        for key, known in (("image_id", images), ("category_id", categories)):
            if type(row.get(key)) not in (int, str) or row[key] not in known:
                raise DataError(
                    f"{key} is {row.get(key)!r:.80}, which is none of {len(known)} known",
                    where=place,
                    hint="images and categories list what annotations may name",
                )
        if row.get("iscrowd"):
            continue
        edges = _edges(row.get("bbox"), sizes[row["image_id"]], place)
        box = CocoBox(categories[row["category_id"]], edges, place)
        found[images[row["image_id"]]].append(box)
    return found


def _edges(bbox: Any, size: tuple[Any, Any], where: str) -> tuple[float, ...]:
    """Corners of a box that is given as x, y, width, height."""
    try:
        x, y, width, height = (float(each) for each in bbox)
    except (OverflowError, TypeError, ValueError):
        raise DataError(
            f"bbox is {bbox!r:.80}", where=where, hint="expected [x, y, width, height] in pixels"
        ) from None
    edges = np.array([x, y, x + width, y + height])
    if all(type(side) in (int, float) and 0 < side < _LARGEST for side in size):
        inside = np.clip(edges, 0, np.tile(np.array(size, dtype=np.float64), 2))
        edges = np.where(np.abs(inside - edges) <= _ROUNDING, inside, edges)
    return tuple(edges.tolist())


def _named(table: Any, key: str, name: str, where: str) -> dict[Any, str]:
    """Number of each row of a list -> its name."""
    found: dict[Any, str] = {}
    for row in _rows(table, key, where):
        number, said = row.get("id"), row.get(name)
        if type(number) not in (int, str) or not isinstance(said, str) or not said:
            raise DataError(
                f"a row of {key} has no id or {name}: {row!r:.120}",
                where=where,
                hint=f"expected {{id: 1, {name}: ..}}",
            )
        if number in found:
            raise DataError(f"two rows of {key} have the id {number!r:.80}", where=where)
        found[number] = said
    return found


def _rows(table: Any, key: str, where: str) -> list[Mapping[str, Any]]:
    rows = table.get(key) if isinstance(table, Mapping) else None
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise DataError(
            f"has no list of {key}",
            where=where,
            hint="a COCO file has the lists images, annotations and categories",
        )
    return rows


class ImageNames:
    """The images of a data set by the ends of their paths.

    Args:
        paths: of all images.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._parts = [(path, PurePosixPath(path).parts) for path in paths]
        self._deepest = max((len(parts) for _, parts in self._parts), default=0)
        self._by_end: dict[int, dict[tuple[str, ...], list[str]]] = {}

    def named(self, name: str, where: str) -> str:
        """The image that a ``file_name`` means: the one whose path ends with it.

        Raises:
            DataError: there is none, or there are several.
        """
        wanted = PurePosixPath(name.replace("\\", "/")).parts
        found = self._ends(len(wanted)).get(wanted, []) if wanted else []
        if len(found) != 1:
            raise DataError(
                f"names {name!r:.200}, " + ("which is no image here" if not found else
                f"which {found[0]} and {found[1]} both may be"),
                where=where,
                hint="file_name is a path that ends the image's",
            )  # fmt: skip
        return found[0]

    def _ends(self, count: int) -> Mapping[tuple[str, ...], list[str]]:
        """Last parts of a path, so many, -> the paths; made once for each number of parts."""
        if count > self._deepest:
            return {}
        if count not in self._by_end:
            table = self._by_end[count] = {}
            for path, parts in self._parts:
                if len(parts) >= count:
                    table.setdefault(parts[-count:], []).append(path)
        return self._by_end[count]
