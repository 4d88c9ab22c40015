# SPDX-License-Identifier: Apache-2.0
"""Frozen modules that join, average, rearrange and look up: each equal to one op of the integer
dialect (`bitwright.ir`), on integers carried as floats.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitwright.formats import Format
from bitwright.formats.base import IntArray
from bitwright.quantize.frozen import carrier
from bitwright.quantize.joins import rearrange

#: (top, left, bottom, right)
Border = tuple[int, int, int, int]
NO_BORDER: Border = (0, 0, 0, 0)
Interval = tuple[int, int]


class IntegerAdd(nn.Module):
    """``multipliers[0] * a + multipliers[1] * b``, exact.

    Args:
        multipliers: two integers, not 0.
        intervals: of the operands.
        unit: real value of level 1 of the sum.
        source: the user's path of the addition.
    """

    def __init__(
        self,
        multipliers: tuple[int, int],
        intervals: tuple[Interval, Interval],
        unit: float = 1.0,
        source: str = "",
    ) -> None:
        super().__init__()
        self.multipliers, self.unit, self.source = multipliers, unit, source
        pairs = zip(multipliers, intervals, strict=True)
        ends = [sorted((m * lo, m * hi)) for m, (lo, hi) in pairs]
        self.lo, self.hi = ends[0][0] + ends[1][0], ends[0][1] + ends[1][1]
        largest = sum(max(abs(low), abs(high)) for low, high in ends)
        self.dtype = carrier(-largest, largest, source)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        first, second = self.multipliers
        return a.to(self.dtype) * first + b.to(self.dtype) * second

    def extra_repr(self) -> str:
        return f"{self.multipliers[0]} * a + {self.multipliers[1]} * b"


class IntegerConcat(nn.Module):
    """The channels of all inputs, in order.

    Args:
        intervals: of the parts.
        source: the user's path of the concatenation.
    """

    def __init__(self, intervals: Sequence[Interval], source: str = "") -> None:
        super().__init__()
        self.source = source
        self.lo, self.hi = min(lo for lo, _ in intervals), max(hi for _, hi in intervals)
        self.dtype = carrier(self.lo, self.hi, source)

    def forward(self, *parts: Tensor) -> Tensor:
        return torch.cat([part.to(self.dtype) for part in parts], 1)


class IntegerSumPool2d(nn.Module):
    """Exact sums over windows; zero padding. Divided by the window's size they are the average.

    Args:
        kernel, stride: (vertical, horizontal).
        padding: (top, left, bottom, right).
        interval: of the input.
        source: the user's path of the average.
    """

    def __init__(
        self,
        kernel: tuple[int, int],
        stride: tuple[int, int],
        padding: Border,
        interval: Interval,
        source: str = "",
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding, self.source = kernel, stride, padding, source
        low, high = interval
        if any(padding):
            low, high = min(low, 0), max(high, 0)
        self.count = kernel[0] * kernel[1]
        self.lo, self.hi = low * self.count, high * self.count
        largest = max(abs(self.lo), abs(self.hi))
        self.dtype = carrier(-largest, largest, source)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x.to(self.dtype), sides(self.padding)) if any(self.padding) else x.to(self.dtype)
        # With divisor 1 it is a sum; sums of integers below the carrier's limit are exact.
        return F.avg_pool2d(x, self.kernel, self.stride, divisor_override=1)

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, stride={self.stride}, padding={self.padding}"


class PaddedMaxPool2d(nn.Module):
    """Maximum over windows of an image with an uneven border, which never wins.

    Args:
        kernel, stride: (vertical, horizontal).
        padding: (top, left, bottom, right).
    """

    def __init__(
        self, kernel: tuple[int, int], stride: tuple[int, int], padding: Border, source: str = ""
    ) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding, self.source = kernel, stride, padding, source

    def forward(self, x: Tensor) -> Tensor:
        padded = F.pad(x, sides(self.padding), value=float("-inf"))
        return F.max_pool2d(padded, self.kernel, self.stride)

    def extra_repr(self) -> str:
        return f"kernel={self.kernel}, stride={self.stride}, padding={self.padding}"


class SpaceToDepth(nn.Module):
    """Blocks of pixels become channels, then channels change places.

    Args:
        block: side of a block; 1 for a mere change of places.
        order: output channel ``j`` is ``order[j]`` of the standard order, in which channel
            ``(dy * block + dx) * C + c`` is channel c of pixel (dy, dx) of a block.
        source: the user's path of the layer.
    """

    def __init__(self, block: int, order: Sequence[int], source: str = "") -> None:
        super().__init__()
        self.block, self.order, self.source = block, tuple(order), source

    def forward(self, x: Tensor) -> Tensor:
        return rearrange(x, self.block, self.order)

    def extra_repr(self) -> str:
        return f"block={self.block}"


class Upsample(nn.Module):
    """Each pixel repeated.

    Args:
        factor: (vertical, horizontal).
        source: the user's path of the layer.
    """

    def __init__(self, factor: tuple[int, int], source: str = "") -> None:
        super().__init__()
        self.factor, self.source = factor, source

    def forward(self, x: Tensor) -> Tensor:
        vertical, horizontal = self.factor
        return x.repeat_interleave(vertical, 2).repeat_interleave(horizontal, 3)

    def extra_repr(self) -> str:
        return f"factor={self.factor}"


class ThresholdActivation(nn.Module):
    """``base + step * count(y >= t)`` over the channel's thresholds; y is x, or -x where flipped.

    Args:
        thresholds: (C or 1, T) ascending.
        flip: (C or 1,) 0 or 1.
        base, step: output below the first threshold, and per threshold.
        format: of the levels.
        source: the user's path of the activation.
    """

    thresholds: Tensor
    flip: Tensor

    #: Real value of level 1: for reports, not for arithmetic.
    unit: float = 1.0

    def __init__(
        self,
        thresholds: IntArray,
        flip: IntArray,
        base: int,
        step: int,
        format: Format,
        source: str = "",
    ) -> None:
        super().__init__()
        self.base, self.step, self.format, self.source = base, step, format, source
        self.lo, self.hi = base, base + step * thresholds.shape[1]
        self.register_buffer("thresholds", torch.from_numpy(np.array(thresholds, dtype=np.int64)))
        self.register_buffer("flip", torch.from_numpy(np.array(flip, dtype=np.int64)))

    def forward(self, acc: Tensor) -> Tensor:
        rows = len(self.thresholds)
        sign = (1 - 2 * self.flip).view(1, -1, *(1,) * (acc.dim() - 2))
        x = (acc.to(torch.int64) * sign).movedim(1, 0)
        # searchsorted from the right counts the thresholds at or below each value.
        flat = x.reshape(x.shape[0] if rows > 1 else 1, -1).contiguous()
        count = torch.searchsorted(self.thresholds, flat, right=True).view(x.shape)
        return (self.base + self.step * count).movedim(0, 1).to(torch.float32).contiguous()

    def extra_repr(self) -> str:
        return f"{len(self.thresholds)} channels -> {self.format}"


class LookupActivation(nn.Module):
    """``table[x - lo]``: one table for all channels, an entry for every level.

    Args:
        table: (hi - lo + 1,) output levels.
        lo: smallest input level.
        format: of the output levels.
        source: the user's path of the activation.
    """

    table: Tensor

    #: Real value of level 1: for reports, not for arithmetic.
    unit: float = 1.0

    def __init__(self, table: IntArray, lo: int, format: Format, source: str = "") -> None:
        super().__init__()
        self.input_lo, self.format, self.source = lo, format, source
        self.lo, self.hi = int(table.min()), int(table.max())
        self.register_buffer("table", torch.from_numpy(np.array(table, dtype=np.int64)))

    def forward(self, levels: Tensor) -> Tensor:
        return self.table[levels.to(torch.int64) - self.input_lo].to(torch.float32)

    def extra_repr(self) -> str:
        return f"{len(self.table)} entries -> {self.format}"


def sides(border: Border) -> tuple[int, int, int, int]:
    """(top, left, bottom, right) in the order of `F.pad`."""
    top, left, bottom, right = border
    return (left, right, top, bottom)
