# SPDX-License-Identifier: Apache-2.0
"""Drawn shapes on noisy ground: a data set for every kind of label, made on the spot.

On each image lies one disc, square or cross of random place, size and brightness. Whole numbers of
a generator whose stream is frozen are all that is drawn, and only sums, products and comparisons
are made of them: the images are the same on every machine.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.data.dataset import DataSplits
from bitwright.data.labels import Annotation, LabelKind
from bitwright.data.splits import Labelled, Labels, split_three

NAME = "shapes"
IMAGES = 2000
SIZE = (32, 32)
SHAPES = ("disc", "square", "cross")
#: What the labels of each kind refer to.
NAMES = {
    "classes": SHAPES,
    "boxes": SHAPES,
    "maps": ("ground", *SHAPES),
    "values": ("x", "y", "size"),
}
_LEAST_SIDE = 16
_STEPS = 1 << 12  # of places and sizes
_SEED = 20_260_101


def load(
    kind: LabelKind,
    *,
    size: tuple[int, int] | None = None,
    grey: bool | None = None,
    validation: float,
    test: float,
    seed: int,
) -> DataSplits:
    """Draw the images and cut them in three.

    Classes and boxes are those of the shapes; maps have the class 0 for the ground; values are the
    middle (x, y) and the half width of the shape, as shares of the image's width and height and of
    its shorter side.

    Args:
        kind: of the labels.
        size: (H, W) of the images.
        grey: one channel, as by default, or three, by which the shape's colour differs.

    Raises:
        DataError: the images are too small for shapes, or there are no such labels.
    """
    height, width = size or SIZE
    if min(height, width) < _LEAST_SIDE:
        raise DataError(
            f"images of {height} x {width} are too small for shapes",
            where="data.image_size",
            hint=f"at least {_LEAST_SIDE} x {_LEAST_SIDE}",
        )
    if kind.name not in NAMES:
        raise DataError(
            f"has no labels of the kind {kind.name!r}",
            where=NAME,
            hint=f"it has {', '.join(NAMES)}",
        )
    images, found = _scenes(height, width, 1 if grey in (None, True) else 3)
    labels = kind.pack(found, (height, width))
    shared = Labels(NAME, NAMES[kind.name], 1 / 255, "drawn by Bitwright", kind)
    return split_three(
        Labelled(images, labels), shared, validation=validation, test=test, seed=seed
    )


@lru_cache(maxsize=2)
def _scenes(
    height: int, width: int, channels: int
) -> tuple[NDArray[np.uint8], tuple[Annotation, ...]]:
    """All images, and what is on each; nobody changes them."""
    random = np.random.RandomState(_SEED)
    made = [_scene(random, number, height, width, channels) for number in range(IMAGES)]
    images = np.stack([image for image, _ in made])
    images.setflags(write=False)
    return images, tuple(annotation for _, annotation in made)


def _scene(
    random: np.random.RandomState, number: int, height: int, width: int, channels: int
) -> tuple[NDArray[np.uint8], Annotation]:
    """One image and what is on it."""
    category = number % len(SHAPES)
    drawn = random.randint(0, _STEPS, size=3) / _STEPS
    side = min(height, width)
    radius = side * (0.14 + 0.14 * drawn[0])
    x = radius + (width - 2 * radius) * drawn[1]
    y = radius + (height - 2 * radius) * drawn[2]
    across = np.abs(np.arange(width) + 0.5 - x)[None, :]
    down = np.abs(np.arange(height) + 0.5 - y)[:, None]
    inside = _inside(category, across, down, radius)
    ground = random.randint(20, 90) + random.randint(-24, 25, size=(height, width, channels))
    ink = random.randint(70, 140, size=channels)
    image = ground + inside[:, :, None] * ink
    rows, columns = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
    edges = (
        columns[0] / width,
        rows[0] / height,
        (columns[-1] + 1) / width,
        (rows[-1] + 1) / height,
    )
    return np.clip(image, 0, 255).astype(np.uint8), Annotation(
        category=category,
        boxes=np.array([(category, *edges)], dtype=np.float32),
        map=np.where(inside, category + 1, 0).astype(np.int64),
        values=np.array([x / width, y / height, radius / side], dtype=np.float32),
    )


def _inside(
    category: int, across: NDArray[np.float64], down: NDArray[np.float64], radius: float
) -> NDArray[np.bool_]:
    """(H, W): which pixels lie on the shape, from their distances to its middle."""
    square = (across <= radius) & (down <= radius)
    return (
        across * across + down * down <= radius * radius,
        square,
        square & ((across <= radius / 3) | (down <= radius / 3)),
    )[category]
