# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on constants as ONNX has it: results keep the type of the operands, integers wrap.

What the standard leaves open (what does not fit into a type, a division by zero) is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.onnx.reader.values import Array

#: What to do about it.
UNDEFINED = "the standard does not say what becomes of them; use a wider type, or other numbers"
_SINGLE = 4  # bytes


def _is_integer(dtype: np.dtype[Any]) -> bool:
    """Of whole numbers of more than 4 bits; the smaller ones only move and are cast."""
    return np.issubdtype(dtype, np.integer)


def _no_zero(node: OnnxNode, b: Array) -> None:
    if not np.all(b):
        raise node.error("divides integers by zero", UNDEFINED)


def divide(node: OnnxNode, a: Array, b: Array) -> Array:
    """Of integers the exact quotient, rounded towards zero.

    Raises:
        ModelError: integers by zero, or a quotient that does not fit; names the node.
    """
    if not _is_integer(a.dtype):
        return np.asarray(a / b)
    _no_zero(node, b)
    if np.issubdtype(a.dtype, np.signedinteger):
        if ((a == np.iinfo(a.dtype).min) & (b == -1)).any():
            raise node.error(
                "divides the least integer of its type by -1, which does not fit", UNDEFINED
            )
    down = np.floor_divide(a, b)
    return np.asarray(down + ((down * b != a) & ((a < 0) != (b < 0))).astype(a.dtype))


def modulo(node: OnnxNode, a: Array, b: Array) -> Array:
    """The remainder with the sign of the divisor, or (fmod) of the dividend.

    Raises:
        ModelError: integers by zero, or of reals without fmod; names the node.
    """
    like_c = bool(node.integer("fmod", 0))
    if _is_integer(a.dtype):
        _no_zero(node, b)
    elif not like_c:
        raise node.error("takes the remainder of reals without fmod=1", UNDEFINED)
    return np.asarray(np.fmod(a, b) if like_c else np.mod(a, b))


def ends_of_type(kind: np.dtype[Any]) -> tuple[int, int]:
    """Least and largest number of an integer type."""
    if _is_integer(kind):
        return int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    from ml_dtypes import iinfo

    return int(iinfo(kind).min), int(iinfo(kind).max)


def _fits(node: OnnxNode, numbers: Array, kind: np.dtype[Any]) -> Array:
    """Whole numbers in float64 as an integer type; ONNX does not say what others become."""
    least, most = ends_of_type(kind)
    if not ((numbers >= float(least)) & (numbers < float(most + 1))).all():
        raise node.error(f"makes numbers that {kind} does not hold", UNDEFINED)
    wide = np.uint64 if most > np.iinfo(np.int64).max else np.int64
    return numbers.astype(wide).astype(kind)


def power(node: OnnxNode, a: Array, b: Array) -> Array:
    """Of the base's type. Integers are exact, or refused.

    Raises:
        ModelError: an integer that does not fit; names the node.
    """
    if not _is_integer(a.dtype):
        if _is_integer(b.dtype):
            b = b.astype(np.float64)
        return np.asarray(np.power(a, b)).astype(a.dtype)
    reals = np.trunc(np.power(a.astype(np.float64), b.astype(np.float64)))
    rounded = _fits(node, reals, a.dtype)
    if not _is_integer(b.dtype):
        return rounded
    wide = np.uint64 if a.dtype == np.uint64 else np.int64
    return np.power(a.astype(wide), b.astype(wide)).astype(a.dtype)


#: TensorProto's numbers of types that are neither whole nor real: none, text, complex, powers of 2.
_NO_NUMBERS = (0, 8, 14, 15, 24)


def cast_type(node: OnnxNode) -> np.dtype[Any]:
    """The numeric type that a Cast makes.

    Raises:
        ModelError: it is none of whole or real numbers.
    """
    from onnx import TensorProto, helper

    kind = node.integer("to", TensorProto.FLOAT)
    if kind not in TensorProto.DataType.values() or kind in _NO_NUMBERS:
        raise node.error(f"casts to the unsupported type {kind}")
    return helper.tensor_dtype_to_np_dtype(kind)


