# SPDX-License-Identifier: Apache-2.0
"""What an import may hold in memory and compute: 200 bytes can ask for constants without end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.interop.onnx.reader.model import OnnxModel, OnnxNode
from bitwright.interop.onnx.reader.values import Array, Const, Value

#: Bytes of constants in any case, and for each byte that the file brings: an int4 weight becomes a
#: float32 value, an int64 level and a float64 scale.
_SPARE, _EACH = 256 << 20, 48
#: Work in any case, and for each byte that the file brings beyond 10 MB. DenseNet-201 with 8 bits
#: (20 MB) needs 12 thousand million: thresholds grow with the channels.
_WORK, _WORK_EACH, _SMALL = 8_000_000_000, 12_000, 10_000_000
#: Bytes of arrays that say where each element lies: one of an image of 4096 x 2160 with 3 channels
#: takes a quarter.
_PLACES = 768 << 20
_MIB = 1 << 20


class Complainer(Protocol):
    """A node or a tensor, which errors name."""

    def error(self, message: str, hint: str | None = None) -> ModelError:
        """A complaint about it."""


@dataclass
class Work:
    """What an import computes, summed over all of its nodes.

    The unit is an operation on one element of an array, about a nanosecond.

    Attributes:
        most: that may be done.
        done: by now.
    """

    most: int
    done: int = 0

    @classmethod
    def on(cls, size: int) -> Work:
        """What may be done for a file of so many bytes."""
        return cls(_WORK + _WORK_EACH * max(size - _SMALL, 0))

    def spend(self, who: Complainer, count: int) -> None:
        """Count what is done next.

        Raises:
            ModelError: it is too much; names the node.
        """
        self.done += count
        if self.done > self.most:
            raise who.error(
                f"{self.done / 1e9:.1f} thousand million operations on elements up to here; for a "
                f"file of this size at most {self.most / 1e9:.1f} thousand million are done",
                "remove nodes that repeat each other, or split the network",
            )


@dataclass
class Budget:
    """Bytes of the arrays that are held at a time; what several tensors share counts once.

    Attributes:
        what: is held, for messages.
        most: of bytes.
        held: by now.
    """

    what: str
    most: int
    held: int = 0
    _users: Counter[int] = field(default_factory=Counter)

    def require(self, who: Complainer, size: int) -> None:
        """Make sure that there is room, before something is made.

        Raises:
            ModelError: so many bytes more are too many; names what makes them.
        """
        needed = self.held + size
        if needed > self.most:
            raise who.error(
                f"{needed / _MIB:.0f} MiB of {self.what} with what it makes; for a file of this "
                f"size at most {self.most / _MIB:.0f} MiB are kept",
                "store what it makes in the file, or remove the nodes that repeat and widen it",
            )

    def take(self, arrays: list[Array]) -> None:
        """Arrays of a tensor that is kept."""
        for owner in map(_owner, arrays):
            self.held += 0 if self._users[id(owner)] else owner.nbytes
            self._users[id(owner)] += 1

    def drop(self, arrays: list[Array]) -> None:
        """Arrays of a tensor that was kept and that nothing reads any more."""
        for owner in map(_owner, arrays):
            self._users[id(owner)] -= 1
            if not self._users[id(owner)]:
                del self._users[id(owner)]
                self.held -= owner.nbytes


class Tensors:
    """What each ONNX tensor is by now, until the last node has read it.

    Args:
        model: the file.
        needed: its nodes that are converted, each of which is `read` in the end.
    """

    def __init__(self, model: OnnxModel, needed: Iterable[OnnxNode]) -> None:
        self._stored = model.constants
        self.constants = Budget("constants", _SPARE + _EACH * model.size)
        self._places = Budget("places of elements", _PLACES)
        self._known: dict[str, Value | Const] = {}
        self._readers = Counter(name for node in needed for name in {*node.inputs})
        self._readers.update(output.name for output in model.outputs)

    def __contains__(self, name: str) -> bool:
        return name in self._known or name in self._stored

    def __getitem__(self, name: str) -> Value | Const:
        """What a tensor is; constants of the file are decoded when they are read first.

        Raises:
            DataError: it cannot be decoded.
            ModelError: too much would be held.
        """
        if name not in self._known:
            stored = self._stored[name]
            self.constants.require(stored, stored.nbytes)
            self.keep(name, Const(stored.read()))
        return self._known[name]

    def get(self, name: str) -> Value | Const | None:
        """What a tensor is, None if it is not known."""
        return self[name] if name in self else None

    def keep(self, name: str, tensor: Value | Const, node: OnnxNode | None = None) -> None:
        """Note what a tensor is.

        Raises:
            ModelError: too much would be held; names the node that makes it.
        """
        self._forget(name)
        self._known[name] = tensor
        budget, arrays = self._held(tensor)
        budget.take(arrays)
        if node is not None:
            budget.require(node, 0)

    def read(self, node: OnnxNode) -> None:
        """A node is done: what nothing else reads is let go."""
        for name in {*node.inputs}:
            self._readers[name] -= 1
            if not self._readers[name]:
                self._forget(name)

    def _forget(self, name: str) -> None:
        tensor = self._known.pop(name, None)
        if tensor is not None:
            budget, arrays = self._held(tensor)
            budget.drop(arrays)

    def _held(self, tensor: Value | Const) -> tuple[Budget, list[Array]]:
        """The memory of a tensor, and what it counts as."""
        if isinstance(tensor, Const):
            parts = (tensor.value, tensor.levels, tensor.scale)
            return self.constants, [part for part in parts if part is not None]
        return self._places, [] if tensor.order is None else [tensor.order]


def written_out(tensor: Value | Const) -> int:
    """Elements of a tensor that are in memory, one by one."""
    if isinstance(tensor, Const):
        return tensor.value.size
    return 0 if tensor.order is None else tensor.order.size


def _owner(array: Array) -> Array:
    """The array whose memory a view shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
