# SPDX-License-Identifier: Apache-2.0
"""The document's packed rows: 32-bit words, least significant bit first (spec 2.16.3)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.ir.executor.xnor import pack_signs

WORD = 32
Words32 = NDArray[np.uint32]


def words_of(columns: int) -> int:
    """Words of a row: every row begins with a word of its own."""
    return -(-columns // WORD)


def pack32(levels: NDArray[Any]) -> Words32:
    """(rows, columns) of signs -> (rows, words); 1 is >= 0, unused bits are 0."""
    halves = np.ascontiguousarray(pack_signs(levels).astype("<u8")).view("<u4")
    return np.ascontiguousarray(halves[:, : words_of(levels.shape[1])]).astype(np.uint32)
