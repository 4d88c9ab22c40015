# SPDX-License-Identifier: Apache-2.0
"""Constant folding: nodes all of whose inputs are constants, in numpy, with sizes under control."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from bitwright.interop.onnx.reader.levels import whole_numbers
from bitwright.interop.onnx.reader.model import MAX_ELEMENTS, OnnxNode
from bitwright.interop.onnx.reader.values import Array, Const


def _axes(
    node: OnnxNode, inputs: list[Array], at: int, default: tuple[int, ...]
) -> tuple[int, ...]:
    """Axes from an input (newer operator sets) or an attribute."""
    if len(inputs) > at:
        return tuple(int(v) for v in inputs[at].ravel())
    return node.ints("axes", default)


def _sized(node: OnnxNode, shape: Any) -> tuple[int, ...]:
    """A shape given by data, refused if it is too large."""
    dims = tuple(int(d) for d in np.asarray(shape).ravel())
    if any(d < 0 for d in dims) or prod(max(d, 1) for d in dims) > MAX_ELEMENTS:
        raise node.error(f"impossible shape {dims}")
    return dims


def target_shape(node: OnnxNode, source: tuple[int, ...], target: Any) -> tuple[int, ...]:
    """The shape that a Reshape asks for, with 0 and -1 resolved.

    Raises:
        ModelError: the number of elements does not fit.
    """
    wanted = [int(v) for v in np.asarray(target).ravel()]
    copies = not node.integer("allowzero", 0)
    for index, dim in enumerate(wanted):
        if dim == 0 and copies and index < len(source):
            wanted[index] = source[index]
    total = prod(source)
    if wanted.count(-1) == 1:
        rest = prod(d for d in wanted if d != -1)
        if rest > 0 and total % rest == 0:
            wanted[wanted.index(-1)] = total // rest
    if any(d < 0 for d in wanted) or prod(wanted) != total or len(wanted) > 8:
        raise node.error(f"cannot reshape {source} into {[int(v) for v in np.ravel(target)]}")
    return tuple(wanted)


def _divide(a: Array, b: Array) -> Array:
    if np.issubdtype(a.dtype, np.integer):
        return np.asarray(np.trunc(a / b)).astype(a.dtype)
    return np.asarray(a / b)


def cast(node: OnnxNode, x: Array) -> Array:
    """Cast, to the numeric types of numpy only."""
    from onnx import TensorProto, helper

    kind = node.integer("to", 1)
    if kind not in TensorProto.DataType.values() or kind in (0, 8):
        raise node.error(f"casts to the unsupported type {kind}")
    return x.astype(helper.tensor_dtype_to_np_dtype(kind))


def constant(node: OnnxNode) -> Array:
    """The value of a Constant node."""
    for name, dtype in (
        ("value", None),
        ("value_float", np.float32),
        ("value_int", np.int64),
        ("value_floats", np.float32),
        ("value_ints", np.int64),
    ):
        if name in node.attrs:
            return np.asarray(node.attrs[name], dtype)
    raise node.error("holds no number")


def _constant_of_shape(node: OnnxNode, shape: Array) -> Array:
    value = node.attrs.get("value", np.zeros(1, np.float32))
    return np.full(_sized(node, shape), np.ravel(value)[0], np.asarray(value).dtype)


def _slice(node: OnnxNode, x: Array, *rest: Array) -> Array:
    if rest:
        starts, ends = (np.ravel(v).tolist() for v in rest[:2])
        axes = np.ravel(rest[2]).tolist() if len(rest) > 2 else list(range(len(starts)))
        steps = np.ravel(rest[3]).tolist() if len(rest) > 3 else [1] * len(starts)
    else:
        starts, ends = list(node.ints("starts", ())), list(node.ints("ends", ()))
        axes, steps = list(node.ints("axes", tuple(range(len(starts))))), [1] * len(starts)
    cuts: list[slice] = [slice(None)] * x.ndim
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        cuts[axis] = slice(start, None if step < 0 and end < -x.shape[axis] else end, step)
    return x[tuple(cuts)]


def unsqueezed(node: OnnxNode, x: Array, axes: tuple[int, ...]) -> Array:
    """New axes of 1, counted in the result."""
    rank = x.ndim + len(axes)
    places = sorted(a % rank for a in axes)
    if len(set(places)) != len(axes) or rank > 8:
        raise node.error(f"cannot add axes {axes} to rank {x.ndim}")
    for place in places:
        x = np.expand_dims(x, place)
    return x


def squeezed(node: OnnxNode, x: Array, axes: tuple[int, ...]) -> Array:
    """Without some axes of 1; all of them if none is named."""
    places = tuple(a % max(x.ndim, 1) for a in axes) if axes else None
    return np.squeeze(x, places)


def _range(node: OnnxNode, start: Array, stop: Array, step: Array) -> Array:
    count = (stop - start) / step
    _sized(node, np.ceil(np.maximum(np.nan_to_num(count, nan=-1), 0)))
    return np.arange(start.item(), stop.item(), step.item(), dtype=start.dtype)


def _expand(node: OnnxNode, x: Array, shape: Array) -> Array:
    dims = _sized(node, shape)
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, dims)).copy()


def _tile(node: OnnxNode, x: Array, repeats: Array) -> Array:
    _sized(node, np.asarray(x.shape) * np.ravel(repeats))
    return np.tile(x, _sized(node, repeats))


def _concat(node: OnnxNode, *parts: Array) -> Array:
    return np.concatenate(parts, axis=node.integer("axis", 0))


def _reduce(function: Callable[..., Any]) -> Callable[..., Array]:
    def run(node: OnnxNode, *inputs: Array) -> Array:
        axes = _axes(node, list(inputs), 1, ()) or None
        return np.asarray(
            function(inputs[0], axis=axes, keepdims=bool(node.integer("keepdims", 1)))
        )

    return run


def _plain(function: Callable[..., Any]) -> Callable[..., Array]:
    return lambda node, *inputs: np.asarray(function(*inputs))


#: Operators that numpy knows by the same name, in lower case.
_NUMPY = "Sqrt Reciprocal Exp Log Sign Floor Ceil Equal Less Greater Where Mod Add".split()

_FOLD: dict[str, Callable[..., Array]] = {
    **{name: _plain(getattr(np, name.lower())) for name in _NUMPY},
    "Abs": _plain(np.abs),
    "Sub": _plain(np.subtract),
    "Mul": _plain(np.multiply),
    "Div": _plain(_divide),
    "Pow": _plain(lambda a, b: np.power(a, b).astype(a.dtype)),
    "Neg": _plain(np.negative),
    "Round": _plain(np.rint),
    "Min": _plain(lambda *a: np.minimum.reduce(a)),
    "Max": _plain(lambda *a: np.maximum.reduce(a)),
    "Relu": _plain(lambda a: np.maximum(a, 0)),
    "Not": _plain(np.logical_not),
    "Identity": _plain(lambda a: a),
    "Shape": lambda node, x: np.asarray(x.shape, np.int64)[
        node.attrs.get("start", 0) : node.attrs.get("end")
    ],
    "Size": _plain(lambda a: np.asarray(a.size, np.int64)),
    "Cast": cast,
    "Gather": lambda node, x, index: np.take(x, whole_numbers(index), node.integer("axis", 0)),
    "Slice": _slice,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Expand": _expand,
    "Tile": _tile,
    **{
        f"Reduce{name}": _reduce(getattr(np, name.lower()))
        for name in ("Prod", "Sum", "Mean", "Max", "Min")
    },
}

#: Rearrangements, which keep the integers of a quantized weight.
_MOVES: dict[str, Callable[..., Array]] = {
    "Reshape": lambda node, x, shape: x.reshape(target_shape(node, x.shape, shape)),
    "Transpose": lambda node, x: np.transpose(x, node.attrs.get("perm")),
    "Flatten": lambda node, x: x.reshape(prod(x.shape[: node.integer("axis", 1)]), -1),
    "Squeeze": lambda node, x, *axes: squeezed(node, x, _axes(node, [x, *axes], 1, ())),
    "Unsqueeze": lambda node, x, *axes: unsqueezed(node, x, _axes(node, [x, *axes], 1, ())),
    "Identity": lambda node, x: x,
    "Dropout": lambda node, x, *rest: x,
}


def foldable(node: OnnxNode) -> bool:
    """Whether a node of constants can be evaluated."""
    return node.domain in ("", "ai.onnx") and (node.op in _FOLD or node.op in _MOVES)


#: Bytes of an element that is folded, and of one that a quantizer reads: value, level and scale.
_FOLDED, _QUANTIZED = 8, 24


def size_of_result(node: OnnxNode, inputs: list[Const]) -> int:
    """Bytes of what a node makes of constants at most, without making it.

    Raises:
        ModelError: impossible shapes; names the node.
    """
    arrays = [c.value for c in inputs]
    try:
        count = _SIZES.get(node.op, _broadcast_size)(node, *arrays)
    except (ValueError, IndexError, TypeError, KeyError, OverflowError, AttributeError) as error:
        raise node.error(f"cannot be evaluated: {error}") from error
    return count * (_FOLDED if foldable(node) else _QUANTIZED)


def _broadcast_size(_: OnnxNode, *arrays: Array) -> int:
    """Of operators element by element; of the others the largest input: they make nothing larger.

    Shapes that do not broadcast are either refused by the operator, or no operands to each other.
    """
    try:
        return prod(np.broadcast_shapes(*(a.shape for a in arrays)))
    except ValueError:
        return max((a.size for a in arrays), default=0)


def _gathered(node: OnnxNode, x: Array, index: Array) -> int:
    return x.size // max(x.shape[node.integer("axis", 0)], 1) * index.size


def _given(node: OnnxNode, shape: Array) -> int:
    return prod(_sized(node, shape))


def _ranged(node: OnnxNode, start: Array, stop: Array, step: Array) -> int:
    count = (float(stop.item()) - float(start.item())) / float(step.item() or 1)
    return max(int(min(count, MAX_ELEMENTS)), 0) + 1


#: Elements of what an operator makes, where that is more than its inputs broadcast to.
_SIZES: dict[str, Callable[..., int]] = {
    "Concat": lambda node, *parts: sum(part.size for part in parts),
    "ConstantOfShape": _given,
    "Expand": lambda node, x, shape: prod(np.broadcast_shapes(x.shape, _sized(node, shape))),
    "Gather": _gathered,
    "Range": _ranged,
    "Tile": lambda node, x, repeats: x.size * prod(_sized(node, repeats)),
    **dict.fromkeys((*_MOVES, "Slice", "Cast", "Shape", "Size"), lambda node, x, *_: x.size),
}


def fold(node: OnnxNode, inputs: list[Const]) -> Const:
    """Evaluate a node of constants.

    Raises:
        ModelError: impossible shapes or values; names the node.
    """
    arrays = [c.value for c in inputs]
    try:
        with np.errstate(all="ignore"):
            if node.op in _MOVES:
                move = _MOVES[node.op]
                return inputs[0].moved(lambda array: move(node, array, *arrays[1:]))
            result = Const(_FOLD[node.op](node, *arrays))
    except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise node.error(f"cannot be evaluated: {error}") from error
    if result.value.size > MAX_ELEMENTS:
        raise node.error(f"makes {result.value.size} elements")
    return _still_quantized(node, inputs, result)


def _still_quantized(node: OnnxNode, inputs: list[Const], result: Const) -> Const:
    """A quantized weight times or over a constant keeps its integers, with another scale."""
    if node.op not in ("Mul", "Div"):
        return result
    first, second = inputs
    if node.op == "Mul" and first.levels is None:
        first, second = second, first
    if first.levels is None or first.scale is None or first.value.shape != result.value.shape:
        return result
    factor = np.asarray(second.value, np.float64)
    scale = first.scale * factor if node.op == "Mul" else first.scale / factor
    return Const(result.value, first.levels, np.broadcast_to(scale, result.value.shape))
