# SPDX-License-Identifier: Apache-2.0
"""Operators on single elements: steps that wait for the next quantizer, and sums of two tensors."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from bitwright.interop.onnx.reader.arithmetic import cast_type, is_whole_type
from bitwright.interop.onnx.reader.build import Importer
from bitwright.interop.onnx.reader.element_types import check_holds, ends_whole, is_whole
from bitwright.interop.onnx.reader.folding import is_inference
from bitwright.interop.onnx.reader.joins import join
from bitwright.interop.onnx.reader.levels import MAX_TABLE, whole_numbers
from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.onnx.reader.values import Codes, Const, Floats, Value

_WHOLE = 1e-9
#: Bytes of float16 and bfloat16.
_HALF = 2


def fitted(low: Importer, value: Value, const: Const, node: OnnxNode) -> tuple[Value, Floats]:
    """A constant per channel; behind a flatten of an image every element becomes a channel."""
    many = const.value.size > 1 and len(value.shape) == 2 and len(low.frame(value)) > 1
    if many and value.edge and not value.pools and not value.border_any:
        value, _place = low.vector(value, node)
    return value, low.constant(value, const, node)


def channel_shaped(value: Value, const: Const, node: OnnxNode, axis: int = 1) -> Const:
    """A (C,) constant shaped to broadcast along the channel axis of a value."""
    array = np.asarray(const.value)
    if array.ndim > 1 or len(value.shape) < 2:
        raise node.error(f"expects one constant a channel, got shape {array.shape}")
    shape = [1] * len(value.shape)
    shape[axis] = -1
    if array.size not in (1, value.shape[axis]):
        raise node.error(f"{array.size} constants for {value.shape[axis]} channels")
    return Const(array.reshape(shape))


def _binary(low: Importer, node: OnnxNode) -> Value:
    first, second = low.tensor(node, 0), low.tensor(node, 1)
    if isinstance(first, Value) and isinstance(second, Value):
        return _of_two(low, node, first, second)
    value = first if isinstance(first, Value) else second
    const = second if isinstance(first, Value) else first
    if isinstance(value, Const) or isinstance(const, Value):
        raise node.error(f"of domain {node.domain!r} adds two constants")
    const = _of_one_sample(low, value, const)
    if np.broadcast_shapes(value.shape, const.value.shape) != value.shape:
        raise node.error(f"widens a tensor of shape {value.shape} by broadcasting")
    value, number = fitted(low, value, const, node)
    if node.op == "Add":
        return value.then("add", number)
    if node.op == "Mul":
        return value.then("mul", number)
    if node.op == "Sub":
        if value is not first and isinstance(first, Const):
            return value.then("mul", -np.ones(1)).then("add", number)
        return value.then("add", -number)
    if isinstance(first, Const):
        raise node.error("divides by a tensor that changes with the input", "it has no hardware")
    if not number.all():
        raise node.error("divides by zero")
    return value.then("div", number)


def _of_one_sample(low: Importer, value: Value, const: Const) -> Const:
    """A constant that spells out the file's batch, alike for all samples, as that of one."""
    array = np.asarray(const.value)
    if low.batch == 1 or array.ndim != len(value.shape) or len(array) != low.batch:
        return const
    return Const(array[:1]) if (array == array[:1]).all() else const


#: Operators on two tensors, as steps of one where both are functions of the same elements.
_MEETINGS = {"Add": "plus", "Sub": "minus", "Mul": "times", "Div": "over"}


def _of_two(low: Importer, node: OnnxNode, first: Value, second: Value) -> Value:
    """Two tensors that change with the input: a function of one (x * sigmoid(x)), or a sum."""
    sums = node.op in ("Add", "Sub")
    if not sums or first.affine() is None or second.affine() is None:
        for one, two in product((first, first.unfolded()), (second, second.unfolded())):
            met = one and two and one.meeting(_MEETINGS[node.op], two)
            if met is not None:
                return met
    if not sums:
        raise node.error(
            "two tensors that both change with the input: a product of activations",
            "only products with constants have hardware, and functions of one tensor, such as "
            "x * sigmoid(x), with at most one quantizer in between",
        )
    return join(low, node, first, second, subtract=node.op == "Sub")


