# SPDX-License-Identifier: Apache-2.0
"""One tensor as a product of training takes it: integers with a shared exponent, or reals."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bitwright.base.errors import ModelError
from bitwright.formats.pytorch.grid import power_of_two

#: The exponents of operands; that of a product is the sum of two.
MIN_EXPONENT, MAX_EXPONENT = -120, 120


class NotFinite(ModelError):
    """A tensor that is to be quantized holds NaN or an infinity."""


@dataclass(frozen=True, eq=False)
class Operand:
    """A quantized tensor.

    Attributes:
        levels: int8 (up to 8 bits), int16 or (17 bits: uint16) int32 integers, images in
            channels-last memory; None for formats that are no integers with one power of two.
        exponent: ``real = levels * 2**-exponent``; on a GPU an int64 tensor (), which nobody has to
            wait for.
        bits: word length of the integers as signed ones, so 9 for ``uint8``; 0 without levels.
        real: float32, where there are no levels.
        finite: () bool on a GPU: whether what was quantized is finite; without it that is checked.
    """

    levels: Tensor | None
    exponent: int | Tensor = 0
    bits: int = 0
    real: Tensor | None = None
    finite: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """Whatever holds the values."""
        found = self.levels if self.levels is not None else self.real
        assert found is not None
        return found

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    @property
    def top(self) -> int:
        """The largest magnitude that the word length has; 0 without levels."""
        return 1 << (self.bits - 1) if self.bits else 0

    def reals(self) -> Tensor:
        """float32; exact for up to 24 bits unless the result is smaller than float32 goes."""
        if self.levels is None:
            return self.tensor
        return scaled(self.levels.float(), self.exponent)


def scaled(sums: Tensor, exponent: int | Tensor) -> Tensor:
    """``sums * 2**-exponent`` as float32, rounded once; overwrites ``sums``, if that is float32
    with the result.

    Args:
        sums: integers in float32 or float64.
        exponent: up to 240 in magnitude.
    """
    if isinstance(exponent, Tensor):
        # In two steps, as below: the first is exact, since integers are not below 1.
        first = exponent.clamp(-120, 100)
        for part in (first, exponent - first):
            sums.mul_(power_of_two(-part).to(sums.dtype))
        return sums.float()
    if sums.dtype == torch.float64:
        return sums.mul_(2.0**-exponent).float()
    if exponent > 120:
        # float32 has no such factor; the first of two is exact, since integers are not below 1.
        sums, exponent = sums.mul_(2.0**-100), exponent - 100
    elif exponent < -120:
        sums, exponent = sums.mul_(2.0**120), exponent + 120
    return sums if exponent == 0 else sums.mul_(2.0**-exponent)
