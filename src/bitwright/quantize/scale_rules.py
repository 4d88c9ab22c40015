# SPDX-License-Identifier: Apache-2.0
"""What each scale rule does, as values: fit, update, finish, and what a gradient does to its state.

Words. The ``scale`` of a tensor is that of `Format.encode`; its ``unit`` (step size) is the real
value of one level: ``unit = scale * format.lsb``. They differ only where a format has fractions.

A rule keeps nothing: the quantizer has the state (`quantizer.Quantizer`). A rule of a user's own is
a class derived from `Rule` (or `RangeRule`) and a name::

    register_rule(ScaleRule.named("rms", follows=True), Rms())
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from bitwright.base.errors import ModelError
from bitwright.formats import Format, IntegerFormat
from bitwright.formats.pytorch.grid import power_of_two
from bitwright.formats.pytorch.rounding import divided
from bitwright.quantize.histogram import Histogram, entropy_scale
from bitwright.quantize.scale_search import TINY, mse_scale
from bitwright.quantize.spec import Granularity, QuantSpec, ScaleRule
from bitwright.quantize.straight_through import (
    LearnedWeight,
    LevelRange,
    QuantizeActivation,
    QuantizeRange,
)

#: The real value of one level: a number on a CPU, a tensor () on a device that should not wait.
Unit = float | Tensor
#: The specification of a tensor, and of the quantizer whose scale it has.
Specs = tuple[QuantSpec, QuantSpec]

#: A statistic that needs sorting or a search looks at this many values of an activation at most.
SAMPLE = 1 << 16
#: Ternary weights: threshold 0.7 x mean magnitude (Li and Liu, Ternary Weight Networks, eq. 6).
TERNARY_THRESHOLD = 0.7
#: Exponents of dynamic fixed point are between the negative of this and this.
DYNAMIC_RANGE = 120


class Rule:
    """A scale rule: mean squared error, unless a subclass says otherwise.

    Attributes:
        covers: rounded to a power of two, the scale goes up, so that nothing is clipped; else to
            the nearest exponent.
        clips: values beyond the largest level get no gradient.
        grows: of the input in training, the largest scale so far counts, not the mean.
        estimator: how a calibration set gives it (`quantize.estimators`).
    """

    covers = False
    clips = True
    grows = False
    estimator = "mse"

    def fit(self, table: Tensor, spec: QuantSpec) -> Tensor:
        """The scale (R,) of each row of values (R, n), before `finish`."""
        return mse_scale(table, spec)

    def fit_batch(self, x: Tensor, spec: QuantSpec) -> Tensor:
        """The scale (1,) of one batch of an activation, from a sample of it."""
        return self.fit(sample(x).reshape(1, -1), spec)

    def update(self, kept: Tensor, seen: Tensor, share: float) -> None:
        """Bring a statistic nearer to what a batch shows, in place."""
        kept.lerp_(seen, share)

    def finish(self, scale: Tensor, spec: QuantSpec) -> Tensor:
        """The scale as it is used: positive, and a power of two where asked."""
        positive = scale.abs().clamp(min=TINY)
        if not spec.power_of_two:
            return positive
        exponent = torch.log2(positive)
        # The largest of a window of powers is rounded to it in the logarithm, as all values are.
        if self.covers and not spec.format.is_exponent:
            # log2 of an exact power may come out a hair above its integer.
            return torch.exp2(torch.ceil(exponent - 1e-5))
        return torch.exp2(torch.round(exponent))

    def activation(
        self, x: Tensor, state: Tensor, unit: Unit, levels: LevelRange, specs: Specs
    ) -> Tensor:
        """Quantized activation; its gradient reaches ``x`` and, where it is trained, the state.

        Args:
            state: what the quantizer keeps for this rule, (1,) or, of a range, (1, 1 or 2).
            unit: real value of one level.
            levels: those in use.
            specs: of the tensor, and of the one whose scale it has.
        """
        return QuantizeActivation.apply(x, None, unit, levels, 0.0)

    def weight(
        self, weight: Tensor, state: Tensor, unit: Tensor, levels: LevelRange, spec: QuantSpec
    ) -> Tensor:
        """The same of a weight (O, ...) of evenly spaced levels whose scale is state."""
        raise NotImplementedError


class Max(Rule):
    covers, clips, grows, estimator = True, False, True, "max"

    def fit(self, table: Tensor, spec: QuantSpec) -> Tensor:
        # Two vectorised reductions: torch.aminmax and the infinity norm are ten times slower.
        return divided(torch.maximum(table.amax(dim=1), -table.amin(dim=1)), spec.format.reach)

    def fit_batch(self, x: Tensor, spec: QuantSpec) -> Tensor:
        return divided(torch.maximum(x.amax(), -x.amin()), spec.format.reach).reshape(1)


class Percentile(Rule):
    estimator = "percentile"

    def fit(self, table: Tensor, spec: QuantSpec) -> Tensor:
        return divided(torch.quantile(table.abs(), spec.percentile / 100, dim=1), spec.format.reach)


class Mean(Rule):
    """Mean magnitude (XNOR-Net, Rastegari et al. 2016, eq. 6), or TWN's mean above its threshold
    (Li and Liu 2016, eq. 5) where there is a zero.
    """

    def fit(self, table: Tensor, spec: QuantSpec) -> Tensor:
        magnitude = table.abs()
        mean = magnitude.mean(dim=1)
        if not has_threshold(spec):
            return mean
        kept = magnitude > TERNARY_THRESHOLD * mean[:, None]
        return (magnitude * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1)


class Const(Rule):
    def fit(self, table: Tensor, spec: QuantSpec) -> Tensor:
        return torch.full_like(table[:, 0], spec.value)

    def fit_batch(self, x: Tensor, spec: QuantSpec) -> Tensor:
        return x.new_full((1,), spec.value)


class Entropy(Rule):
    estimator = "entropy"

    def fit_batch(self, x: Tensor, spec: QuantSpec) -> Tensor:
        histogram = Histogram()
        histogram.add(x)
        return entropy_scale(histogram, spec).to(x.device)


class Learned(Rule):
    """LSQ (Esser et al. 2020): starts at the MSE optimum, then a parameter."""

    def activation(
        self, x: Tensor, state: Tensor, unit: Unit, levels: LevelRange, specs: Specs
    ) -> Tensor:
        features = max(1, x.numel() // max(1, x.shape[0]))
        factor = gradient_factor(specs[0].format, features, specs[1].format.lsb)
        return QuantizeActivation.apply(x, state, unit, levels, factor)

    def weight(
        self, weight: Tensor, state: Tensor, unit: Tensor, levels: LevelRange, spec: QuantSpec
    ) -> Tensor:
        factor = gradient_factor(spec.format, weight.numel() // state.numel())
        return LearnedWeight.apply(weight, state, unit, levels, factor)


class Dynamic(Rule):
    """A power of two with half a level to spare at either end; see `dynamic_exponent`."""

    def fit(self, table: Tensor, spec: QuantSpec) -> Tensor:
        low, high = table.amin(dim=1), table.amax(dim=1)
        exponent = dynamic_exponent(low, high, spec.lowest, spec.format.max_level)
        return power_of_two(-exponent).to(table.dtype)

    def finish(self, scale: Tensor, spec: QuantSpec) -> Tensor:
        return scale


class RangeRule(Rule):
    """Rules whose state is a range, smallest and largest value, from which the scale follows."""

    estimator = "average"

    def first_range(self, table: Tensor, spec: QuantSpec) -> tuple[Tensor, Tensor]:
        """Smallest and largest value of each row, (R,) each, that the state begins at."""
        return range_of(table)


class MinMax(RangeRule):
    covers = True


class LearnedRange(RangeRule):
    def first_range(self, table: Tensor, spec: QuantSpec) -> tuple[Tensor, Tensor]:
        """With a single step from zero the whole range would round nearly everything to zero, so
        that no gradient came back: there it begins at the range of the least squared error.
        """
        if steps_of(spec) > 1:
            return range_of(table)
        if not spec.zero_point:
            reach = mse_scale(table, spec) * spec.format.lsb
            return (torch.zeros_like(reach) if spec.lowest == 0 else -reach), reach
        # The one level beside zero lies on the side that loses less by it.
        one = replace(spec, format=IntegerFormat(1, False), zero_point=False)
        below, above = (-table).clamp(min=0), table.clamp(min=0)
        low, high = mse_scale(below, one), mse_scale(above, one)
        zero = torch.zeros_like(low)
        lower = _gain(below, low) > _gain(above, high)
        return torch.where(lower, -low, zero), torch.where(lower, zero, high)

    def activation(
        self, x: Tensor, state: Tensor, unit: Unit, levels: LevelRange, specs: Specs
    ) -> Tensor:
        wide = torch.as_tensor(unit, device=x.device).to(x.dtype).reshape(1)
        return QuantizeRange.apply(x, state, wide, levels, steps_of(specs[1]))

    def weight(
        self, weight: Tensor, state: Tensor, unit: Tensor, levels: LevelRange, spec: QuantSpec
    ) -> Tensor:
        return QuantizeRange.apply(weight, state, unit, levels, steps_of(spec))


_RULES: dict[ScaleRule, Rule] = {
    ScaleRule.MAX: Max(),
    ScaleRule.PERCENTILE: Percentile(),
    ScaleRule.MSE: Rule(),
    ScaleRule.MEAN: Mean(),
    ScaleRule.LEARNED: Learned(),
    ScaleRule.CONST: Const(),
    ScaleRule.ENTROPY: Entropy(),
    ScaleRule.MINMAX: MinMax(),
    ScaleRule.INTERVAL: LearnedRange(),
    ScaleRule.DYNAMIC: Dynamic(),
}


def register_rule(name: ScaleRule, rule: Rule) -> None:
    """Give a rule made with `ScaleRule.named` its meaning.

    Raises:
        ModelError: it has one.
    """
    if name in _RULES:
        raise ModelError(f"scale rule {name!r} has a meaning already", hint="choose another name")
    _RULES[name] = rule


def rule_of(spec: QuantSpec) -> Rule:
    """What the scale rule of a specification does."""
    return _RULES[spec.scale]


@torch.no_grad()
def finish(scale: Tensor, spec: QuantSpec) -> Tensor:
    """`Rule.finish` of a specification's rule."""
    return rule_of(spec).finish(scale, spec)


