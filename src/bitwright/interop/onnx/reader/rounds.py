# SPDX-License-Identifier: Apache-2.0
"""Rounding spelled out in standard operators (multiply, add, Round or Floor, Clip): a requant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from bitwright.formats import parse_format
from bitwright.interop.onnx.reader.levels import Quantizer, format_for, whole_numbers
from bitwright.interop.onnx.reader.values import Floats, Step, Value
from bitwright.ir import Attr, IntArray, TensorType, bits_for_interval

_ROUNDINGS = {"round": "half_even", "floor": "floor"}
_MAX_SHIFT = 48
_LIMIT = 1 << 61
_MAX_BITS = 16


class Requant(NamedTuple):
    """Attributes and parameters of a ``requant`` node."""

    attrs: Mapping[str, Attr]
    params: Mapping[str, IntArray]


def same_levels(kind: TensorType) -> Requant | None:
    """A node that gives levels of several scales, a channel each, one scale and changes nothing
    else: what they stand for is a value's unit. None where there is one scale, or no format.
    """
    if len(kind.scale) <= 1 or bits_for_interval(kind.lo, kind.hi) > _MAX_BITS:
        return None
    attrs: dict[str, Attr] = {
        "shift": 0, "rounding": "floor", "lo": kind.lo, "hi": kind.hi,
        "format": format_for(kind.lo, kind.hi), "scale": (1.0,),
    }  # fmt: skip
    return Requant(attrs, {"multiplier": np.ones(1, np.int64), "offset": np.zeros(1, np.int64)})


class Parts(NamedTuple):
    """Steps before the last rounding, up to it and the clips behind it, and the affine rest."""

    before: Value
    rounding: Step
    whole: Value
    clips: tuple[Step, ...]
    rest: tuple[Step, ...]


def split_at_rounding(value: Value) -> Parts | None:
    """A value cut at the last rounding among its steps; None if there is none, or no affine rest.

    What multiplies and adds behind it (a fake quantizer spelled out) is the rest.
    """
    places = [k for k, step in enumerate(value.steps) if step.op in (*_ROUNDINGS, "ceil")]
    if not places:
        return None
    end = places[-1] + 1
    while end < len(value.steps) and value.steps[end].op == "clip":
        end += 1
    rest = value.steps[end:]
    if any(step.affine() is None for step in rest):
        return None
    return Parts(
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


def requant_of(parts: Parts, kind: TensorType) -> Requant | Quantizer | None:
    """What makes the whole numbers: a requant, else a quantizer; None if neither can.

    Args:
        kind: of the edge that the value stands on.

    Raises:
        FormatError: no format holds the levels.
    """
    before, rounding, value, clips, _ = parts
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
        return Quantizer("quant", lo, hi, 1, one, (one, *clip))
    attrs: dict[str, Attr] = {
        "shift": shift,
        "rounding": _ROUNDINGS[rounding.op],
        "lo": lo,
        "hi": hi,
        "format": parse_format(format_for(lo, hi)).name,
        "scale": (1.0,),
    }
    gain, offset = (whole_numbers(np.rint(part * 2.0**shift)) for part in form)
    return Requant(attrs, {"multiplier": gain, "offset": offset})
