# SPDX-License-Identifier: Apache-2.0
"""Products on integers, in C: pairs of 16-bit products summed into 32 bits, never more than fit."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from bitwright.low_precision.arithmetic.geometry import Geometry, Product
from bitwright.low_precision.arithmetic.operands import Operand
from bitwright.low_precision.arithmetic.product_kernels import PRODUCT, GatherIndices, multiply

_LARGEST_SUM = 2**31 - 1
_EXACT_DOUBLE = 2**53
#: Stretches of fewer pairs cost more than multiplying by both halves of an operand.
_WORTH_A_STRETCH = 8


#: Winograd's transforms: sums of so many weights and pixels; the range of exponents for which the
#: unit of the result is a normal float; the fewest channels for which transforms pay, and what they
#: cost, in multiplications.
_WEIGHT_GROWTH, _SOURCE_GROWTH, _LARGEST_LEVEL = 9, 4, 2**15 - 1
_LOWEST_EXPONENT, _HIGHEST_EXPONENT = -88, 120
_STEP_BY_STEP = ((1, 1), (1, 1))
_WORTH_TRANSFORMS = 8
_TRANSFORMS = 1.25


class IntegerEngine:
    """The three products in integers on the CPU, exactly.

    Sums are of 32 bits as long as they surely fit, which the word lengths of the operands say, and
    of stretches that do, in float64, where they might not. Of two very wide operands one is
    multiplied in two halves.
    """

    name = "integer"

    def supports(self, product: Product, left: Operand, right: Operand, geometry: Geometry) -> bool:
        """Ungrouped products of integers in a CPU's memory, where the C program can be built."""
        if left.tensor.device.type != "cpu" or not exact_terms(product, left, right, geometry):
            return False
        if isinstance(left.exponent, Tensor) or isinstance(right.exponent, Tensor):
            return False
        return PRODUCT.cdll is not None

    def forward(self, x: Operand, w: Operand, geometry: Geometry) -> Tensor:
        """See `Engine`."""
        n, _, height, width = x.shape
        outputs, _, kernel_h, kernel_w = w.shape
        rows = _forward_axis(height, kernel_h, *_along(geometry, 0))
        columns = _forward_axis(width, kernel_w, *_along(geometry, 1))
        size = (n, outputs, len(rows.start) - 1, len(columns.start) - 1)
        corner = (-geometry.padding[0], -geometry.padding[1])
        return _correlate((x, w), size, (rows, columns), geometry, corner, transposed=False)

    def grad_input(
        self, g: Operand, w: Operand, geometry: Geometry, input_size: tuple[int, ...]
    ) -> Tensor:
        """See `Engine`."""
        rows = _input_axis(input_size[2], g.shape[2], w.shape[2], *_along(geometry, 0))
        columns = _input_axis(input_size[3], g.shape[3], w.shape[3], *_along(geometry, 1))
        corner = (geometry.padding[0] - w.shape[2] + 1, geometry.padding[1] - w.shape[3] + 1)
        axes = (rows, columns)
        return _correlate((g, w), input_size, axes, geometry, corner, transposed=True)

    def grad_weight(
        self, x: Operand, g: Operand, geometry: Geometry, weight_size: tuple[int, ...]
    ) -> Tensor:
        """See `Engine`."""
        n, channels, height, width = x.shape
        outputs, out_height, out_width = g.shape[1:]
        kernel_h, kernel_w = weight_size[2:]
        rows = _weight_axis(height, out_height, kernel_h, *_along(geometry, 0))
        columns = _weight_axis(width, out_width, kernel_w, *_along(geometry, 1))
        out = _empty(weight_size)
        numbers = {
            "images": n, "channels": channels, "outputs": outputs, "height": height,
            "width": width, "out_height": out_height, "out_width": out_width,
            "kernel_height": kernel_h, "kernel_width": kernel_w, **_sums(x, g),
        }  # fmt: skip
        left, right = _in_memory(x), _in_memory(g)
        multiply("bw_product_weight", left, right, out, numbers, rows, columns)
        return out


def _correlate(
    operands: tuple[Operand, Operand],
    size: tuple[int, ...],
    axes: tuple[GatherIndices, GatherIndices],
    geometry: Geometry,
    corner: tuple[int, int],
    transposed: bool,
) -> Tensor:
    """Images with weights; ``corner`` is the source's place of tap 0 at position 0."""
    source, weight = operands
    n, channels, height, width = source.shape
    out = _empty(size)
    numbers = {
        "images": n, "channels": channels, "outputs": size[1], "height": height, "width": width,
        "out_height": size[2], "out_width": size[3], "kernel_height": weight.shape[2],
        "kernel_width": weight.shape[3], "transposed": int(transposed), **_sums(source, weight),
        "row_offset": corner[0], "column_offset": corner[1],
    }  # fmt: skip
    small = _suits_winograd(source, weight, geometry, axes)
    kernel = "bw_product_winograd" if small else "bw_product_correlate"
    left, right = _in_memory(source), _in_memory(weight)
    multiply(kernel, left, right, out, numbers, *axes)
    return out


