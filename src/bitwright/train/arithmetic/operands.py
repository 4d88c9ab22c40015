# SPDX-License-Identifier: Apache-2.0
"""One tensor as a product of training takes it: integers with a shared exponent, or reals."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Operand:
    """A quantized tensor.

    Attributes:
        levels: int8 (up to 8 bits) or int16 integers, images in channels-last memory; None for
            formats that are no integers with one power of two.
        exponent: ``real = levels * 2**-exponent``.
        bits: word length of the integers, sign included; 0 without levels.
        real: float32, where there are no levels.
    """

    levels: Tensor | None
    exponent: int = 0
    bits: int = 0
    real: Tensor | None = None

    @property
    def tensor(self) -> Tensor:
        """Whatever holds the values."""
        found = self.levels if self.levels is not None else self.real
        assert found is not None
        return found

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    def reals(self) -> Tensor:
        """float32; exact, since no integer has more than 16 bits."""
        if self.levels is None:
            return self.tensor
        return torch.ldexp(self.levels.float(), torch.tensor(-self.exponent))
