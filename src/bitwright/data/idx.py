# SPDX-License-Identifier: Apache-2.0
"""The IDX file format of MNIST: two zero bytes, type, number of axes, big-endian axes, data."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.base.files import read_bytes
from bitwright.data.files import gunzip

_UINT8 = 0x08
_MAX_AXES = 4


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, packed with gzip (``.gz``) or not.

    Raises:
        DataError: the file is missing, corrupt, truncated, too long or of another element type.
    """
    content = read_bytes(path)
    return parse_idx(gunzip(content, str(path)) if path.suffix == ".gz" else content, str(path))


def parse_idx(content: bytes, where: str) -> NDArray[np.uint8]:
    """The array in the bytes of an IDX file; ``where`` is named in errors."""
    hint = "the file is corrupt or no IDX file; delete it and fetch it again"
    if len(content) < 4 or content[:2] != b"\0\0":
        found = content[:4].hex() or "nothing"
        raise DataError(f"IDX files begin with 0000, found {found}", where=where, hint=hint)
    kind, axes = content[2], content[3]
    if kind != _UINT8 or not 1 <= axes <= _MAX_AXES:
        raise DataError(
            f"expected unsigned bytes (type 0x08) with 1 to {_MAX_AXES} axes, "
            f"found type {kind:#04x} with {axes} axes",
            where=where,
            hint=hint,
        )
    start = 4 + 4 * axes
    if len(content) < start:
        raise DataError("ends inside its header", where=where, hint=hint)
    shape = struct.unpack(f">{axes}I", content[4:start])
    expected, found_bytes = math.prod(shape), len(content) - start
    if expected != found_bytes:
        raise DataError(
            f"the header promises {expected} bytes of data {shape}, the file holds {found_bytes}",
            where=where,
            hint=hint,
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape).copy()
