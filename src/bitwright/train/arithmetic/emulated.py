# SPDX-License-Identifier: Apache-2.0
"""Products of quantized operands with floating-point convolutions, exact where that is proven."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bitwright.train.arithmetic.geometry import Geometry, Product
from bitwright.train.arithmetic.operands import Operand, scaled

#: Integers up to this are float32 numbers; so are all sums of integers that stay below it.
EXACT = 1 << 24


class EmulatedEngine:
    """The products in float32, where every partial sum is proven to be an integer below 2^24, else
    in float64. Any geometry, format and device; formats that are no integers are multiplied in
    float32 as they are.
    """

    name = "emulated"

    def supports(self, product: Product, left: Operand, right: Operand, geometry: Geometry) -> bool:
        return True

    def forward(self, x: Operand, w: Operand, geometry: Geometry) -> Tensor:
        length = math.prod(w.shape[1:])
        return _product(x, w, length, lambda a, b: _forward(a, b, geometry))

    def grad_input(
        self, g: Operand, w: Operand, geometry: Geometry, input_size: tuple[int, ...]
    ) -> Tensor:
        length = w.shape[0] // geometry.groups * math.prod(w.shape[2:])

        def run(a: Tensor, b: Tensor) -> Tensor:
            return _backward(a, a.new_empty(1).expand(input_size), b, geometry, 0)

        return _product(g, w, length, run)

    def grad_weight(
        self, x: Operand, g: Operand, geometry: Geometry, weight_size: tuple[int, ...]
    ) -> Tensor:
        length = g.shape[0] * math.prod(g.shape[2:])

        def run(a: Tensor, b: Tensor) -> Tensor:
            return _backward(b, a, a.new_empty(1).expand(weight_size), geometry, 1)

        return _product(x, g, length, run)


def _product(
    left: Operand, right: Operand, length: int, run: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    if left.levels is None or right.levels is None:
        return run(left.reals(), right.reals())
    dtype = torch.float32 if length * left.top * right.top <= EXACT else torch.float64
    sums = run(left.levels.to(dtype), right.levels.to(dtype))
    return scaled(sums, left.exponent + right.exponent)


def _forward(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    return torch.nn.functional.conv2d(
        x, w, None, geometry.stride, geometry.padding, geometry.dilation, geometry.groups
    )


def _backward(g: Tensor, x: Tensor, w: Tensor, geometry: Geometry, which: int) -> Tensor:
    """Gradient 0 (input) or 1 (weight) of a convolution; of the tensor asked for only the shape
    matters."""
    found: Tensor = torch.ops.aten.convolution_backward(
        g,
        x,
        w,
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        False,
        (0, 0),
        geometry.groups,
        (which == 0, which == 1, False),
    )[which]
    return found
