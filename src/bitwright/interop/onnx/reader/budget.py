# SPDX-License-Identifier: Apache-2.0
"""What an import may hold in memory: a file of 200 bytes can ask for constants without end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from bitwright.interop.onnx.reader.model import OnnxModel, OnnxNode
from bitwright.interop.onnx.reader.values import Array, Const, Value

#: Bytes of constants in any case, and for each byte that the file brings: an int8 weight becomes a
#: float32 value, an int64 level and a float64 scale.
_SPARE, _EACH = 256 << 20, 32
#: Bytes of arrays that say where each element lies: one of an image of 4096 x 2160 with 3 channels
#: takes a quarter.
_PLACES = 768 << 20
_MIB = 1 << 20


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

    def require(self, node: OnnxNode, size: int) -> None:
        """Make sure that there is room, before something is made.

        Raises:
            ModelError: so many bytes more are too many; names the node.
        """
        needed = self.held + size
        if needed > self.most:
            raise node.error(
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
        inner = (v for node in model.nodes for v in node.attrs.values())
        brought = [*model.constants.values(), *(v for v in inner if isinstance(v, np.ndarray))]
        self.constants = Budget("constants", _SPARE + _EACH * sum(a.nbytes for a in brought))
        self._places = Budget("places of elements", _PLACES)
        self._known: dict[str, Value | Const] = {}
        self._readers = Counter(name for node in needed for name in {*node.inputs})
        self._readers.update(output.name for output in model.outputs)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def __getitem__(self, name: str) -> Value | Const:
        return self._known[name]

    def get(self, name: str) -> Value | Const | None:
        """What a tensor is, None if it is not known."""
        return self._known.get(name)

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


def _owner(array: Array) -> Array:
    """The array whose memory a view shows."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
