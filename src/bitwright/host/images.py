# SPDX-License-Identifier: Apache-2.0
"""Image files to levels, as the description says: by the decoding that training uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.base.files import read_bytes
from bitwright.base.folders import files_below
from bitwright.data.preprocessing import Preprocessing
from bitwright.host.description import Description

_MOST_BYTES = 1 << 30


def image_files(places: Sequence[Path]) -> list[Path]:
    """The image files that are named, and those below folders that are, by name.

    Raises:
        DataError: there are none, or a place does not exist.
        RunError: a folder holds too many inside each other.
    """
    from bitwright.data.listing import EXTENSIONS

    found: list[Path] = []
    for place in places:
        if place.is_dir():
            found += [p for p in files_below(place) if p.suffix.lower() in EXTENSIONS]
        elif place.is_file():
            found.append(place)
        else:
            raise DataError("there is no such file or folder", where=str(place))
    if not found:
        kinds = ", ".join(sorted(EXTENSIONS))
        raise DataError(
            "no images are here", where=", ".join(map(str, places)), hint=f"images end in {kinds}"
        )
    return found


def read_image(path: Path, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """The pixels (H, W, C) that the network sees of a file.

    Raises:
        DataError: it cannot be read or decoded.
    """
    from bitwright.data.decoding import Decoding, Framing, decode_image, frame_image

    content, grey = read_bytes(path, most=_MOST_BYTES), preprocessing.channels == 1
    if preprocessing.fit == "middle" and preprocessing.short_side is not None:
        framing = Framing(preprocessing.size, preprocessing.short_side, grey)
        return np.asarray(frame_image(content, framing, str(path)))
    decoding = Decoding(preprocessing.size, grey)
    return np.asarray(decode_image(content, decoding, str(path)))


def to_levels(pixels: NDArray[np.uint8], preprocessing: Preprocessing) -> NDArray[np.int64]:
    """Pixels (..., C) -> levels, by the description's table."""
    tables = np.array(preprocessing.levels, dtype=np.int64)
    return tables[np.arange(pixels.shape[-1]) % len(tables), pixels]


def levels_of(files: Sequence[Path], description: Description) -> NDArray[np.int64]:
    """Levels (N, H, W, C) of image files.

    Raises:
        DataError: one cannot be read, or the design takes no images.
    """
    how = description.preprocessing
    if how is None:
        raise DataError(
            "the design does not say how an image becomes its input",
            where=description.name,
            hint="give levels: an .npy file of integers (N, elements of a frame)",
        )
    return np.stack([to_levels(read_image(path, how), how) for path in files])
