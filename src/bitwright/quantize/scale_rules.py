# SPDX-License-Identifier: Apache-2.0
"""Scale rules: the scale of a tensor from its values. All work without a gradient.

A scale here is the ``scale`` of `Format.encode`; one level is ``scale * format.lsb``.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from bitwright.formats import (
    BipolarFormat,
    BlockFormat,
    CodebookFormat,
    Format,
    IntegerFormat,
    MinifloatFormat,
    PowerOfTwoFormat,
    TernaryFormat,
)
from bitwright.formats.block import MAX_EXPONENT, MIN_EXPONENT
from bitwright.formats.pytorch.grid import power_of_two
from bitwright.formats.pytorch.rounding import quantize_ratio
from bitwright.quantize.policy import Granularity, QuantSpec, ScaleRule

#: Smallest scale: keeps a tensor of zeros, and a learned scale gone astray, dividing by something.
TINY = 2.0**-60
#: A statistic that needs sorting or a search looks at this many values of an activation at most.
SAMPLE = 1 << 16
#: Ternary weights: threshold 0.7 x mean magnitude (Li and Liu, Ternary Weight Networks, eq. 6).
TERNARY_THRESHOLD = 0.7
#: Exponents of dynamic fixed point are between the negative of this and this.
DYNAMIC_RANGE = 120
_MSE_CANDIDATES = 40
_MSE_SMALLEST = 0.05


def largest_level(number_format: Format) -> int:
    """The level that the largest magnitude is mapped to: the positive end of the range.

    Of an uneven format, which may be lopsided, the end farther from zero.
    """
    if number_format.uniform:
        return max(number_format.max_level, 1)
    return max(-number_format.min_level, number_format.max_level, 1)


def top_step(number_format: Format) -> int:
    """Distance between the two largest levels: the coarsest step of the format."""
    if number_format.uniform:
        return number_format.level_step
    if isinstance(number_format, MinifloatFormat):
        return 1 << max(0, number_format.max_level.bit_length() - 1 - number_format.mantissa)
    last = [int(level) for level in number_format.grid()[-2:]]
    return max(1, last[-1] - last[0])


def gradient_factor(number_format: Format, lsb: float, values: int) -> float:
    """LSQ's gradient scale, times d unit / d scale: ``lsb / sqrt(values * largest level)``.

    For uneven levels the step that the rule speaks of is the coarsest one, so that a step changes
    the scale by the same share.
    """
    step = top_step(number_format)
    highest = max(1, number_format.max_level // step)
    if number_format.uniform:
        return lsb / math.sqrt(values * max(1, number_format.max_level))
    return 1.0 / (lsb * step**2 * math.sqrt(values * highest))


def rows(x: Tensor, granularity: Granularity) -> Tensor:
    """``x`` as (channels, values a channel); one row if there is one scale."""
    if granularity is Granularity.PER_CHANNEL:
        return x.reshape(x.shape[0], -1)
    return x.reshape(1, -1)


@torch.no_grad()
def weight_scale(weight: Tensor, spec: QuantSpec) -> Tensor:
    """Scale of a weight (O, ...) by its rule: shape (1,) or (O,), the weight's dtype.

    ``learned`` gives the initial value of the parameter: the MSE optimum. Rules with an interval
    have the scale of that (`scale_of_range`).
    """
    table = rows(weight, spec.granularity)
    if spec.scale is ScaleRule.DYNAMIC:
        return _dynamic_scale(table, spec)
    if spec.scale is ScaleRule.CONST:
        scale = torch.full_like(table[:, 0], spec.value)
    elif spec.scale is ScaleRule.MEAN:
        scale = _mean_scale(table, spec)
    elif spec.scale is ScaleRule.MAX:
        # Two vectorised reductions: torch.aminmax and the infinity norm are ten times slower.
        scale = torch.maximum(table.amax(dim=1), -table.amin(dim=1)) / _reach(spec)
    elif spec.scale is ScaleRule.PERCENTILE:
        scale = torch.quantile(table.abs(), spec.percentile / 100, dim=1) / _reach(spec)
    else:
        scale = mse_scale(table, spec)
    return finish(scale, spec)


def _dynamic_scale(table: Tensor, spec: QuantSpec) -> Tensor:
    """`dynamic_exponent` of each row, as a scale."""
    low, high = table.amin(dim=1), table.amax(dim=1)
    exponents = dynamic_exponent(low, high, spec.lowest, spec.format.max_level)
    return power_of_two(-exponents).to(table.dtype)


def _mean_scale(table: Tensor, spec: QuantSpec) -> Tensor:
    """Mean magnitude (XNOR-Net, Rastegari et al. 2016, eq. 6), or TWN's mean above its threshold
    (Li and Liu 2016, eq. 5) for ternary weights.
    """
    magnitude = table.abs()
    mean = magnitude.mean(dim=1)
    if isinstance(spec.format, TernaryFormat):
        kept = magnitude > TERNARY_THRESHOLD * mean[:, None]
        return (magnitude * kept).sum(dim=1) / kept.sum(dim=1).clamp(min=1)
    return mean


@torch.no_grad()
def observed_scale(x: Tensor, spec: QuantSpec) -> Tensor:
    """Scale of one batch of an activation by its rule: shape (1,). `learned` starts at the MSE one.

    What the format cannot represent anyway (the negative side of an unsigned one) does not count.
    """
    if isinstance(spec.format, BipolarFormat) or spec.scale is ScaleRule.CONST:
        return x.new_full((1,), spec.value)
    values = x if spec.lowest < 0 else x.clamp(min=0)
    if spec.scale is ScaleRule.MAX:
        return (torch.maximum(values.amax(), -values.amin()) / _reach(spec)).reshape(1)
    table = sample(values).abs() if spec.scale is ScaleRule.PERCENTILE else sample(values)
    if spec.scale is ScaleRule.PERCENTILE:
        return (torch.quantile(table, spec.percentile / 100) / _reach(spec)).reshape(1)
    return mse_scale(table.reshape(1, -1), spec)


def range_of(table: Tensor) -> tuple[Tensor, Tensor]:
    """Smallest and largest value of each row, (rows,) each; zero is always between them, so that it
    is a level.
    """
    return table.amin(dim=1).clamp(max=0), table.amax(dim=1).clamp(min=0)


def first_range(table: Tensor, spec: QuantSpec) -> tuple[Tensor, Tensor]:
    """Where a trained interval begins, of each row, (rows,) each: at the smallest and the largest
    value. With a single step from zero that would round nearly everything to zero, so that no
    gradient came back: there, at the interval of the least squared error.
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


