# SPDX-License-Identifier: Apache-2.0
"""Where two tensors meet (Add, Concat), and scores that need one common scale."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from bitwright.formats import parse_format
from bitwright.interop.onnx.reader import views
from bitwright.interop.onnx.reader.build import Importer
from bitwright.interop.onnx.reader.levels import whole_numbers
from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.onnx.reader.values import Floats, Step, Value
from bitwright.ir import Attr, IntArray, bits_for_interval

#: Multipliers of an addition stay below this, unless the ratio of the scales needs more.
_MULTIPLIER = 1 << 12
_FLOAT32 = 2.0**-24
_COMMON_BITS = 16
_PRODUCT_BITS = 60


def rescaled(
    low: Importer, value: Value, gain: Floats, offset: Floats, node: OnnxNode, note: str
) -> Value:
    """``gain * level + offset`` per channel in whole multiples of one unit: a requant node.

    Exact where 15 bits and a sign of some unit hold it; else rounded half to even to a multiple of
    the unit, with factors that are exact to half a unit at the ends of the interval.

    Args:
        note: what the report says of it where it is rounded, before the unit and behind it:
            ``"rounded to {bits} bits, unit {unit:.3g}"``.
    """
    unit, exact = _common_unit(low, value, gain, offset)
    if not exact:
        low.notes.append(f"{node.where}: {note.format(bits=_COMMON_BITS, unit=unit)}")
    lo, hi = low.level_range(value)
    reach = max(abs(lo), abs(hi), 1)
    ratio, start = gain / unit, offset / unit
    largest = max(float(np.abs(ratio).max()) * reach + float(np.abs(start).max()), 1.0)
    shift = max(0, _PRODUCT_BITS - int(np.ceil(np.log2(largest))) - 2)
    shift = min(shift, reach.bit_length() + 8)
    shift = 0 if exact else shift
    params = {
        "multiplier": whole_numbers(np.rint(ratio * 2.0**shift)),
        "offset": whole_numbers(np.rint(start * 2.0**shift)),
    }
    ends = [e * ratio + start for e in (lo, hi)]
    low_end, high_end = int(np.floor(np.min(ends))), int(np.ceil(np.max(ends)))
    bits = bits_for_interval(min(low_end, -1), high_end)
    kind = parse_format(f"int{min(bits, _COMMON_BITS)}")
    attrs: dict[str, Attr] = {
        "shift": shift,
        "rounding": "half_even",
        "lo": kind.min_level,
        "hi": kind.max_level,
        "format": kind.name,
        "scale": (unit,),
    }
    edge = low.add("requant", (value.edge,), node, attrs, params)
    return Value(edge, value.shape, value.order, np.full(1, unit))


def _common_unit(low: Importer, value: Value, gain: Floats, offset: Floats) -> tuple[float, bool]:
    """A unit for 15 bits and a sign: one that all factors are whole multiples of (and True), where
    that suffices; else one in which the value fills them.
    """
    lo, hi = low.level_range(value)
    reach = max(float(np.abs(e * gain + offset).max()) for e in (lo, hi))
    # A value that is always 0 has any unit; that of its gain keeps the factors small.
    reach = reach or float(np.abs(gain).max())
    shared = _divisor(gain, offset)
    if reach < shared * (1 << (_COMMON_BITS - 1)):
        return shared, True
    return max(reach, float(np.finfo(np.float32).tiny)) / ((1 << (_COMMON_BITS - 1)) - 1), False


def _divisor(*factors: Floats) -> float:
    """The largest number that all factors are whole multiples of; 0 if no float64 is that."""
    different = np.unique(np.concatenate(factors))
    if different.size > 2 << _COMMON_BITS:  # more than a unit has multiples
        return 0.0
    parts = [Fraction(f) for f in different.tolist() if f]
    below = lcm(*(part.denominator for part in parts))
    above = gcd(*(int(part * below) for part in parts))
    try:
        found = above / below
    except OverflowError:
        return 0.0
    return found if found and Fraction(found) * below == above else 0.0


def join(low: Importer, node: OnnxNode, first: Value, second: Value, *, subtract: bool) -> Value:
    """The sum of two tensors: integer multipliers bring their scales to one."""
    if first.shape != second.shape:
        raise node.error(
            f"adds tensors of shapes {first.shape} and {second.shape}",
            "both must have the same shape: broadcasting over the image has no hardware",
        )
    first, second = _aligned(low, node, first, second)
    forms = [low.linear(v, node) for v in (first, second)]
    if subtract:
        value, gain, offset = forms[1]
        forms[1] = (value, -gain, -offset)
    sizes = [float(np.abs(gain).max()) for _, gain, _ in forms]
    if not all(sizes):
        raise node.error("adds a tensor that is always zero")
    if any(gain.size > 1 for _, gain, _ in forms):
        forms = [_one_scale(low, node, *form) for form in forms]
    (a, gain_a, off_a), (b, gain_b, off_b) = forms
    multipliers, unit = _multipliers(low, node, float(gain_a[0]), float(gain_b[0]))
    edge = low.add("add", (a.edge, b.edge), node, {"multipliers": multipliers, "scale": (unit,)})
    value = Value(edge, first.shape, a.order, np.full(1, unit))
    offset = off_a + off_b
    return value.then("add", offset) if offset.any() else value


def _aligned(low: Importer, node: OnnxNode, first: Value, second: Value) -> tuple[Value, Value]:
    """Both on edges of one shape whose elements lie alike."""
    if first.order is None and second.order is None and low.frame(first) == low.frame(second):
        return first, second
    take = low.vector if len(first.shape) == 2 else low.image
    first, second = take(first, node)[0], take(second, node)[0]
    if not np.array_equal(low.order(first), low.order(second)):
        raise node.error(
            "adds two tensors whose channels lie in different orders",
            "the reshapes and transposes before the addition must be the same on both sides",
        )
    return first, second


def _one_scale(
    low: Importer, node: OnnxNode, value: Value, gain: Floats, offset: Floats
) -> tuple[Value, Floats, Floats]:
    """A value with one scale a channel in one scale of 16 bits; said where it is rounded."""
    if gain.size == 1:
        return value, gain, offset
    note = (
        "an operand with one scale a channel is carried in {bits} bits (unit {unit:.3g}); a "
        "quantizer in front of it would be exact and cheaper"
    )
    found = rescaled(low, value, gain, offset, node, note)
    return found, found.unit, np.zeros(1)


def _multipliers(
    low: Importer, node: OnnxNode, first: float, second: float
) -> tuple[tuple[int, int], float]:
    """Integers in the ratio of two scales, and the unit that both come to."""
    ratio = Fraction(first) / Fraction(second)
    if abs(ratio) < 1:
        near = 1 / _near(1 / ratio)
    else:
        near = _near(ratio)
    error = abs(float(near / ratio) - 1)
    if error > _FLOAT32:
        low.notes.append(
            f"{node.where}: the ratio of the two scales, {float(ratio):.6g}, is taken as "
            f"{near.numerator}/{near.denominator} (off by {error:.1g})"
        )
    m0, m1 = near.numerator, near.denominator
    if max(abs(m0), m1) >= 1 << _PRODUCT_BITS:
        raise node.error(
            f"adds tensors whose scales are {float(max(abs(ratio), 1 / abs(ratio))):.3g} apart",
            "put a quantizer of a larger scale in front of it",
        )
    # The sign belongs to the operand whose gain carries it.
    unit = second / m1
    if unit < 0:
        m0, m1, unit = -m0, -m1, -unit
    return (m0, m1), unit


def _near(ratio: Fraction) -> Fraction:
    """A ratio of 1 and more in small integers; in whole ones where it is itself above those."""
    if abs(ratio) >= _MULTIPLIER:
        return Fraction(round(ratio))
    return 1 / (1 / ratio).limit_denominator(_MULTIPLIER)


def concat(low: Importer, node: OnnxNode) -> Value:
    """Channels of all inputs in order; each part keeps its scale."""
    values = [low.data(node, i) for i in range(len(node.inputs))]
    rank = len(values[0].shape)
    axis = node.integer("axis", 1) % rank if rank else 0
    if rank not in (2, 4) or axis not in (1, rank - 1):
        raise node.error(
            f"joins along axis {axis} of shape {values[0].shape}", "only channels can be joined"
        )
    last = rank == 4 and axis == 3
    parts: list[Value] = []
    places: list[IntArray] = []
    start = 0
    for value in values:
        part, place = low.vector(value, node) if rank == 2 else low.image(value, node, last)
        part = low.settled(part, node)
        channels = low.frame(part)[-1]
        places.append(start + (np.arange(channels) if place is None else place))
        start += channels
        parts.append(part)
    parts = _common_steps(low, node, parts)
    edge = low.add("concat", tuple(p.edge for p in parts), node)
    place = np.concatenate(places)
    channels_of = None if np.array_equal(place, np.arange(start)) else place
    frame = low.frames[edge]
    order = views.permuted(frame, channels_of, last)
    if rank == 2:
        order = None if channels_of is None else channels_of[np.newaxis]
    shape = views.canonical_shape(frame) if order is None else order.shape
    unit = _joined([p.unit for p in parts], [low.frame(p)[-1] for p in parts])
    steps = _joined_steps(low, parts)
    return Value(edge, shape, order, unit, steps)


def _joined(arrays: list[Floats], channels: list[int]) -> Floats:
    whole = np.concatenate(
        [np.broadcast_to(a, (c,)) for a, c in zip(arrays, channels, strict=True)]
    )
    return whole[:1] if (whole == whole[0]).all() else whole


def _common_steps(low: Importer, node: OnnxNode, parts: list[Value]) -> list[Value]:
    """The parts, made affine where their steps differ."""
    if _alike(parts):
        return parts
    settled = []
    for part in parts:
        value, gain, offset = low.linear(part, node)
        steps = (Step("add", (offset,)),) if offset.any() else ()
        settled.append(replace(value, unit=gain, steps=steps))
    return settled


def _alike(parts: list[Value]) -> bool:
    forms = [[step.form() for step in part.steps] for part in parts]
    return all(form == forms[0] for form in forms)


def _joined_steps(low: Importer, parts: list[Value]) -> tuple[Step, ...]:
    channels = [low.frame(p)[-1] for p in parts]
    if not _alike(parts):
        zero = np.zeros(1)
        offsets = [p.steps[0].constants[0] if p.steps else zero for p in parts]
        return (Step("add", (_joined(offsets, channels),)),)
    return tuple(
        first.changed(lambda *each: _joined(list(each), channels), *others)
        for first, *others in zip(*(p.steps for p in parts), strict=True)
    )
