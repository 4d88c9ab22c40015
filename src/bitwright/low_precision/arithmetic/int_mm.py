# SPDX-License-Identifier: Apache-2.0
"""Products with torch's 8-bit matrix product: fast on processors with VNNI and on GPUs.

Integers of more than 8 bits are sums of signed digits of 8 bits, so their products are sums of
8-bit products. Images become matrices, a stretch of the batch at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from bitwright.low_precision.arithmetic.geometry import (
    Engine,
    Geometry,
    NoProductError,
    Product,
    Size,
)
from bitwright.low_precision.arithmetic.integer import exact_terms
from bitwright.low_precision.arithmetic.operands import Operand, scaled

#: Products of two 8-bit integers of which a 32-bit sum surely holds so many.
_TERMS = (2**31 - 1) >> 14
#: Elements of the largest matrix that is made of images at a time.
_ELEMENTS = 1 << 24
#: What the GPU's product wants columns and sums to be multiples of, and how many rows at least.
_MULTIPLE = 16
_ROWS = 32


class IntMatrixEngine(Engine):
    """The three products by ``torch._int_mm``, exactly, on the CPU and on GPUs."""

    name = "int_mm"

    def supports(self, product: Product, left: Operand, right: Operand, geometry: Geometry) -> bool:
        """Ungrouped products of integers of up to 16 bits, where torch has the matrix product."""
        if not hasattr(torch, "_int_mm") or left.tensor.device.type not in ("cpu", "cuda"):
            return False
        return exact_terms(product, left, right, geometry)

    def multiply(
        self, product: Product, left: Operand, right: Operand, geometry: Geometry, size: Size
    ) -> Tensor:
        compute = {
            Product.FORWARD: _forward,
            Product.GRAD_INPUT: _grad_input,
            Product.GRAD_WEIGHT: _grad_weight,
        }[product]
        found = scaled(compute(left, right, geometry, size), left.exponent + right.exponent)
        return found.contiguous(memory_format=torch.channels_last)


def _forward(x: Operand, w: Operand, geometry: Geometry, size: Size) -> Tensor:
    n, outputs, *pixels = size
    weight = _levels(w).permute(2, 3, 1, 0).reshape(-1, outputs)

    def part(images: slice) -> Tensor:
        columns = _columns(_levels(x)[images], w.shape[2:], geometry, pixels)
        return _product(columns, weight, x.bits, w.bits).view(-1, *pixels, outputs)

    sums = _joined(part, n, prod(pixels) * max(prod(w.shape[1:]), outputs))
    return sums.permute(0, 3, 1, 2)


def _grad_input(g: Operand, w: Operand, geometry: Geometry, size: Size) -> Tensor:
    outputs, channels, *kernel = w.shape
    weight = _levels(w).reshape(outputs, -1)
    pixels = prod(g.shape[2:])

    def part(images: slice) -> Tensor:
        rows = _levels(g)[images].permute(0, 2, 3, 1).reshape(-1, outputs)
        columns = _product(rows, weight, g.bits, w.bits).view(-1, pixels, weight.shape[1])
        return functional.fold(
            columns.transpose(1, 2), size[2:], kernel,
            geometry.dilation, geometry.padding, geometry.stride,
        )  # fmt: skip

    return _joined(part, g.shape[0], pixels * channels * prod(kernel))


def _grad_weight(x: Operand, g: Operand, geometry: Geometry, size: Size) -> Tensor:
    outputs, channels, *kernel = size
    pixels = g.shape[2:]
    total = torch.zeros((outputs, 1), dtype=torch.float64, device=g.tensor.device)
    for images in _stretches(x.shape[0], prod(pixels) * channels * prod(kernel)):
        columns = _columns(_levels(x)[images], kernel, geometry, pixels)
        rows = _levels(g)[images].permute(1, 0, 2, 3).reshape(outputs, -1)
        total = total + _product(rows, columns, g.bits, x.bits)
    return total.view(outputs, *kernel, channels).permute(0, 3, 1, 2)


def _levels(operand: Operand) -> Tensor:
    assert operand.levels is not None
    return operand.levels


def _columns(x: Tensor, kernel: Sequence[int], geometry: Geometry, size: Sequence[int]) -> Tensor:
    """(n, C, H, W) -> (n * pixels, KH * KW * C): what each output pixel sees."""
    above, beside = geometry.padding
    padded = functional.pad(x.permute(0, 2, 3, 1), (0, 0, beside, beside, above, above))
    n, _, _, channels = padded.shape
    image, row, column, channel = padded.stride()
    view = padded.as_strided(
        (n, *size, *kernel, channels),
        (
            image,
            row * geometry.stride[0],
            column * geometry.stride[1],
            row * geometry.dilation[0],
            column * geometry.dilation[1],
            channel,
        ),
    )
    return view.reshape(n * prod(size), -1)


def _stretches(images: int, elements: int) -> Iterator[slice]:
    """Of the batch, so that matrices of ``elements`` an image stay small."""
    step = max(1, _ELEMENTS // max(elements, 1))
    for begin in range(0, images, step):
        yield slice(begin, min(begin + step, images))


def _joined(part: Callable[[slice], Tensor], images: int, elements: int) -> Tensor:
    return torch.cat([part(stretch) for stretch in _stretches(images, elements)])


def _product(left: Tensor, right: Tensor, left_bits: int, right_bits: int) -> Tensor:
    """(m, k) x (k, n) of integers -> float64, exact."""
    total = torch.zeros((left.shape[0], right.shape[1]), dtype=torch.float64, device=left.device)
    for i, a in enumerate(_digits(left, left_bits)):
        for j, b in enumerate(_digits(right, right_bits)):
            for begin in range(0, left.shape[1], _TERMS):
                stretch = slice(begin, begin + _TERMS)
                sums = _matrix_product(a[:, stretch], b[stretch])
                total.add_(sums, alpha=2.0 ** (8 * (i + j)))
    return total


def _digits(levels: Tensor, bits: int) -> list[Tensor]:
    """int8 digits, lowest first, of base 256: -128 .. 127 each."""
    digits = []
    rest = levels if bits <= 8 else levels.to(torch.int32)
    while bits > 8:
        low = rest.to(torch.int8)  # the lowest byte, as a signed one
        digits.append(low)
        rest = (rest - low) >> 8
        # 32640 and more carry into a second digit of 128.
        bits = bits - 8 if bits < 16 else 9
    return [*digits, rest.to(torch.int8)]


def _matrix_product(left: Tensor, right: Tensor) -> Tensor:
    """int8 matrices -> int32, with what a GPU wants of their sizes and strides.

    Raises:
        NoProductError: its library has no product of these all the same.
    """
    m, n = left.shape[0], right.shape[1]
    if left.device.type != "cuda":
        return torch._int_mm(_row_major(left), _row_major(right))
    extra = -left.shape[1] % _MULTIPLE
    left = functional.pad(left, (0, extra, 0, max(_ROWS - m, 0)))
    right = functional.pad(right, (0, -n % _MULTIPLE, 0, extra))
    # Column by column: with both row by row its library has no product of most sizes.
    try:
        return torch._int_mm(_row_major(left), _row_major(right.T).T)[:m, :n]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        raise NoProductError(str(error).partition("\n")[0]) from error


def _row_major(matrix: Tensor) -> Tensor:
    """The matrix in memory row by row, with the strides that say so.

    ``contiguous`` alone leaves a view of one row or column any strides; of a transposed row,
    whose strides are (1, 1), torch 2.13's product on CPUs with VNNI returns unset memory.
    """
    return matrix.contiguous().as_strided(matrix.shape, (matrix.shape[1], 1))
