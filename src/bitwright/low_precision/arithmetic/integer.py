# SPDX-License-Identifier: Apache-2.0
"""Products on integers, in C: pairs of 16-bit products summed into 32 bits, never more than fit."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod

import torch
from torch import Tensor

from bitwright.low_precision.arithmetic.geometry import Engine, Geometry, Product, Size, shapes_of
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


class IntegerEngine(Engine):
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

    def multiply(
        self, product: Product, left: Operand, right: Operand, geometry: Geometry, size: Size
    ) -> Tensor:
        shapes = shapes_of(product, tuple(left.shape), tuple(right.shape), size)
        moves = (geometry.stride, geometry.padding, geometry.dilation)
        rows, columns = (
            # of columns, neighbours are taken together
            _axis(product, *(each[2 + a] for each in shapes), *(each[a] for each in moves), a == 1)
            for a in (0, 1)
        )
        n, channels, height, width = left.shape
        _, kernels, outputs = shapes
        numbers = {
            "images": n, "channels": channels, "height": height, "width": width,
            "kernel_height": kernels[2], "kernel_width": kernels[3], **_sums(left, right),
        }  # fmt: skip
        name = "bw_product_weight"
        if product is not Product.GRAD_WEIGHT:
            transposed, padding = product is Product.GRAD_INPUT, geometry.padding
            # The source's place of tap 0 at position 0.
            corner = [
                padding[a] - kernels[2 + a] + 1 if transposed else -padding[a] for a in (0, 1)
            ]
            numbers |= {
                "transposed": transposed,
                "row_offset": corner[0],
                "column_offset": corner[1],
            }
            outputs = size
            small = _suits_winograd(left, right, geometry, (rows, columns))
            name = "bw_product_winograd" if small else "bw_product_correlate"
        numbers |= dict(zip(("outputs", "out_height", "out_width"), outputs[1:], strict=True))
        out = torch.empty(size, dtype=torch.float32, memory_format=torch.channels_last)
        multiply(name, _in_memory(left), _in_memory(right), out, numbers, rows, columns)
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


@lru_cache(maxsize=1024)
def _axis(
    product: Product,
    size: int,
    kernel: int,
    out: int,
    stride: int,
    padding: int,
    dilation: int,
    join: bool,
) -> GatherIndices:
    """What meets what along one axis of an image of ``size``, for each position of the result.

    Taps, or for the gradient of the weight places of the source, lie so that those which meet
    neighbours are neighbours.
    """
    slot = list(range(kernel))
    if product is Product.GRAD_INPUT:
        slot = _ranks(kernel, lambda tap: (tap * dilation % stride, -tap))
    elif product is Product.GRAD_WEIGHT:
        slot = _ranks(size, lambda at: (at % stride if join else 0, at))
    positions = {Product.FORWARD: out, Product.GRAD_INPUT: size, Product.GRAD_WEIGHT: kernel}
    pairs: list[list[tuple[int, int]]] = [[] for _ in range(positions[product])]
    for position in range(out):
        for tap in range(kernel):
            at = position * stride - padding + tap * dilation
            if not 0 <= at < size:
                continue
            if product is Product.FORWARD:
                pairs[position].append((at, tap))
            elif product is Product.GRAD_INPUT:
                pairs[at].append((position, slot[tap]))
            else:
                pairs[tap].append((slot[at], position))
    return GatherIndices.of(pairs, slot, join)


def _ranks(count: int, key: Callable[[int], tuple[int, int]]) -> list[int]:
    """The place of each number below ``count`` when they are sorted by a key."""
    order = sorted(range(count), key=key)
    return sorted(range(count), key=order.__getitem__)