def _sum(low: Importer, node: OnnxNode) -> Value:
    """The sum of several tensors, two at a time."""
    total = low.data(node, 0)
    for place in range(1, len(node.inputs)):
        total = join(low, node, total, low.data(node, place), subtract=False)
    return total


def _bounds(low: Importer, node: OnnxNode) -> tuple[Value, Floats, Floats]:
    value = low.data(node, 0)
    if node.op == "Relu":
        return value, np.zeros(1), np.full(1, np.inf)
    ends = [np.full(1, -np.inf), np.full(1, np.inf)]
    for place, name in enumerate(("min", "max")):
        if node.has(place + 1):
            array = np.asarray(low.const(node, place + 1).value, np.float64)
            if array.size != 1 or np.isnan(array).any():
                raise node.error(f"its {name} must be one number")
            ends[place] = array.reshape(1)
        elif name in node.attrs:
            ends[place] = np.full(1, node.real(name, 0.0))
    if (ends[0] > ends[1]).any():
        raise node.error(f"clips to an empty interval {ends[0][0]} .. {ends[1][0]}")
    return value, ends[0], ends[1]


def _clip(low: Importer, node: OnnxNode) -> Value:
    value, lowest, highest = _bounds(low, node)
    if value.codes is not None:
        held = value.codes
        lo, hi = max(held.lo, np.ceil(lowest[0])), min(held.hi, np.floor(highest[0]))
        if lo > hi:
            raise node.error(f"leaves no code of {held.lo} .. {held.hi}")
        return replace(value, codes=Codes(held.scale, held.zero, int(lo), int(hi)))
    return value.then("clip", lowest, highest)


def _min_max(low: Importer, node: OnnxNode) -> Value:
    tensors = [low.tensor(node, i) for i in range(len(node.inputs))]
    values = [t for t in tensors if isinstance(t, Value)]
    if len(values) != 1 or len(tensors) != 2:
        raise node.error("two tensors that both change with the input", "one must be a constant")
    const = next(t for t in tensors if isinstance(t, Const))
    value, number = fitted(low, values[0], const, node)
    edge = np.full(1, np.inf)
    return (
        value.then("clip", number, edge) if node.op == "Max" else value.then("clip", -edge, number)
    )


def _norm(low: Importer, node: OnnxNode) -> Value:
    value = low.data(node, 0)
    if len([o for o in node.outputs if o]) > 1 or node.integer("training_mode", 0):
        raise node.error("is in training mode", "export the model in eval mode")
    axis = len(value.shape) - 1 if "channels_last" in node.domain else 1
    epsilon = np.float32(node.real("epsilon", 1e-5))
    constants = []
    for place in (1, 2, 3, 4):
        const = channel_shaped(value, low.const(node, place), node, axis)
        value, number = fitted(low, value, const, node)
        constants.append(number)
    constants[3] = constants[3] + np.float64(epsilon)
    if (constants[3] <= 0).any():
        raise node.error("has a variance that is not positive")
    return value.then("norm", *constants)


def _check_reals(kind: np.dtype[Any], node: OnnxNode) -> None:
    """What is a small step in 16 bits, which is told elsewhere, is a quantizer in 8.

    Raises:
        ModelError: a type of reals of fewer than 16 bits.
    """
    if not is_whole_type(kind) and kind.itemsize < _HALF:
        raise node.error(
            f"casts to {kind.name}, which rounds to a few levels",
            "use a quantizer of integers (Quant, or QuantizeLinear and DequantizeLinear)",
        )