def is_whole_type(dtype: np.dtype[Any]) -> bool:
    """Of integers of any width."""
    return str(dtype).lstrip("u").startswith("int")


def cast(node: OnnxNode, x: Array) -> Array:
    """Whole numbers keep their lowest bits, reals lose their fraction, and must then fit.

    Raises:
        ModelError: a type of no numbers, or a real that does not fit; names the node.
    """
    kind = cast_type(node)
    if is_whole_type(kind):
        if is_whole_type(x.dtype) or x.dtype == np.bool_:
            return _lowest_bits(x, kind)
        return _fits(node, np.trunc(x.astype(np.float64)), kind)
    if str(kind).startswith("float8") and node.integer("saturate", 1):
        from ml_dtypes import finfo

        x = np.clip(x.astype(np.float64), float(finfo(kind).min), float(finfo(kind).max))
    return x.astype(kind)


def _lowest_bits(x: Array, kind: np.dtype[Any]) -> Array:
    if _is_integer(kind):
        return x.astype(kind)
    least, most = ends_of_type(kind)
    low = x.astype(np.int64) & (most - least)
    return np.where(low > most, low - (most - least + 1), low).astype(kind)


def folded_together(function: Callable[..., Any]) -> Callable[..., Array]:
    """An operator of two as one of any number of operands."""
    return lambda node, *operands: np.asarray(reduce(function, operands))


def axes_of(node: OnnxNode, given: Array | None, rank: int) -> tuple[int, ...]:
    """Axes from an input (newer operator sets) or an attribute, as 0 .. rank - 1.

    Raises:
        ModelError: an axis that is none; names the node.
    """
    said = node.ints("axes", ()) if given is None else tuple(int(v) for v in np.ravel(given))
    return tuple(axis_of(node, axis, rank) for axis in said)


def axis_of(node: OnnxNode, axis: int, rank: int) -> int:
    """An axis, counted from the front.

    Raises:
        ModelError: it is none; names the node.
    """
    if not -rank <= axis < rank:
        raise node.error(f"axis {axis} is outside of rank {rank}")
    return axis % rank


def reduction(function: Callable[..., Any], *, adds: bool = False) -> Callable[..., Array]:
    """A reduction by numpy's function; one that adds or multiplies may leave the type."""

    def run(node: OnnxNode, x: Array, given: Array | None = None) -> Array:
        axes = axes_of(node, given, x.ndim)
        if not axes and node.integer("noop_with_empty_axes", 0):
            return x
        held = {"axis": axes or None, "keepdims": bool(node.integer("keepdims", 1))}
        if not adds:
            return np.asarray(function(x, **held))
        if not _is_integer(x.dtype):
            # Sums of 16-bit reals are kept in 32 bits, as everybody does.
            wide = np.float32 if x.dtype.itemsize < _SINGLE else x.dtype
            return np.asarray(function(x, **held, dtype=wide)).astype(x.dtype)
        found = np.asarray(function(x, **held, dtype=x.dtype))
        reals = np.asarray(function(x, **held, dtype=np.float64))
        # What does not fit is off by a multiple of 2^bits, which no rounding is. ONNX's reference
        # wraps there, ONNX Runtime saturates: the file has no meaning.
        if not (np.abs(reals - found) < 2.0 ** (8 * x.dtype.itemsize - 1)).all():
            raise node.error(f"makes numbers that {x.dtype} does not hold", UNDEFINED)
        return found

    return run


def mean(node: OnnxNode, x: Array, given: Array | None = None) -> Array:
    """Of integers the sum, divided as integers are.

    Raises:
        ModelError: an axis that is none, or a sum that does not fit; names the node.
    """
    if not _is_integer(x.dtype):
        return reduction(np.mean, adds=True)(node, x, given)
    total = reduction(np.sum, adds=True)(node, x, given)
    return divide(node, total, np.asarray(x.size // max(total.size, 1), x.dtype))
