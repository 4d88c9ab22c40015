# SPDX-License-Identifier: Apache-2.0
"""Tables of the executor start where a line of the cache does."""

from __future__ import annotations

import numpy as np
import pytest

from bitwright.ir.executor.alignment import ALIGN, aligned, empty_aligned


@pytest.mark.parametrize("shape", [(), (0,), (3,), (5, 0, 2), (7, 13)])
@pytest.mark.parametrize("kind", [np.int8, np.int32, np.float64])
def test_arrays_start_at_a_line(shape: tuple[int, ...], kind: type) -> None:
    found = [empty_aligned(shape, kind) for _ in range(20)]
    assert all(not array.ctypes.data % ALIGN for array in found if array.size)
    assert all((array.shape, array.dtype) == (shape, np.dtype(kind)) for array in found)
    assert all(array.flags.c_contiguous and array.flags.writeable for array in found)


def test_copies_hold_what_was_copied() -> None:
    table = np.arange(60, dtype=np.int16).reshape(5, 12)[::-2, 1::3]
    copy = aligned(table)
    assert np.array_equal(copy, table) and not np.shares_memory(copy, table)
    assert copy.flags.c_contiguous and not copy.ctypes.data % ALIGN
