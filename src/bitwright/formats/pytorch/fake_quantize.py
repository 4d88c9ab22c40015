# SPDX-License-Identifier: Apache-2.0
"""Quantize and dequantize in one step, every format: what simulation of a format costs.

The definition is ``unit * level(x / unit)`` with ``unit = scale * lsb``, every operation in
float64, and one rounding to the dtype of ``x`` at the end; levels are those of `encode_levels` and
so of numpy. float32 on a CPU runs in C (`native_quantize`) with the same bits; everything else in
torch operations, on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bitwright.base.errors import FormatError
from bitwright.formats import Format, Overflow, Rounding, parse_format
from bitwright.formats.block import MAX_EXPONENT, MIN_EXPONENT
from bitwright.formats.pytorch.grid import binade, power_of_two
from bitwright.formats.pytorch.kernels import quantize_natively
from bitwright.formats.pytorch.noise import check_seed, counter_noise, drawn_seed
from bitwright.formats.pytorch.rounding import encode_levels


@torch.no_grad()
def fake_quantize(
    x: Tensor,
    number_format: Format | str,
    scale: Tensor | float | None = None,
    *,
    zero_point: int = 0,
    rounding: Rounding = Rounding.HALF_EVEN,
    overflow: Overflow = Overflow.SAT,
    axis: int = -1,
    noise: Tensor | torch.Generator | int | None = None,
) -> Tensor:
    """The nearest (by ``rounding``) reals that a format has; no gradient.

    Args:
        x: floating point, any shape. Infinities saturate.
        number_format: the format or its name.
        scale: positive, broadcast against ``x``; None: 1, or for a block format the shared powers
            of two of its blocks along ``axis`` (`block_scales`).
        zero_point: the code of level 0, for families that have one.
        rounding, overflow: the rules.
        axis: along which the neighbours of a block lie.
        noise: for stochastic rounding. A tensor: uniform numbers in [0, 1) of the shape of ``x``.
            A number: the seed of `counter_noise`, whose numbers are taken in order of the elements
            (for blocks with ``axis`` moved last), the same on every device. A generator, None for
            torch's own: the seed is drawn from it.

    Returns:
        dtype and shape of ``x``; zeros are positive.

    Raises:
        FormatError: NaN (in blocks also an infinity), a scale that is not positive and finite, a
            dtype without fractions, shapes that do not fit, or rules that the format does not have.
    """
    chosen = parse_format(number_format)
    if not x.is_floating_point():
        raise FormatError(f"only floating point can be quantized, not {x.dtype}", where=chosen.name)
    random = _random(noise) if rounding is Rounding.STOCHASTIC else 0
    x = x.detach()
    if scale is not None or not chosen.block:
        rules = (rounding, overflow, random)
        return _quantize(x, chosen, 1.0 if scale is None else scale, zero_point, rules)
    rows = x.movedim(_checked_axis(x, axis), -1)
    if isinstance(random, Tensor) and random.shape == x.shape:  # else it is refused below
        random = random.movedim(axis, -1)
    rules = (rounding, overflow, random)
    return _quantize(rows, chosen, None, zero_point, rules).movedim(-1, axis)


def _random(noise: Tensor | torch.Generator | int | None) -> Tensor | int:
    """Uniform numbers as they are, or a seed."""
    if isinstance(noise, Tensor):
        return noise
    seed = drawn_seed(noise) if noise is None or isinstance(noise, torch.Generator) else noise
    check_seed(seed)
    return seed


def block_scales(x: Tensor, number_format: Format, axis: int = -1) -> Tensor:
    """One scale for every value, that of its block, float64: `BlockFormat.block_scales` in torch.

    Raises:
        FormatError: NaN or an infinity.
    """
    if not bool(torch.isfinite(x).all()):
        raise FormatError("cannot encode NaN or infinity in blocks", where=number_format.name)
    if x.numel() == 0:
        return torch.ones_like(x, dtype=torch.float64)
    return power_of_two(block_exponents(x, number_format, _checked_axis(x, axis)))


@torch.no_grad()
def block_exponents(x: Tensor, number_format: Format, axis: int = 1) -> Tensor:
    """`BlockFormat.block_exponents` in torch, spread to the shape of ``x``: int64.

    Args:
        x: finite; the last block along ``axis`` may be shorter.
    """
    values, length = x.detach().to(torch.float64).abs().movedim(axis, -1), number_format.block
    padded = torch.nn.functional.pad(values, (0, -values.shape[-1] % length))
    largest = padded.unflatten(-1, (-1, length)).amax(-1)
    exponent = binade(largest) - number_format.top_exponent
    exponent = exponent.masked_fill(largest == 0, MIN_EXPONENT).clamp(MIN_EXPONENT, MAX_EXPONENT)
    return exponent.repeat_interleave(length, -1)[..., : values.shape[-1]].movedim(-1, axis)


def _checked_axis(x: Tensor, axis: int) -> int:
    if not -x.dim() <= axis < x.dim():
        raise FormatError(f"a tensor of shape {tuple(x.shape)} has no axis {axis} for blocks")
    return axis


def _quantize(
    x: Tensor,
    number_format: Format,
    scale: Tensor | float | None,
    zero_point: int,
    rules: tuple[Rounding, Overflow, Tensor | int],
) -> Tensor:
    rounding, overflow, random = rules
    if not isinstance(random, Tensor):
        fast = quantize_natively(x, number_format, scale, zero_point, (rounding, overflow, random))
        if fast is not None:
            return fast
    if scale is None:
        scale = block_scales(x, number_format)
    units = torch.as_tensor(scale, dtype=torch.float64, device=x.device)
    try:
        wide, units = torch.broadcast_tensors(x, units)
    except RuntimeError as error:
        raise FormatError(
            f"a scale of shape {tuple(units.shape)} does not fit values of {tuple(x.shape)}",
            where=number_format.name,
        ) from error
    if isinstance(random, Tensor) and random.shape != wide.shape:
        raise FormatError(
            f"noise of shape {tuple(random.shape)} for values of {tuple(wide.shape)}",
            where=number_format.name,
        )
    if rounding is Rounding.STOCHASTIC and not isinstance(random, Tensor):
        random = counter_noise(random, wide.numel(), x.device).view(wide.shape)
    noise = random if isinstance(random, Tensor) else None
    levels = encode_levels(
        wide, number_format, units, zero_point, rounding=rounding, overflow=overflow, noise=noise
    )
    return (levels.add_(0.0) * (units * number_format.lsb)).to(x.dtype)
