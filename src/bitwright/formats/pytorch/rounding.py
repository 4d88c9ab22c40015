# SPDX-License-Identifier: Apache-2.0
"""The rounding, overflow and encode rules of `bitwright.formats`, in torch.

Works in the dtype it is given; in float64 it equals numpy's `Format.encode` bit for bit (tested
exhaustively for every format of up to eight bits, every rounding and overflow mode).
"""

from __future__ import annotations

from functools import singledispatch

import torch
from torch import Tensor

from bitwright.base.errors import FormatError
from bitwright.formats import BipolarFormat, Format, GridFormat, Overflow, Rounding
from bitwright.formats.pytorch.grid import quantize_to_grid, round_to_int
from bitwright.formats.pytorch.kernels import encode_natively, levels_natively


def divided(x: Tensor, by: float) -> Tensor:
    """``x / by``, rounded once on every device: on a GPU torch multiplies by the reciprocal of a
    Python number, so a scale found there would have another last bit than the same one on a CPU.
    """
    return x / torch.full((), by, dtype=x.dtype, device=x.device)


def quantize_ratio(
    ratio: Tensor,
    number_format: Format,
    zero_point: int = 0,
    rounding: Rounding = Rounding.HALF_EVEN,
    overflow: Overflow = Overflow.SAT,
    noise: Tensor | None = None,
) -> Tensor:
    """Levels (in the dtype of ``ratio``) of reals given in units of one level.

    The same as ``levels(encode(...))`` of the format: what comes out is the code less the zero
    point, for bipolar -1 or +1, for a block format those of its element. Unevenly spaced formats
    compute in float64 whatever the dtype.

    Raises:
        FormatError: an overflow rule or a zero point that the format does not have, or wrapping
            an infinity.
    """
    stored = number_format.stored
    stored.check(overflow)
    return torch_levels(stored, ratio, zero_point, rounding, overflow, noise)


@singledispatch
def torch_levels(
    number_format: Format,
    ratio: Tensor,
    zero_point: int,
    rounding: Rounding,
    overflow: Overflow,
    noise: Tensor | None,
) -> Tensor:
    """`quantize_ratio` by family. This is the rule of evenly spaced levels; whoever adds a family
    that is neither even nor a `GridFormat` registers its own here.
    """
    low, high = number_format.min_level, number_format.max_level
    rounded = round_to_int(ratio, rounding, noise)
    if overflow is not Overflow.WRAP:
        if overflow is Overflow.SAT_SYM and low < 0:
            low = -high
        return rounded.clamp(low - zero_point, high - zero_point)
    if not bool(torch.isfinite(rounded).all()):
        raise FormatError("cannot wrap an infinite value")
    span = high - low + 1
    residue = torch.fmod(rounded, span)
    return torch.remainder(residue + (zero_point - low), span) + (low - zero_point)


@torch_levels.register(GridFormat)
def _uneven(
    number_format: GridFormat,
    ratio: Tensor,
    zero_point: int,
    rounding: Rounding,
    overflow: Overflow,
    noise: Tensor | None,
) -> Tensor:
    if zero_point != 0:
        raise FormatError(f"{number_format.name} has no zero point", hint="use zero point 0")
    if rounding is not Rounding.STOCHASTIC:
        fast = levels_natively(ratio.detach(), number_format, rounding)
        if fast is not None:
            return fast
    return quantize_to_grid(ratio, number_format, rounding, noise)


@torch_levels.register(BipolarFormat)
def _bipolar(
    number_format: BipolarFormat,
    ratio: Tensor,
    zero_point: int,
    rounding: Rounding,
    overflow: Overflow,
    noise: Tensor | None,
) -> Tensor:
    if rounding is not Rounding.STOCHASTIC:
        positive = ratio >= 0
    else:
        draw = torch.rand_like(ratio) if noise is None else noise
        positive = draw < (ratio + 1) * 0.5
    return positive.to(ratio.dtype) * 2 - 1


def encode_levels(
    x: Tensor,
    number_format: Format,
    scale: Tensor | float = 1.0,
    zero_point: int = 0,
    *,
    rounding: Rounding = Rounding.HALF_EVEN,
    overflow: Overflow = Overflow.SAT,
    noise: Tensor | None = None,
) -> Tensor:
    """Levels of reals, float64: `Format.encode` followed by `Format.levels`, in torch.

    float32 on a CPU runs in C, with the same levels, where no gradient is asked for.

    Args:
        x: reals; computed in float64 whatever its dtype.
        number_format: the format.
        scale: broadcast against ``x``; taken to float64 first.
        zero_point: the code of level 0.
        rounding, overflow: the rules.
        noise: for stochastic rounding.

    Raises:
        FormatError: NaN, or a scale that is not positive and finite.
    """
    if noise is None and not torch.is_grad_enabled():
        fast = encode_natively(x, number_format, scale, zero_point, (rounding, overflow))
        if fast is not None:
            return fast.to(torch.float64)
    unit = torch.as_tensor(scale, dtype=torch.float64, device=x.device) * number_format.lsb
    if not bool((torch.isfinite(unit) & (unit > 0)).all()):
        raise FormatError("scale must be positive and finite", where=number_format.name)
    values = x.to(torch.float64)
    if bool(torch.isnan(values).any()):
        raise FormatError("cannot encode NaN", where=number_format.name)
    return quantize_ratio(values / unit, number_format, zero_point, rounding, overflow, noise)
