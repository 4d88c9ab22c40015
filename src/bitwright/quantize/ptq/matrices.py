# SPDX-License-Identifier: Apache-2.0
"""A layer as matrix products: weights (G, R, K) times input columns (G, K, samples).

G groups of a convolution (1 for dense layers), R output channels a group, K weights a channel in
the order of ``weight.reshape(O, -1)``. Depthwise convolutions are G = channels, R = 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from bitwright.quantize.layers import QuantConv2d, QuantLayer, own_border
from bitwright.quantize.ptq.reconstruction import LayerView

#: Columns of the input that are looked at; more would not change the moments.
COLUMNS = 1 << 17
#: Relative error of moments that were summed in float32.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class Moments:
    """Second moments of a layer's inputs over the calibration set, float64.

    Attributes:
        hessian: (G, K, K), mean of ``x x^T`` of the inputs in the quantized model.
        cross: (G, K, K), mean of ``r x^T``, r the float model's inputs.
        mean: (G, K) of the inputs; reference: (G, K) of the float model's.
    """

    hessian: Tensor
    cross: Tensor
    mean: Tensor
    reference: Tensor

    def centered(self) -> Moments:
        """The moments about the means: for layers whose bias takes up what the means do.

        Inputs that hardly vary leave nothing but rounding errors, which a little of the power in
        front of the subtraction covers.
        """
        power = self.hessian.diagonal(dim1=1, dim2=2).mean() * _ROUNDING
        floor = power * torch.eye(self.hessian.shape[1], dtype=torch.float64)
        hessian = self.hessian - self.mean[:, :, None] * self.mean[:, None, :]
        cross = self.cross - self.reference[:, :, None] * self.mean[:, None, :]
        return Moments(hessian + floor, cross + floor, self.mean, self.reference)


def as_matrix(layer: QuantLayer, weight: Tensor) -> Tensor:
    """(O, ...) -> (G, R, K)."""
    groups = layer.groups if isinstance(layer, QuantConv2d) else 1
    return weight.reshape(groups, weight.shape[0] // groups, -1)


def columns(layer: QuantLayer, x: Tensor) -> Tensor:
    """Input (N, ...) -> (G, K, samples): every patch that a product is taken with."""
    if not isinstance(layer, QuantConv2d):
        return x.reshape(-1, x.shape[-1]).t()[None]
    top, left, bottom, right = own_border(layer)
    x = F.pad(x, (left, right, top, bottom))
    patches = F.unfold(x, layer.kernel_size, layer.dilation, 0, layer.stride)
    count, _, places = patches.shape
    split = patches.reshape(count, layer.groups, -1, places)
    return split.permute(1, 2, 0, 3).reshape(layer.groups, -1, count * places)


def paired_columns(view: LayerView) -> Iterator[tuple[Tensor, Tensor]]:
    """Columns of the quantized and the float model, a batch at a time, at most `COLUMNS` in all.

    Which ones are left out is the same in every run.
    """
    share = max(1, COLUMNS // max(1, len(view.inputs)))
    generator = torch.Generator().manual_seed(0)
    for x, r in zip(view.inputs, view.references, strict=True):
        first, second = columns(view.layer, x), columns(view.layer, r)
        if first.shape[2] > share:
            kept = torch.randperm(first.shape[2], generator=generator)[:share]
            first, second = first[:, :, kept], second[:, :, kept]
        yield first, second


def moments(view: LayerView) -> Moments:
    """Moments of a layer's inputs; each batch in float32, their sums in float64."""
    count = 0
    total: list[Tensor] | None = None
    for x, r in paired_columns(view):
        turned = x.transpose(1, 2)
        parts = [x @ turned, r @ turned, x.sum(dim=2), r.sum(dim=2)]
        wide = [part.to(torch.float64) for part in parts]
        total = wide if total is None else [a + b for a, b in zip(total, wide, strict=True)]
        count += x.shape[2]
    if total is None or count == 0:
        raise ValueError("a layer without inputs")  # the calibration set is never empty
    return Moments(*(part / count for part in total))