def _suits_winograd(
    source: Operand, weight: Operand, geometry: Geometry, axes: tuple[GatherIndices, GatherIndices]
) -> bool:
    """Whether the product with fewer multiplications is exact (see its C file), and has fewer."""
    if tuple(weight.shape[2:]) != (3, 3) or (geometry.stride, geometry.dilation) != _STEP_BY_STEP:
        return False
    if min(weight.shape[:2]) < _WORTH_TRANSFORMS:
        return False
    if not _LOWEST_EXPONENT <= source.exponent + weight.exponent <= _HIGHEST_EXPONENT:
        return False
    top = max(_WEIGHT_GROWTH * weight.top, _SOURCE_GROWTH * source.top)
    largest = 4 * 9 * source.shape[1] * source.top * weight.top
    if top > _LARGEST_LEVEL or largest > _LARGEST_SUM:
        return False
    direct, tiles = 1, 16
    for gathered in axes:
        direct *= int(gathered.length.sum())
        tiles *= len(gathered.start) // 2
    return bool(_TRANSFORMS * tiles < direct)


def exact_terms(product: Product, left: Operand, right: Operand, geometry: Geometry) -> bool:
    """Whether operands are int8 or int16 images or kernels in one memory, without groups, and
    float64 holds their sums exactly."""
    for operand in (left, right):
        levels = operand.levels
        if levels is None or levels.dtype not in (torch.int8, torch.int16) or levels.dim() != 4:
            return False
        if levels.numel() == 0 or not 1 <= operand.bits <= 16:
            return False
    if geometry.groups != 1 or left.tensor.device != right.tensor.device:
        return False
    shape = right.shape
    terms: int = (shape[1] if product is Product.FORWARD else shape[0]) * prod(shape[2:])
    return terms * left.top * right.top <= _EXACT_DOUBLE


def _sums(left: Operand, right: Operand) -> dict[str, int]:
    """How many pairs fit into 32 bits, whether the right operand is halved, and the unit."""
    a, b = left.top, right.top
    limit = _LARGEST_SUM // (a * b) // 2
    split = limit < _WORTH_A_STRETCH
    if split:
        limit = _LARGEST_SUM // (a * max(255, b >> 8)) // 2
    exponent = left.exponent + right.exponent
    return {"limit": limit, "split": int(split), "exponent": exponent}


def _in_memory(operand: Operand) -> Tensor:
    assert operand.levels is not None
    return operand.levels.contiguous(memory_format=torch.channels_last)


def _empty(size: tuple[int, ...]) -> Tensor:
    return torch.empty(size, dtype=torch.float32, memory_format=torch.channels_last)


def _along(geometry: Geometry, axis: int) -> tuple[int, int, int, bool]:
    """Stride, padding, dilation; and of columns, that neighbours are taken together."""
    return geometry.stride[axis], geometry.padding[axis], geometry.dilation[axis], axis == 1


@lru_cache(maxsize=512)
def _forward_axis(
    size: int, kernel: int, stride: int, padding: int, dilation: int, join: bool
) -> GatherIndices:
    out = (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    pairs = [
        [
            (at, tap)
            for tap in range(kernel)
            if 0 <= (at := position * stride - padding + tap * dilation) < size
        ]
        for position in range(out)
    ]
    return GatherIndices.of(pairs, list(range(kernel)), join)


@lru_cache(maxsize=512)
def _input_axis(
    size: int, out: int, kernel: int, stride: int, padding: int, dilation: int, join: bool
) -> GatherIndices:
    """The taps lie so that those which meet neighbours are neighbours."""
    order = sorted(range(kernel), key=lambda tap: (tap * dilation % stride, -tap))
    slot = [order.index(tap) for tap in range(kernel)]
    pairs = []
    for position in range(size):
        meets = [(position + padding - tap * dilation, slot[tap]) for tap in range(kernel)]
        pairs.append(
            [(at // stride, k) for at, k in meets if at % stride == 0 and 0 <= at < out * stride]
        )
    return GatherIndices.of(pairs, slot, join)


@lru_cache(maxsize=512)
def _weight_axis(
    size: int, out: int, kernel: int, stride: int, padding: int, dilation: int, join: bool
) -> GatherIndices:
    """For each tap, places of the source and positions of the result.

    With ``join`` the source lies so that what a tap meets at neighbouring positions are neighbours.
    """
    order = sorted(range(size), key=lambda at: (at % stride if join else 0, at))
    place = [0] * size
    for number, at in enumerate(order):
        place[at] = number
    pairs = [
        [
            (place[at], position)
            for position in range(out)
            if 0 <= (at := position * stride - padding + tap * dilation) < size
        ]
        for tap in range(kernel)
    ]
    return GatherIndices.of(pairs, place, join)
