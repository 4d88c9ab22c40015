# SPDX-License-Identifier: Apache-2.0
"""Where torch's channels are in an integer graph.

Rearrangements of channels cost nothing in hardware if the consumers' weights are permuted instead.
``order[i]`` is the index on torch's axis 1 (channels, or elements of a vector) of element i of the
graph's last axis; None: the same. A flattened image differs, as the graph's is (H, W, C) and
torch's (C, H, W); and so does an image whose channels have been reordered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bitwright.ir import IntArray

Order = IntArray | None
_IMAGE = 3


def straight(order: IntArray) -> Order:
    """None where an order changes nothing."""
    return None if np.array_equal(order, np.arange(len(order))) else order


def same(first: Order, second: Order) -> bool:
    """Whether two orders are equal."""
    if first is None or second is None:
        return first is second
    return np.array_equal(first, second)


def _full(order: Order, channels: int) -> IntArray:
    return np.arange(channels, dtype=np.int64) if order is None else order


def group_blocks(order: IntArray, groups: int) -> IntArray | None:
    """For each of the graph's groups of channels torch's group, if the order keeps groups
    together.
    """
    found = order.reshape(groups, -1) // (len(order) // groups)
    return found[:, 0] if bool((found == found[:, :1]).all()) else None


def of_concat(orders: Sequence[Order], channels: Sequence[int]) -> Order:
    """The order of a concatenation of parts with these orders and numbers of channels."""
    if all(order is None for order in orders):
        return None
    starts = np.concatenate([[0], np.cumsum(channels)[:-1]])
    parts = zip(orders, channels, starts, strict=True)
    return straight(np.concatenate([_full(order, count) + start for order, count, start in parts]))


def of_blocks(order: Order, channels: int, block: int, torch_order: Sequence[int]) -> Order:
    """The order behind a change of blocks of pixels into channels.

    Args:
        channels: of the input.
        torch_order: torch's channel ``j`` is ``torch_order[j]`` of the standard order, in which
            channel ``(dy * block + dx) * channels + c`` is channel c of pixel (dy, dx) of a block.
    """
    places = np.arange(block**2)[:, np.newaxis] * channels
    standard = (places + _full(order, channels)).ravel()
    # So standard channel k is torch's channel argsort(torch_order)[k].
    return straight(np.argsort(np.asarray(torch_order, dtype=np.int64))[standard])


def of_flatten(order: Order, shape: tuple[int, ...]) -> Order:
    """The order of an image (C, H, W), flattened."""
    if len(shape) != _IMAGE:
        return order
    channels, height, width = shape
    pixels = np.arange(height * width, dtype=np.int64)[:, np.newaxis]
    return straight((_full(order, channels) * (height * width) + pixels).ravel())
