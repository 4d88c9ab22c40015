# SPDX-License-Identifier: Apache-2.0
"""Calibration by information loss: the clipping that TensorRT's entropy calibration chooses.

A histogram of magnitudes is taken over all batches. For each candidate of the largest magnitude
kept, the histogram is compared with what is left of it when all bins that share a level share their
counts; the candidate with the smallest Kullback-Leibler divergence wins (Migacz, "8-bit inference
with TensorRT", GTC 2017). Bins are given to levels by the format itself, so every format can be
calibrated.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from bitwright.formats import Format
from bitwright.formats.pytorch.rounding import quantize_ratio
from bitwright.formats.rounding import FloatArray
from bitwright.quantize.policy import QuantSpec
from bitwright.quantize.scale_rules import TINY, largest_level

BINS = 2048
_CANDIDATES = 100
_SMALLEST = 1 / 16
#: A share for bins that the quantized histogram has lost, so that the logarithm exists.
_EPSILON = 1e-4


class Histogram:
    """Counts of magnitudes in `BINS` equal bins; its range doubles when it is exceeded."""

    def __init__(self) -> None:
        self.top = 0.0
        self.counts: FloatArray = np.zeros(BINS)

    def add(self, x: Tensor) -> None:
        """Count one batch. NaN and infinity are left out."""
        values = x.detach().reshape(-1).abs()
        values = values[torch.isfinite(values)]
        largest = float(values.max()) if values.numel() else 0.0
        if largest == 0.0:
            return
        if self.top == 0.0:
            self.top = 2.0 ** math.ceil(math.log2(largest))
        while largest > self.top:
            half = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.concatenate([half, np.zeros(BINS // 2)])
            self.top *= 2
        found = torch.histc(values.to(torch.float32), BINS, 0.0, self.top)
        self.counts = self.counts + found.to(torch.float64).cpu().numpy()


@torch.no_grad()
def entropy_scale(histogram: Histogram, spec: QuantSpec) -> Tensor:
    """The scale (1,) that loses the least information, float64; `TINY` without any value."""
    seen = np.flatnonzero(histogram.counts)
    if not seen.size:
        return torch.full((1,), TINY, dtype=torch.float64)
    reach = largest_level(spec.format) * spec.format.lsb
    width = histogram.top / BINS
    last = int(seen[-1]) + 1
    if spec.power_of_two:
        exponent = math.ceil(math.log2(last * width / reach) - 1e-9)
        scales = [2.0 ** (exponent - k) for k in range(5)]
    else:
        share = np.linspace(_SMALLEST, 1.0, _CANDIDATES)
        scales = [float(last * width * part / reach) for part in share]
    counts = histogram.counts[:last].copy()
    # Zeros are exact at every scale; behind a ReLU they would outweigh everything else.
    counts[0] = counts[1] if last > 1 else counts[0]
    losses = [_divergence(counts, width, scale * reach, scale, spec.format) for scale in scales]
    return torch.tensor([scales[int(np.argmin(losses))]], dtype=torch.float64)


def _divergence(
    counts: FloatArray, width: float, kept: float, scale: float, number_format: Format
) -> float:
    """Kullback-Leibler divergence of the counts clipped at ``kept`` from their quantized form."""
    size = min(len(counts), max(1, round(kept / width)))
    inside = counts[:size]
    reference = inside.copy()
    reference[-1] += counts[size:].sum()
    middles = torch.from_numpy((np.arange(size) + 0.5) * width)
    levels = quantize_ratio(middles / (scale * number_format.lsb), number_format).numpy()
    _, group = np.unique(levels, return_inverse=True)
    filled = inside > 0
    total = np.bincount(group, inside)
    members = np.maximum(np.bincount(group, filled), 1)
    quantized = np.where(filled, (total / members)[group], 0.0)
    if not quantized.any():
        return math.inf
    p, q = reference / reference.sum(), quantized / quantized.sum()
    q = np.where((p > 0) & (q == 0), _EPSILON, q)
    some = p > 0
    return float(np.sum(p[some] * np.log(p[some] / q[some])))
