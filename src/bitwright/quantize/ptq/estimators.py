# SPDX-License-Identifier: Apache-2.0
"""Estimators of activation ranges: from statistics of the calibration set to a scale.

``max`` keeps everything; ``average`` takes the mean of the batches' maxima; ``percentile`` clips a
share of the magnitudes; ``mse`` minimises the squared error (as in Banner et al. 2019);
``entropy`` loses the least information (`bitwright.quantize.histogram`). The last two search over
clipping points and work for every format.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch

from bitwright.base.errors import RecipeError
from bitwright.quantize.histogram import entropy_scale
from bitwright.quantize.ptq.statistics import Observed
from bitwright.quantize.scale_rules import rule_of, steps_of
from bitwright.quantize.scale_search import TINY, least_squares
from bitwright.quantize.spec import QuantSpec, ScaleRule

_CANDIDATES = 120
_SMALLEST = 0.05
_OCTAVES = 6


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
    if seen.largest <= TINY or seen.histogram is None:
        return _as_power(1.0 / reach) if spec.power_of_two else 1.0 / reach
    range_ = _RANGES.get(estimator.kind)
    if range_ is not None:
        scale = max(range_(seen, spec, estimator), TINY) / reach
        return _as_power(scale) if spec.power_of_two else scale
    centers, counts = seen.histogram.occupied(spec.lowest < 0)
    if not centers.numel():
        return 1.0 / reach
    if estimator.kind is EstimatorKind.ENTROPY:
        return float(entropy_scale(seen.histogram, spec))
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


def _maximum(seen: Observed, spec: QuantSpec, estimator: Estimator) -> float:
    return seen.largest


def _average(seen: Observed, spec: QuantSpec, estimator: Estimator) -> float:
    return sum(seen.maxima) / len(seen.maxima)


def _percentile(seen: Observed, spec: QuantSpec, estimator: Estimator) -> float:
    """The upper edge of the bin in which the share of magnitudes is reached."""
    if seen.histogram is None:
        return seen.largest
    magnitudes = seen.histogram.magnitudes(spec.lowest < 0)
    half = len(magnitudes)
    total = magnitudes.cumsum(0)
    if total[-1] == 0:
        return seen.largest
    wanted = float(total[-1]) * estimator.percentile / 100
    place = int(torch.searchsorted(total, wanted * (1 - 1e-12)))
    return seen.histogram.reach * min(place + 1, half) / half


_RANGES: dict[EstimatorKind, Callable[[Observed, QuantSpec, Estimator], float]] = {
    EstimatorKind.MAX: _maximum,
    EstimatorKind.AVERAGE: _average,
    EstimatorKind.PERCENTILE: _percentile,
}
