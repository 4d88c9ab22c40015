# SPDX-License-Identifier: Apache-2.0
"""The element types that a file computes in, where they make other numbers than exact arithmetic.

Values are read as reals. A type of integers wraps and truncates: what its arithmetic does must be
the same in reals, or is refused. Types of 16 bits round, which is said. float32 loses what is far
too small for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from bitwright.interop.onnx.reader.arithmetic import cast_type, ends_of_type, is_whole_type
from bitwright.interop.onnx.reader.levels import MAX_TABLE
from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.onnx.reader.signatures import schema_of
from bitwright.interop.onnx.reader.values import Const, Value

if TYPE_CHECKING:
    from bitwright.interop.onnx.reader.build import Importer

Kind = np.dtype[Any]

#: Operators that take numbers as they are, or look at what they cast to themselves.
_MOVES = frozenset(
    "ArgMax Cast Clip Concat DepthToSpace DequantizeLinear Dropout Expand Flatten Gather "
    "GlobalMaxPool Identity Max MaxPool Min Pad QuantizeLinear ReduceMax ReduceMin Relu Reshape "
    "Resize Slice SpaceToDepth Squeeze TopK Transpose Unsqueeze Upsample".split()
)
_FRACTIONS = frozenset(("Div", "ReduceMean", "Mean", "AveragePool", "GlobalAveragePool"))
_ROUNDING = frozenset({"round", "floor", "ceil", "sign"})
#: Steps after which whole numbers are whole if their constants are.
_KEEP_WHOLE = frozenset({"add", "mul", "clip", "abs", "square"})
_HALVES = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
#: Of the largest number: what float32 may be off by at the ends of an interval.
_LOST = 1e-2


def named_type(name: str | None) -> Kind | None:
    """numpy's type of such a name; None if it knows none."""
    try:
        return None if name is None else np.dtype(name)
    except TypeError:
        return None


def result_type(low: Importer, node: OnnxNode, result: Value | Const) -> Kind | None:
    """The type of a node's result by ONNX's definitions; None where they say nothing."""
    if isinstance(result, Const):
        return np.asarray(result.value).dtype
    if node.op == "Cast":
        return cast_type(node)
    types = [_type_of(low, name) for name in node.inputs]
    if node.domain not in ("", "ai.onnx"):
        return types[0] if "channels_last" in node.domain else None
    schema = schema_of(node.op, node.opset)
    if schema is None:
        return types[0]
    # Of TopK its indices are read.
    formal = schema.outputs[1 if node.op == "TopK" else 0].type_str
    if formal.startswith("tensor("):
        return named_type({"float": "float32"}.get(formal[7:-1], formal[7:-1]))
    for place, found in enumerate(types):
        declared = schema.inputs[min(place, len(schema.inputs) - 1)]
        if declared.type_str == formal and found is not None:
            return found
    return None


def _type_of(low: Importer, name: str) -> Kind | None:
    if name not in low.types and name in low.tensors:
        known = low.tensors[name]
        return np.asarray(known.value).dtype if isinstance(known, Const) else None
    return low.types.get(name)


def check_computed(low: Importer, node: OnnxNode, value: Value, kind: Kind | None) -> None:
    """Refuse, or say, where a node's type makes other numbers than exact arithmetic.

    Raises:
        ModelError: names the node.
    """
    if kind is None or value.codes is not None:
        return
    if node.op in _MOVES:
        if node.op == "Cast" and kind.name in _HALVES:
            _tell_halves(low, node, value, kind)
        return
    if is_whole_type(kind):
        _check_integers(low, node, value, kind)
    elif kind.name in _HALVES:
        _tell_halves(low, node, value, kind)
    elif value.edge and not value.pools:
        _check_float32(low, node, value)


def _check_integers(low: Importer, node: OnnxNode, value: Value, kind: Kind) -> None:
    if not value.edge:
        raise node.error(
            f"computes with {kind.name} in front of the first quantizer",
            "put a Cast to float in front of it, or say what the input is (--input-type)",
        )
    if node.op in _FRACTIONS and not is_whole(low, value, node):
        raise node.error(
            f"computes with {kind.name}, of which ONNX drops the fraction",
            "put a Cast to float in front of it and a quantizer behind it",
        )
    check_holds(low, value, kind, node, "computes")


