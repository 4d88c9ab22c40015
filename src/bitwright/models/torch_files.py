# SPDX-License-Identifier: Apache-2.0
"""Files of ``torch.save``: tensors and plain values in dicts, lists and tuples, and nothing else.

torch's own reader of untrusted files (``weights_only``) calls the constructors that a file names,
with whatever arguments it gives (``bytearray(6_000_000_000)``, ``torch.Tensor(32768, 32768)`` with
what the memory held before), sets attributes of what it has made, and takes the length of a storage
from the pickle, not from the file. Here the pickle is a list of opcodes, of which those are
followed that ``torch.save`` writes for state dicts; each name in it has one form of arguments.
"""

from __future__ import annotations

import io
import struct
import sys
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from bitwright.base.archives import check_members, opened_zip, read_member
from bitwright.base.pickles import MOST_OPCODES, opcodes
from bitwright.base.regular import open_regular

#: Bytes of a pickle: names, numbers, and the shapes of tensors.
_MOST_PICKLE = 64 << 20
MOST_AXES = 64
"""Of a tensor; numpy has no more."""
_MOST_KEY, _MOST_INT = 1 << 31, 1 << 64
_PAIR = 2
_STORAGES = {
    "torch DoubleStorage": torch.float64,
    "torch FloatStorage": torch.float32,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
    "torch LongStorage": torch.int64,
    "torch IntStorage": torch.int32,
    "torch ShortStorage": torch.int16,
    "torch CharStorage": torch.int8,
    "torch ByteStorage": torch.uint8,
    "torch BoolStorage": torch.bool,
}
_DTYPES = {f"torch {name}": v for name, v in vars(torch).items() if isinstance(v, torch.dtype)}
#: A file from before torch 1.6 is no zip file; it begins with this number as a pickle.
_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_PROTOCOL = 1001
_VALUES = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING")
_MADE: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}


@dataclass(frozen=True)
class _Name:
    """A class or a function that a pickle names."""

    text: str


@dataclass(frozen=True)
class _Storage:
    """Memory of tensors: ``content`` holds its bytes."""

    content: Tensor
    dtype: torch.dtype


_Find = Callable[[Any], _Storage]


def read_saved(path: Path) -> Any:
    """What a file of ``torch.save`` holds, on the CPU.

    Dicts have the keys and ordered dicts the metadata (``_metadata``) that they were saved with.

    Raises:
        DataError: it is a zip file that is damaged, or unpacks to too much.
        ValueError, OSError and others: it is no such file, or holds anything else.
    """
    if zipfile.is_zipfile(path):
        return _read_zip(path)
    with open_regular(path) as file:
        return _read_old(file, file.seek(0, io.SEEK_END))


def _read_zip(path: Path) -> Any:
    where = str(path)
    with opened_zip(path, exact=True) as archive:
        check_members(archive, where)
        if (broken := archive.testzip()) is not None:
            raise ValueError(f"checksum of {broken} differs")
        names = set(archive.namelist())
        tops = [n for n in names if n.endswith("/data.pkl") and n.count("/") == 1]
        if len(tops) != 1:
            raise ValueError(f"it has {len(tops)} members data.pkl, expected one")
        top = tops[0].removesuffix("data.pkl")
        order = f"{top}byteorder"
        if order in names and read_member(archive, order, where, 16) != sys.byteorder.encode():
            raise ValueError(f"its numbers are not {sys.byteorder}-endian")
        storages: dict[str, Tensor] = {}

        def find(saved: Any) -> _Storage:
            dtype, key, size = _storage_of(saved, 5)
            if key not in storages:
                content = read_member(archive, f"{top}data/{key}", where)
                storages[key] = torch.empty(len(content), dtype=torch.uint8)
                if content:
                    memoryview(storages[key].numpy())[:] = content
            if storages[key].numel() != size:
                raise ValueError(f"storage {key} has {storages[key].numel()} bytes, not {size}")
            return _Storage(storages[key], dtype)

        return _Machine(find).run(io.BytesIO(read_member(archive, tops[0], where, _MOST_PICKLE)))


