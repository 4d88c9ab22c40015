# SPDX-License-Identifier: Apache-2.0
"""The integers that an edge may hold: checked, or drawn at random."""

from __future__ import annotations

import numpy as np

from bitwright.base.errors import GraphError
from bitwright.ir.node import IntArray
from bitwright.ir.types import TensorType


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
