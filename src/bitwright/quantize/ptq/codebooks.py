# SPDX-License-Identifier: Apache-2.0
"""Codebooks fitted to what the weights do, not only to where they lie.

The error of a weight costs as much as its input is strong, so k-means is weighted by the diagonal
of the layer's Hessian (as in Choi et al. 2017, "Towards the limit of network quantization"). The
minimum is the exact one.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bitwright.formats import CodebookFormat
from bitwright.formats.clustering import kmeans
from bitwright.quantize.ptq.matrices import as_matrix, moments
from bitwright.quantize.ptq.reconstruction import LayerView
from bitwright.quantize.spec import Granularity, ScaleRule, Scope


@dataclass(frozen=True)
class RefitCodebooks:
    """Importance-weighted tables as a method of `post_training_quantize`.

    Layers whose format is no codebook, and tables that several layers share, are left as they are.
    """

    name = "codebooks"

    def treat(self, view: LayerView, biased: bool) -> None:
        """Find the table of one layer anew, before its levels are chosen."""
        quantizer = view.layer.weight_quantizer
        spec = quantizer.spec
        shared = spec.scope is not Scope.LAYER or quantizer.codebooks is not None
        if not isinstance(spec.format, CodebookFormat) or not spec.format.needs_table or shared:
            return
        if spec.scale is ScaleRule.CONST:
            return
        found = moments(view)
        power = (found.centered() if biased else found).hessian.diagonal(dim1=1, dim2=2)
        weight = as_matrix(view.layer, view.layer.weight.detach().to(torch.float64))
        importance = power[:, None, :].expand_as(weight).clamp(min=1e-12)
        channelwise = spec.granularity is Granularity.PER_CHANNEL and spec.scale is ScaleRule.MAX
        if channelwise:
            reach = spec.format.centroid.max_level * spec.format.lsb
            scale = (weight.abs().amax(dim=2, keepdim=True) / reach).clamp(min=2.0**-60)
            values, importance = weight / scale, importance * scale.square()
        else:
            values = weight
        clusters = kmeans(
            values.reshape(-1).numpy(),
            spec.format.size,
            weights=importance.reshape(-1).numpy(),
            allow_fewer=True,
        )
        if channelwise:
            quantizer.set_table(spec.format.fitted(clusters.centroids, 1.0), scale.reshape(-1))
            return
        real = spec.format.scale_for(clusters.centroids)
        if spec.power_of_two:
            real = 2.0 ** float(torch.ceil(torch.log2(torch.tensor(real)) - 1e-9))
        count = quantizer.channels if spec.granularity is Granularity.PER_CHANNEL else 1
        scales = torch.full((count,), real, dtype=torch.float64)
        quantizer.set_table(spec.format.fitted(clusters.centroids, real), scales)