def _gain(side: Tensor, unit: Tensor) -> Tensor:
    """By how much a level lowers the squared error of each row, against zero alone."""
    wide = unit[:, None]
    levels = torch.round(side / wide).clamp(0, 1)
    return (side.square() - (side - levels * wide).square()).sum(dim=1)


def scale_of_range(low: Tensor, high: Tensor, spec: QuantSpec) -> Tensor:
    """Scale whose levels span ``low .. high``, (rows,) each: with a zero point over all codes
    (Jacob et al. 2018, section 2.1), else symmetric by the end farther from zero.
    """
    if spec.zero_point:
        return (high - low) / (spec.format.max_code - spec.format.min_code) / spec.format.lsb
    reach = high if spec.lowest == 0 else torch.maximum(high, -low)
    return reach / _reach(spec)


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
    """Steps between the two ends of an interval with a zero point, else from zero to its end."""
    if spec.zero_point:
        return spec.format.max_code - spec.format.min_code
    return largest_level(spec.format)


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


def mse_scale(table: Tensor, spec: QuantSpec) -> Tensor:
    """Scale of each row that minimises the squared quantization error, by search.

    Candidates are 0.05 .. 1 of the scale that clips nothing, in geometric steps of 8 %, or for
    ``power_of_two`` the powers from there down.
    """
    unclipped = (table.abs().amax(dim=1) / _reach(spec)).clamp(min=TINY)
    if spec.power_of_two:
        top = torch.exp2(torch.ceil(torch.log2(unclipped)))
        candidates = [top * 2.0**-k for k in range(5)]
    else:
        span = torch.logspace(math.log10(_MSE_SMALLEST), 0.0, _MSE_CANDIDATES).tolist()
        candidates = [unclipped * fraction for fraction in span]
    best = torch.full_like(unclipped, math.inf)
    chosen = unclipped
    for candidate in candidates:
        unit = (candidate * spec.format.lsb)[:, None]
        levels = quantize_ratio(table / unit, spec.format)
        error = (levels * unit - table).square().sum(dim=1)
        better = error < best
        best = torch.where(better, error, best)
        chosen = torch.where(better, candidate, chosen)
    return chosen


@torch.no_grad()
def finish(scale: Tensor, spec: QuantSpec) -> Tensor:
    """The scale as it is used: positive, and a power of two where asked.

    ``max`` and ``minmax`` round up (nothing is clipped); every other rule, and windows of powers,
    to the nearest exponent.
    """
    positive = scale.abs().clamp(min=TINY)
    if not spec.power_of_two:
        return positive
    exponent = torch.log2(positive)
    # The largest of a window of powers is rounded to it in the logarithm, as every other value is.
    covers = spec.scale in (ScaleRule.MAX, ScaleRule.MINMAX)
    if covers and not isinstance(spec.format, PowerOfTwoFormat):
        # log2 of an exact power may come out a hair above its integer.
        return torch.exp2(torch.ceil(exponent - 1e-5))
    return torch.exp2(torch.round(exponent))


def _reach(spec: QuantSpec) -> float:
    return largest_level(spec.format) * spec.format.lsb


@torch.no_grad()
def block_exponents(x: Tensor, number_format: BlockFormat, axis: int = 1) -> Tensor:
    """`BlockFormat.block_exponents` in torch, spread to the shape of ``x``: float64 integers.

    Args:
        x: finite; the last block along ``axis`` may be shorter.
    """
    values = x.detach().to(torch.float64).abs().movedim(axis, -1)
    count = values.shape[-1]
    padded = torch.nn.functional.pad(values, (0, -count % number_format.length))
    largest = padded.unflatten(-1, (-1, number_format.length)).amax(dim=-1)
    exponent = torch.frexp(largest).exponent.to(torch.float64) - 1 - number_format.top_exponent
    exponent = torch.where(largest == 0, float(MIN_EXPONENT), exponent)
    exponent = exponent.clamp(MIN_EXPONENT, MAX_EXPONENT)
    spread = exponent.repeat_interleave(number_format.length, dim=-1)[..., :count]
    return spread.movedim(-1, axis)


def is_unfitted(number_format: Format) -> bool:
    """Whether a format is a codebook whose table is still to be found."""
    return isinstance(number_format, CodebookFormat) and not number_format.is_fitted
