# SPDX-License-Identifier: Apache-2.0
"""The matrix product of a Barista kernel, in the order in which its hardware adds.

Tiles as the host lays them out, sums kept on the array over all tiles of the inner length, and
processing elements whose S + 1 partial sums take turns (specification 004, 2.3.2 and 2.3.3).
Integers are exact; of float32 the order of the additions is the hardware's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.papers.fpga_training.barista.model import Tiles

_Array = NDArray[Any]


def tile(matrix: _Array, height: int, width: int) -> _Array:
    """A matrix as (tiles down, tiles across, height, width), zeros at its lower and right end."""
    rows, columns = matrix.shape
    down, across = -(-rows // height), -(-columns // width)
    whole = np.zeros((down * height, across * width), matrix.dtype)
    whole[:rows, :columns] = matrix
    return np.ascontiguousarray(whole.reshape(down, height, across, width).swapaxes(1, 2))


def untile(tiles: _Array, rows: int, columns: int) -> _Array:
    """The matrix of so many rows and columns that `tile` took apart."""
    down, across, height, width = tiles.shape
    return tiles.swapaxes(1, 2).reshape(down * height, across * width)[:rows, :columns]


def element_sums(a: _Array, b: _Array, sums: int) -> _Array:
    """What the elements of an array hold after a tile row: (T_r, P) by (P, T_c) -> (T_r, T_c).

    Product k goes to partial sum k mod ``sums``; at the end these are added one after the other.
    """
    partial = np.zeros((sums, a.shape[0], b.shape[1]), np.result_type(a, b))
    for k in range(a.shape[1]):
        partial[k % sums] += a[:, k, None] * b[None, k]
    result = partial[0]
    for one in partial[1:]:
        result = result + one
    return result


def blocked_product(a: _Array, b: _Array, tiles: Tiles, sums: int) -> _Array:
    """A (R x P) by B (P x C), tile by tile: int64 exactly, float32 in the hardware's order.

    Args:
        tiles: sizes of the kernel.
        sums: S + 1, partial sums of an element.
    """
    if np.issubdtype(np.result_type(a, b), np.integer):
        a, b = a.astype(np.int64), b.astype(np.int64)
    left, right = tile(a, tiles.rows, tiles.inner), tile(b, tiles.inner, tiles.columns)
    down, steps, across = left.shape[0], left.shape[1], right.shape[1]
    out = np.zeros((down, across, tiles.rows, tiles.columns), np.result_type(a, b))
    for i in range(down):
        for j in range(across):
            row = np.concatenate([left[i, k] for k in range(steps)], axis=1)
            column = np.concatenate([right[k, j] for k in range(steps)], axis=0)
            out[i, j] = element_sums(row, column, sums)
    return untile(out, a.shape[0], b.shape[1])