def _read_old(file: IO[bytes], length: int) -> Any:
    file.seek(0)
    head = io.BytesIO(file.read(min(length, _MOST_PICKLE)))
    if head.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it is neither a zip file nor does it begin as older files do")
    storages: dict[str, _Storage] = {}
    free = length

    def nothing(saved: Any) -> _Storage:
        raise ValueError("it has storages before its values")

    def find(saved: Any) -> _Storage:
        nonlocal free
        dtype, key, size = _storage_of(saved, 6)
        if key not in storages:
            free -= size
            if free < 0:
                raise ValueError("its storages have more bytes than the file")
            storages[key] = _Storage(torch.empty(size, dtype=torch.uint8), dtype)
        if (storages[key].content.numel(), storages[key].dtype) != (size, dtype):
            raise ValueError(f"storage {key} has two sizes")
        return storages[key]

    if _Machine(nothing).run(head) != _PROTOCOL:
        raise ValueError(f"it is of another protocol than {_PROTOCOL}")
    _Machine(nothing).run(head)  # the machine it was written on
    result = _Machine(find).run(head)
    keys = _Machine(nothing).run(head)
    if not isinstance(keys, list) or sorted(map(str, keys)) != sorted(storages):
        raise ValueError("it does not have the storages that its tensors name")
    file.seek(head.tell())
    for storage in (storages[key] for key in keys):
        size = storage.content.numel()
        if file.read(8) != struct.pack("<q", size // storage.dtype.itemsize):
            raise ValueError("a storage has another length than its tensors say")
        if size and file.readinto(storage.content.numpy()) != size:  # type: ignore[attr-defined]
            raise ValueError("it is cut short")
    return result


def _storage_of(saved: Any, parts: int) -> tuple[torch.dtype, str, int]:
    """Kind, key and bytes of a storage that a pickle names: ``("storage", type, key, device,
    numbers)``, in older files followed by a window of it, which is not read.
    """
    if not isinstance(saved, tuple) or len(saved) != parts or any(p is not None for p in saved[5:]):
        raise ValueError("it names a storage in a way that is not known")
    word, kind, key, _, count = saved[:5]
    if (
        word != "storage" or not isinstance(kind, _Name) or kind.text not in _STORAGES
        or not isinstance(key, str) or not _is_count(count)
    ):  # fmt: skip
        raise ValueError("it names a storage in a way that is not known")
    dtype = _STORAGES[kind.text]
    return dtype, key, count * dtype.itemsize


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


@dataclass
class _Machine:
    """Follows the opcodes of one pickle.

    Attributes:
        find: the storage that a pickle names.
        described: metadata of state dicts; several may have the same.
        copied: entries of lists that dicts were made of. A list may be named again by two bytes,
            whatever it holds.
    """

    find: _Find
    stack: list[Any] = field(default_factory=list)
    below: list[list[Any]] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)
    described: dict[int, dict[Any, Any]] = field(default_factory=dict)
    copied: int = 0

    def run(self, stream: IO[bytes]) -> Any:
        """The value.

        Raises:
            ValueError: it is another one than state dicts are made of; or IndexError, KeyError,
                TypeError, RuntimeError.
        """
        for name, argument in opcodes(stream):
            if name in _VALUES:
                if isinstance(argument, int) and not -_MOST_INT < argument < _MOST_INT:
                    raise ValueError("it holds an integer of more than 64 bits")
                self._push(argument)
            elif name in _MADE:
                self._push(_MADE[name]())
            elif name in _ACTIONS:
                _ACTIONS[name](self, argument)
            else:
                raise ValueError(f"it has the opcode {name}, which torch.save does not write")
        if self.below:
            raise ValueError("it ends within a list of values")
        (result,) = self.stack
        for entry in (e for found in self.described.values() for e in found.values()):
            if not isinstance(entry, dict) or type(entry.get("version", 1)) is not int:
                raise ValueError("the metadata of a state dict are no versions")
        return result

    def _mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def _keep(self, number: int) -> None:
        self.memo[number] = self.stack[-1]

    def _push(self, value: Any) -> None:
        self.stack.append(value)

    def _last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise ValueError("it takes more values than there are")
        found = self.stack[-count:]
        del self.stack[-count:]
        return found

    def _marked(self) -> list[Any]:
        found, self.stack = self.stack, self.below.pop()
        return found

    def _extend(self, values: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise ValueError("it appends to what is no list")
        self.stack[-1].extend(values)

    def _update(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) not in (dict, OrderedDict) or len(values) % 2:
            raise ValueError("it sets entries of what is no dict")
        _fill(target, zip(values[::2], values[1::2], strict=True))

    def _describe(self, state: Any) -> None:
        target = self.stack[-1]
        if (
            type(target) is not OrderedDict or type(state) is not dict
            or list(state) != ["_metadata"] or not isinstance(state["_metadata"], dict)
        ):  # fmt: skip
            raise ValueError("it sets attributes that no state dict has")
        target._metadata = state["_metadata"]  # type: ignore[attr-defined]
        self.described[id(state["_metadata"])] = state["_metadata"]

    def _reduce(self) -> None:
        maker, arguments = self._last(2)
        lists = arguments if type(arguments) is tuple else ()
        self.copied += sum(len(each) for each in lists if type(each) is list)
        if self.copied > MOST_OPCODES:
            raise ValueError(f"it makes dicts of more than {MOST_OPCODES} entries")
        self._push(_made(maker, arguments))


_ACTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda m, _: None,
    "STOP": lambda m, _: None,
    "MARK": lambda m, _: m._mark(),
    "BINPUT": _Machine._keep,
    "LONG_BINPUT": _Machine._keep,
    "BINGET": lambda m, number: m._push(m.memo[number]),
    "LONG_BINGET": lambda m, number: m._push(m.memo[number]),
    "TUPLE": lambda m, _: m._push(tuple(m._marked())),
    "TUPLE1": lambda m, _: m._push(tuple(m._last(1))),
    "TUPLE2": lambda m, _: m._push(tuple(m._last(2))),
    "TUPLE3": lambda m, _: m._push(tuple(m._last(3))),
    "APPEND": lambda m, _: m._extend(m._last(1)),
    "APPENDS": lambda m, _: m._extend(m._marked()),
    "SETITEM": lambda m, _: m._update(m._last(2)),
    "SETITEMS": lambda m, _: m._update(m._marked()),
    "GLOBAL": lambda m, name: m._push(_named(name)),
    "BINPERSID": lambda m, _: m._push(m.find(m.stack.pop())),
    "REDUCE": lambda m, _: m._reduce(),
    "BUILD": lambda m, _: m._describe(m.stack.pop()),
}


