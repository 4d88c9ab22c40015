# SPDX-License-Identifier: Apache-2.0
"""Digits in a large picture: the network on every window, one product a layer for all of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.papers.bnn_soc.model import Model, Product

_BATCH = 4096


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
    rows, columns = np.indices(every.shape[:2]).reshape(2, -1) * stride
    flat = every.reshape(len(rows), -1)
    shares = (model.settings.input_values() > 0)[flat].mean(axis=1)
    kept = np.flatnonzero(shares >= ink)
    if not kept.size:
        return ()
    product = product or model.cpu()
    parts = [model.sums(flat[kept[i : i + _BATCH]], product) for i in range(0, len(kept), _BATCH)]
    sums = np.concatenate(parts)
    best = np.sort(sums, axis=1)[:, -2:]
    leads = (best[:, 1] - best[:, 0]) / model.settings.sizes[-2]
    found: list[Detection] = []
    for at in np.argsort(-leads, kind="stable"):
        if leads[at] < margin:
            break
        here = (int(rows[kept[at]]), int(columns[kept[at]]))
        if all(max(abs(here[0] - d.top), abs(here[1] - d.left)) >= side // 2 for d in found):
            found.append(Detection(*here, int(sums[at].argmax()), float(leads[at])))
    return tuple(found)
