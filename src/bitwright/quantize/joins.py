# SPDX-License-Identifier: Apache-2.0
"""Layers of a quantized model that join, average or rearrange tensors.

Two operands of an addition have scales of their own. Integer multipliers bring them to one
(`integer_multipliers`); the ratio so rounded is what the model computes already in training, so
freezing changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.quantizer import Phase

#: Largest multiplier: an operand whose unit is smaller by more than this hardly counts.
MAX_MULTIPLIER = 1 << 10


class Multipliers(NamedTuple):
    """``first * a + second * b`` in levels is the sum in units of ``unit``."""

    first: int
    second: int
    unit: float


def integer_multipliers(first: float, second: float, peak: int) -> Multipliers:
    """The simplest integers whose ratio is that of two units, near enough.

    Near enough: at the largest level the distortion stays below half a level.

    Args:
        first, second: real value of level 1 of each operand, positive.
        peak: largest magnitude of a level of either operand.
    """
    large, small = max(first, second), min(first, second)
    ratio = Fraction(large) / Fraction(small)
    if ratio >= MAX_MULTIPLIER:
        found = Fraction(MAX_MULTIPLIER)
    else:
        slack = Fraction(1, 2 * max(1, peak) + 1)
        found = simplest_between(ratio * (1 - slack), ratio * (1 + slack))
    top, bottom = max(1, found.numerator), found.denominator
    pair = (top, bottom) if first >= second else (bottom, top)
    return Multipliers(*pair, large / top)


def simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """The fraction with the smallest denominator in ``low .. high`` (by continued fractions)."""
    whole = low.numerator // low.denominator
    if whole == low or whole + 1 <= high:
        return Fraction(whole if whole == low else whole + 1)
    rest = simplest_between(1 / (high - whole), 1 / (low - whole))
    return whole + 1 / rest


class QuantAdd(nn.Module):
    """``a + sign * b`` of two quantized tensors, with the ratio of their units made rational.

    Args:
        sign: 1, or -1 for a subtraction.
    """

    def __init__(self, sign: int = 1) -> None:
        super().__init__()
        self.sign = sign
        self.__dict__["operands"] = None

    def bind_operands(self, first: ActivationQuantizer, second: ActivationQuantizer) -> None:
        """The quantizers whose units the operands have; without them the sum stays exact."""
        self.__dict__["operands"] = (first, second)  # not children: they live elsewhere

    @property
    def bound(self) -> bool:
        return self.operands is not None

    def multipliers(self) -> Multipliers:
        """The integers of the frozen sum; ``sign`` is not in them."""
        first, second = self.operands
        peak = max(q.peak for q in self.operands)
        return integer_multipliers(first.unit, second.unit, peak)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        b = b if self.sign > 0 else -b
        if self.operands is None or any(
            q.phase is Phase.CALIBRATE or not q.ready for q in self.operands
        ):
            return a + b
        first, second = (quantizer.unit_for(a) for quantizer in self.operands)
        if isinstance(first, Tensor) or isinstance(second, Tensor):
            left, right = self._factors(first, second)
            return a * left + b * right
        found = self.multipliers()
        return a * (found.first * found.unit / first) + b * (found.second * found.unit / second)

    def _factors(self, first: Any, second: Any) -> tuple[Tensor, Tensor]:
        """What `multipliers` make of the operands, for units on a device that nobody waits for: the
        smallest denominator is looked for among all, in float64.
        """
        peaks = [q.peak_for(first) for q in self.operands]
        peak, most = torch.stack([p for p, _ in peaks]).amax(), max(m for _, m in peaks)
        large, small = torch.maximum(first, second), torch.minimum(first, second)
        ratio, slack = large / small, 1 / (2 * peak.clamp(min=1) + 1)
        bottoms = torch.arange(1, most + 2, dtype=torch.float64, device=ratio.device)
        tops = torch.ceil(ratio * (1 - slack) * bottoms)
        place = (tops <= ratio * (1 + slack) * bottoms).to(torch.int8).argmax()
        far = ratio >= MAX_MULTIPLIER
        top = tops.take(place).clamp(min=1).masked_fill(far, MAX_MULTIPLIER)
        share = bottoms.take(place).masked_fill(far, 1) * ratio / top
        one, second_is_small = torch.ones_like(share), first >= second
        return torch.where(second_is_small, one, share), torch.where(second_is_small, share, one)

    def extra_repr(self) -> str:
        return "" if self.sign > 0 else "a - b"


class ScaleShift(nn.Module):
    """A tensor multiplied by, divided by, or added to a constant.

    Args:
        operation: mul, div, add, sub or neg.
        number: the constant; None where it is a second argument, a tensor of the model.
        swapped: the constant stands first: ``c - x``.
    """

    def __init__(self, operation: str, number: float | None, swapped: bool) -> None:
        super().__init__()
        self.operation, self.number, self.swapped = operation, number, swapped

    def forward(self, x: Tensor, constant: Tensor | None = None) -> Tensor:
        factor, shift = self.affine(self.number if constant is None else constant)
        return x * factor + shift

    def affine(self, constant: Any) -> tuple[Any, Any]:
        """(factor, shift) with ``result = x * factor + shift``."""
        if self.operation == "neg":
            return -1.0, 0.0
        if self.operation == "mul":
            return constant, 0.0
        if self.operation == "div":
            return 1.0 / constant, 0.0
        if self.operation == "add":
            return 1.0, constant
        return (-1.0, constant) if self.swapped else (1.0, -constant)

    def extra_repr(self) -> str:
        return self.operation if self.number is None else f"{self.operation} {self.number:g}"


class Concatenate(nn.Module):
    """The channels of all inputs, in order."""

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat(parts, 1)


class GlobalAverage(nn.Module):
    """Mean over height and width.

    Args:
        keep: give (N, C, 1, 1) instead of (N, C).
    """

    def __init__(self, keep: bool) -> None:
        super().__init__()
        self.keep = keep

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3), keepdim=self.keep)


class RaiseSignal(nn.Module):
    """A signal (N, C, L) as an image of one row, (N, C, 1, L): a network of signals begins so."""

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(2)


class LowerSignal(nn.Module):
    """An image of one row as a signal again, where such a network ends."""

    def forward(self, x: Tensor) -> Tensor:
        return x.squeeze(2)


class Rearrange(nn.Module):
    """Blocks of pixels become channels; with block 1, channels change places.

    Args:
        block: side of a block.
        order: output channel ``j`` is ``order[j]`` of the standard order, in which channel
            ``(dy * block + dx) * C + c`` is channel c of pixel (dy, dx) of a block; () keeps that.
    """

    def __init__(self, block: int, order: Sequence[int] = ()) -> None:
        super().__init__()
        self.block = block
        self.order = tuple(int(j) for j in order)

    def forward(self, x: Tensor) -> Tensor:
        return rearrange(x, self.block, self.order)

    def extra_repr(self) -> str:
        return f"block={self.block}" + (", channels reordered" if self.order else "")


def rearrange(x: Tensor, block: int, order: Sequence[int]) -> Tensor:
    """`Rearrange` as a function: (N, C, H, W) -> (N, block^2 C, H / block, W / block)."""
    count, channels, height, width = x.shape
    if block > 1:
        x = x.reshape(count, channels, height // block, block, width // block, block)
        x = x.permute(0, 3, 5, 1, 2, 4)
        x = x.reshape(count, block * block * channels, height // block, width // block)
    if not order or tuple(order) == tuple(range(len(order))):
        return x
    return x[:, list(order)]


def channel_major(block: int, channels: int) -> tuple[int, ...]:
    """The order of torch's ``pixel_unshuffle``: channel ``c * block^2 + dy * block + dx``."""
    places = range(block * block)
    return tuple(place * channels + c for c in range(channels) for place in places)


def shuffled(groups: int, channels: int) -> tuple[int, ...]:
    """The order of torch's ``channel_shuffle``."""
    width = channels // groups
    return tuple(g * width + i for i in range(width) for g in range(groups))
