# SPDX-License-Identifier: Apache-2.0
"""Rounding spelled out in standard operators (multiply, add, Round or Floor, Clip): a requant."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bitwright.base.errors import FormatError
from bitwright.formats import parse_format
from bitwright.interop.onnx.reader.levels import Quantizer, format_for
from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.onnx.reader.values import Floats, Step, Value
from bitwright.ir import Attr

if TYPE_CHECKING:
    from bitwright.interop.onnx.reader.build import Importer

_ROUNDINGS = {"round": "half_even", "floor": "floor"}
_MAX_SHIFT = 48
_LIMIT = 1 << 61
_MAX_BITS = 16


class _Parts(NamedTuple):
    """Steps before the last rounding, up to it and the clips behind it, and the affine rest."""

    before: Value
    rounding: Step
    whole: Value
    clips: tuple[Step, ...]
    rest: tuple[Step, ...]


def _split(value: Value) -> _Parts | None:
    places = [k for k, step in enumerate(value.steps) if step.op in (*_ROUNDINGS, "ceil")]
    if not places:
        return None
    end = places[-1] + 1
    while end < len(value.steps) and value.steps[end].op == "clip":
        end += 1
    rest = value.steps[end:]
    if any(step.affine() is None for step in rest):
        return None
    return _Parts(
        replace(value, steps=value.steps[: places[-1]]),
        value.steps[places[-1]],
        replace(value, steps=value.steps[:end]),
        value.steps[places[-1] + 1 : end],
        rest,
    )


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
    """The value on an edge of whole numbers, if among its steps is a rounding to them.

    What multiplies and adds behind it (a fake quantizer spelled out) stays as steps.
    """
    parts = _split(value)
    if parts is None:
        return None
    before, rounding, value, clips, rest = parts
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
        made = low.quantize(value, Quantizer("quant", lo, hi, 1, one, (one, *clip)), node)
        return replace(made, steps=rest)
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
    return Value(edge, value.shape, value.order, one, rest)
