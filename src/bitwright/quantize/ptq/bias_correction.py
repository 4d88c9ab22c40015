# SPDX-License-Identifier: Apache-2.0
"""Bias correction: the mean error of every output channel, taken off its bias.

Empirical: the difference of the means that the float and the quantized layer give over the
calibration set; it covers what earlier layers and activations did as well. Analytic (Nagel et al.
2019, section 4.2): the weights' errors times the mean inputs that batch norm's beta and gamma
foretell behind a ReLU; no data is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.quantize.ptq.chains import find_pairs, groups_of, spread_inputs
from bitwright.quantize.ptq.folding import ChannelStatistics, folding_of
from bitwright.quantize.ptq.reconstruction import LayerView


class BiasKind(StrEnum):
    """Where the mean error comes from."""

    EMPIRICAL = "empirical"
    ANALYTIC = "analytic"


@dataclass
class BiasCorrection:
    """Bias correction as a method of `post_training_quantize`.

    Attributes:
        kind: ``analytic`` falls back to ``empirical`` where no statistics are known: behind pools,
            joins, and layers that had no batch norm.
        expected: mean input of each layer by path; `expected_inputs`.
        analytic: paths of the layers that were corrected analytically.
    """

    kind: BiasKind = BiasKind.EMPIRICAL
    expected: Mapping[str, Tensor] = field(default_factory=dict)
    analytic: list[str] = field(default_factory=list)

    name = "bias"

    @torch.no_grad()
    def treat(self, view: LayerView, biased: bool) -> None:
        """Correct one layer, whose weight has its final levels."""
        layer = view.layer
        if layer.bias is None:
            raise ModelError("has no bias to correct", where=view.path)
        if self.kind is BiasKind.ANALYTIC and view.path in self.expected:
            error = self._foretold(view, self.expected[view.path])
            self.analytic.append(view.path)
        else:
            error = _mean_error(view)
        layer.bias.sub_(error.to(layer.bias.dtype))

    def _foretold(self, view: LayerView, mean: Tensor) -> Tensor:
        layer, weight = view.layer, view.layer.weight.detach().double()
        levels, unit = layer.weight_quantizer.levels(layer.weight)
        quantized = levels * unit.reshape(-1, *(1,) * (weight.dim() - 1))
        spread = spread_inputs(weight.shape, groups_of(layer), mean)
        return ((quantized - weight) * spread).reshape(len(weight), -1).sum(dim=1)


def _mean_error(view: LayerView) -> Tensor:
    """Mean of quantized less float output, a number a channel, float64."""
    total, count = torch.zeros(()).double(), 0
    for output, target in zip(view.outputs(), view.targets, strict=True):
        difference = (output - target).transpose(0, 1)
        difference = difference.reshape(len(difference), -1).double()
        total = total + difference.sum(dim=1)
        count += difference.shape[1]
    return total / max(1, count)


def expected_inputs(model: nn.Module, example: Tensor | None = None) -> dict[str, Tensor]:
    """Mean input, one a channel, of each layer behind the ReLU of a layer with known statistics."""
    folding = folding_of(model)
    if folding is None:
        return {}
    found = {}
    for pair in find_pairs(model, example):
        known = folding.statistics.get(pair.first)
        if known is not None and pair.rectified and not pair.pooled:
            found[pair.second] = rectified_mean(known)
    return found


def rectified_mean(known: ChannelStatistics) -> Tensor:
    """``E[max(0, x)]`` of normal x: ``mean Phi(z) + deviation phi(z)``, z = mean / deviation."""
    deviation = known.deviation.clamp(min=1e-12)
    z = known.mean / deviation
    below = 0.5 * (1 + torch.erf(z / math.sqrt(2)))
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    return known.mean * below + deviation * density
