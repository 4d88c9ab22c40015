# SPDX-License-Identifier: Apache-2.0
"""The three products of training a layer, the shape of each, and who can compute one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from bitwright.low_precision.arithmetic.operands import Operand
from bitwright.quantize.spec import Product

__all__ = ["Engine", "Geometry", "Product"]

Size = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """How a kernel moves over an image; pairs are (vertical, horizontal)."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @classmethod
    def of(cls, conv: nn.Conv2d) -> Geometry:
        """That of a layer; a padding in words (``same``) is none here: the layer does it itself."""
        numbers = (0, 0) if isinstance(conv.padding, str) else conv.padding
        stride, padding, dilation = (
            (int(pair[0]), int(pair[1])) for pair in (conv.stride, numbers, conv.dilation)
        )
        return cls(stride, padding, dilation, conv.groups)

    def output_size(self, size: Size, kernel: Size) -> tuple[int, int]:
        """(H', W') that kernels of (KH, KW) give of images of (H, W)."""
        height, width = (
            (size[a] + 2 * self.padding[a] - self.dilation[a] * (kernel[a] - 1) - 1)
            // self.stride[a]
            + 1
            for a in (0, 1)
        )
        return height, width


class NoProductError(Exception):
    """An engine that supports a product has none of these sizes after all: another computes it."""


class Engine(ABC):
    """Computes products. Operands of integers give the exact sum, times the two scales, rounded
    once (to nearest, ties to even) to float32; so all engines agree bit for bit.

    Images are (N, C, H, W), kernels (O, C / groups, KH, KW), outputs (N, O, H', W'); a linear layer
    is a 1 x 1 convolution on (N, C, 1, 1).
    """

    name: str

    @abstractmethod
    def supports(self, product: Product, left: Operand, right: Operand, geometry: Geometry) -> bool:
        """Whether this engine can compute it at all."""

    @abstractmethod
    def multiply(
        self, product: Product, left: Operand, right: Operand, geometry: Geometry, size: Size
    ) -> Tensor:
        """A product, operands in the order in which `Product` names them: ``size`` float32.

        Raises:
            NoProductError: what it stands on has none of these sizes.
        """

    def forward(self, x: Operand, w: Operand, geometry: Geometry) -> Tensor:
        """Images and kernels -> outputs."""
        size = (x.shape[0], w.shape[0], *geometry.output_size(x.shape[2:], w.shape[2:]))
        return self.multiply(Product.FORWARD, x, w, geometry, size)

    def grad_input(self, g: Operand, w: Operand, geometry: Geometry, size: Size) -> Tensor:
        """The outputs' gradient and kernels -> that of the images, of this ``size``."""
        return self.multiply(Product.GRAD_INPUT, g, w, geometry, size)

    def grad_weight(self, x: Operand, g: Operand, geometry: Geometry, size: Size) -> Tensor:
        """Images and the outputs' gradient -> that of the kernels, of this ``size``."""
        return self.multiply(Product.GRAD_WEIGHT, x, g, geometry, size)


def shapes_of(product: Product, left: Size, right: Size, size: Size) -> tuple[Size, Size, Size]:
    """Shapes of images, kernels and outputs, given those of two operands and of the result."""
    if product is Product.FORWARD:
        return left, right, size
    return (size, right, left) if product is Product.GRAD_INPUT else (left, size, right)