def _simple(low: Importer, node: OnnxNode) -> Value:
    value = low.data(node, 0)
    match node.op:
        case "Identity":
            return value
        case "Dropout":
            mode = low.constant_at(node, 2)
            is_inference(node, None if mode is None else mode.value)
            return value
        case "Cast":
            kind = cast_type(node)
            _check_reals(kind, node)
            if is_whole_type(kind):
                if not is_whole(low, value, node):
                    raise node.error("casts real numbers to integers", "use a quantizer")
                check_holds(low, value, kind, node)
            return value
        case "Neg":
            return value.then("mul", -np.ones(1))
        case "PRelu":
            value, slope = fitted(low, value, low.const(node, 1), node)
            return value.then("leaky", slope)
        case "Pow":
            power = np.asarray(low.const(node, 1).value)
            if power.size != 1 or float(power.ravel()[0]) != 2:
                raise node.error(f"power {power.ravel()[:3]}: only the square is supported")
            return value.then("square")
        case "Gelu" if node.string("approximate", "none") != "none":
            raise node.error("approximate Gelu is not supported", "export it as approximate='none'")
    step, defaults = _STEPS[node.op]
    return value.then(step, *(np.full(1, node.real(k, v)) for k, v in defaults.items()))


def _gather(low: Importer, node: OnnxNode) -> Value:
    """A table of constants read at an index that is data: a lookup, whatever the function."""
    table = np.asarray(low.const(node, 0).value, np.float64)
    if table.ndim != 1 or not table.size or node.integer("axis", 0) % table.ndim:
        raise node.error(f"reads a table of shape {table.shape}", "only vectors can be tabulated")
    if not np.isfinite(table).all():
        raise node.error("holds numbers that are not finite")
    value = low.settled(low.data(node, 1), node)
    lo, hi = low.level_range(value)
    if hi - lo >= MAX_TABLE and ends_whole(value):  # few are left behind the rounding
        value, _gain, _offset = low.linear(value, node)
        lo, hi = low.level_range(value)
    if hi - lo >= MAX_TABLE:
        raise node.error(f"is indexed by {hi - lo + 1} levels", "quantize the index first")
    levels = np.broadcast_to(np.arange(lo, hi + 1)[:, None], (hi - lo + 1, value.rows))
    index = low.evaluator.reals(value, levels, node)
    if low.kind(value).is_bipolar:
        index[1] = index[0]  # level 0 does not occur
    if (index % 1).any():
        raise node.error("is indexed by fractions", "quantize the index first")
    if index.max() < -table.size or index.min() >= table.size:
        raise node.error(f"is indexed outside its {table.size} entries")
    # The interval of an edge is that of all channels: what one of them cannot reach is no index.
    # Negative ones count from the end.
    index = np.where((index < 0) & (index >= -table.size), index + table.size, index)
    found = table[np.clip(index, 0, table.size - 1).astype(np.int64)].T
    unit = np.ones(1)
    if (found % 1).any():
        unit = np.full(1, np.abs(found[found != 0]).min())
    whole = np.rint(found / unit)
    if (np.abs(found / unit - whole) > _WHOLE).any():
        raise node.error("holds numbers that are no multiples of its smallest", "quantize it")
    edge = low.table(value.edge, whole_numbers(whole), {"scale": (float(unit[0]),)}, node)
    return Value(edge, value.shape, value.order, unit)


_PLAIN = "Sigmoid Tanh Softplus Softsign Gelu Mish Exp Erf Abs Floor Ceil Round".split()
#: Operators that are one step, and their attributes with the defaults, in the step's order.
_STEPS: dict[str, tuple[str, dict[str, float]]] = {
    **{name: (name.lower(), {}) for name in _PLAIN},
    "HardSwish": ("hard_swish", {}),
    "Swish": ("swish", {"alpha": 1.0}),
    "LeakyRelu": ("leaky", {"alpha": 0.01}),
    "Elu": ("elu", {"alpha": 1.0}),
    "Selu": ("selu", {"alpha": 1.6732632, "gamma": 1.050701}),
    "HardSigmoid": ("hard_sigmoid", {"alpha": 0.2, "beta": 0.5}),
}

HANDLERS = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _binary),
    "Sum": _sum,
    **dict.fromkeys(("Relu", "Clip"), _clip),
    **dict.fromkeys(("Min", "Max"), _min_max),
    "BatchNormalization": _norm,
    "Gather": _gather,
    **dict.fromkeys((*_STEPS, "Identity", "Dropout", "Cast", "Neg", "PRelu", "Pow"), _simple),
}
