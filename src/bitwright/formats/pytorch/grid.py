# SPDX-License-Identifier: Apache-2.0
"""Rounding to unevenly spaced levels in torch: minifloats, powers of two, codebooks.

The rules of `bitwright.formats` (`minifloat`, `power_of_two`, `grid`), operation by operation in
float64 whatever the dtype given, so the levels are those of numpy bit for bit. Levels have at most
24 significant bits: float32 holds them too. All of it are plain operations that a GPU has.
"""

from __future__ import annotations

from functools import lru_cache, singledispatch

import torch
from torch import Tensor

from bitwright.formats import Format, MinifloatFormat, PowerOfTwoFormat, Rounding
from bitwright.formats.grid import goes_up
from bitwright.formats.power_of_two import LOG_MIDDLE
from bitwright.formats.rounding import FloatArray, rounded

_MANTISSA_BITS, _BIAS = 52, 1023
_MANTISSA_MASK = (1 << _MANTISSA_BITS) - 1
_HALF_BITS = (_BIAS - 1) << _MANTISSA_BITS


def round_to_int(
    x: Tensor, mode: Rounding = Rounding.HALF_EVEN, noise: Tensor | None = None
) -> Tensor:
    """Round to integers in the dtype of ``x``; see `bitwright.formats.rounding`.

    Args:
        x: reals, any shape.
        mode: the rounding mode.
        noise: for ``stochastic``, uniform numbers in [0, 1) of the shape of ``x``; drawn from
            torch's generator if None.
    """
    if mode is Rounding.STOCHASTIC:
        low = torch.floor(x)
        draw = torch.rand_like(x) if noise is None else noise
        return low + (draw < x - low).to(x.dtype)
    found: Tensor = rounded(torch, x, mode)
    return found


def quantize_to_grid(
    ratio: Tensor, number_format: Format, rounding: Rounding, noise: Tensor | None
) -> Tensor:
    """Levels, in the dtype of ``ratio``, of reals in units of one level.

    Raises:
        FormatError: a codebook without a table.
    """
    x = ratio.to(torch.float64)
    if rounding is Rounding.STOCHASTIC:
        noise = torch.rand_like(x) if noise is None else noise.to(torch.float64)
    return uneven_levels(number_format, x, rounding, noise).to(ratio.dtype)


@singledispatch
def uneven_levels(
    number_format: Format, x: Tensor, rounding: Rounding, noise: Tensor | None
) -> Tensor:
    """Levels of float64 reals by a look-up in the list of all levels: right for every format.

    A family that has a faster rule of its own registers it here, as those below do.
    """
    all_levels = grid_of(number_format)
    x = x.clamp(float(all_levels[0]), float(all_levels[-1])).contiguous()
    grid = torch.from_numpy(all_levels).to(x.device)
    return grid.take(_nearest_index(x, grid, rounding, noise))


@lru_cache(maxsize=256)
def grid_of(number_format: Format) -> FloatArray:
    """`Format.float_grid`, kept."""
    return number_format.float_grid()


def binade(x: Tensor) -> Tensor:
    """floor(log2 |x|) of normal numbers, int64; -1023 for zero and denormals."""
    return ((x.view(torch.int64) >> _MANTISSA_BITS) & 0x7FF) - _BIAS


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent for exponents of normal numbers; exact, unlike `torch.ldexp` through float32."""
    return ((exponent + _BIAS) << _MANTISSA_BITS).view(torch.float64)


@uneven_levels.register(MinifloatFormat)
def _minifloat(
    number_format: MinifloatFormat, ratio: Tensor, rounding: Rounding, noise: Tensor | None
) -> Tensor:
    top = float(number_format.max_level)
    x = ratio.clamp(-top, top)
    quantum = power_of_two((binade(x) - number_format.mantissa).clamp_(min=0))
    level = (round_to_int(x / quantum, rounding, noise) * quantum).clamp_(-top, top)
    if not number_format.denormals:
        level.masked_fill_(level.abs() <= 1 << number_format.mantissa, 0.0)
    return level.add_(0.0)  # no negative zero


@uneven_levels.register(PowerOfTwoFormat)
def _logarithmic(
    number_format: PowerOfTwoFormat, ratio: Tensor, rounding: Rounding, noise: Tensor | None
) -> Tensor:
    if number_format.linear:
        by_table: Tensor = uneven_levels.dispatch(Format)(number_format, ratio, rounding, noise)
        return by_table
    magnitude = ratio.abs().clamp_(max=float(number_format.max_level))
    # Denormals count as a power here, but all below 1 becomes the smallest power or zero anyway.
    mantissa = ((magnitude.view(torch.int64) & _MANTISSA_MASK) | _HALF_BITS).view(torch.float64)
    if rounding is Rounding.STOCHASTIC:
        assert noise is not None
        up = noise < torch.log2(mantissa) + 1
    elif rounding in (Rounding.UP, Rounding.DOWN):
        up = (mantissa > 0.5) & (rounding is Rounding.UP)
    elif rounding in (Rounding.CEIL, Rounding.FLOOR):
        up = (mantissa > 0.5) & ((ratio > 0) == (rounding is Rounding.CEIL))
    else:
        up = mantissa >= LOG_MIDDLE
    power = (binade(magnitude) + up).clamp_(0, number_format.powers - 1)
    level = power_of_two(power)
    if number_format.zero:
        if rounding is Rounding.STOCHASTIC:
            assert noise is not None
            vanishes = noise >= ratio.abs()
        else:
            vanishes = round_to_int(ratio, rounding, None) == 0
        level = level.masked_fill_(vanishes & (ratio.abs() < 1), 0.0)
    return torch.where(ratio < 0, -level, level) + 0.0


def _nearest_index(x: Tensor, grid: Tensor, rounding: Rounding, noise: Tensor | None) -> Tensor:
    """Index of the level that each value, within the ends of the grid, is rounded to."""
    if len(grid) == 1:
        return torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    low = (torch.searchsorted(grid, x, right=True) - 1).clamp_(0, len(grid) - 2)
    below, above = grid.take(low), grid.take(low + 1)
    if rounding is Rounding.STOCHASTIC:
        assert noise is not None
        up = noise < (x - below) / (above - below)
    else:
        up = goes_up(torch, x, below, above, low, rounding)
    return low + up