@torch.no_grad()
def weight_scale(weight: Tensor, spec: QuantSpec) -> Tensor:
    """Scale of a weight (O, ...) by its rule: shape (1,) or (O,), the weight's dtype.

    ``learned`` gives the initial value of the parameter: the MSE optimum. Rules with a range have
    the scale of that (`scale_of_range`).
    """
    return finish(rule_of(spec).fit(rows(weight, spec.granularity), spec), spec)


@torch.no_grad()
def observed_scale(x: Tensor, spec: QuantSpec) -> Tensor:
    """Scale of one batch of an activation by its rule: shape (1,). ``learned`` starts at the MSE
    one. What the format cannot represent anyway (the negative side of an unsigned one) does not
    count; a format of signs has a constant scale.
    """
    if spec.format.sign_only:
        return x.new_full((1,), spec.value)
    return rule_of(spec).fit_batch(x if spec.lowest < 0 else x.clamp(min=0), spec)


def has_threshold(spec: QuantSpec) -> bool:
    """Whether weights follow TWN: zero below a share of the mean, not below half a level."""
    return spec.scale is ScaleRule.MEAN and spec.format.zero_is_representable


def threshold_levels(weight: Tensor, spec: QuantSpec) -> Tensor:
    """sign(w) where |w| exceeds 0.7 x its mean, else 0 (Li and Liu 2016, eq. 3 and 6)."""
    magnitude = weight.abs()
    if spec.granularity is Granularity.PER_CHANNEL:
        mean = magnitude.mean(dim=tuple(range(1, weight.dim())), keepdim=True)
    else:
        mean = magnitude.mean()
    return torch.sign(weight) * (magnitude > TERNARY_THRESHOLD * mean)


