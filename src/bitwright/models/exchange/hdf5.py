# SPDX-License-Identifier: Apache-2.0
"""HDF5 files as plain arrays and texts; what points outside the file is refused."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.errors import DataError
from bitwright.files import atomic_write
from bitwright.models.exchange.network import FloatArray

#: Numbers in one data set; a broken file may claim any size.
_MOST = 1 << 28
_HINT = "the file is cut short, damaged or no HDF5 file of Keras; copy it again"


def require_h5py(where: str) -> Any:
    """The module h5py.

    Raises:
        DataError: it is not installed.
    """
    try:
        import h5py
    except ModuleNotFoundError:
        raise DataError(
            "is an HDF5 file, and h5py is not installed",
            where=where,
            hint="pip install 'bitwright[exchange]'",
        ) from None
    return h5py


@contextmanager
def opened(content: Path | bytes, where: str) -> Iterator[Any]:
    """An HDF5 file for reading; whatever h5py says against it is a `DataError`."""
    h5py = require_h5py(where)
    try:
        source = io.BytesIO(content) if isinstance(content, bytes) else content
        with h5py.File(source, "r") as file:
            _refuse_links(h5py, file, where)
            yield file
    except (OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"is no whole HDF5 file: {error}", where=where, hint=_HINT) from error


def _refuse_links(h5py: Any, group: Any, where: str) -> None:
    """Soft and external links could reach anywhere, also outside the file."""
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise DataError(f"{name!r} is a link, not data", where=where)
        item = group[name]
        if isinstance(item, h5py.Group):
            _refuse_links(h5py, item, where)
        elif item.external:
            raise DataError(f"{name!r} lies in another file", where=where)


def numbers(dataset: Any, where: str) -> FloatArray:
    """A data set of real numbers, in its own precision (float32 at least).

    Raises:
        DataError: it holds something else, or claims to be huge.
    """
    kind = getattr(dataset, "dtype", None)
    if kind is None or kind.kind not in "fiu" or dataset.size is None or dataset.size > _MOST:
        raise DataError(f"{dataset.name!r} holds no numbers ({kind})", where=where)
    values = np.asarray(dataset[()])
    return values if values.dtype == np.float64 else values.astype(np.float32)


def text(value: Any) -> str:
    """An attribute as text, whether it was stored as bytes or as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, str):
        return value
    raise ValueError(f"{value!r} is no text")


def written(path: Path, fill: Callable[[Any], None]) -> Path:
    """Make an HDF5 file in memory and put it in its place whole."""
    h5py = require_h5py(str(path))
    content = io.BytesIO()
    with h5py.File(content, "w", track_order=False) as file:
        fill(file)
    atomic_write(path, content.getvalue())
    return path
