# SPDX-License-Identifier: Apache-2.0
"""Quantizer and products by their definitions, in numpy integers: what everything is compared with.

Slow, and independent of the engines: no convolution of torch, no C, one element at a time in
the quantizer (in exact fractions) and one kernel position at a time in the products (in int64).
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from bitwright.formats.rounding import Rounding
from bitwright.quantize.spec import QuantSpec, ScaleRule

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
Pair = tuple[int, int]

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF


def random_bits(seed: int, element: int) -> int:
    """The 24 of an element: two that are 256 apart share a word, one of them rotated by 16 bits."""
    word = philox_word(seed, element // 512 * 256 + element % 256)
    if element // 256 % 2:
        word = (word << 16 | word >> 16) & _MASK
    return word >> 8


def philox_word(seed: int, number: int) -> int:
    """One of the words of a seed: Philox 4x32-10 (Salmon et al. 2011), lane ``number / 64 % 4`` of
    counter ``number / 256 * 64 + number % 64``.
    """
    counter = number // 256 * 64 + number % 64
    words = [counter & _MASK, counter >> 32, 0, 0]
    key = [seed & _MASK, seed >> 32]
    for _ in range(10):
        first, second = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            (second >> 32) ^ words[1] ^ key[0],
            second & _MASK,
            (first >> 32) ^ words[3] ^ key[1],
            first & _MASK,
        ]
        key = [(k + step) & _MASK for k, step in zip(key, _KEY_STEPS, strict=True)]
    return words[number // 64 % 4]


def exponent_of(low: float, high: float, lowest: int, highest: int) -> int:
    """The largest ``s`` in -120 .. 120 with ``high * 2^s <= highest + 1/2`` and
    ``low * 2^s >= lowest - 1/2``; 0 where neither end binds. An unsigned format cuts off ``low``.
    """

    def fits(s: int) -> bool:
        factor = Fraction(2) ** s
        above = high <= 0 or Fraction(high) * factor <= Fraction(2 * highest + 1, 2)
        below = low >= 0 or lowest == 0 or Fraction(low) * factor >= Fraction(2 * lowest - 1, 2)
        return above and below

    if high <= 0 and (low >= 0 or lowest == 0):
        return 0
    return max((s for s in range(-120, 121) if fits(s)), default=-120)


def level_of(value: float, exponent: int, spec: QuantSpec, bits: int) -> int:
    """One element: ``clip(round(value * 2^exponent), LB, UB)`` in exact fractions, stochastically
    ``floor(value * 2^exponent + u)``, both to 24 bits behind the point.

    Args:
        value: a float32 number.
        bits: 24 random ones, the digits of ``u``.
    """
    # In float32, which is exact but for what is far smaller than any level.
    ratio = Fraction(float(np.float32(value) * np.float32(2.0**exponent)))
    low = math.floor(ratio)
    rest = ratio - low
    half, sign = Fraction(1, 2), 1 if ratio >= 0 else -1
    up = {
        Rounding.HALF_EVEN: rest > half or (rest == half and low % 2 == 1),
        Rounding.HALF_AWAY: rest > half or (rest == half and sign > 0),
        Rounding.HALF_ZERO: rest > half or (rest == half and sign < 0),
        Rounding.HALF_UP: rest >= half,
        Rounding.HALF_DOWN: rest > half,
        Rounding.FLOOR: False,
        Rounding.CEIL: rest > 0,
        Rounding.UP: rest > 0 and sign > 0,
        Rounding.DOWN: rest > 0 and sign < 0,
        Rounding.STOCHASTIC: round(rest * (1 << 24)) + bits >= 1 << 24,
    }[spec.rounding]
    return int(min(max(low + int(up), spec.lowest), spec.format.max_level))


def quantized(x: npt.NDArray[np.float32], spec: QuantSpec, seed: int) -> tuple[IntArray, int]:
    """Levels and exponent of a tensor in dynamic fixed point.

    Args:
        x: (N, C, H, W) or any other shape.
    """
    assert spec.scale is ScaleRule.DYNAMIC
    exponent = exponent_of(float(x.min()), float(x.max()), spec.lowest, spec.format.max_level)
    rows = np.moveaxis(x, 1, -1) if x.ndim == 4 else x
    found = [
        level_of(float(value), exponent, spec, random_bits(seed, place))
        for place, value in enumerate(rows.ravel())
    ]
    levels = np.array(found, dtype=np.int64).reshape(rows.shape)
    return (np.moveaxis(levels, -1, 1) if x.ndim == 4 else levels), exponent


def forward(
    x: IntArray, w: IntArray, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> IntArray:
    """Exact sums of (N, C, H, W) with (O, C / groups, KH, KW): (N, O, H', W')."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    height, width = (
        (padded.shape[2 + a] - dilation[a] * (w.shape[2 + a] - 1) - 1) // stride[a] + 1
        for a in (0, 1)
    )
    out = np.zeros((x.shape[0], w.shape[0], height, width), dtype=np.int64)
    for ins, outs in _groups(x.shape[1], w.shape[0], groups):
        for i in range(w.shape[2]):
            for j in range(w.shape[3]):
                seen = _window(padded, (i, j), (height, width), stride, dilation)
                out[:, outs] += np.einsum("nchw,oc->nohw", seen[:, ins], w[outs, :, i, j])
    return out


