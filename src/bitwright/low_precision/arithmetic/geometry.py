# SPDX-License-Identifier: Apache-2.0
"""The three products of training a layer, the shape of each, and who can compute one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

from bitwright.low_precision.arithmetic.operands import Operand
from bitwright.quantize.spec import Product

__all__ = ["Engine", "Geometry", "Product"]


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


class Engine(Protocol):
    """Computes products. Operands of integers give the exact sum, times the two scales, rounded
    once (to nearest, ties to even) to float32; so all engines agree bit for bit.

    Images are (N, C, H, W); a linear layer is a 1 x 1 convolution on (N, C, 1, 1).
    """

    name: str

    def supports(self, product: Product, left: Operand, right: Operand, geometry: Geometry) -> bool:
        """Whether this engine can compute it at all."""
        ...

    def forward(self, x: Operand, w: Operand, geometry: Geometry) -> Tensor:
        """(N, C, H, W) and (O, C / groups, KH, KW) -> (N, O, H', W') float32."""
        ...

    def grad_input(
        self, g: Operand, w: Operand, geometry: Geometry, input_size: tuple[int, ...]
    ) -> Tensor:
        """(N, O, H', W') and the weight -> ``input_size`` float32."""
        ...

    def grad_weight(
        self, x: Operand, g: Operand, geometry: Geometry, weight_size: tuple[int, ...]
    ) -> Tensor:
        """(N, C, H, W) and (N, O, H', W') -> ``weight_size`` float32."""
        ...
