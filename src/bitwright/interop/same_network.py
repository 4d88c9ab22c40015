# SPDX-License-Identifier: Apache-2.0
"""Whether two `Network`s compute the same, by what they are, not by what comes out of them.

Outputs that agree on some images say little of a file that somebody else has written: its numbers
may be such that rounding or saturation hides all the rest. So both networks are brought into one
form, in which all the ways in which a format may write one thing are one (zeros around an image as
a layer or as the padding behind it, a norm with its factors or with a scale behind it), and the
forms are compared: operations and wiring by ``==``, arrays bit for bit (but -0 is 0), settings such
as epsilon as float32, in which some formats keep them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from bitwright.base.errors import MismatchError
from bitwright.interop import ops
from bitwright.interop.network import InputConvention, Layer, Network
from bitwright.interop.ops import FloatArray, Four, Pair, Size

_NEVER_NEGATIVE = ("relu", "relu6", "sigmoid", "softmax")


@dataclass(frozen=True)
class _Term:
    """What a value is: an operation in its only form, of other values by their numbers."""

    kind: str
    settings: tuple[Hashable, ...]
    inputs: tuple[int, ...] = ()


def require_same(wanted: Network, found: Network, where: str) -> None:
    """Refuse a network that is another one.

    Args:
        where: the file of `found`.

    Raises:
        MismatchError: it computes something else, or is to be fed something else.
    """
    terms = _Terms()
    expected, made = terms.of(wanted), terms.of(found)
    if expected[wanted.output] != made[found.output]:
        known = set(expected.values())
        strange = (layer.name for layer in found.layers if made[layer.name] not in known)
        name = next(strange, found.output)
        raise MismatchError(
            f"layer {name!r} computes what no layer of the network that was written does: "
            f"{found[name].op}",
            where=where,
            hint="this is a bug of the export; please report it with the network",
        )
    if _rounded(wanted.convention) != _rounded(found.convention):
        raise MismatchError(
            f"is fed {found.convention}, what was written {wanted.convention}", where=where
        )


def _rounded(convention: InputConvention) -> tuple[Hashable, ...]:
    numbers = (convention.scale, *convention.mean)
    return (convention.channel_order, *map(_single, numbers))


def _single(value: float) -> float:
    with np.errstate(over="ignore"):  # one that no format can say is infinite in each
        return float(np.float32(value))


class _Terms:
    """All values of several networks, each once; its number is its place."""

    def __init__(self) -> None:
        self._terms: list[_Term] = []
        self._never_negative: list[bool] = []
        self._numbers: dict[_Term, int] = {}

    def of(self, network: Network) -> dict[str, int]:
        """The number of what each layer computes."""
        found: dict[str, int] = {}
        for layer in network.layers:
            inputs = [found[name] for name in layer.inputs]
            shapes = [network.shapes[name] for name in layer.inputs]
            found[layer.name] = self._layer(layer, inputs, shapes, network.shapes[layer.name])
        return found

    def _layer(  # noqa: PLR0911, PLR0912 - one rule each
        self, layer: Layer, inputs: list[int], shapes: list[Size], made: Size
    ) -> int:
        op, arrays = layer.op, layer.arrays
        match op:
            case ops.Input(shape):
                return self._new("input", (shape,))
            case ops.Add():
                return self._new("add", (), inputs)
            case ops.Concat():
                return inputs[0] if len(inputs) == 1 else self._new("concat", (), inputs)
        (x,), (given,) = inputs, shapes
        match op:
            case ops.Conv():
                return self._conv(layer, op, x, given)
            case ops.Dense():
                return self._new("dense", (_bits(arrays["weight"]), _offset(arrays, "bias")), [x])
            case ops.Norm(eps):
                moments = (_single(eps), _bits(arrays["mean"]), _bits(arrays["variance"]))
                return self._scale(self._new("norm", moments, [x]), arrays)
            case ops.Scale():
                return self._scale(x, arrays)
            case ops.Activation(function, slope):
                return self._new("activation", (function, _single(slope)), [x])
            case ops.Clip(low, high):
                return self._new("clip", (_single(low), _single(high)), [x])
            case ops.Pool():
                return self._pool(op, x, made)
            case ops.GlobalPool(mode):
                return self._new("global pool", (mode,), [x])
            case ops.Pad(amounts):
                return self._pad(x, amounts)
            case ops.Flatten():
                return x if len(given) == 1 else self._new("flatten", (), [x])
            case ops.Dropout(share):
                return self._new("dropout", (_single(share),), [x])
        raise AssertionError(f"no rule for {op}")

    def _new(self, kind: str, settings: tuple[Hashable, ...], inputs: Sequence[int] = ()) -> int:
        term = _Term(kind, settings, tuple(inputs))
        if term not in self._numbers:
            self._numbers[term] = len(self._terms)
            self._terms.append(term)
            self._never_negative.append(self._is_never_negative(term))
        return self._numbers[term]

    def _is_never_negative(self, term: _Term) -> bool:
        match term.kind:
            case "activation":
                return term.settings[0] in _NEVER_NEGATIVE and term.settings[1] == 0
            case "pool" | "global pool" | "pad" | "concat" | "dropout":
                return all(self._never_negative[number] for number in term.inputs)
        return False

    def _conv(self, layer: Layer, op: ops.Conv, x: int, given: Size) -> int:
        """A convolution without padding behind zeros; one of single pixels is a scale."""
        weight, bias = layer.arrays["weight"], layer.arrays.get("bias")
        each = (given[0], 1, 1, 1)
        if op.groups == given[0] and weight.shape == each and op.stride == (1, 1):
            factors = {"gamma": weight.ravel()} | ({} if bias is None else {"beta": bias})
            return self._scale(self._pad(x, (*op.padding, *op.padding)), factors)
        numbers = (_bits(weight), _offset(layer.arrays, "bias"))
        padded = self._pad(x, (*op.padding, *op.padding))
        return self._new("conv", (op.stride, op.dilation, op.groups, *numbers), [padded])

    def _scale(self, x: int, arrays: Any) -> int:
        """Factors and offsets a channel, unless they are ones and zeros."""
        offset, gamma = _offset(arrays, "beta"), arrays.get("gamma")
        if gamma is not None and (gamma != 1).any():
            return self._new("scale", (_bits(gamma), offset), [x])
        return x if offset is None else self._new("scale", (None, offset), [x])

    def _pool(self, op: ops.Pool, x: int, made: Size) -> int:
        """How many windows there are says all about rounding. A pool that sees its padding as zeros
        stands behind them: a mean that counts it, a maximum of what is never below.
        """
        padding, counts = op.padding, True
        if op.mode == "mean":
            counts = op.count_padding or padding == (0, 0)
        if counts and (op.mode == "mean" or self._never_negative[x]):
            x, padding = self._pad(x, (*padding, *padding)), (0, 0)
        return self._windows(op.mode, (op.kernel, op.stride, padding, counts), made[1:], x)

    def _windows(self, mode: str, sizes: tuple[Hashable, ...], made: Size, x: int) -> int:
        return self._new("pool", (mode, sizes, made), [x])

    def _pad(self, x: int, amounts: Four) -> int:
        """Zeros around, or what is cut off (below 0): at once what is done in several steps, and
        what is cut off behind a pool is fewer windows.
        """
        if not any(amounts):
            return x
        front = self._terms[x]
        top, left, bottom, right = amounts
        if front.kind == "pad":
            before: Any = front.settings[0]
            joined = [*zip(before, amounts, strict=True)]
            if not any(a < 0 < b for a, b in joined):  # what was cut off does not come back
                one, two, three, four = (a + b for a, b in joined)
                return self._pad(front.inputs[0], (one, two, three, four))
        if front.kind == "pool" and (top, left) == (0, 0) and max(bottom, right) <= 0:
            mode, sizes, sides = front.settings
            less: Pair = (sides[0] + bottom, sides[1] + right)  # type: ignore[index]
            return self._windows(str(mode), sizes, less, front.inputs[0])  # type: ignore[arg-type]
        return self._new("pad", (amounts,), [x])


def _bits(values: FloatArray) -> tuple[Size, bytes]:
    """Shape and digest of an array's numbers, whatever its type of float."""
    exact = np.ascontiguousarray(values, np.float64) + 0.0  # -0 + 0 = 0
    return values.shape, sha256(exact.tobytes()).digest()


def _offset(arrays: Any, name: str) -> tuple[Size, bytes] | None:
    """The digest of offsets; None for none, and for zeros."""
    values = arrays.get(name)
    return None if values is None or not values.any() else _bits(values)
