# SPDX-License-Identifier: Apache-2.0
"""Digits in a large picture: the network on every window, one product a layer for all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.papers.bnn_soc.model import Model, Product, surest_class

_BATCH = 4096
#: Windows of a picture that are looked at: those of 4096 x 4096 pixels at every fourth.
_MOST_WINDOWS = 1 << 20


@dataclass(frozen=True)
class Detection:
    """A window that the network is sure of.

    Attributes:
        top, left: of the window, pixels.
        label: its class.
        margin: by which the largest sum leads, as a share of the products in a sum.
    """

    top: int
    left: int
    label: int
    margin: float


def detect(
    model: Model,
    picture: NDArray[np.uint8],
    *,
    side: int = 28,
    stride: int = 4,
    margin: float = 0.02,
    ink: float = 0.05,
    product: Product | None = None,
) -> tuple[Detection, ...]:
    """Windows in which a digit is seen, the surest first, none near a surer one.

    Args:
        picture: (H, W) of grey levels, light on dark as the training images.
        stride: pixels between windows.
        margin: least lead of the largest sum, as a share of the products in a sum.
        ink: least share of a window's pixels that are +1: empty windows hold nothing.
        product: as of `Model.sums`.

    Raises:
        DataError: the picture is no grey one, is smaller than a window, or the network has
            another number of inputs than a window has pixels.
    """
    if picture.ndim != 2 or picture.dtype != np.uint8 or min(picture.shape) < side or stride < 1:
        raise DataError(
            f"expected grey levels of 8 bits, at least {side} x {side}, got {picture.shape} of "
            f"{picture.dtype}",
            where="picture",
        )
    if model.settings.sizes[0] != side * side:
        raise DataError(
            f"the network has {model.settings.sizes[0]} inputs, a window {side * side} pixels",
            where="side",
        )
    every = np.lib.stride_tricks.sliding_window_view(picture, (side, side))[::stride, ::stride]
    down, across = every.shape[:2]
    if down * across > _MOST_WINDOWS:
        raise DataError(
            f"{down} x {across} windows; at most {_MOST_WINDOWS} are looked at",
            where="picture",
            hint="give more pixels between windows (--stride), or a smaller picture",
        )
    product = product or model.cpu()
    labels = np.zeros(down * across, dtype=np.int64)
    leads = np.full(down * across, -1.0, dtype=np.float32)
    batch = min(_BATCH, model.batch)  # a window has as many bytes as it has pixels
    for start in range(0, down * across, batch):
        numbers = np.arange(start, min(start + batch, down * across))
        windows = every[np.divmod(numbers, across)].reshape(len(numbers), -1)
        inked = (model.settings.input_values() > 0)[windows].mean(axis=1) >= ink
        if inked.any():
            sums = model.sums(windows[inked], product)
            labels[numbers[inked]], leads[numbers[inked]] = surest_class(model.settings, sums)
    return _surest(leads.reshape(down, across), labels.reshape(down, across), side, stride, margin)


def _surest(
    leads: NDArray[np.float32], labels: NDArray[np.int64], side: int, stride: int, margin: float
) -> tuple[Detection, ...]:
    """Windows with a lead, the surest first, none nearer than half a window to a surer one."""
    near = -(-(side // 2) // stride)  # windows of this distance are far enough
    free = np.ones(leads.shape, dtype=bool)
    found: list[Detection] = []
    for at in np.argsort(-leads.ravel(), kind="stable"):
        row, column = divmod(int(at), leads.shape[1])
        if leads[row, column] < max(margin, 0.0):
            break
        if free[row, column]:
            rows, columns = (slice(max(0, k - near + 1), k + near) for k in (row, column))
            free[rows, columns] = False
            place = row * stride, column * stride
            found.append(Detection(*place, int(labels[row, column]), float(leads[row, column])))
    return tuple(found)
