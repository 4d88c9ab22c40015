# SPDX-License-Identifier: Apache-2.0
"""How far the results of products lie from what a format makes of them (Vink 2023, 6.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from bitwright.formats import Rounding
from bitwright.low_precision.arithmetic.geometry import Product
from bitwright.low_precision.arithmetic.operand_quantizer import quantize
from bitwright.quantize.spec import QuantSpec

Key = tuple[str, str]


def relative_error(result: Tensor, rounded: Tensor) -> Tensor:
    """RAE: ``sqrt(mean((result - rounded)^2)) / sqrt(mean(result^2))``; 0 where all is zero."""
    size = torch.linalg.vector_norm(result)
    off = torch.linalg.vector_norm(result - rounded)
    return torch.where(size > 0, off / size.clamp_min(torch.finfo(size.dtype).tiny), 0.0)


class ErrorMeter:
    """Measures, in one training step, the errors that a policy watches.

    Args:
        spec_of: (level, layer, product) -> the format of the product's operands there; None is
            float32. Rounding is to nearest: what is measured must not depend on chance.
    """

    def __init__(self, spec_of: Callable[[int, str, Product], QuantSpec | None]) -> None:
        self._spec_of = spec_of
        self.wanted: Mapping[Key, tuple[int, ...]] = {}
        self._seen: dict[Key, list[Tensor]] = {}

    def watch(self, wanted: Mapping[Key, tuple[int, ...]]) -> None:
        """From now on these products, each at its levels; forget what was measured."""
        self.wanted, self._seen = wanted, {}

    def see(self, layer: str, product: Product, result: Tensor) -> None:
        """One result, exact."""
        levels = self.wanted.get((layer, product.value))
        if levels is None:
            return
        result, errors = result.detach(), []
        for level in levels:
            spec = self._spec_of(level, layer, product)
            if spec is None:
                errors.append(torch.zeros((), device=result.device))
                continue
            nearest = replace(spec, rounding=Rounding.HALF_EVEN)
            rounded = quantize(result, nearest, 0, name=f"the result of {layer}").reals()
            errors.append(relative_error(result, rounded))
        self._seen.setdefault((layer, product.value), []).append(torch.stack(errors))

    def errors(self) -> dict[Key, tuple[float, ...]]:
        """What was measured; of a layer that ran more than once the mean."""
        return {
            key: tuple(torch.stack(found).mean(dim=0).tolist()) for key, found in self._seen.items()
        }
