# SPDX-License-Identifier: Apache-2.0
"""Reference kernels: numpy int64, no cleverness. Every fast path is tested against these."""

from __future__ import annotations

import numpy as np

from bitwright.ir.node import IntArray

#: Bytes of the patches of a convolution that are written out at a time, if a row is no larger.
STRIP = 64 << 20
SHIFT_ROUNDINGS = ("half_even", "half_up", "floor")


def pad_image(x: IntArray, padding: tuple[int, ...], value: int) -> IntArray:
    """Pad ``(N, H, W, C)`` by (top, left, bottom, right) with a level."""
    if not any(padding):
        return x
    top, left, bottom, right = padding
    return np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=value)


def windows(
    x: IntArray, kernel: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]
) -> IntArray:
    """All windows of ``(N, H, W, C)`` as a view ``(N, OH, OW, KH, KW, C)``."""
    span = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
    view = np.lib.stride_tricks.sliding_window_view(x, span, axis=(1, 2))
    view = view[:, :: stride[0], :: stride[1], :, :: dilation[0], :: dilation[1]]
    return np.moveaxis(view, 3, -1)


def conv2d(
    x: IntArray,
    weight: IntArray,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
) -> IntArray:
    """Exact convolution of ``(N, H, W, C)`` by ``(O, KH, KW, C/groups)``."""
    rows, kernel_h, kernel_w, columns = weight.shape
    patches = windows(pad_image(x, padding, 0), (kernel_h, kernel_w), stride, dilation)
    frames, height, width = patches.shape[:3]
    result = np.empty((frames, height, width, rows), np.int64)
    terms = kernel_h * kernel_w * columns
    strip = max(1, STRIP // (8 * max(frames * width * terms, 1)))  # rows of the image
    for group in range(groups):
        part = patches[..., group * columns : (group + 1) * columns]
        rows_of = slice(group * rows // groups, (group + 1) * rows // groups)
        factors = weight[rows_of].reshape(rows // groups, terms).T
        for top in range(0, height, strip):
            some = part[:, top : top + strip]
            flat = some.reshape(*some.shape[:3], terms)
            result[:, top : top + strip, :, rows_of] = flat @ factors
    return result


def rounded_sums(
    vectors: IntArray, weight: IntArray, bias: IntArray, tile: int, drop: int, bits: int
) -> IntArray:
    """Sums of products in an accumulator of fixed point. It begins with the bias; what is added in
    one step is the exact sum of `tile` products, rounded by 2^drop to the nearest with ties
    upwards; after each step it saturates to `bits` bits in two's complement.

    Args:
        vectors: ``(..., G, K)``, of each group its elements in the order in which they are added.
        weight: ``(G, R, K)``.
        bias: ``(G, R)`` levels of the accumulator.

    Returns:
        ``(..., G, R)``
    """
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    columns = np.moveaxis(vectors, -2, 0)
    shape = columns.shape[1:-1]
    columns = columns.reshape(len(weight), -1, weight.shape[-1])
    sums = np.broadcast_to(bias[:, None], (len(weight), columns.shape[1], weight.shape[1]))
    for start in range(0, weight.shape[-1], tile):
        part = slice(start, start + tile)
        added = columns[..., part] @ np.swapaxes(weight[..., part], 1, 2)
        sums = np.clip(sums + round_shift(added, drop, "half_up"), low, high)
    return np.moveaxis(sums.reshape(len(weight), *shape, -1), 0, -2)


def max_pool(
    x: IntArray,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    lowest: int,
) -> IntArray:
    """Maximum over windows; the border is padded with the lowest level."""
    patches = windows(pad_image(x, padding, lowest), kernel, stride, (1, 1))
    maximum: IntArray = patches.max(axis=(3, 4))
    return maximum


def count_thresholds(x: IntArray, thresholds: IntArray) -> IntArray:
    """Number of thresholds of the element's channel (last axis) that are not above it.

    Args:
        x: ``(..., C)``.
        thresholds: ``(C or 1, T)``, ascending.
    """
    count = np.zeros(x.shape, dtype=np.int64)
    for column in range(thresholds.shape[1]):
        count += x >= thresholds[:, column]
    return count


def round_shift(x: IntArray, shift: int, rounding: str) -> IntArray:
    """``x / 2**shift`` rounded to an integer: half_even, half_up (to +inf) or floor."""
    if shift == 0 or rounding == "floor":
        return x >> shift
    half = np.int64(1) << (shift - 1)
    rounded = (x + half) >> shift
    if rounding == "half_even":
        tie = (x & ((np.int64(1) << shift) - 1)) == half
        rounded = rounded - (tie & (rounded & 1 == 1))
    return rounded


def bit_length(x: IntArray) -> IntArray:
    """Bits of the magnitude of each integer below 2^62: 0 for 0, else floor(log2 |x|) + 1."""
    magnitude = np.abs(x)
    high, low = magnitude >> 31, magnitude & ((1 << 31) - 1)
    # Both halves are exact in float64, whose exponent is the answer.
    bits = np.where(high > 0, np.frexp(high.astype(np.float64))[1] + 31, 0)
    return np.where(high > 0, bits, np.frexp(low.astype(np.float64))[1]).astype(np.int64)


def round_float(
    x: IntArray, shift: int, significant: int, smallest: int, rounding: str
) -> IntArray:
    """``x / 2**shift`` rounded once, to an integer of at most ``significant`` significant bits.

    Results of a magnitude below ``smallest`` are 0.
    """
    drop = np.maximum(bit_length(x) - significant - shift, 0)
    places = drop + shift
    rounded = x >> places
    if rounding != "floor":
        # Of 0 places nothing is rounded; 2^-1 must not be formed then.
        half = np.where(places > 0, np.int64(1) << np.maximum(places - 1, 0), 0)
        rounded = (x + half) >> places
        if rounding == "half_even":
            tie = (places > 0) & ((x & ((np.int64(1) << places) - 1)) == half)
            rounded = rounded - (tie & (rounded & 1 == 1))
    value: IntArray = rounded << drop
    return np.where(np.abs(value) < smallest, 0, value)
