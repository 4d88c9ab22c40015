# SPDX-License-Identifier: Apache-2.0
"""Arrays in files of strangers (``.npy``, ``.npz``): as many numbers as there are bytes of them."""

from __future__ import annotations

import io
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.archives import check_members, opened_zip, read_member
from bitwright.base.errors import DataError
from bitwright.base.files import read_bytes

_ENDING = ".npy"
_VERSION = (1, 0)
_MOST_BYTES = 1 << 30


def read_npy(content: bytes, where: str, kinds: str = "iu") -> NDArray[Any]:
    """The array of a ``.npy`` file, which has as many bytes as it says.

    Args:
        kinds: of numbers, as numpy's ``dtype.kind`` has them.

    Raises:
        DataError: it is none, or of another kind.
    """
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        if version != _VERSION:
            raise ValueError(f"version {version}, not {_VERSION}")
        shape, _, kind = np.lib.format.read_array_header_1_0(stream)
    except Exception as error:  # numpy parses the header as Python, and raises as Python does
        raise DataError(f"is no .npy: {error}", where=where) from error
    if kind.kind not in kinds:
        wanted = "integers" if kinds == "iu" else f"numbers of the kinds {kinds}"
        raise DataError(f"holds {kind}, not {wanted}", where=where)
    if prod(shape) * kind.itemsize != len(content) - stream.tell():
        raise DataError(f"does not hold the {shape} numbers that it says", where=where)
    stream.seek(0)
    try:
        found: NDArray[Any] = np.load(stream, allow_pickle=False)
    except ValueError as error:  # more axes than numpy has
        raise DataError(f"is no .npy: {error}", where=where) from error
    return found


def read_array(path: Path, kinds: str = "iu") -> NDArray[Any]:
    """The array of a ``.npy`` file; as `read_npy`.

    Raises:
        DataError: it is missing, no regular file, or of more than 1 GiB, too.
    """
    return read_npy(read_bytes(path, most=_MOST_BYTES), str(path), kinds)


def read_npz(path: Path, kinds: str = "iu") -> dict[str, NDArray[Any]]:
    """All arrays of a ``.npz`` file by name.

    Raises:
        DataError: it is missing, damaged, unpacks to too much, or holds something else.
    """
    where = str(path)
    with opened_zip(path, "file of arrays") as archive:
        check_members(archive, where)
        return {
            name.removesuffix(_ENDING): read_npy(
                read_member(archive, name, where), f"{where}:{name}", kinds
            )
            for name in archive.namelist()
        }
