# SPDX-License-Identifier: Apache-2.0
"""Clipping of weights by what they do, and ranges of activations by what reaches them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bitwright.formats.pytorch.rounding import quantize_ratio
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.ptq.lattice import best_lattice
from bitwright.quantize.ptq.matrices import moments
from bitwright.quantize.ptq.reconstruction import Batches, LayerView, QuantizerView
from bitwright.quantize.spec import QuantSpec, Role

_VALUES = 1 << 18
_FRACTIONS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.3, 1.5)
_POWERS = (0.25, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class ClipSearch:
    """Nearest rounding with the scale whose output error is smallest, as a method.

    The error is that of the layer's output, by the second moments of its inputs; the policy's own
    scale is among those tried.
    """

    name = "clip"

    def treat(self, view: LayerView, biased: bool) -> None:
        """Choose the scale of one layer and fix its rounded weights."""
        found = moments(view)
        hessian = (found.centered() if biased else found).hessian
        lattice = best_lattice(
            view.layer, lambda miss: torch.einsum("grk,gkl,grl->gr", miss, hessian, miss)
        )
        lattice.fix_levels(view.layer, lattice.rounded(view.layer))


@dataclass(frozen=True)
class Recalibrate:
    """Activation scales set again on the way, when the layers before are quantized: the one that
    brings the quantized activation nearest to the float network's. Shared and constant scales,
    those with a zero point and the input's stay.
    """

    name = "recalibrate"

    def treat(self, view: QuantizerView) -> None:
        """Set the scale of one activation quantizer."""
        quantizer = view.quantizer
        spec = quantizer.spec
        if quantizer.role is Role.INPUT or not _has_one_scale(quantizer):
            return
        x, wanted = _sample(view.inputs), _sample(view.references).clamp(*quantizer.clip)
        base = quantizer.unit / spec.format.lsb
        tried = [base * f for f in (_POWERS if spec.power_of_two else _FRACTIONS)]
        errors = [
            float((_quantized(x, scale, quantizer, spec) - wanted).square().sum())
            for scale in tried
        ]
        quantizer.set_scale(tried[errors.index(min(errors))])


def _quantized(x: Tensor, scale: float, quantizer: ActivationQuantizer, spec: QuantSpec) -> Tensor:
    unit = scale * spec.format.lsb
    levels = quantize_ratio(x.clamp(*quantizer.clip) / unit, spec.format, rounding=spec.rounding)
    return levels.clamp(min=spec.lowest) * unit


def _has_one_scale(quantizer: ActivationQuantizer) -> bool:
    """Whether there is a scale of its own to search, and no zero point that goes with it."""
    spec = quantizer.spec
    fixed = quantizer.group is not None or quantizer.constant or spec.format.block
    return not (fixed or spec.zero_point or spec.format.sign_only)


def _sample(batches: Batches) -> Tensor:
    """The same places of equally shaped tensors, at most `_VALUES` of them, float64."""
    share = max(1, _VALUES // len(batches))
    parts = []
    for batch in batches:
        flat = batch.reshape(-1)
        stride = max(1, -(-flat.numel() // share)) | 1
        parts.append(flat[::stride])
    return torch.cat(parts).to(torch.float64)
