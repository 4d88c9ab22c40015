# SPDX-License-Identifier: Apache-2.0
"""Inputs of a data set as pictures for people: images as they are, signals as curves over time,
rows of a table as bars.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]
"""(H, W) grey or (H, W, 3) RGB."""

_WIDTH, _HEIGHT = 256, 96  # of a drawing
_PAPER, _LINE, _MIDDLE = 255, 0, 200
_BAR = 12  # pixels, at most


def picture_of(levels: NDArray[Any], scale: float) -> Picture:
    """One input as a picture.

    Args:
        levels: (H, W, C) with 1 or 3 channels, (L, C) or (F,).
        scale: real value of one level; reals lie in [-1, 1], without sign in [0, 1].
    """
    reals = levels.astype(np.float64) * scale
    if levels.ndim == 3:
        return _image(reals)
    drawing = np.full((_HEIGHT, _WIDTH), _PAPER, dtype=np.uint8)
    low = -1.0 if levels.dtype.kind == "i" else 0.0
    drawing[_rows(np.zeros(1), low)[0]] = _MIDDLE
    return _bars(drawing, reals, low) if levels.ndim == 1 else _curves(drawing, reals, low)


def _image(reals: NDArray[np.float64]) -> Picture:
    """Stretched to the full range of grey; of other than 1 or 3 channels the first, as grey."""
    low = reals.min() if reals.min() < 0 else 0.0
    pixels = np.clip(np.rint((reals - low) / (1.0 - low) * 255), 0, 255).astype(np.uint8)
    return pixels if pixels.shape[2] == 3 else pixels[..., 0]


def _rows(reals: NDArray[np.float64], low: float) -> NDArray[np.int64]:
    """The row of a drawing where a value lies: 1 is at the top."""
    share = (np.clip(reals, low, 1.0) - low) / (1.0 - low)
    return np.rint((1 - share) * (_HEIGHT - 1)).astype(np.int64)


def _curves(drawing: Picture, reals: NDArray[np.float64], low: float) -> Picture:
    """A line a channel; of several, each is lighter than the one before."""
    length, channels = reals.shape
    edges = np.arange(_WIDTH + 1) * (length - 1) / _WIDTH
    for channel in reversed(range(channels)):
        rows = _rows(reals[:, channel], low)
        shade = _LINE + channel * 160 // channels
        for column in range(_WIDTH):
            first, last = int(edges[column]), int(np.ceil(edges[column + 1]))
            part = rows[first : last + 1]
            drawing[part.min() : part.max() + 1, column] = shade
    return drawing


def _bars(drawing: Picture, reals: NDArray[np.float64], low: float) -> Picture:
    """A bar a column, from zero."""
    zero = int(_rows(np.zeros(1), low)[0])
    step = min(_BAR, _WIDTH / len(reals))
    drawing = drawing[:, : max(1, round(step * len(reals)))]
    for number, row in enumerate(_rows(reals, low).tolist()):
        left, right = int(number * step), int((number + 1) * step)
        right = max(left + 1, right - (step >= 3))
        drawing[min(row, zero) : max(row, zero) + 1, left:right] = _LINE
    return drawing
