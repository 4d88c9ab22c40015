# SPDX-License-Identifier: Apache-2.0
"""Tensors to operands: dynamic fixed point and every other format that a `QuantSpec` names.

Dynamic fixed point (MuPPET, Rajagopal et al. 2020; Vink 2023, eq. 3.4 and 3.5): one power of two a
tensor, ``s = floor(log2(min((UB + 1/2) / max, (LB - 1/2) / min)))``, found anew every time, and
``level = clip(round(x * 2^s), LB, UB)``.

Random numbers follow the elements in channels-last order, (N, H, W, C), whatever the memory of the
tensor looks like: result i takes number i of `counter_noise`, and is the one that `fake_quantize`
gives for it. So a result depends on values and seed alone, not on memory, threads or device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bitwright.errors import FormatError, RecipeError
from bitwright.formats import FixedFormat, IntegerFormat
from bitwright.quant.fake_quantize import fake_quantize
from bitwright.quant.policy import Granularity, QuantSpec, ScaleRule
from bitwright.quant.policy_defaults import STATELESS
from bitwright.quant.scales import dynamic_exponent, weight_scale
from bitwright.train.arithmetic.operands import MAX_EXPONENT, MIN_EXPONENT, NotFinite, Operand


@torch.no_grad()
def quantise(
    x: Tensor, spec: QuantSpec | None, seed: int, *, name: str = "the tensor", axis: int = 1
) -> Operand:
    """A tensor in a format.

    Args:
        x: float32, any shape; of one with four axes, (N, C, H, W) in any memory, the result is in
            channels-last memory.
        spec: None leaves it as it is.
        seed: of the random numbers of stochastic rounding; see the module.
        name: what it is called in errors.
        axis: along which the neighbours of a block format lie; a product is exact in the format's
            sense where that is the axis it sums over.

    Raises:
        NotFinite: NaN or an infinity, which no scale covers.
        RecipeError: the scale rule needs statistics of other tensors than this one.
    """
    if spec is None:
        return Operand(None, real=x)
    if spec.scale not in STATELESS:
        raise RecipeError(
            f"scale {spec.scale.value!r} is no rule for {name} in training, which has no memory",
            hint=f"one of {', '.join(rule.value for rule in STATELESS)}",
        )
    exponent = _exponent(x, spec, name)
    nhwc = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
    if exponent is None:
        if spec.granularity is Granularity.PER_CHANNEL:
            scale: Tensor | float | None = weight_scale(x, spec).view(-1, *[1] * (x.dim() - 1))
        elif spec.format.block:
            scale, axis = None, _moved(axis, x.dim())
        else:
            scale = weight_scale(x, spec)
        real = _faked(nhwc.contiguous(), spec, scale, seed, name, axis)
        return Operand(None, real=real.permute(0, 3, 1, 2) if x.dim() == 4 else real)
    levels = _faked(nhwc.contiguous(), spec, 2.0**-exponent / spec.format.lsb, seed, name, axis)
    levels = torch.ldexp(levels.double(), torch.tensor(exponent)).to(container(signed_bits(spec)))
    levels = levels.permute(0, 3, 1, 2) if x.dim() == 4 else levels
    return Operand(levels, exponent, signed_bits(spec))


def signed_bits(spec: QuantSpec) -> int:
    """Word length, sign included, of a format that is integers with one power of two; else 0."""
    if not has_levels(spec):
        return 0
    return spec.format.bits + int(spec.format.min_level >= 0)


def has_levels(spec: QuantSpec) -> bool:
    """Whether operands of a specification are integers with one power of two."""
    if not isinstance(spec.format, IntegerFormat | FixedFormat):
        return False
    if spec.granularity is not Granularity.PER_TENSOR:
        return False
    constant = spec.scale is ScaleRule.CONST and math.frexp(spec.value)[0] == 0.5
    return constant or spec.power_of_two or spec.scale is ScaleRule.DYNAMIC


def container(bits: int) -> torch.dtype:
    """The smallest integers that hold levels of a word length."""
    return torch.int8 if bits <= 8 else torch.int16 if bits <= 16 else torch.int32


def _exponent(x: Tensor, spec: QuantSpec, name: str) -> int | None:
    """The power of two of an operand with levels."""
    if not has_levels(spec):
        return None
    if x.numel() == 0:
        return 0
    if spec.scale is ScaleRule.DYNAMIC:
        low, high = float(x.amin()), float(x.amax())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise _not_finite(name)
        return dynamic_exponent(low, high, spec.lowest, spec.format.max_level)
    unit = float(weight_scale(x, spec)) * spec.format.lsb
    if not math.isfinite(unit):
        raise _not_finite(name)
    return min(max(1 - math.frexp(unit)[1], MIN_EXPONENT), MAX_EXPONENT)


def _faked(
    x: Tensor, spec: QuantSpec, scale: Tensor | float | None, seed: int, name: str, axis: int
) -> Tensor:
    if not bool(torch.isfinite(x).all()):
        raise _not_finite(name)
    values = x.clamp(min=0) if spec.positive else x
    try:
        return fake_quantize(
            values,
            spec.format,
            scale,
            rounding=spec.rounding,
            overflow=spec.overflow,
            axis=axis,
            noise=seed,
        )
    except FormatError as error:
        raise RecipeError(error.message, where=name, hint=error.hint) from error


def _moved(axis: int, dimensions: int) -> int:
    """Where an axis of (N, C, H, W) is in (N, H, W, C)."""
    return (0, 3, 1, 2)[axis] if dimensions == 4 else axis


def _not_finite(name: str) -> NotFinite:
    return NotFinite(
        f"{name} holds NaN or an infinity",
        hint="training has diverged: lower the learning rate, or clip the gradients",
    )