def grad_input(
    g: IntArray,
    w: IntArray,
    input_size: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> IntArray:
    """Every output gradient goes back to the inputs that it came from: ``input_size``."""
    count, channels, rows, columns = input_size
    padded = np.zeros(
        (count, channels, rows + 2 * padding[0], columns + 2 * padding[1]), dtype=np.int64
    )
    for ins, outs in _groups(channels, w.shape[0], groups):
        for i in range(w.shape[2]):
            for j in range(w.shape[3]):
                part = np.einsum("nohw,oc->nchw", g[:, outs], w[outs, :, i, j])
                seen = _window(padded[:, ins], (i, j), g.shape[2:], stride, dilation)
                seen += part
    return padded[:, :, padding[0] : padding[0] + rows, padding[1] : padding[1] + columns]


def grad_weight(
    x: IntArray,
    g: IntArray,
    weight_size: tuple[int, ...],
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    groups: int,
) -> IntArray:
    """Every weight's products of input and output gradient, summed: ``weight_size``."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    found = np.zeros(weight_size, dtype=np.int64)
    for ins, outs in _groups(x.shape[1], weight_size[0], groups):
        for i in range(weight_size[2]):
            for j in range(weight_size[3]):
                seen = _window(padded[:, ins], (i, j), g.shape[2:], stride, dilation)
                found[outs, :, i, j] = np.einsum("nchw,nohw->oc", seen, g[:, outs])
    return found


def result(sums: IntArray, exponent: int) -> npt.NDArray[np.float32]:
    """float32(sum * 2^-exponent), rounded once, to nearest and ties to even."""
    # int64 to float64 rounds beyond 2^53; operands of 16 bits do not get there below 2^23 terms.
    assert int(np.abs(sums).max(initial=0)) <= 1 << 53
    return np.ldexp(sums.astype(np.float64), -exponent).astype(np.float32)


def _groups(channels: int, outputs: int, groups: int) -> list[tuple[slice, slice]]:
    ins, outs = channels // groups, outputs // groups
    return [(slice(g * ins, (g + 1) * ins), slice(g * outs, (g + 1) * outs)) for g in range(groups)]


def _window(
    padded: IntArray, place: Pair, size: tuple[int, ...], stride: Pair, dilation: Pair
) -> IntArray:
    """A view: the pixels that one kernel position meets at every output position."""
    top, left = place[0] * dilation[0], place[1] * dilation[1]
    return padded[
        :,
        :,
        top : top + stride[0] * (size[0] - 1) + 1 : stride[0],
        left : left + stride[1] * (size[1] - 1) + 1 : stride[1],
    ]
