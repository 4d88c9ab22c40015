# SPDX-License-Identifier: Apache-2.0
"""Constant folding: nodes all of whose inputs are constants, in numpy, with sizes under control.

Types are those of ONNX: what numpy would widen or mix is refused, or kept in the type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from bitwright.interop.onnx.reader.arithmetic import (
    axes_of,
    axis_of,
    cast,
    divide,
    folded_together,
    mean,
    modulo,
    power,
    reduction,
)
from bitwright.interop.onnx.reader.levels import whole_numbers
from bitwright.interop.onnx.reader.model import MAX_ELEMENTS, MAX_RANK, OnnxNode
from bitwright.interop.onnx.reader.signatures import Signature
from bitwright.interop.onnx.reader.values import Array, Const


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
    if any(d < 0 for d in wanted) or prod(wanted) != total or len(wanted) > MAX_RANK:
        raise node.error(f"cannot reshape {source} into {[int(v) for v in np.ravel(target)]}")
    return tuple(wanted)


# -- shapes ---------------------------------------------------------------------------------------


def constant(node: OnnxNode) -> Array:
    """The value of a Constant node."""
    if len([name for name in node.attrs if name.startswith("value")]) > 1:
        raise node.error("has more than one value")
    if "value" in node.attrs:
        return node.array("value")
    for name, dtype in (
        ("value_float", np.float32),
        ("value_int", np.int64),
        ("value_floats", np.float32),
        ("value_ints", np.int64),
    ):
        if name in node.attrs:
            return np.asarray(node.attrs[name], dtype)
    raise node.error("holds no number")


def _constant_of_shape(node: OnnxNode, shape: Array) -> Array:
    value = node.array("value") if "value" in node.attrs else np.zeros(1, np.float32)
    if value.size != 1:
        raise node.error(f"its value has {value.size} elements, expected one")
    return np.full(_sized(node, shape), value.ravel()[0], value.dtype)


def _cut(start: int, end: int, step: int, size: int) -> slice:
    """Elements from start to in front of end; outside of the axis is its end."""
    if step == 0:
        raise ValueError("a step of 0")
    first, last = (0, size) if step > 0 else (-1, size - 1)
    start, end = (v + size if v < 0 else v for v in (start, end))
    # From behind it starts at an element, also where it is said to start in front of the first.
    start = min(max(start, 0), last)
    end = min(max(end, first), last if step < 0 else size)
    return slice(start, None if end < 0 else end, step) if size else slice(0, 0)


def _slice(
    node: OnnxNode,
    x: Array,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    if starts is None or ends is None:
        starts, ends = (np.asarray(node.ints(name, ()), np.int64) for name in ("starts", "ends"))
        axes = np.asarray(node.ints("axes", tuple(range(starts.size))), np.int64)
    count = starts.size
    places = range(count) if axes is None else np.ravel(axes).tolist()
    widths = [1] * count if steps is None else np.ravel(steps).tolist()
    cuts: list[slice] = [slice(None)] * x.ndim
    parts = (np.ravel(starts).tolist(), np.ravel(ends).tolist(), places, widths)
    for start, end, axis, step in zip(*parts, strict=True):
        place = axis_of(node, axis, x.ndim)
        cuts[place] = _cut(start, end, step, x.shape[place])
    return x[tuple(cuts)]


def unsqueezed(node: OnnxNode, x: Array, axes: Array | None) -> Array:
    """New axes of 1, counted in the result; they come from an input or an attribute.

    Raises:
        ModelError: they do not fit.
    """
    count = len(node.ints("axes", ())) if axes is None else np.size(axes)
    rank = x.ndim + count
    places = sorted(axes_of(node, axes, rank))
    if len(set(places)) != count or rank > MAX_RANK:
        raise node.error(f"cannot add axes {places} to rank {x.ndim}")
    for place in places:
        x = np.expand_dims(x, place)
    return x


def squeezed(node: OnnxNode, x: Array, axes: Array | None) -> Array:
    """Without some axes of 1; all of them if none is named. See `unsqueezed`."""
    return np.squeeze(x, axes_of(node, axes, x.ndim) or None)


def flattened(node: OnnxNode, x: Array) -> Array:
    """As a matrix: the axes in front of one, and those behind it.

    Raises:
        ModelError: it has not this axis.
    """
    axis = node.integer("axis", 1)
    if axis != x.ndim:
        axis = axis_of(node, axis, x.ndim)
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


def transposed(node: OnnxNode, x: Array) -> Array:
    """Axes in another order, reversed if none is said.

    Raises:
        ModelError: it is no order of its axes.
    """
    perm = node.ints("perm", tuple(range(x.ndim))[::-1])
    if sorted(perm) != list(range(x.ndim)):
        raise node.error(f"perm {perm} does not fit rank {x.ndim}")
    return x.transpose(perm)


def shape_of(node: OnnxNode, shape: tuple[int, ...]) -> Array:
    """The result of Shape."""
    end = node.integer("end", len(shape))
    return np.asarray(shape[node.integer("start", 0) : end], np.int64)


def _steps(start: Array, stop: Array, step: Array) -> int:
    """How many numbers a Range has.

    Raises:
        ValueError: without end.
    """
    first, last, by = start.item(), stop.item(), step.item()
    if not by:
        raise ValueError("a step of 0")
    if isinstance(by, int):
        return max(-((first - last) // by), 0)
    # The difference in the type itself, as ONNX Runtime has it.
    count = float((stop - start).item()) / by
    if not np.isfinite(count):
        raise ValueError("numbers without end")
    return max(int(np.ceil(count)), 0)


def _range(node: OnnxNode, start: Array, stop: Array, step: Array) -> Array:
    (count,) = _sized(node, _steps(start, stop, step))
    return np.asarray(start + np.arange(count).astype(start.dtype) * step, start.dtype).reshape(-1)


def _expand(node: OnnxNode, x: Array, shape: Array) -> Array:
    dims = _sized(node, shape)
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, dims)).copy()


def _tile(node: OnnxNode, x: Array, repeats: Array) -> Array:
    if np.shape(repeats) != (x.ndim,):
        raise node.error(f"{np.size(repeats)} repeats for {x.ndim} axes")
    _sized(node, np.asarray(x.shape) * repeats)
    return np.tile(x, _sized(node, repeats))


def _concat(node: OnnxNode, *parts: Array) -> Array:
    return np.concatenate(parts, axis=node.integer("axis", 1))


def is_inference(node: OnnxNode, mode: Array | None) -> None:
    """Make sure that a Dropout, whose input ``training_mode`` is given, leaves all as it is.

    Raises:
        ModelError: it drops.
    """
    if mode is not None and np.any(mode):
        raise node.error("is in training mode", "export the model in eval mode")


def _dropout(node: OnnxNode, x: Array, _: Array | None = None, mode: Array | None = None) -> Array:
    is_inference(node, mode)
    return x


def _clip(node: OnnxNode, x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    ends = [low, high]
    for place, name in enumerate(("min", "max")):
        if name in node.attrs:  # of old operator sets
            ends[place] = np.asarray(node.real(name, 0.0), x.dtype)
        end = ends[place]
        if end is not None and end.size != 1:
            raise node.error(f"its {name} must be one number, got {end.size}")
    if ends[0] is not None:
        x = np.maximum(x, ends[0].reshape(()))
    return x if ends[1] is None else np.minimum(x, ends[1].reshape(()))


def _plain(function: Callable[..., Any]) -> Callable[..., Array]:
    return lambda node, *inputs: np.asarray(function(*inputs))


#: Operators that numpy knows by the same name, in lower case.
_NUMPY = "Sqrt Reciprocal Exp Log Sign Floor Ceil Equal Less Greater Where Add".split()

#: Each is given an array, or None, for every input of the node, of types that ONNX allows.
_FOLD: dict[str, Callable[..., Array]] = {
    **{name: _plain(getattr(np, name.lower())) for name in _NUMPY},
    "Abs": _plain(np.abs),
    "Sub": _plain(np.subtract),
    "Mul": _plain(np.multiply),
    "Div": divide,
    "Mod": modulo,
    "Pow": power,
    "Neg": _plain(np.negative),
    "Round": _plain(np.rint),
    "Min": folded_together(np.minimum),
    "Max": folded_together(np.maximum),
    "Relu": _plain(lambda a: np.maximum(a, np.zeros((), a.dtype))),
    "Not": _plain(np.logical_not),
    "Shape": lambda node, x: shape_of(node, x.shape),
    "Size": _plain(lambda a: np.asarray(a.size, np.int64)),
    "Cast": cast,
    "Clip": _clip,
    "Gather": lambda node, x, index: np.take(x, whole_numbers(index), node.integer("axis", 0)),
    "Slice": _slice,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "Expand": _expand,
    "Tile": _tile,
    "ReduceMax": reduction(np.max),
    "ReduceMean": mean,
    "ReduceMin": reduction(np.min),
    "ReduceProd": reduction(np.prod, adds=True),
    "ReduceSum": reduction(np.sum, adds=True),
}

#: Rearrangements, which keep the integers of a quantized weight.
_MOVES: dict[str, Callable[..., Array]] = {
    "Reshape": lambda node, x, shape: x.reshape(target_shape(node, x.shape, shape)),
    "Transpose": transposed,
    "Flatten": flattened,
    "Squeeze": lambda node, x, axes=None: squeezed(node, x, axes),
    "Unsqueeze": lambda node, x, axes=None: unsqueezed(node, x, axes),
    "Identity": lambda node, x: x,
    "Dropout": _dropout,
}


def foldable(node: OnnxNode) -> bool:
    """Whether a node of constants can be evaluated."""
    return node.domain in ("", "ai.onnx") and (node.op in _FOLD or node.op in _MOVES)


#: Work on an element, beyond that of looking at it, of operators that take more than others.
_SLOW = {"Exp": 8, "Log": 8, "Pow": 40, "Mod": 8, "Div": 8}


def work_of(node: OnnxNode, size: int) -> int:
    """What it takes to fold a node into so many bytes; see `size_of_result`, and `Work`."""
    return _SLOW.get(node.op, 0) * (size // _FOLDED)


#: Bytes of an element that is folded, and of one that a quantizer reads: value, level and scale.
_FOLDED, _QUANTIZED = 8, 24


def size_of_result(node: OnnxNode, inputs: list[Const]) -> int:
    """Bytes of what a node makes of constants at most, without making it.

    Raises:
        ModelError: impossible shapes; names the node.
    """
    arrays = [c.value for c in inputs]
    if not foldable(node):
        # A quantizer, whose scale may lie along any axis of what it quantizes: nothing is widened.
        return arrays[0].size * _QUANTIZED
    try:
        count = _SIZES.get(node.op, _broadcast_size)(node, *arrays)
    except (ValueError, IndexError, TypeError, KeyError, OverflowError, AttributeError) as error:
        raise node.error(f"cannot be evaluated: {error}") from error
    return count * _FOLDED


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


#: Elements of what an operator makes, where that is more than its inputs broadcast to.
_SIZES: dict[str, Callable[..., int]] = {
    "Concat": lambda node, *parts: sum(part.size for part in parts),
    "ConstantOfShape": _given,
    "Expand": lambda node, x, shape: prod(np.broadcast_shapes(x.shape, _sized(node, shape))),
    "Gather": _gathered,
    "Range": lambda node, *ends: min(_steps(*ends), MAX_ELEMENTS),
    "Tile": lambda node, x, repeats: x.size * prod(_sized(node, repeats)),
    **dict.fromkeys((*_MOVES, "Slice", "Cast", "Shape", "Size"), lambda node, x, *_: x.size),
}


def fold(node: OnnxNode, inputs: list[Const | None]) -> Const:
    """Evaluate a node of constants, in the types of ONNX.

    Args:
        inputs: one for each input of the node, None for those left out.

    Raises:
        ModelError: impossible shapes, types or values; names the node.
    """
    arrays = [None if c is None else c.value for c in inputs]
    signature = Signature(node, arrays)
    try:
        with np.errstate(all="ignore"):
            if node.op in _MOVES:
                move, first = _MOVES[node.op], inputs[0]
                assert first is not None  # the signature asks for it
                return first.moved(lambda array: move(node, array, *arrays[1:]))
            result = Const(_FOLD[node.op](node, *arrays))
    except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise node.error(f"cannot be evaluated: {error}") from error
    if result.value.size > MAX_ELEMENTS:
        raise node.error(f"makes {result.value.size} elements")
    signature.check_result(result.value)
    return _still_quantized(node, [c for c in inputs if c is not None], result)


def _still_quantized(node: OnnxNode, inputs: list[Const], result: Const) -> Const:
    """A quantized weight times or over a constant keeps its integers, with another scale; one that
    a clip leaves as it is keeps both.
    """
    if node.op == "Clip" and np.array_equal(result.value, inputs[0].value):
        return replace(inputs[0], value=result.value)
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
