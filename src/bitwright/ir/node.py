# SPDX-License-Identifier: Apache-2.0
"""One operation of a graph: edges, attributes, integer parameters; two equal ones hash equally."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError
from bitwright.ir.known import Known

Attr = int | float | str | bool | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]
IntArray = NDArray[np.int64]
T = TypeVar("T")
_DIGESTS: Known[str] = Known()

_PIECE = 1 << 20


def array_digest(array: IntArray) -> str:
    """Content hash of a parameter: shape and values."""
    digest = hashlib.sha256(repr(array.shape).encode())
    flat = np.ascontiguousarray(array).reshape(-1)
    for start in range(0, flat.size, _PIECE):  # in int64 the whole is up to 8 times as large
        digest.update(flat[start : start + _PIECE].astype("<i8").tobytes())
    return digest.hexdigest()


def frozen(array: IntArray) -> IntArray:
    """A read-only copy; what is one already is shared, however many nodes have it."""
    whole = isinstance(array, np.ndarray) and array.dtype == np.int64 and array.flags.owndata
    if whole and not array.flags.writeable:
        return array
    copy = np.array(array, dtype=np.int64)
    copy.setflags(write=False)
    return copy


@dataclass(frozen=True, eq=False)
class Node:
    """One operation.

    Attributes:
        name: unique in the graph.
        op: a name in the dialect's table.
        inputs, outputs: names of edges.
        attrs: small values, checked against the dialect's table.
        params: integer arrays (weights, thresholds), read-only int64.
        source: path of the user's layer that this node came from, or "".
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    params: Mapping[str, IntArray] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))
        params = {name: frozen(value) for name, value in self.params.items()}
        object.__setattr__(self, "params", MappingProxyType(params))

    @property
    def output(self) -> str:
        """The only output edge."""
        (name,) = self.outputs
        return name

    def ints(self, attr: str) -> tuple[int, ...]:
        """An attribute that is a tuple of integers."""
        return tuple(int(v) for v in self._value(attr, tuple, "a tuple"))

    def floats(self, attr: str) -> tuple[float, ...]:
        """An attribute that is a tuple of reals."""
        return tuple(float(v) for v in self._value(attr, tuple, "a tuple"))

    def integer(self, attr: str) -> int:
        """An attribute that is one integer."""
        return self._value(attr, int, "an integer")

    def string(self, attr: str) -> str:
        """An attribute that is a string."""
        return self._value(attr, str, "a string")

    def _value(self, attr: str, kind: type[T], wanted: str) -> T:
        value = self.attrs[attr]
        if not isinstance(value, kind):
            raise GraphError(f"attribute {attr} must be {wanted}, got {value!r}", where=self.name)
        return value

    @cached_property
    def digests(self) -> dict[str, str]:
        """Content hash of every parameter."""
        return {
            name: _DIGESTS.of(value, None, partial(array_digest, value))
            for name, value in sorted(self.params.items())
        }

    def key(self) -> tuple[object, ...]:
        """Everything that makes two nodes equal."""
        return (
            self.name,
            self.op,
            self.inputs,
            self.outputs,
            tuple(sorted(self.attrs.items(), key=lambda item: item[0])),
            tuple(self.digests.items()),
            self.source,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())
