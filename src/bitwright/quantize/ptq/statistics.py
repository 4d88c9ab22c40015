# SPDX-License-Identifier: Apache-2.0
"""What is kept of an activation over the calibration set: batch maxima and a fine histogram."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

#: Bins on each side of zero. A quantization step of 8 bits spans 16 of them.
BINS = 4096


@dataclass
class Histogram:
    """Counts of the nonzero values of a tensor in equal bins from ``-reach`` to ``reach``.

    Zeros are left out: every format but bipolar holds them, and after a ReLU they would hide
    everything else.

    Attributes:
        reach: largest magnitude.
        counts: (2 * BINS,) float64.
    """

    reach: float
    counts: Tensor = field(default_factory=lambda: torch.zeros(2 * BINS, dtype=torch.float64))

    def add(self, x: Tensor) -> None:
        """Count the values of one batch."""
        values = x.reshape(-1)
        values = values[values != 0]
        if not values.numel() or self.reach <= 0:
            return
        places = ((values / self.reach + 1.0) * BINS).long().clamp_(0, 2 * BINS - 1)
        self.counts += torch.bincount(places, minlength=2 * BINS).to(torch.float64)

    @property
    def centers(self) -> Tensor:
        """(2 * BINS,) float64 reals."""
        steps = torch.arange(2 * BINS, dtype=torch.float64) + 0.5
        return (steps / BINS - 1.0) * self.reach

    def occupied(self, signed: bool) -> tuple[Tensor, Tensor]:
        """(centers, counts) of the bins that hold something; of positive ones if not signed."""
        centers = self.centers
        chosen = self.counts > 0
        if not signed:
            chosen &= centers > 0
        return centers[chosen], self.counts[chosen]


@dataclass
class Observed:
    """The statistics of one scale: of one quantizer, or of several that share a scale.

    Attributes:
        maxima: largest magnitude of each batch; of positive values only for an unsigned format.
        histogram: filled in a second pass, when the range is known.
        negative: the smallest value seen.
        ranges: by quantizer, smallest and largest value of each batch, zero between them.
    """

    maxima: list[float] = field(default_factory=list)
    histogram: Histogram | None = None
    negative: float = 0.0
    ranges: dict[Any, list[tuple[float, float]]] = field(default_factory=dict)

    @property
    def largest(self) -> float:
        return max(self.maxima, default=0.0)
