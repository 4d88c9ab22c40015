# SPDX-License-Identifier: Apache-2.0
"""Estimators of activation ranges: from what calibration has seen to a scale, or to minimum and
maximum of a range with a zero point.

``max`` keeps everything; ``average`` takes the mean over the batches (what the running averages of
training approach); ``percentile`` clips a share of the magnitudes, of an asymmetric range that
share at each side; ``mse`` minimises the squared error (as in Banner et al. 2019); ``entropy``
loses the least information (`bitwright.quantize.histogram`). The last two search over clipping
points and work for every format.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from bitwright.base.errors import RecipeError
from bitwright.formats.pytorch.rounding import quantize_ratio
from bitwright.quantize.histogram import Histogram, Observed, entropy_scale
from bitwright.quantize.scale_rules import finish, rule_of, scale_of_range, steps_of, zero_point_of
from bitwright.quantize.scale_search import TINY, least_squares
from bitwright.quantize.spec import QuantSpec, ScaleRule

_CANDIDATES = 120
_SMALLEST = 0.05
_OCTAVES = 6
_FACTORS = 60

#: Minimum and maximum; zero lies between them.
Range = tuple[float, float]


class EstimatorKind(StrEnum):
    """How a range is estimated."""

    MAX = "max"
    AVERAGE = "average"
    PERCENTILE = "percentile"
    MSE = "mse"
    ENTROPY = "entropy"


@dataclass(frozen=True)
class Estimator:
    """One way to estimate ranges.

    Attributes:
        kind: see the module's docstring.
        percentile: for ``percentile``, in percent of the nonzero magnitudes.
    """

    kind: EstimatorKind
    percentile: float = 99.99

    def __post_init__(self) -> None:
        if not 50 < self.percentile <= 100:
            raise RecipeError(
                f"a percentile of {self.percentile:g}",
                where="estimator",
                hint="above 50, up to 100",
            )

    def __str__(self) -> str:
        if self.kind is EstimatorKind.PERCENTILE:
            return f"percentile {self.percentile:g}"
        return self.kind.value


def parse_estimator(text: str | Estimator) -> Estimator:
    """``max``, ``average``, ``mse``, ``entropy``, ``percentile`` or ``percentile:99.9``.

    Raises:
        RecipeError: it is none of these.
    """
    if isinstance(text, Estimator):
        return text
    word, _, number = text.partition(":")
    try:
        kind = EstimatorKind(word.strip())
        if not number:
            return Estimator(kind)
        if kind is not EstimatorKind.PERCENTILE:
            raise ValueError
        return Estimator(kind, float(number))
    except ValueError:
        names = ", ".join(kind.value for kind in EstimatorKind)
        raise RecipeError(
            f"unknown estimator {text!r}",
            where="estimator",
            hint=f"one of {names}, or percentile:99.9",
        ) from None


def estimator_of(spec: QuantSpec) -> Estimator:
    """The estimator that a policy's scale rule asks for; a learned scale starts at the MSE one."""
    if spec.scale is ScaleRule.INTERVAL and steps_of(spec) == 1:
        return Estimator(EstimatorKind.MSE)  # as `first_range`
    return Estimator(EstimatorKind(rule_of(spec).estimator), spec.percentile)


def estimate_scale(seen: Observed, spec: QuantSpec, estimator: Estimator) -> float:
    """The scale of one activation; of one that never was anything but zero, one that spans 0 .. 1.

    For ``power_of_two`` the range is rounded up to a power with the three statistics (what they
    keep is not clipped), and the search of the other two is over powers.
    """
    reach = spec.format.reach
    if seen.largest <= TINY or not seen.histogram.reach:
        return _as_power(1.0 / reach) if spec.power_of_two else 1.0 / reach
    if estimator.kind is EstimatorKind.ENTROPY:
        return float(entropy_scale(seen.histogram, spec))
    if estimator.kind is not EstimatorKind.MSE:
        scale = max(_kept(seen, spec, estimator), TINY) / reach
        return _as_power(scale) if spec.power_of_two else scale
    centers, counts = seen.histogram.occupied(spec.lowest < 0)
    candidates = _candidates(seen.largest / reach, spec.power_of_two)
    tried = [torch.tensor([scale], dtype=torch.float64) for scale in candidates]
    return float(least_squares(centers[None], tried, spec.format, tried[0], counts))