def _tell_halves(low: Importer, node: OnnxNode, value: Value, kind: Kind) -> None:
    """What is a small step in 16 bits is left out, and said."""
    low.notes.append(
        f"the file computes in {kind.name}; its roundings are left out, the integers are those of "
        "exact arithmetic"
    )
    form = value.affine() if value.edge else None
    if form is None:
        return
    largest = max(float(np.abs(end * form[0] + form[1]).max()) for end in low.level_range(value))
    if largest > _HALVES[kind.name]:
        low.notes.append(
            f"{node.where}: by its intervals it may reach {largest:.3g}, and {kind.name} ends at "
            f"{_HALVES[kind.name]:.6g}; beyond that the file gives infinity"
        )


def _check_float32(low: Importer, node: OnnxNode, value: Value) -> None:
    """Say where step by step in float32 the ends of the interval are lost: in numbers too small or
    too large for it, or beside too large ones.
    """
    form = value.affine()
    if form is None or not value.steps:
        return
    ends = np.broadcast_to(np.array(low.level_range(value))[:, None], (2, value.rows))
    with np.errstate(all="ignore"):
        exact = ends * form[0] + form[1]
        found = low.evaluator.reals(value, ends, node, np.float32).astype(np.float64)
    largest = float(np.abs(exact).max())
    lost = not np.isfinite(found).all() or float(np.abs(found - exact).max()) > _LOST * largest
    if lost and np.isfinite(exact).all():
        low.notes.append(
            f"{node.where}: gives {found.min():.3g} .. {found.max():.3g} in float32 and "
            f"{exact.min():.3g} .. {exact.max():.3g} exactly; the integers are those of exact "
            "arithmetic"
        )


def is_whole(low: Importer, value: Value, node: OnnxNode) -> bool:
    """Whether only whole numbers can occur: by the form of the value, or level by level."""
    form = value.affine()
    if not value.edge:
        return False
    if form is not None and not value.pools:
        return not any((part % 1).any() for part in form)
    if ends_whole(value):
        return True
    lo, hi = low.level_range(value)
    if value.pools or hi - lo >= MAX_TABLE:
        return False
    levels = np.broadcast_to(np.arange(lo, hi + 1)[:, None], (hi - lo + 1, value.rows))
    return not bool((low.evaluator.reals(value, levels, node) % 1).any())


def ends_whole(value: Value) -> bool:
    """Whether a rounding is followed by whole constants alone: no level has to be looked at."""
    whole = False
    for step in value.steps:
        parts = step.constants
        if step.op == "clip":  # an open end takes nothing
            parts = tuple(part[np.isfinite(part)] for part in parts)
        constants_are = not any((part % 1).any() for part in parts)
        whole = step.op in _ROUNDING or (whole and step.op in _KEEP_WHOLE and constants_are)
    return whole and not value.pools


def check_holds(
    low: Importer, value: Value, kind: Kind, node: OnnxNode, does: str = "casts"
) -> None:
    """Whether a type of integers holds all that can occur: what happens to the rest, ONNX leaves
    to who runs the file.

    Raises:
        ModelError: it does not, or it cannot be told.
    """
    lo, hi = low.level_range(value)
    if not np.isnan(value.direction()).any():
        levels = np.array([lo, hi])
    elif hi - lo < MAX_TABLE:
        levels = np.arange(lo, hi + 1)
    else:
        raise node.error(
            f"{does} what neither rises nor falls over {hi - lo + 1} levels: whether {kind.name} "
            "holds it cannot be told",
            "put a quantizer in front of it",
        )
    levels = np.broadcast_to(levels[:, None], (len(levels), value.rows))
    found = low.evaluator.reals(value, levels, node)
    least, most = ends_of_type(kind)
    if found.min() < least or found.max() > most:
        into = "to" if does == "casts" else "in"
        raise node.error(
            f"{does} {found.min():g} .. {found.max():g} {into} {kind.name}, which does not hold "
            "that",
            "put a Clip in front of it, or cast to a wider type",
        )
