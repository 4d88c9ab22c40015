# SPDX-License-Identifier: Apache-2.0
"""Run by itself: an HDF5 file -> its arrays (``.npz``) and texts (JSON), see `hdf5`.

The HDF5 library can crash on damaged files; here that costs a process of its own and nothing else.
What it takes is limited by the system, too: a filter unpacks whatever it is given, and how long
texts are is known when they have been read. Nothing of ours is imported.

    python hdf5_child.py FILE.h5 OUT.npz BYTES MEMORY SECONDS

BYTES of numbers and texts are read at most, with MEMORY bytes and SECONDS of the processor. It ends
with 3 where something is wrong with the file, with 4 where memory ran out.
"""

from __future__ import annotations

import json
import math
import runpy
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np

_LIMITS = runpy.run_path(str(Path(__file__).parents[1] / "base" / "tools" / "confine.py"))
_DEPTH = 40
_EACH = 8  # bytes of a letter in memory, and again as JSON


def texts(attributes: Any, room: Room) -> dict[str, Any]:
    """Attributes that are texts or lists of texts; others are left out."""
    found: dict[str, Any] = {}
    for name in attributes:
        about = attributes.get_id(name)
        if math.prod(about.shape) == 0:
            found[name] = []
        if about.dtype.kind not in "SOU" or len(about.shape) > 1 or name in found:
            continue
        room.take(name, about.shape, math.prod(about.shape) * about.dtype.itemsize)
        value = attributes[name]
        if isinstance(value, bytes | str):
            found[name] = text(value)
            room.take(name, (), _EACH * len(value))
        elif isinstance(value, np.ndarray):
            found[name] = [text(item) for item in value.tolist()]
            room.take(name, value.shape, _EACH * sum(map(len, found[name])))
    return found


def text(value: Any) -> str:
    """Bytes or text as text."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, str):
        return value
    raise ValueError(f"{value!r:.80} is no text")


class Room:
    """How much may still be read: a file of a few bytes can claim to hold any number of zeros, or
    lead to one group in many ways.
    """

    def __init__(self, size: int) -> None:
        self.left = size
        self.seen: set[int] = set()

    def enter(self, group: Any) -> None:
        """Note a group, which may be there once."""
        place = h5py.h5o.get_info(group.id).addr
        if place in self.seen:
            raise ValueError(f"{group.name!r} is there more than once")
        self.seen.add(place)

    def take(self, name: str, shape: Any, size: int) -> None:
        """Count a data set or an attribute."""
        self.left -= size
        if self.left < 0:
            raise ValueError(f"{name!r:.80} of shape {shape}: more data than fit into such a file")


def unpacked(item: Any) -> int:
    """Numbers that reading a data set makes: its own, or those of the chunks that they lie in."""
    if item.chunks is None:
        return int(item.size)
    pairs = zip(item.shape, item.chunks, strict=True)
    return math.prod(-(-length // chunk) * chunk for length, chunk in pairs)


def walk(group: Any, room: Room, depth: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attributes of all groups by path, and all arrays by path."""
    if depth > _DEPTH:
        raise ValueError("groups inside groups without end")
    room.enter(group)
    attributes, arrays = {group.name: texts(group.attrs, room)}, {}
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise ValueError(f"{name!r} is a link, not data")
        item = group[name]
        if isinstance(item, h5py.Group):
            inner, data = walk(item, room, depth + 1)
            attributes |= inner
            arrays |= data
            continue
        kind = getattr(item, "dtype", None)
        if kind is None or item.external or item.is_virtual:
            raise ValueError(f"{name!r} lies in another file, or is no data set")
        if kind.kind not in "fiu" or item.size is None:
            continue  # such as the optimizer's names
        room.take(name, item.shape, unpacked(item) * max(4, kind.itemsize))
        values = np.asarray(item[()])
        wide = np.float64 if values.dtype == np.float64 else np.float32
        arrays[item.name] = values.astype(wide)
    return attributes, arrays


def main() -> None:
    """Read, write; what is wrong goes to standard error in one line."""
    source, target, size, memory, seconds = sys.argv[1:]
    _LIMITS["confine"](int(memory), int(seconds))
    with _LIMITS["blaming_the_file"]():
        with h5py.File(source, "r") as file:
            attributes, arrays = walk(file, Room(int(size)))
        packed = {f"a{number}": values for number, values in enumerate(arrays.values())}
        names = json.dumps({"attributes": attributes, "arrays": list(arrays)})
        with open(target, "wb") as out:
            np.savez(out, names=np.frombuffer(names.encode(), np.uint8), **packed)


if __name__ == "__main__":
    main()