def _as_power(scale: float) -> float:
    mantissa, exponent = math.frexp(scale)
    return 2.0 ** (exponent - 1 if mantissa == 0.5 else exponent)


def _candidates(unclipped: float, power_of_two: bool) -> list[float]:
    """Scales from the one that clips nothing downwards."""
    if power_of_two:
        top = _as_power(unclipped)
        return [top * 2.0**-k for k in range(_OCTAVES)]
    steps = torch.linspace(_SMALLEST, 1.0, _CANDIDATES, dtype=torch.float64).tolist()
    return [unclipped * step for step in reversed(steps)]


def _kept(seen: Observed, spec: QuantSpec, estimator: Estimator) -> float:
    """The largest magnitude that is not clipped; of ``percentile`` the upper edge of the bin in
    which the share of magnitudes is reached.
    """
    if estimator.kind is EstimatorKind.AVERAGE:
        return sum(seen.maxima) / len(seen.maxima)
    total = seen.histogram.magnitudes(spec.lowest < 0).cumsum(0)
    if estimator.kind is EstimatorKind.MAX or total[-1] == 0:
        return seen.largest
    wanted = float(total[-1]) * estimator.percentile / 100
    place = int(torch.searchsorted(total, wanted * (1 - 1e-12)))
    return min(seen.histogram.reach * (place + 1) / len(total), seen.largest)


def estimate_range(seen: Observed, spec: QuantSpec, estimator: Estimator, alone: bool) -> Range:
    """Minimum and maximum of one activation's range.

    Args:
        alone: it shares its scale with no other; else what ``percentile`` and ``mse`` give is what
            ``average`` gives.

    Raises:
        RecipeError: ``entropy``, which is defined on magnitudes.
    """
    lows, highs = zip(*seen.ranges, strict=True)
    widest = min(lows), max(highs)
    if estimator.kind is EstimatorKind.MAX:
        return widest
    if estimator.kind is EstimatorKind.ENTROPY:
        raise RecipeError(
            "entropy is defined on magnitudes and has no asymmetric range",
            where="estimator",
            hint="use average, max, percentile or mse, or zero_point: false",
        )
    if alone and estimator.kind is EstimatorKind.PERCENTILE:
        low, high = _tails(seen.histogram, estimator.percentile)
        return max(low, widest[0]), min(high, widest[1])
    if alone and estimator.kind is EstimatorKind.MSE:
        return _least_squares_range(seen.histogram, widest, spec)
    return sum(lows) / len(lows), sum(highs) / len(highs)


def _tails(histogram: Histogram, percentile: float) -> Range:
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


def _least_squares_range(histogram: Histogram, widest: Range, spec: QuantSpec) -> Range:
    centers, counts = histogram.occupied(True)
    if not centers.numel():
        return widest
    limits = torch.tensor(widest, dtype=torch.float64)
    tried = [limits * f for f in torch.linspace(1.0, _SMALLEST, _FACTORS).tolist()]
    errors = [_squared_error(centers, counts, pair, spec) for pair in tried]
    low, high = tried[min(range(_FACTORS), key=errors.__getitem__)].tolist()
    return low, high


def _squared_error(centers: Tensor, counts: Tensor, limits: Tensor, spec: QuantSpec) -> float:
    number_format = spec.format
    unit = finish(scale_of_range(limits[0], limits[1], spec), spec)
    affine = number_format.with_zero(int(zero_point_of(limits[0], unit, number_format)))
    quantized = quantize_ratio(centers / unit, affine) * unit
    return float((counts * (quantized - centers).square()).sum())
