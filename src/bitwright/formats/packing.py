# SPDX-License-Identifier: Apache-2.0
"""Codes of any width as one string of bits, nothing lost between them.

The first bit of the string is the highest bit of the first byte; each code is written highest bit
first. Zero bits fill the last byte.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bitwright.base.errors import FormatError
from bitwright.formats.base import IntArray, checked_integers

MAX_BITS = 16

Bytes = npt.NDArray[np.uint8]


def packed_size(count: int, bits: int) -> int:
    """Bytes that ``count`` codes take."""
    return (count * bits + 7) // 8


def pack(codes: npt.ArrayLike, bits: int) -> Bytes:
    """(bytes,) uint8: the codes, whatever their shape, in C order.

    Args:
        codes: integers from 0 to ``2**bits - 1``; of formats with negative codes `Format.to_bits`
            gives them.
        bits: width of a code, 1 to 16.

    Raises:
        FormatError: a code does not fit, or the width is out of range.
    """
    _check_width(bits)
    array = checked_integers(codes, 0, (1 << bits) - 1, f"code of {bits} bits").reshape(-1)
    if bits in (8, 16):  # whole bytes
        return array.astype(np.uint8 if bits == 8 else ">u2").view(np.uint8)
    big = array.astype(">u2").view(np.uint8).reshape(-1, 2)
    if bits < 8:  # the upper byte is zero: half the work
        stream = np.unpackbits(big[:, 1:], axis=1)[:, 8 - bits :]
    else:
        stream = np.unpackbits(big, axis=1)[:, MAX_BITS - bits :]
    return np.packbits(stream.reshape(-1))


def unpack(packed: npt.ArrayLike, bits: int, count: int) -> IntArray:
    """(count,) int64: what `pack` packed.

    Raises:
        FormatError: there are not as many bytes as ``count`` codes need, bits beyond the last code
            are set, or the width is out of range.
    """
    _check_width(bits)
    array = np.asarray(packed)
    need = packed_size(count, bits) if count >= 0 else -1
    if array.dtype != np.uint8 or array.shape != (need,):
        raise FormatError(
            f"{count} codes of {bits} bits are {need} bytes, got {array.dtype} {array.shape}"
        )
    if bits in (8, 16):
        return array.view(np.uint8 if bits == 8 else ">u2").astype(np.int64)
    flat = np.unpackbits(array)
    if flat[count * bits :].any():
        raise FormatError(f"bits beyond the last of {count} codes are set")
    stream = flat[: count * bits].reshape(count, bits)
    wide = np.zeros((count, MAX_BITS), dtype=np.uint8)
    wide[:, MAX_BITS - bits :] = stream
    return np.packbits(wide, axis=1).view(">u2").reshape(count).astype(np.int64)


def _check_width(bits: int) -> None:
    if (
        isinstance(bits, bool)
        or not isinstance(bits, int | np.integer)
        or not 1 <= bits <= MAX_BITS
    ):
        raise FormatError(f"a code of {bits!r} bits", hint=f"1 to {MAX_BITS} bits can be packed")
