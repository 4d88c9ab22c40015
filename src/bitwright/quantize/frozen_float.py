# SPDX-License-Identifier: Apache-2.0
"""The activation of a minifloat format in integers: `requant_float` of the integer dialect."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.formats import MinifloatFormat, Rounding
from bitwright.ir.op_activations import float_rule
from bitwright.quantize.frozen import round_shift

_PRODUCT_LIMIT = 1 << 62


class FloatActivation(nn.Module):
    """``level = clip(round_float((acc * multiplier + offset) / 2^shift))``, int64, one rounding.

    The levels are integers of at most ``mantissa + 1`` significant bits.

    Args:
        multiplier, offset: (C,) integers, per channel (axis 1).
        shift: bits shifted out, the same for all channels.
        format, rounding: of the levels; half_even, half_up or floor.
        ends: smallest and largest level in use.
        interval: smallest and largest accumulator.
        source: path of the user's activation.

    Raises:
        ModelError: the product may exceed 62 bits.
    """

    multiplier: Tensor
    offset: Tensor

    #: Real value of level 1: for reports, not for arithmetic.
    unit: float = 1.0

    def __init__(
        self,
        multiplier: Tensor,
        offset: Tensor,
        shift: int,
        format: MinifloatFormat,
        rounding: Rounding,
        ends: tuple[int, int],
        interval: tuple[int, int],
        source: str = "",
    ) -> None:
        super().__init__()
        self.shift, self.format, self.rounding = shift, format, rounding
        self.significant, self.smallest = float_rule(format)
        self.lo, self.hi = ends
        self.interval, self.source = interval, source
        self.register_buffer("multiplier", multiplier.to(torch.int64))
        self.register_buffer("offset", offset.to(torch.int64))
        reach = max(abs(interval[0]), abs(interval[1]))
        peak = reach * int(multiplier.abs().max()) + int(offset.abs().max())
        if peak >= _PRODUCT_LIMIT:
            raise ModelError(f"the product needs {peak.bit_length() + 1} bits", where=source)

    def forward(self, acc: Tensor) -> Tensor:
        shape = (1, -1, *(1,) * (acc.dim() - 2))
        product = acc.to(torch.int64) * self.multiplier.view(shape) + self.offset.view(shape)
        drop = (bit_length(product) - (self.significant + self.shift)).clamp_(min=0)
        level = round_shift(product, drop + self.shift, self.rounding) << drop
        if self.smallest:
            level.masked_fill_(level.abs() < self.smallest, 0)
        return level.clamp_(self.lo, self.hi).to(torch.float32)

    def extra_repr(self) -> str:
        return f"{self.multiplier.numel()} channels -> {self.format}, shift={self.shift}"


def bit_length(x: Tensor) -> Tensor:
    """Bits of the magnitude of each integer below 2^62; 0 for 0."""
    magnitude = x.abs()
    high, low = magnitude >> 31, magnitude & ((1 << 31) - 1)
    # Both halves are exact in float64, whose exponent is the answer.
    bits = torch.frexp(high.to(torch.float64)).exponent + 31
    short = torch.frexp(low.to(torch.float64)).exponent
    return torch.where(high > 0, bits, short).to(torch.int64)
