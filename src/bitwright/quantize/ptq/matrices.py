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

from bitwright.base.errors import ModelError
from bitwright.base.memory import LARGE, room_of, shown
from bitwright.quantize.layers import QuantConv2d, QuantLayer, own_border
from bitwright.quantize.ptq.reconstruction import LayerView

#: Columns of the input that are looked at; more would not change the moments.
COLUMNS = 1 << 17
#: Numbers in the columns of a batch, which large kernels have fewer of for that.
_NUMBERS = 1 << 27
#: Arrays of the size of the second moments that are held while they are used, in float64.
_MATRICES = 10
#: Relative error of moments that were summed in float32.
_ROUNDING = 1e-5


class TooWideError(ModelError):
    """A layer has so many weights a channel that there is no room for second moments of all pairs
    of its inputs.
    """


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


def columns(layer: QuantLayer, x: Tensor, kept: Tensor | None = None) -> Tensor:
    """Input (N, ...) -> (G, K, samples): every patch that a product is taken with.

    Args:
        kept: which of them, by number; None: all.
    """
    if not isinstance(layer, QuantConv2d):
        rows = x.reshape(-1, x.shape[-1])
        return rows.t()[None] if kept is None else rows[kept].t()[None].contiguous()
    top, left, bottom, right = own_border(layer)
    x = F.pad(x, (left, right, top, bottom))
    (down, across), (below, beside) = layer.kernel_size, layer.dilation
    # A view (N, C, H', W', kernel): only what is chosen is copied.
    places = x.unfold(2, below * (down - 1) + 1, layer.stride[0])
    places = places.unfold(3, beside * (across - 1) + 1, layer.stride[1])[..., ::below, ::beside]
    if kept is None:
        kept = torch.arange(_sample_count(layer, x, padded=True))
    width = places.shape[3]
    image, place = kept // (places.shape[2] * width), kept % (places.shape[2] * width)
    patches = places[image, :, place // width, place % width]
    return patches.reshape(len(kept), layer.groups, -1).permute(1, 2, 0).contiguous()


def _sample_count(layer: QuantLayer, x: Tensor, *, padded: bool = False) -> int:
    """How many columns an input has."""
    if not isinstance(layer, QuantConv2d):
        return x.numel() // x.shape[-1]
    top, left, bottom, right = (0, 0, 0, 0) if padded else own_border(layer)
    sizes = (x.shape[2] + top + bottom, x.shape[3] + left + right)
    found = x.shape[0]
    for size, kernel, dilation, stride in zip(
        sizes, layer.kernel_size, layer.dilation, layer.stride, strict=True
    ):
        found *= (size - dilation * (kernel - 1) - 1) // stride + 1
    return found


def column_counts(view: LayerView) -> list[int]:
    """How many columns of each batch `paired_columns` takes."""
    groups = view.layer.groups if isinstance(view.layer, QuantConv2d) else 1
    each = groups * view.layer.weight[0].numel()
    share = max(1, min(COLUMNS // max(1, len(view.inputs)), _NUMBERS // each))
    return [min(share, _sample_count(view.layer, x)) for x in view.inputs]


def paired_columns(view: LayerView) -> Iterator[tuple[Tensor, Tensor]]:
    """Columns of the quantized and the float model, a batch at a time, at most `COLUMNS` in all.

    Which ones are left out is the same in every run.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = column_counts(view)
    for x, r, size in zip(view.inputs, view.references, sizes, strict=True):
        count, kept = _sample_count(view.layer, x), None
        if count > size:
            kept = torch.randperm(count, generator=generator)[:size]
        yield columns(view.layer, x, kept), columns(view.layer, r, kept)


def moments(view: LayerView) -> Moments:
    """Moments of a layer's inputs; each batch in float32, their sums in float64.

    Raises:
        TooWideError: they, and what is made of them, take more than a third of the machine's memory
            (nine tenths where the user answers for the size, see `base.memory.LARGE`).
    """
    groups, _, width = as_matrix(view.layer, view.layer.weight).shape
    needed, room = _MATRICES * 8 * groups * width * width, room_of(1 / 3)
    if needed > room:
        raise TooWideError(
            f"{width} weights a channel: their second moments take {shown(needed)}, {shown(room)} "
            f"are allowed ({LARGE}=1: nine tenths of the machine)",
            where=view.path,
        )
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