def _named(argument: str) -> Any:
    if argument in _DTYPES:
        return _DTYPES[argument]
    if argument not in _STORAGES and argument not in _MAKERS:
        name = argument.replace(" ", ".")
        raise ValueError(f"it holds {name!r:.120}, which is no plain tensor or value")
    return _Name(argument)


def _made(maker: Any, arguments: Any) -> Any:
    if not isinstance(maker, _Name) or maker.text not in _MAKERS or type(arguments) is not tuple:
        raise ValueError("it calls what cannot be called")
    made = _MAKERS[maker.text](arguments)
    if made is None:
        name = maker.text.replace(" ", ".")
        raise ValueError(f"it calls {name} with other arguments than torch.save writes")
    return made


def _ordered(arguments: tuple[Any, ...]) -> Any:
    """Empty; as Python 2 wrote it, of a list of lists of a key and a value each."""
    made: OrderedDict[Any, Any] = OrderedDict()
    if not arguments:
        return made
    (pairs,) = arguments
    if type(pairs) is not list or any(type(p) is not list or len(p) != _PAIR for p in pairs):
        return None
    _fill(made, pairs)
    return made


def _fill(target: dict[Any, Any], pairs: Iterable[Any]) -> None:
    for key, value in pairs:
        # Python finds a text by a hash that nobody can foresee; others may be chosen so that each
        # one is compared with all before it.
        if type(key) is not str and not (type(key) is int and abs(key) < _MOST_KEY):
            raise ValueError(f"a key of a dict is a {type(key).__name__}, expected text")
        target[key] = value


def _size(arguments: tuple[Any, ...]) -> Any:
    return torch.Size(arguments[0]) if len(arguments) == 1 and _is_shape(arguments[0]) else None


def _device(arguments: tuple[Any, ...]) -> Any:
    form = [type(argument) for argument in arguments]
    return torch.device(*arguments) if form in ([str], [str, int]) else None


def _tensor(arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 6:
        return None
    storage, offset, shape, strides, trained, hooks = arguments
    if (
        not isinstance(storage, _Storage) or not _is_count(offset) or not _is_shape(shape)
        or not _is_shape(strides) or len(shape) != len(strides) or type(trained) is not bool
        or not _is_none(hooks)
    ):  # fmt: skip
        return None
    last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    if all(shape) and (last + 1) * storage.dtype.itemsize > storage.content.numel():
        raise ValueError(f"a tensor of shape {shape} goes beyond its storage")
    memory = storage.content.untyped_storage()
    empty = torch.empty(0, dtype=storage.dtype)
    return empty.set_(memory, offset if all(shape) else 0, shape, strides).requires_grad_(trained)


def _parameter(arguments: tuple[Any, ...]) -> Any:
    if len(arguments) != 3:
        return None
    values, trained, hooks = arguments
    if not isinstance(values, Tensor) or type(trained) is not bool or not _is_none(hooks):
        return None
    return nn.Parameter(values, trained)


def _is_none(hooks: object) -> bool:
    return type(hooks) is OrderedDict and not hooks


def _is_shape(value: object) -> bool:
    return type(value) is tuple and len(value) <= MOST_AXES and all(map(_is_count, value))


def _old_tensor(arguments: tuple[Any, ...]) -> Any:
    return _tensor((*arguments, False, OrderedDict()))


_MAKERS: dict[str, Callable[[tuple[Any, ...]], Any]] = {
    "collections OrderedDict": _ordered,
    "torch Size": _size,
    "torch device": _device,
    "torch._utils _rebuild_tensor": _old_tensor,  # before torch 0.4
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_parameter": _parameter,
}
