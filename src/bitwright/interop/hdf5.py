# SPDX-License-Identifier: Apache-2.0
"""HDF5 files as plain arrays and texts; what points outside the file is refused.

The HDF5 library may crash on a damaged file, and unpacks what it is given without a bound, so a
process of its own reads it (`hdf5_child`), which has no more memory and time than a file of its
size needs.
"""

from __future__ import annotations

import importlib.util
import io
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.archives import most_of
from bitwright.base.errors import DataError
from bitwright.base.files import atomic_write, held_size
from bitwright.base.tools.confined import run_confined
from bitwright.interop.ops import FloatArray

#: Seconds of the processor for any file, and bytes of it that are read in one more.
_LEAST_SECONDS, _BYTES_A_SECOND = 5, 10 << 20
#: Memory for each byte that may be read: a number as it is in the file, as float and in its chunk;
#: and what the libraries take besides.
_EACH, _SPARE = 3, 256 << 20
_HINT = "the file is cut short or damaged; copy it again"


@dataclass(frozen=True, eq=False)
class Hdf5:
    """The content of a file.

    Attributes:
        attributes: texts and lists of texts of every group, by the group's path (``/`` the root).
        arrays: real numbers by path, float32 or float64.
    """

    attributes: Mapping[str, Mapping[str, Any]]
    arrays: Mapping[str, FloatArray]
    _children: dict[str, list[str]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for path in (*self.attributes, *self.arrays):
            parent, _, name = path.rpartition("/")
            if name:
                self._children.setdefault(parent, []).append(name)

    def children(self, path: str) -> list[str]:
        """Names of groups and arrays directly inside a group."""
        return self._children.get(path.rstrip("/"), [])

    def list_of(self, path: str, name: str) -> list[str]:
        """An attribute that is a list of texts.

        Raises:
            KeyError: there is none.
        """
        value = self.attributes[path][name]
        if not isinstance(value, list):
            raise KeyError(name)
        return value


def require_h5py(where: str) -> None:
    """`DataError` if h5py is not installed."""
    if importlib.util.find_spec("h5py") is None:
        raise DataError(
            "is an HDF5 file, and h5py is not installed",
            where=where,
            hint="pip install 'bitwright[exchange]'",
        )


def read_hdf5(content: Path | bytes, where: str) -> Hdf5:
    """Everything in a file.

    Raises:
        DataError: it is damaged, cut short, holds links, or more numbers or texts than fit into
            it; or h5py is missing.
    """
    require_h5py(where)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.h5"
        if isinstance(content, bytes):
            source.write_bytes(content)
        else:
            source = content.resolve()
        target = Path(folder) / "out.npz"
        _run_child(source, target, where)
        with np.load(target, allow_pickle=False) as held:
            names = json.loads(held["names"].tobytes())
            arrays = {name: held[f"a{number}"] for number, name in enumerate(names["arrays"])}
    return Hdf5(names["attributes"], arrays)


def _run_child(source: Path, target: Path, where: str) -> None:
    script = Path(__file__).with_name("hdf5_child.py")
    try:
        size = held_size(source)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=where) from error
    most = most_of(size)
    seconds = _LEAST_SECONDS + size // _BYTES_A_SECOND
    wrong = run_confined(
        script, [source, target, str(most)], folder=target.parent, memory=_EACH * most + _SPARE,
        seconds=seconds, library="the HDF5 library", where=where,
    )  # fmt: skip
    if wrong is not None:
        raise DataError(f"is no whole HDF5 file: {wrong}", where=where, hint=_HINT)


def written(path: Path, fill: Callable[[Any], None]) -> Path:
    """Make an HDF5 file in memory and put it in its place whole."""
    require_h5py(str(path))
    import h5py

    content = io.BytesIO()
    with h5py.File(content, "w", track_order=False) as file:
        fill(file)
    atomic_write(path, content.getvalue())
    return path
