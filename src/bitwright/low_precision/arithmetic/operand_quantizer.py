# SPDX-License-Identifier: Apache-2.0
"""Tensors to operands: dynamic fixed point and every other format that a `QuantSpec` names.

Dynamic fixed point (MuPPET, Rajagopal et al. 2020; Vink 2023, eq. 3.4 and 3.5): one power of two a
tensor, ``s = floor(log2(min((UB + 1/2) / max, (LB - 1/2) / min)))``, found anew every time, and

    ratio = clip(x * 2^s, LB, UB)                     # float32; below 2^-126 it is rounded
    level = round(ratio)                              # by any rule, or stochastically:
    level = floor((rint(ratio * 2^24) + u) / 2^24)    # u: 24 random bits

so the mean of a stochastically rounded ratio is the ratio to the 24th bit behind the point.

Elements are counted in channels-last order, (N, H, W, C), whatever the memory of the tensor looks
like: a result depends on values and seed alone, not on memory, threads or device. Elements i and
i + 256 of every 512 share word ``i / 512 * 256 + i % 256`` of `counter_noise`: one takes its upper
24 bits, the other those of the word rotated by 16. Each has 24 evenly distributed bits; what the
two have in common are only the last 8 of either, which decide one rounding in 2^16.

Formats that are no integers with one power of two go through `fake_quantize`, elements counted
likewise, a word each.
"""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from bitwright.base.errors import FormatError, RecipeError
from bitwright.formats import Overflow, Rounding
from bitwright.formats.pytorch.fake_quantize import fake_quantize
from bitwright.formats.pytorch.grid import power_of_two
from bitwright.formats.pytorch.noise import check_seed, counter_noise
from bitwright.formats.pytorch.quantize_library import MODES, QUANTIZE, CLevels
from bitwright.formats.pytorch.rounding import round_to_int
from bitwright.low_precision.arithmetic.operands import (
    MAX_EXPONENT,
    MIN_EXPONENT,
    NotFinite,
    Operand,
)
from bitwright.quantize.scale_rules import dynamic_exponent, weight_scale
from bitwright.quantize.spec import Granularity, QuantSpec, ScaleRule

#: One in units of the fraction that random bits round.
_ONE = 2.0**24
#: Elements that are worth a thread of their own.
_WORTH_A_THREAD = 1 << 15


