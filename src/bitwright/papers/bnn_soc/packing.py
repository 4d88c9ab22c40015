# SPDX-License-Identifier: Apache-2.0
"""The document's packed rows: 32-bit words, least significant bit first (spec 2.16.3)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
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


def unpack32(words: Words32, columns: int) -> NDArray[np.int8]:
    """The levels +1 and -1 of packed rows.

    Raises:
        DataError: a row has not the words that its columns take.
    """
    if words.ndim != 2 or words.shape[1] != words_of(columns):
        raise DataError(
            f"{columns} inputs take rows of {words_of(columns)} words, got shape {words.shape}",
            where="packed weights",
            hint="the file is damaged, or its sizes are those of another network",
        )
    octets = np.ascontiguousarray(words.astype("<u4")).view(np.uint8)
    bits = np.unpackbits(octets, axis=1, bitorder="little", count=columns)
    return (2 * bits.astype(np.int8) - 1).astype(np.int8)
