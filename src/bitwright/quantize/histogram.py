# SPDX-License-Identifier: Apache-2.0
"""A fine histogram of an activation, and the clipping that loses the least information.

The histogram is compared with what is left of it when all bins that share a level share their
counts; the candidate with the smallest Kullback-Leibler divergence wins (Migacz, "8-bit inference
with TensorRT", GTC 2017). Bins are given to levels by the format itself, so every format can be
calibrated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bitwright.formats import Format
from bitwright.formats.pytorch.rounding import quantize_ratio
from bitwright.formats.rounding import FloatArray
from bitwright.quantize.scale_search import TINY
from bitwright.quantize.spec import QuantSpec

#: Bins on each side of zero. Half of them hold values at least; a level of 8 bits spans 16 then.
BINS = 8192
#: Bins of magnitudes that the information is measured with.
_MAGNITUDES = 4096
_CANDIDATES = 100
_SMALLEST = 1 / 16
_POWERS = 5
#: A share for bins that the quantized histogram has lost, so that the logarithm exists.
_EPSILON = 1e-4


@dataclass
class Histogram:
    """Counts of the nonzero values of tensors in equal bins from ``-reach`` to ``reach``.

    Zeros are left out: every format but bipolar holds them, and after a ReLU they would hide
    everything else. So are NaN and infinity. Reaches are powers of two, so that bins nest: in which
    order, and in how many parts, values are counted makes no difference.

    Attributes:
        reach: above every magnitude; 0 before there is any.
        counts: (2 * BINS,) float64, on the CPU.
    """

    reach: float = 0.0
    counts: Tensor = field(default_factory=lambda: torch.zeros(2 * BINS, dtype=torch.float64))

    def add(self, x: Tensor) -> None:
        """Count the values of one batch."""
        values = x.detach().reshape(-1)
        values = values[(values != 0) & torch.isfinite(values)]
        if values.numel():
            self._widen(2.0 ** math.frexp(float(values.abs().max()))[1])
            places = (values / self.reach).mul_(BINS).floor_().long() + BINS
            self.counts += torch.bincount(places, minlength=2 * BINS).to("cpu", torch.float64)

    def merge(self, other: Histogram) -> None:
        """Count what another one has counted."""
        if other.reach:
            wide = Histogram(other.reach, other.counts)
            wide._widen(self.reach)
            self._widen(wide.reach)
            self.counts = self.counts + wide.counts

    def _widen(self, reach: float) -> None:
        self.reach = self.reach or reach
        while self.reach < reach:
            self.counts = F.pad(self.counts.view(-1, 2).sum(dim=1), (BINS // 2, BINS // 2))
            self.reach *= 2

    @property
    def centers(self) -> Tensor:
        """(2 * BINS,) float64 reals."""
        steps = torch.arange(2 * BINS, dtype=torch.float64) + 0.5
        return (steps / BINS - 1.0) * self.reach

    def magnitudes(self, signed: bool) -> Tensor:
        """(BINS,) counts of magnitudes; of positive values only if not signed."""
        counts = self.counts[BINS:].clone()
        return counts + self.counts[:BINS].flip(0) if signed else counts

    def occupied(self, signed: bool) -> tuple[Tensor, Tensor]:
        """(centers, counts) of the bins that hold something; of positive ones if not signed."""
        centers = self.centers
        chosen = self.counts > 0
        if not signed:
            chosen &= centers > 0
        return centers[chosen], self.counts[chosen]


@dataclass
class Observed:
    """What calibration has seen of one tensor, or of several that share a scale.

    Attributes:
        signed: whether values below zero count.
        ranges: smallest and largest value of each batch, zero between them.
        lowest: the smallest value, whether it counts or not.
    """

    signed: bool = True
    ranges: list[tuple[float, float]] = field(default_factory=list)
    histogram: Histogram = field(default_factory=Histogram)
    lowest: float = 0.0

    def add(self, x: Tensor) -> None:
        """Note one batch."""
        low, high = float(x.amin()), max(float(x.amax()), 0.0)
        self.lowest = min(self.lowest, low)
        self.ranges.append((min(low, 0.0) if self.signed else 0.0, high))
        self.histogram.add(x)

    def merge(self, other: Observed) -> None:
        """Note what another one has seen of the same batches."""
        self.ranges = [
            (min(low, also_low), max(high, also_high))
            for (low, high), (also_low, also_high) in zip_longest(
                self.ranges, other.ranges, fillvalue=(0.0, 0.0)
            )
        ]
        self.histogram.merge(other.histogram)

    @property
    def maxima(self) -> list[float]:
        """Largest magnitude of each batch."""
        return [max(high, -low) for low, high in self.ranges]

    @property
    def largest(self) -> float:
        return max(self.maxima, default=0.0)


@torch.no_grad()
def entropy_scale(histogram: Histogram, spec: QuantSpec) -> Tensor:
    """The scale (1,) that loses the least information, float64; `TINY` without any value."""
    magnitudes = histogram.magnitudes(spec.lowest < 0)
    counts = magnitudes.reshape(_MAGNITUDES, -1).sum(dim=1).numpy()
    seen = np.flatnonzero(counts)
    if not seen.size:
        return torch.full((1,), TINY, dtype=torch.float64)
    reach = spec.format.reach
    width = histogram.reach / _MAGNITUDES
    last = int(seen[-1]) + 1
    if spec.power_of_two:
        exponent = math.ceil(math.log2(last * width / reach) - 1e-9)
        scales = [2.0 ** (exponent - k) for k in range(_POWERS)]
    else:
        share = np.linspace(_SMALLEST, 1.0, _CANDIDATES)
        scales = [float(last * width * part / reach) for part in share]
    counts = counts[:last].copy()
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
