# SPDX-License-Identifier: Apache-2.0
"""What is kept of an activation over the calibration set: batch maxima and a fine histogram."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from bitwright.quantize.histogram import Histogram


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
