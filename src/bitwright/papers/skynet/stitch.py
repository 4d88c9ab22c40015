# SPDX-License-Identifier: Apache-2.0
"""Four images as one picture, 2 x 2, as the host of the published FPGA version hands them over."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.data.detection import Floats, resize

Pixels = NDArray[np.uint8]
BATCH, GREY, BORDER = 4, 127, 1


def stitch(images: Sequence[Pixels], size: tuple[int, int] = (160, 320)) -> Pixels:
    """Four images, each resized to ``size`` and with a grey border of one pixel, in one picture:
    of 160 x 320 each one of 324 x 644.

    Raises:
        DataError: there are not four images (H, W, 3) of uint8.
    """
    if len(images) != BATCH or any(i.dtype != np.uint8 or i.ndim != 3 for i in images):
        raise DataError(
            f"{len(images)} images; a picture is made of {BATCH} of uint8 (H, W, 3)",
            where="stitch",
            hint="fill the last picture up with any image",
        )
    height, width = (side + 2 * BORDER for side in size)
    picture = np.full((2 * height, 2 * width, 3), GREY, dtype=np.uint8)
    for number, image in enumerate(images):
        top, left = corner(number, size)
        picture[top : top + size[0], left : left + size[1]] = resize(image, size)
    return picture


def corner(number: int, size: tuple[int, int]) -> tuple[int, int]:
    """Top and left pixel of one of the four images (H, W) in the picture."""
    row, column = divmod(number, 2)
    return row * (size[0] + 2 * BORDER) + BORDER, column * (size[1] + 2 * BORDER) + BORDER


def unstitch(picture: Pixels, size: tuple[int, int] = (160, 320)) -> tuple[Pixels, ...]:
    """The four images of a picture, resized as they are in it."""
    found = []
    for number in range(BATCH):
        top, left = corner(number, size)
        found.append(picture[top : top + size[0], left : left + size[1]])
    return tuple(found)


def box_in_image(box: Floats, number: int, size: tuple[int, int] = (160, 320)) -> Floats:
    """A box (4,) in pixels of the picture, as shares of the image that it lies in, cut to it."""
    top, left = corner(number, size)
    height, width = size
    shares = (np.asarray(box) - (left, top, left, top)) / (width, height, width, height)
    found: Floats = np.clip(shares, 0.0, 1.0)
    return found