def gradient_factor(number_format: Format, values: int, lsb: float | None = None) -> float:
    """LSQ's gradient scale, times d unit / d scale: ``lsb / sqrt(values * largest level)``.

    For uneven levels the step that the rule speaks of is the coarsest one, so that a step changes
    the scale by the same share.
    """
    lsb, step = number_format.lsb if lsb is None else lsb, number_format.top_step
    if number_format.uniform:
        return lsb / math.sqrt(values * max(1, number_format.max_level))
    highest = max(1, number_format.max_level // step)
    return 1.0 / (lsb * step**2 * math.sqrt(values * highest))


def rows(x: Tensor, granularity: Granularity) -> Tensor:
    """``x`` as (channels, values a channel); one row if there is one scale."""
    if granularity is Granularity.PER_CHANNEL:
        return x.reshape(x.shape[0], -1)
    return x.reshape(1, -1)


def range_of(table: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each row, (rows,) each; zero is always between them, so that it
    is a level.
    """
    return table.amin(dim=1).clamp(max=0), table.amax(dim=1).clamp(min=0)


def _gain(side: Tensor, unit: Tensor) -> Tensor:
    """By how much a level lowers the squared error of each row, against zero alone."""
    wide = unit[:, None]
    levels = torch.round(side / wide).clamp(0, 1)
    return (side.square() - (side - levels * wide).square()).sum(dim=1)


def scale_of_range(low: Tensor, high: Tensor, spec: QuantSpec) -> Tensor:
    """Scale whose levels span ``low .. high``, (rows,) each: with a zero point over all codes
    (Jacob et al. 2018, section 2.1), else symmetric by the one farther from zero.
    """
    if spec.zero_point:
        return divided(high - low, spec.format.max_code - spec.format.min_code) / spec.format.lsb
    reach = high if spec.lowest == 0 else torch.maximum(high, -low)
    return divided(reach, spec.format.reach)


def dynamic_exponent(low: Tensor, high: Tensor, lowest: int, highest: int) -> Tensor:
    """``s`` of dynamic fixed point, the largest with ``high * 2^s < highest + 1/2`` or equal, and
    the same below: ``floor(log2(min((UB + 1/2) / max, (LB - 1/2) / min)))`` (MuPPET, Rajagopal et
    al. 2020; Vink 2023, eq. 3.4), where real = level * 2^-s.

    Args:
        low, high: smallest and largest elements, finite. Only the quotients that are positive
            count: a tensor on one side of zero has one, zeros alone have none, and their ``s`` is
            0. Of an unsigned format the negative side, which it cuts off, does not count.
        lowest, highest: levels LB <= 0 < UB.

    Returns:
        -120 .. 120, int64, in the shape of ``low`` and where that lies.
    """
    low, high = low.to(torch.float64), high.to(torch.float64)
    counts, none = high > 0, torch.full_like(high, math.inf)
    smallest = torch.where(counts, (highest + 0.5) / high, none)
    if lowest < 0:
        smallest = torch.minimum(smallest, torch.where(low < 0, (lowest - 0.5) / low, none))
        counts = counts | (low < 0)
    # A quotient of 24-bit numbers does not round to a power of two that it is not; infinity (the
    # numbers are denormal) becomes the largest.
    exponent = torch.frexp(smallest).exponent.to(torch.int64) - 1
    exponent = torch.where(torch.isfinite(smallest), exponent, DYNAMIC_RANGE)
    return torch.where(counts, exponent.clamp(-DYNAMIC_RANGE, DYNAMIC_RANGE), 0)


def steps_of(spec: QuantSpec) -> int:
    """Steps between minimum and maximum of a range with a zero point, else from zero to its end."""
    if spec.zero_point:
        return spec.format.max_code - spec.format.min_code
    return spec.format.largest_level


def zero_point_of(low: Tensor, unit: Tensor, number_format: Format) -> Tensor:
    """The codes of real zero, float64: ``round(min_code - low / unit)``, half to even (Jacob et al.
    2018, section 2.1). Where training has diverged, the smallest code: its loss will tell.
    """
    first, last = number_format.min_code, number_format.max_code
    place = first - low.detach().to(torch.float64).clamp(max=0) / unit.to(torch.float64)
    return torch.round(torch.nan_to_num(place, first, last, first)).clamp(first, last)


def sample(x: Tensor) -> Tensor:
    """At most `SAMPLE` values of ``x``, evenly spaced, the same for the same shape."""
    flat = x.reshape(-1)
    stride = max(1, math.ceil(flat.numel() / SAMPLE))
    # An odd stride does not fall into step with the (even) row lengths of images.
    return flat[:: stride | 1] if stride > 1 else flat
