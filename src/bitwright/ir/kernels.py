# SPDX-License-Identifier: Apache-2.0
"""Reference kernels: numpy int64, no cleverness. Every fast path is tested against these."""

from __future__ import annotations

import numpy as np

from bitwright.ir.graph import IntArray

SHIFT_ROUNDINGS = ("half_even", "half_up", "floor")


def pad_image(x: IntArray, padding: tuple[int, ...], value: int) -> IntArray:
    """Pad ``(N, H, W, C)`` by (top, left, bottom, right) with a level."""
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
    outs = []
    for group in range(groups):
        part = patches[..., group * columns : (group + 1) * columns]
        rows_of = slice(group * rows // groups, (group + 1) * rows // groups)
        flat = part.reshape(*part.shape[:3], kernel_h * kernel_w * columns)
        outs.append(flat @ weight[rows_of].reshape(rows // groups, -1).T)
    return np.concatenate(outs, axis=-1)


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