@torch.no_grad()
def quantize(
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
        NotFinite: NaN or an infinity, which no scale covers; on a GPU `Operand.finite` says so.
        RecipeError: the scale rule needs statistics of other tensors than this one.
    """
    if spec is None:
        return Operand(None, real=x)
    if not spec.scale.stateless:
        raise RecipeError(
            f"scale {spec.scale.value!r} is no rule for {name} in training, which has no memory",
            hint=f"one of {', '.join(rule for rule in ScaleRule.all() if rule.stateless)}",
        )
    if has_levels(spec):
        return _integers(x, spec, seed, name)
    rows = x.permute(0, 2, 3, 1).contiguous() if x.dim() == 4 else x
    scale = None if spec.format.block else weight_scale(rows, spec)
    place = (0, 3, 1, 2)[axis] if x.dim() == 4 else axis  # of the axis in (N, H, W, C)
    real = _fake_quantized(rows, spec, scale, seed, name, place)
    return Operand(None, real=real.permute(0, 3, 1, 2) if x.dim() == 4 else real)


def signed_bits(spec: QuantSpec) -> int:
    """Word length, sign included, of a format that is integers with one power of two; else 0."""
    if not has_levels(spec):
        return 0
    return spec.format.bits + int(spec.format.min_level >= 0)


def has_levels(spec: QuantSpec) -> bool:
    """Whether operands of a specification are integers with one power of two."""
    if spec.format.family not in ("integer", "fixed point"):
        return False
    if spec.granularity is not Granularity.PER_TENSOR:
        return False
    constant = spec.scale is ScaleRule.CONST and math.frexp(spec.value)[0] == 0.5
    return constant or spec.power_of_two or spec.scale is ScaleRule.DYNAMIC


def container(bits: int) -> torch.dtype:
    """The smallest integers that hold levels of a word length."""
    return torch.int8 if bits <= 8 else torch.int16 if bits <= 16 else torch.int32


def _integers(x: Tensor, spec: QuantSpec, seed: int, name: str) -> Operand:
    """An operand with levels."""
    check_seed(seed)
    bits = signed_bits(spec)
    shape = tuple(x.shape[axis] for axis in (0, 2, 3, 1)) if x.dim() == 4 else tuple(x.shape)
    exponent: int | Tensor | None
    finite = None
    if runs_natively(x) and spec.overflow is not Overflow.WRAP:
        exponent = None if spec.scale is ScaleRule.DYNAMIC else int(_exponent(x, spec))
        levels = torch.empty(shape, dtype=container(bits))
        exponent = quantize_levels(x, levels, _level_range(spec), exponent, spec.rounding, seed)
        if exponent is None:
            raise not_finite(name)
    else:
        finite, exponent = torch.isfinite(x).all(), _exponent(x, spec)
        if not is_deferred(x):
            if not bool(finite):
                raise not_finite(name)
            finite, exponent = None, int(exponent)
        rows = x.permute(0, 2, 3, 1) if x.dim() == 4 else x
        levels = _levels(rows, spec, exponent, seed).to(container(bits)).contiguous()
    placed = levels.permute(0, 3, 1, 2) if x.dim() == 4 else levels
    return Operand(placed, exponent, bits, finite=finite)


def runs_natively(x: Tensor) -> bool:
    """Whether a tensor lies where the C program can read it, and there is one."""
    # Subclasses of Tensor may have no memory.
    plain = type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu"
    return plain and x.dtype == torch.float32 and QUANTIZE.cdll is not None


def quantize_levels(
    x: Tensor,
    out: Tensor,
    limits: tuple[int, int],
    exponent: int | None,
    rounding: Rounding,
    seed: int,
) -> int | None:
    """Fill ``out`` with levels; the exponent, or None if ``x`` holds NaN or an infinity.

    Args:
        x: float32; with four axes (N, C, H, W).
        out: dense integers; of an image (N, H, W, C).
        limits: the smallest and the largest level.
        exponent: None: that of dynamic fixed point.
    """
    library = QUANTIZE.cdll
    assert library is not None
    pixels, channels = max(x.numel(), 1), 1
    if x.dim() == 4 and not x.is_contiguous(memory_format=torch.channels_last):
        x = x.contiguous()
        pixels, channels = x.shape[2] * x.shape[3], x.shape[1]
    elif x.dim() != 4:
        x = x.contiguous()
    if channels == 1 or pixels == 1:
        pixels, channels = max(x.numel(), 1), 1
    given = CLevels(
        x=x.data_ptr(),
        levels=out.data_ptr(),
        count=x.numel(),
        pixels=pixels,
        channels=channels,
        bytes=out.element_size(),
        mode=MODES[rounding],
        low=limits[0],
        high=limits[1],
        dynamic=exponent is None,
        exponent=exponent or 0,
        threads=max(1, min(torch.get_num_threads(), x.numel() // _WORTH_A_THREAD)),
        seed=seed,
    )
    if library.bw_quantize_levels(ctypes.byref(given)):
        raise MemoryError("not enough memory to quantize a tensor")
    return None if given.bad else int(given.exponent)


def is_deferred(x: Tensor) -> bool:
    """Whether to look at values is to wait for the device: then `Operand.finite` is looked at once
    a step, for all operands.
    """
    return x.device.type != "cpu"


def _level_range(spec: QuantSpec) -> tuple[int, int]:
    """The levels in use."""
    high = spec.format.max_level
    return (max(spec.lowest, -high) if spec.overflow is Overflow.SAT_SYM else spec.lowest), high


def _levels(x: Tensor, spec: QuantSpec, exponent: int | Tensor, seed: int) -> Tensor:
    """The definition in torch operations, float32: finite reals to levels."""
    low, high = _level_range(spec)
    unit = power_of_two(exponent).float() if isinstance(exponent, Tensor) else 2.0**exponent
    ratio = x.to(torch.float32) * unit
    if spec.overflow is not Overflow.WRAP:
        ratio = ratio.clamp(low, high)
    if spec.rounding is Rounding.STOCHASTIC:
        whole = torch.floor(ratio)
        bits = _random_bits(seed, x.numel(), x.device).view(x.shape)
        levels = whole + torch.floor((torch.round((ratio - whole) * _ONE) + bits) / _ONE)
    else:
        levels = round_to_int(ratio, spec.rounding)
    if spec.overflow is Overflow.WRAP:
        levels = torch.remainder(levels - low, high - low + 1) + low
    return levels


def _random_bits(seed: int, count: int, device: torch.device) -> Tensor:
    """24 for each element, float64 integers."""
    words = counter_noise(seed, -(-count // 512) * 256, device).mul_(2.0**32).to(torch.int64)
    first = words.view(-1, 256) >> 8
    second = (words.view(-1, 256) & 0xFFFF) << 8 | words.view(-1, 256) >> 24
    return torch.stack([first, second], dim=1).view(-1)[:count].to(torch.float64)


def _exponent(x: Tensor, spec: QuantSpec) -> Tensor:
    """The power of two of an operand, () int64 on its device; any number where x is not finite."""
    if x.numel() == 0:
        return torch.zeros((), dtype=torch.int64, device=x.device)
    if spec.scale is ScaleRule.DYNAMIC:
        return dynamic_exponent(*torch.aminmax(x), spec.lowest, spec.format.max_level)
    unit = weight_scale(x, spec).to(torch.float64).reshape(()) * spec.format.lsb
    return (1 - torch.frexp(unit).exponent.to(torch.int64)).clamp(MIN_EXPONENT, MAX_EXPONENT)


def _fake_quantized(
    x: Tensor, spec: QuantSpec, scale: Tensor | float | None, seed: int, name: str, axis: int
) -> Tensor:
    if not _all_finite(x):
        raise not_finite(name)
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


def _all_finite(x: Tensor) -> bool:
    """One pass without a result in memory, unless finite numbers have a sum that is not."""
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def not_finite(name: str) -> NotFinite:
    """The error for an operand that is not finite."""
    return NotFinite(
        f"{name} holds NaN or an infinity",
        hint="training has diverged: lower the learning rate, or clip the gradients",
    )
