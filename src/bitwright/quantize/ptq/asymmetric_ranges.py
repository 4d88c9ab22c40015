# SPDX-License-Identifier: Apache-2.0
"""Estimators of asymmetric ranges (minimum and maximum), for activations with a zero point.

``average`` takes the means of the batches' minima and maxima (what the running averages of training
approach), ``max`` the smallest and the largest value, ``percentile`` cuts that share off each end,
``mse`` draws minimum and maximum in by the factor that minimises the squared error.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bitwright.base.errors import RecipeError
from bitwright.formats.pytorch.rounding import quantize_ratio
from bitwright.quantize.histogram import Histogram
from bitwright.quantize.ptq.estimators import Estimator, EstimatorKind
from bitwright.quantize.scale_rules import finish, scale_of_range, zero_point_of
from bitwright.quantize.spec import QuantSpec

#: Smallest and largest value of a batch; zero lies between them.
Range = tuple[float, float]

_FACTORS = 60
_SMALLEST = 0.05


def estimate_range(
    ranges: Sequence[Range], histogram: Histogram | None, spec: QuantSpec, estimator: Estimator
) -> Range:
    """Minimum and maximum of one activation's range.

    Args:
        ranges: of each batch.
        histogram: of all values; None where several activations share a scale, and then the ends of
            ``percentile`` and ``mse`` are those of ``average``.

    Raises:
        RecipeError: ``entropy``, which is defined on magnitudes.
    """
    lows, highs = zip(*ranges, strict=True)
    if estimator.kind is EstimatorKind.MAX:
        return min(lows), max(highs)
    if estimator.kind is EstimatorKind.ENTROPY:
        raise RecipeError(
            "entropy is defined on magnitudes and has no asymmetric range",
            where="estimator",
            hint="use average, max, percentile or mse, or zero_point: false",
        )
    if histogram is not None and estimator.kind is EstimatorKind.PERCENTILE:
        low, high = _percentile(histogram, estimator.percentile)
        return max(low, min(lows)), min(high, max(highs))
    if histogram is not None and estimator.kind is EstimatorKind.MSE:
        return _mse(histogram, (min(lows), max(highs)), spec)
    return sum(lows) / len(lows), sum(highs) / len(highs)


def _percentile(histogram: Histogram, percentile: float) -> Range:
    """The outer edges of the bins in which each tail's share is used up; zeros do not count."""
    cumulative = histogram.counts.cumsum(0)
    total = float(cumulative[-1])
    if total == 0:
        return 0.0, 0.0
    width = 2 * histogram.reach / len(histogram.counts)
    tail = total * (1 - percentile / 100)
    first = int((cumulative <= tail * (1 + 1e-12)).sum())
    last = int((cumulative < (total - tail) * (1 - 1e-12)).sum())
    low, high = first * width - histogram.reach, (last + 1) * width - histogram.reach
    return min(low, 0.0), max(high, 0.0)


def _mse(histogram: Histogram, widest: Range, spec: QuantSpec) -> Range:
    centers, counts = histogram.occupied(True)
    if not centers.numel():
        return widest
    ends = torch.tensor(widest, dtype=torch.float64)
    tried = [ends * f for f in torch.linspace(1.0, _SMALLEST, _FACTORS).tolist()]
    errors = [_squared_error(centers, counts, pair, spec) for pair in tried]
    low, high = tried[min(range(_FACTORS), key=errors.__getitem__)].tolist()
    return low, high


def _squared_error(centers: Tensor, counts: Tensor, ends: Tensor, spec: QuantSpec) -> float:
    number_format = spec.format
    unit = finish(scale_of_range(ends[0], ends[1], spec), spec)
    affine = number_format.with_zero(int(zero_point_of(ends[0], unit, number_format)))
    quantized = quantize_ratio(centers / unit, affine) * unit
    return float((counts * (quantized - centers).square()).sum())
