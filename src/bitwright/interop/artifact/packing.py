# SPDX-License-Identifier: Apache-2.0
"""Parameters as packed bits: each value in as few bits as its parameter's interval needs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bitwright.ir import IntArray, bits_for_interval


@dataclass(frozen=True)
class Packed:
    """Where and how a parameter lies in ``params.bin``.

    Attributes:
        offset: first byte. Value k takes the bits ``k * bits .. (k + 1) * bits - 1`` from there,
            bit 0 being the least significant of the first byte.
        encoding: ``unsigned``, ``signed`` (two's complement) or ``bipolar`` (0: -1, 1: +1).
    """

    offset: int
    bits: int
    encoding: str
    shape: tuple[int, ...]


def encoding_of(values: IntArray) -> tuple[str, int]:
    """The narrowest encoding of some values, and its width."""
    if values.size and bool((np.abs(values) == 1).all()) and values.min() < 0:
        return "bipolar", 1
    lo, hi = int(values.min(initial=0)), int(values.max(initial=0))
    return ("signed" if lo < 0 else "unsigned"), bits_for_interval(lo, hi)


def pack(values: IntArray, offset: int) -> tuple[bytes, Packed]:
    """Packed bytes of a parameter and their description."""
    encoding, bits = encoding_of(values)
    flat = np.asarray(values, np.int64).ravel()
    codes = (flat + 1) // 2 if encoding == "bipolar" else flat
    fields = (codes[:, None] >> np.arange(bits, dtype=np.int64)) & 1
    body = np.packbits(fields.astype(np.uint8).ravel(), bitorder="little").tobytes()
    return body, Packed(offset, bits, encoding, values.shape)
