# SPDX-License-Identifier: Apache-2.0
"""The integers that an edge may hold: checked, or drawn at random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError
from bitwright.ir.node import IntArray
from bitwright.ir.types import TensorType

#: Whole numbers below are exact in float64.
_EXACT = 1 << 53


def check_levels(name: str, tensor_type: TensorType, levels: IntArray) -> IntArray:
    """Levels as int64 ``(N, *shape)``, checked against the type.

    Raises:
        GraphError: wrong shape, not integers, outside the interval, or no level of the format (0 in
            a bipolar tensor, a number between two minifloats).
    """
    array = np.asarray(levels)
    if not np.issubdtype(array.dtype, np.integer):
        raise GraphError(f"expected integers, got {array.dtype}", where=name)
    if array.shape[1:] != tensor_type.shape:
        raise GraphError(
            f"expected shape (N, {', '.join(map(str, tensor_type.shape))}), got {array.shape}",
            where=name,
        )
    # Python's integers: those of numpy wrap where the array has 64 bits without a sign.
    if array.size and (int(array.min()) < tensor_type.lo or int(array.max()) > tensor_type.hi):
        raise GraphError(
            f"levels [{array.min()}, {array.max()}] leave the interval "
            f"[{tensor_type.lo}, {tensor_type.hi}]",
            where=name,
        )
    array = array.astype(np.int64, copy=False)
    if tensor_type.is_bipolar and not bool((array != 0).all()):
        raise GraphError("a bipolar tensor holds -1 and +1 only, got 0", where=name)
    if tensor_type.code_format is not None:
        known = tensor_type.code_format.contains(array)
        if not known.all():
            raise GraphError(
                f"{array[~known].flat[0]} is no level of {tensor_type.code_format.name}", where=name
            )
    return array


def random_levels(kind: TensorType, count: int, rng: np.random.Generator) -> IntArray:
    """``count`` frames of uniform random levels of a type."""
    if kind.is_bipolar:
        return rng.integers(0, 2, (count, *kind.shape)) * 2 - 1
    if kind.code_format is not None:
        grid = kind.code_format.grid()
        return rng.choice(grid[(grid >= kind.lo) & (grid <= kind.hi)], (count, *kind.shape))
    return rng.integers(kind.lo, kind.hi + 1, (count, *kind.shape))


def varied(shape: Sequence[int], rng: np.random.Generator) -> NDArray[np.float64]:
    """Frames of numbers from 0 to 1 that are dark, bright, flat and striped, too: every second one
    is uniform, the others lie about a number of their own with a contrast of their own, a third of
    them of two numbers in turn: along one axis, or along all but the channels, changing with every
    place or every 2, 4 .. places; the first are all 0 and all 1. Sums of uniform frames alone lie
    near their mean: what only bright frames or some rows bring out would never be seen.

    Args:
        shape: (N, ..., channels).
    """
    count, one = shape[0], (shape[0], *(1,) * (len(shape) - 1))
    drawn = rng.random(shape)
    level, other, contrast = rng.random(one), rng.random(one), rng.random(one) ** 2
    flat = drawn[1::2]
    flat -= level[1::2]  # in place: frames may be large
    flat *= contrast[1::2]
    flat += level[1::2]
    places = np.indices(shape[1:], sparse=True)
    ways = [(place,) for place in places] + ([tuple(places[:-1])] if len(places) > 2 else [])
    for number, index in enumerate(range(1, count, 6)):
        way = ways[number % len(ways)]
        most = max(max(place.shape) for place in way).bit_length() - 1
        shift = number // len(ways) % max(most, 1)
        turn = sum(place >> shift for place in way) % 2
        drawn[index] = np.where(turn, level[index], other[index])
    drawn[1:2], drawn[2:3] = 0.0, 1.0
    return drawn


def varied_levels(kind: TensorType, count: int, rng: np.random.Generator) -> IntArray:
    """``count`` frames of levels of a type, as `varied` draws them."""
    drawn = varied((count, *kind.shape), rng)
    if kind.code_format is not None or kind.is_bipolar:
        grid = np.array([-1, 1]) if kind.code_format is None else kind.code_format.grid()
        grid = grid[(grid >= kind.lo) & (grid <= kind.hi)]
        return grid[np.minimum((drawn * len(grid)).astype(np.int64), len(grid) - 1)]
    span = kind.hi - kind.lo
    if span >= _EXACT:
        return random_levels(kind, count, rng)
    return kind.lo + np.minimum((drawn * (span + 1)).astype(np.int64), span)
