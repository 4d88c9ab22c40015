# SPDX-License-Identifier: Apache-2.0
"""What a model computes by, besides its parameters: the code of its layers, and what they keep."""

from __future__ import annotations

import functools
import hashlib
import logging
import secrets
import sys
import weakref
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Set
from enum import Enum
from pathlib import Path
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GenericAlias,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import torch
from torch import nn

from bitwright.base.source import module_key

_DEEPEST = 50  # things inside each other that a layer keeps
_MOST = 1_000_000
_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)
#: Whose classes are the same in each process; of torch's own the version is in the key of results.
_FOREIGN = {"torch", "builtins"}
_MADE_WHILE_RUNNING = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_TOLD_WHOLE = (nn.Module, type, GenericAlias, ModuleType, logging.Logger)
_TOLD_ELSEWHERE = {"training", "_parameters", "_modules"}
_OF_EVERY_CLASS = {
    "__dict__", "__weakref__", "__doc__", "__annotations__", "__abstractmethods__", "_abc_impl",
    "__firstlineno__", "__static_attributes__", "__annotate__", "__annotations_cache__",
}  # fmt: skip


def model_code(model: nn.Module) -> dict[str, str]:
    """Hashes of the code that computes a model, by the modules of its layers' classes."""
    names = {type(part).__module__ for part in model.modules()}
    found = {}
    for name in sorted(name for name in names if name.partition(".")[0] != "torch"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            depth = name.count(".") + (Path(file).stem == "__init__")
            found[name] = module_key(name, (Path(file).resolve().parents[depth],))
    return found


def settings_digest(model: nn.Module) -> str:
    """Hash of what layers keep besides parameters and other layers, whatever it is: numbers, words,
    functions with what they close over, tensors that are no part of the state, objects with what
    these keep; and of their classes, which may have been made with the model. A layer computes by
    them, and need not show them when it is printed.

    Of one digest, one code (`model_code`) and one state are only models that compute the same.
    """
    told = _Told()
    told.each(_layers(model))
    return told.hash.hexdigest()


class _Told:
    """A hash of objects of any kind, each told once, by what it is made of."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # as long as it is, nothing else has its address
        self._depth = 0

    def each(self, *values: Any) -> None:
        """Objects, one after the other."""
        for value in values:
            self._note(f"{type(value).__module__}.{type(value).__qualname__}")
            if type(value) in _PLAIN:
                self._note(value if isinstance(value, bytes) else repr(value))
            elif (number := self._numbers.get(id(value))) is not None:
                self._note(f"number {number}")
            elif self._depth == _DEEPEST or len(self._kept) == _MOST:
                self._note(secrets.token_hex())  # whether it is the same, nobody knows
            else:
                self._numbers[id(value)] = len(self._kept)
                self._kept.append(value)
                self._depth += 1
                if _is_made(type(value)):
                    self.each(type(value))
                self.each(*_parts(value))
                if not isinstance(value, _TOLD_WHOLE):
                    self.each(getattr(value, "__dict__", None), *_in_slots(value))
                self._depth -= 1
                self._note("end")

    def _note(self, text: str | bytes) -> None:
        body = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self.hash.update(len(body).to_bytes(8, "little") + body)


def _layers(model: nn.Module) -> list[Any]:
    """A module with those below it, without parameters, and without whether it trains."""
    found: list[Any] = []
    for path, part in model.named_modules():
        found += [path, type(part)]
        for one in type(part).__mro__:
            if one.__module__.partition(".")[0] not in _FOREIGN:
                found += _of_class(one)
        for name, value in sorted(vars(part).items()):
            if name not in _TOLD_ELSEWHERE:  # hooks are kept by running numbers
                found.append((name, [*value.values()] if name.endswith("_hooks") else value))
    return found


def _of_class(one: type) -> list[tuple[str, Any]]:
    return [(k, v) for k, v in sorted(vars(one).items()) if k not in _OF_EVERY_CLASS]


def _is_made(one: type) -> bool:
    """Whether a class was made by running code, once more maybe with other values, and is not the
    one of its name in a module's file.
    """
    if not one.__flags__ & _MADE_WHILE_RUNNING or one.__module__.partition(".")[0] in _FOREIGN:
        return False
    found: Any = sys.modules.get(one.__module__)
    for part in one.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is not one


def _in_slots(value: Any) -> list[Any]:
    names = [vars(one).get("__slots__", ()) for one in type(value).__mro__]
    each = [name for some in names for name in ([some] if isinstance(some, str) else some)]
    return [(name, getattr(value, name, None)) for name in each if name != "__dict__"]


@functools.singledispatch
def _parts(value: Any) -> Iterable[Any]:
    """What an object is made of, besides its type and what it has by name: what it would be copied
    by. Of what has no copies, nobody knows whether it is the same.
    """
    if isinstance(value, type):
        name = f"{value.__module__}.{value.__qualname__}"
        return [name, value.__bases__, _of_class(value)] if _is_made(value) else [name]
    try:
        found = value.__reduce_ex__(2)
    except Exception:  # whatever a class raises that is not to be copied
        return [secrets.token_hex()]
    parts = [found] if isinstance(found, str) else found
    return [[*part] if isinstance(part, Iterator) else part for part in parts]


@_parts.register
def _(value: weakref.ref) -> Iterable[Any]:  # type: ignore[type-arg]
    return [value()]


@_parts.register(list)
@_parts.register(tuple)
def _(value: Iterable[Any]) -> Iterable[Any]:
    return value


@_parts.register
def _(value: deque) -> Iterable[Any]:  # type: ignore[type-arg]
    return [value.maxlen, *value]


@_parts.register
def _(value: Mapping) -> Iterable[Any]:  # type: ignore[type-arg]  # singledispatch wants a class
    return [*value.keys(), *value.values()]


@_parts.register
def _(value: defaultdict) -> Iterable[Any]:  # type: ignore[type-arg]
    return [value.default_factory, *value.keys(), *value.values()]


@_parts.register
def _(value: logging.Logger) -> Iterable[Any]:
    return [value.name]


@_parts.register
def _(value: Set) -> Iterable[Any]:  # type: ignore[type-arg]
    return sorted(map(_alone, value))


@_parts.register
def _(value: torch.Tensor) -> Iterable[Any]:
    try:
        whole = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        body = whole.reshape(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, NotImplementedError):  # a sparse one, say
        body = repr(value).encode()
    return [str(value.dtype), [*value.shape], body]


@_parts.register
def _(value: np.ndarray) -> Iterable[Any]:
    plain = not value.dtype.hasobject
    return [str(value.dtype), value.shape, value.tobytes() if plain else value.tolist()]


@_parts.register
def _(value: nn.Module) -> Iterable[Any]:
    return [{name: own.detach() for name, own in value.named_parameters()}, *_layers(value)]


@_parts.register
def _(value: Enum) -> Iterable[Any]:
    return [value.name]


@_parts.register
def _(value: FunctionType) -> Iterable[Any]:
    closed = map(_content, value.__closure__ or ())
    named = [value.__module__, value.__qualname__, value.__code__]
    return [*named, value.__defaults__, value.__kwdefaults__, *closed]


@_parts.register
def _(value: CodeType) -> Iterable[Any]:  # its lines are nothing that it computes by
    return [value.co_code, value.co_names, value.co_freevars, value.co_consts]


@_parts.register
def _(value: MethodType) -> Iterable[Any]:
    return [value.__func__, value.__self__]


@_parts.register
def _(value: BuiltinFunctionType) -> Iterable[Any]:
    return [value.__module__, value.__qualname__, value.__self__]


@_parts.register
def _(value: GenericAlias) -> Iterable[Any]:  # as `list[int]`
    return [value.__origin__, value.__args__]


@_parts.register
def _(value: ModuleType) -> Iterable[Any]:
    made = sys.modules.get(value.__name__) is not value
    return [value.__name__, secrets.token_hex() if made else None]


@_parts.register(staticmethod)
@_parts.register(classmethod)
def _(value: Any) -> Iterable[Any]:
    return [value.__func__]


@_parts.register
def _(value: property) -> Iterable[Any]:
    return [value.fget, value.fset]


@_parts.register
def _(value: functools.partial) -> Iterable[Any]:  # type: ignore[type-arg]
    return [value.func, value.args, value.keywords]


def _alone(value: Any) -> str:
    told = _Told()
    told.each(value)
    return told.hash.hexdigest()


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None
