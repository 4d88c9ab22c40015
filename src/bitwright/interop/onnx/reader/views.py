# SPDX-License-Identifier: Apache-2.0
"""How the elements of an ONNX tensor lie on an edge: index arrays, and reading them back.

``order`` has the tensor's shape and holds, for each element, its flat index in the edge's frame
(H, W, C). Reshape and Transpose act on it; where an operator needs an image or a vector, the array
is compared with what the integer dialect can do.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.ir import IntArray

#: Elements of an index array: an image of 4096 x 2048 with 4 channels.
MAX_PLACES = 1 << 25


def canonical_shape(frame: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an image as NCHW, or of a vector, with a batch axis of 1."""
    return (1, frame[-1], *frame[:-1])


def _places(frame: tuple[int, ...]) -> IntArray:
    """The index of every element of a frame.

    Raises:
        ModelError: there are too many to be written out.
    """
    if prod(frame) > MAX_PLACES:
        raise ModelError(
            f"rearranges a frame of shape {frame}; at most {MAX_PLACES} elements can be rearranged",
            hint="use smaller images",
        )
    return np.arange(prod(frame), dtype=np.int64).reshape(frame)


def canonical(frame: tuple[int, ...]) -> IntArray:
    """The order of an image as NCHW, or of a vector, with a batch axis of 1."""
    return np.moveaxis(_places(frame), -1, 0)[np.newaxis]


def simplified(order: IntArray, frame: tuple[int, ...]) -> IntArray | None:
    """None if the order is the canonical one."""
    own = canonical_shape(frame)
    return None if order.shape == own and np.array_equal(order, canonical(frame)) else order


def permuted(frame: tuple[int, ...], channels: IntArray | None, last: bool) -> IntArray | None:
    """The order of an image whose ONNX channel k is channel ``channels[k]`` of the edge.

    Args:
        last: the tensor is NHWC instead of NCHW.
    """
    if channels is None and not last:
        return None
    places = _places(frame)
    if channels is not None:
        places = places[..., channels]
    return (places if last else np.moveaxis(places, -1, 0))[np.newaxis]


class Blocks(NamedTuple):
    """An image read from an edge in blocks of block x block pixels (1: as it is).

    ``channels[k]`` is the channel, after ``space_to_depth``, of the tensor's channel k.
    """

    block: int
    channels: IntArray | None


def as_image(order: IntArray | None, frame: tuple[int, ...], last: bool) -> Blocks | None:
    """How to read a rank-4 tensor from an edge, or None if the dialect cannot.

    Covers channel permutations, channels-last tensors, and every chain of reshapes and transposes
    that amounts to space-to-depth.
    """
    if order is None and not last:
        return Blocks(1, None)
    order = canonical(frame) if order is None else order
    if order.ndim != 4 or len(frame) != 3:
        return None
    seen = order[0] if last else np.moveaxis(order[0], 0, -1)
    height, width, channels = frame
    rows, columns, depth = seen.shape
    block = height // rows if rows else 0
    if block < 1 or (rows * block, columns * block) != (height, width):
        return None
    if depth != channels * block * block:
        return None
    corner = seen[0, 0]
    at_row, at_column, at_channel = np.unravel_index(corner, frame)
    if (at_row >= block).any() or (at_column >= block).any():
        return None
    if len(np.unique(corner)) != depth:
        return None
    steps = (
        np.arange(rows)[:, None] * block * width + np.arange(columns)[None, :] * block
    ) * channels
    if not np.array_equal(seen, corner + steps[..., None]):
        return None
    target = (at_row * block + at_column) * channels + at_channel
    plain = np.array_equal(target, np.arange(depth))
    return Blocks(block, None if plain else target.astype(np.int64))
