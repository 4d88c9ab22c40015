# SPDX-License-Identifier: Apache-2.0
"""The values that a weight can take: a format's levels times a step, which may differ by weight."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bitwright.base.errors import FormatError, ModelError
from bitwright.formats import Format, Rounding
from bitwright.formats.pytorch.rounding import quantize_ratio
from bitwright.quantize.layers import QuantLayer
from bitwright.quantize.ptq.matrices import as_matrix
from bitwright.quantize.scale_rules import finish
from bitwright.quantize.scale_search import TINY
from bitwright.quantize.spec import Granularity, QuantSpec, ScaleRule

_FRACTIONS = (1.0, 0.92, 0.85, 0.78, 0.71, 0.65, 0.59, 0.53, 0.47, 0.4)
_POWERS = (2.0, 1.0, 0.5, 0.25)


@dataclass(frozen=True)
class Lattice:
    """The representable values of one layer's weight.

    Attributes:
        format: of a level (of the element, for blocks).
        spec: the weight's specification.
        unit: (1,) or (O,), real value of one fixed level.
        steps: of the weight's shape (broadcastable): real value of one level of ``format``; the
            unit, times a power of two where blocks have scales of their own.
    """

    format: Format
    spec: QuantSpec
    unit: Tensor
    steps: Tensor

    def nearest(self, values: Tensor, steps: Tensor) -> Tensor:
        """The nearest representable reals, by the rule of the policy; steps as broadcast."""
        rounding = self.spec.rounding
        if rounding is Rounding.STOCHASTIC:
            rounding = Rounding.HALF_EVEN
        ratio = values / steps
        levels = quantize_ratio(ratio, self.format, 0, rounding, self.spec.overflow)
        return levels * steps

    def rounded(self, layer: QuantLayer) -> Tensor:
        """A layer's float weight, each value at the nearest representable one."""
        return self.nearest(layer.weight.detach().to(torch.float64), self.steps)

    def fix_levels(self, layer: QuantLayer, values: Tensor) -> None:
        """Fix a layer's weight to representable reals."""
        spread = self.unit.reshape(-1, *(1,) * (values.dim() - 1))
        layer.weight_quantizer.fix_levels(torch.round(values / spread), self.unit)
        layer.cache.clear()

    def levels(self) -> Tensor:
        """All levels, ascending, float64.

        Raises:
            ModelError: the format has too many to list.
        """
        try:
            return torch.from_numpy(self.format.grid()).to(torch.float64)
        except FormatError as error:
            raise ModelError(
                f"{self.format} has no list of levels to choose from", hint="use gptq instead"
            ) from error


@torch.no_grad()
def lattice_of(layer: QuantLayer) -> Lattice:
    """The lattice of a layer as its policy sets it, before any method."""
    quantizer, weight = layer.weight_quantizer, layer.weight.detach()
    quantizer.release()
    levels, unit = quantizer.levels(weight)
    unit = unit.to(torch.float64)
    spec = quantizer.spec
    steps = torch.ones_like(levels) * unit.reshape(-1, *(1,) * (weight.dim() - 1))
    if spec.format.block:
        exponents = quantizer.block_exponents(weight)
        return Lattice(spec.format.stored, spec, unit, torch.exp2(exponents) * spec.format.lsb)
    return Lattice(quantizer.format, spec, unit, steps)


def candidates(layer: QuantLayer, lattice: Lattice) -> list[Tensor]:
    """Units worth trying instead of the policy's, (1,) or (O,) each; the policy's own is first.

    From the unit that clips nothing down to 0.4 of it, or neighbouring powers of two. Constant
    scales, tables, blocks and units that go with a zero point have no other.
    """
    spec = lattice.spec
    fixed = spec.scale is ScaleRule.CONST or spec.format.needs_table or spec.zero_point
    if fixed or spec.format.block or spec.format.sign_only:
        return [lattice.unit]
    if spec.power_of_two:
        others = [p for p in _POWERS if p != 1.0]
        return [lattice.unit, *(lattice.unit * power for power in others)]
    weight = layer.weight.detach().to(torch.float64)
    table = weight.reshape(len(weight), -1) if _is_channelwise(spec) else weight.reshape(1, -1)
    top = (table.abs().amax(dim=1) / spec.format.reach).clamp(min=TINY)
    # Scales are float32 numbers everywhere else; so are these, to the bit.
    tried = [finish((top * f).to(torch.float32), spec).to(torch.float64) for f in _FRACTIONS]
    return [lattice.unit, *(scale * spec.format.lsb for scale in tried)]


def with_unit(lattice: Lattice, unit: Tensor) -> Lattice:
    """The lattice with another unit, (1,) or (O,)."""
    spread = (unit / lattice.unit).reshape(-1, *(1,) * (lattice.steps.dim() - 1))
    return replace(lattice, unit=unit, steps=lattice.steps * spread)


def best_lattice(layer: QuantLayer, error: Callable[[Tensor], Tensor]) -> Lattice:
    """The lattice, of those with candidates as units, whose nearest rounding errs least, a channel
    or a tensor; the policy's own is among them.

    Args:
        error: of each row, (G, R), of what rounding moves the weights by, (G, R, K).
    """
    lattice = lattice_of(layer)
    tried = [with_unit(lattice, unit) for unit in candidates(layer, lattice)]
    weight = layer.weight.detach().to(torch.float64)
    misses = (as_matrix(layer, item.rounded(layer) - weight) for item in tried)
    errors = torch.stack([error(miss).reshape(-1) for miss in misses])
    if lattice.unit.numel() == 1:
        return tried[int(errors.sum(dim=1).argmin())]
    units = torch.stack([item.unit for item in tried])
    return with_unit(lattice, units.gather(0, errors.argmin(dim=0)[None])[0])


def _is_channelwise(spec: QuantSpec) -> bool:
    return spec.granularity is Granularity.PER_CHANNEL
