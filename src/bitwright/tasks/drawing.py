# SPDX-License-Identifier: Apache-2.0
"""Pictures of images, with what is known of them and what a network says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bitwright.data.shown import Picture

Colour = tuple[int, int, int]

TRUE: Colour = (56, 190, 120)
FOUND: Colour = (255, 106, 61)
#: Pixels of the shorter side at least, and of the longer one at most, of an image that is drawn on.
_SIDE, _LONGEST = 160, 1024
#: Of maps: the first class is nothing in particular and leaves the image as it is.
_PALETTE = np.array(
    [(0, 0, 0), (66, 133, 244), (255, 106, 61), (56, 190, 120), (244, 200, 60), (170, 90, 220),
     (70, 200, 220), (230, 90, 150), (150, 150, 90)],
    dtype=np.float64,
)  # fmt: skip


def enlarged(picture: Picture) -> Picture:
    """In colours, each pixel repeated until lines of a pixel's width look thin; a longer picture
    than a page shows is made smaller.
    """
    from PIL import Image

    longest = max(picture.shape[:2])
    if longest > _LONGEST:
        reduced = Image.fromarray(picture).reduce(-(-longest // _LONGEST))
        picture = np.asarray(reduced, dtype=np.uint8)
    times = min(-(-_SIDE // min(picture.shape[:2])), _LONGEST // max(picture.shape[:2]))
    times = max(1, times)
    colours = picture if picture.ndim == 3 else np.repeat(picture[..., None], 3, axis=2)
    return np.repeat(np.repeat(colours, times, axis=0), times, axis=1)


def with_boxes(picture: Picture, boxes: Sequence[tuple[Sequence[float], Colour]]) -> Picture:
    """A picture with the outlines of boxes: xmin, ymin, xmax, ymax as shares, and a colour."""
    from PIL import Image, ImageDraw

    large = Image.fromarray(enlarged(picture))
    pen = ImageDraw.Draw(large)
    for edges, colour in boxes:
        xmin, ymin, xmax, ymax = (
            min(max(float(edge), -1.0), 2.0) * side
            for edge, side in zip(edges, large.size * 2, strict=True)
        )
        pen.rectangle((xmin, ymin, max(xmin, xmax - 1), max(ymin, ymax - 1)), None, colour, 2)
    return np.asarray(large, dtype=np.uint8)


def with_maps(picture: Picture, maps: Sequence[NDArray[np.int64]]) -> Picture:
    """A picture, and beside it the same with each map laid over it."""
    base = enlarged(picture)
    gap = np.full((base.shape[0], 6, 3), 255, dtype=np.uint8)
    parts = [base]
    for numbers in maps:
        rows, columns = (
            np.arange(side) * count // side
            for side, count in zip(base.shape[:2], numbers.shape, strict=True)
        )
        large = numbers[np.ix_(rows, columns)]
        colour = _PALETTE[np.where(large > 0, 1 + (large - 1) % (len(_PALETTE) - 1), 0)]
        mixed = np.where(large[..., None] > 0, 0.4 * base + 0.6 * colour, base)
        parts += [gap, np.rint(mixed).astype(np.uint8)]
    return np.concatenate(parts, axis=1)
