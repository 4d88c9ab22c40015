# SPDX-License-Identifier: Apache-2.0
"""Arrays that start where a line of the cache does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

#: Bytes of a line of the cache, and of the widest vector.
ALIGN = 64


def empty_aligned(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """As ``np.empty``, of an array that starts at a multiple of 64 bytes: where vectors lie across
    two lines of the cache, kernels that load or store one each cycle take up to half as long again.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    room = np.empty(size + ALIGN, dtype=np.uint8)
    skip = -room.ctypes.data % ALIGN
    return room[skip : skip + size].view(dtype).reshape(shape)


def aligned(table: NDArray[Any]) -> NDArray[Any]:
    """A copy that starts at a multiple of 64 bytes."""
    found = empty_aligned(table.shape, table.dtype)
    found[...] = table
    return found
