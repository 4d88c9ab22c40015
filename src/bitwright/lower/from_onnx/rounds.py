# SPDX-License-Identifier: Apache-2.0
"""Rounding spelled out in standard operators (multiply, add, Round or Floor, Clip): a requant."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bitwright.errors import FormatError
from bitwright.formats import parse_format
from bitwright.ir import Attr
from bitwright.lower.from_onnx.levels import Quantizer, format_for
from bitwright.lower.from_onnx.model import OnnxNode
from bitwright.lower.from_onnx.values import Floats, Step, Value

if TYPE_CHECKING:
    from bitwright.lower.from_onnx.build import Importer

_ROUNDINGS = {"round": "half_even", "floor": "floor"}
_MAX_SHIFT = 48
_LIMIT = 1 << 61
_MAX_BITS = 16


def _split(value: Value) -> tuple[Value, Step, tuple[Step, ...]] | None:
    """What comes before the last rounding, the rounding, and the clips behind it."""
    for place in reversed(range(len(value.steps))):
        step = value.steps[place]
        if step.op in (*_ROUNDINGS, "ceil"):
            before = Value(value.edge, value.shape, value.order, value.unit, value.steps[:place])
            return before, step, value.steps[place + 1 :]
        if step.op != "clip":
            return None
    return None


def _dyadic(gain: Floats, offset: Floats, reach: int) -> int | None:
    """The least shift that makes both whole, if the product still fits 62 bits."""
    for shift in range(_MAX_SHIFT + 1):
        m, o = gain * 2.0**shift, offset * 2.0**shift
        if float(np.abs(m).max()) * reach + float(np.abs(o).max()) >= _LIMIT:
            return None
        if not (m % 1).any() and not (o % 1).any():
            return shift
    return None


def requantized(low: Importer, value: Value, node: OnnxNode) -> Value | None:
    """The value on an edge of whole numbers, if its steps end by rounding to them."""
    parts = _split(value)
    if parts is None:
        return None
    before, rounding, clips = parts
    kind = low.kind(value)
    levels = np.array([kind.lo, kind.hi])[:, None]
    ends = value.reals(np.broadcast_to(levels, (2, value.rows)))
    rises = not np.isnan(before.direction()).any()
    bounds = [c for step in clips for c in step.constants if np.isfinite(c).all()]
    if not rises or not np.isfinite(ends).all() or any((b % 1).any() for b in bounds):
        return None
    lo, hi = int(ends.min()), int(ends.max())
    form = before.affine()
    reach = max(abs(kind.lo), abs(kind.hi), 1)
    shift = None if form is None or rounding.op not in _ROUNDINGS else _dyadic(*form, reach)
    one = np.ones(1)
    if form is None or shift is None:
        clip = (np.zeros(1), np.full(1, float(lo)), np.full(1, float(hi)))
        return low.quantize(value, Quantizer("quant", lo, hi, 1, one, (one, *clip)), node)
    try:
        name = format_for(lo, hi)
    except FormatError as error:
        raise node.error(error.message, error.hint) from error
    attrs: dict[str, Attr] = {
        "shift": shift,
        "rounding": _ROUNDINGS[rounding.op],
        "lo": lo,
        "hi": hi,
        "format": parse_format(name).name,
        "scale": (1.0,),
    }
    params = {
        "multiplier": np.rint(form[0] * 2.0**shift).astype(np.int64),
        "offset": np.rint(form[1] * 2.0**shift).astype(np.int64),
    }
    key = ("requant", value.edge, *(a.tobytes() for a in params.values()), shift, lo, hi)
    edge = low.cached(
        (*key, rounding.op), lambda: low.add("requant", (value.edge,), node, attrs, params)
    )
    return Value(edge, value.shape, value.order, one)
