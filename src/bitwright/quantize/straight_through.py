# SPDX-License-Identifier: Apache-2.0
"""Straight-through quantization as autograd functions with few passes over memory.

The kernels of ``torch.fake_quantize`` are scalar code on a CPU (35 times a ReLU, measured); these
use the vectorised clamp, round and multiply in place instead. Gradients:

* inside the range the rounding is taken as the identity (straight-through estimator, Bengio 2013);
  outside, the gradient is zero;
* a learned scale follows LSQ (Esser et al. 2020, eq. 3), which for input x, output y and incoming
  gradient g adds up to ``(sum(g * y) - sum(g_inside * x)) / unit``: two dot products, no tensor;
* minimum and maximum of a learned range (Jung et al. 2019, Kim et al. 2019) get the plain gradient
  of ``y = s * round(clip(x, low, high) / s)`` with ``s = (high - low) / n`` and the rounding as the
  identity: ``d y / d high`` is 1 above, ``(round(x / s) - x / s) / n`` inside and 0 below, and the
  mirror image for ``low``. There is no further factor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from bitwright.formats import Format, Rounding
from bitwright.formats.pytorch.rounding import quantize_ratio, round_to_int


class LevelRange(NamedTuple):
    """The levels that are in use, between which a tensor is clamped and rounded.

    Attributes:
        low, high: smallest and largest level; tensors where they differ between channels, or are
            known on a device only.
        rounding: the rule between two levels.
        grid: the format whose levels they are; None where they are all integers of the range.
    """

    low: int | Tensor
    high: int | Tensor
    rounding: Rounding
    grid: Format | None = None


#: Elements a block: 1 MiB of float32.
_BLOCK = 1 << 18


def to_levels_(ratio: Tensor, levels: LevelRange) -> Tensor:
    """Clip and round ``ratio`` (reals in units of a level) in place."""
    low, high, rounding, grid = levels
    # Both limits are levels: clipping first and rounding then is the same as the reverse.
    ratio.clamp_(low, high)
    if grid is not None:
        return ratio.copy_(quantize_ratio(ratio, grid, rounding=rounding))
    if rounding is Rounding.HALF_EVEN:
        return ratio.round_()
    return ratio.copy_(round_to_int(ratio, rounding))


def quantize_into(out: Tensor, x: Tensor, unit: float | Tensor, levels: LevelRange) -> Tensor:
    """``out = unit * clip(round(x / unit))``, block by block; ``out`` may be ``x``.

    A unit that is a tensor (), float64 on the device of ``x``, gives the same numbers; nothing
    waits for it.
    """
    inverse = 1.0 / unit
    for target, source in blocks(out, x):
        torch.mul(source, inverse, out=target)
        to_levels_(target, levels).mul_(unit)
    return out


def blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The same stretches of several tensors, small enough to stay in a processor's cache.

    Several passes over a block then cost little more than one over memory. Tensors of differing
    layout, small ones, and those of a GPU come back whole.
    """
    flats = [flat for flat in map(_flat, tensors) if flat is not None]
    small = tensors[0].numel() <= _BLOCK or tensors[0].device.type != "cpu"
    if small or len(flats) < len(tensors) or len({layout for layout, _ in flats}) > 1:
        yield tensors
    else:
        yield from zip(*(flat.split(_BLOCK) for _, flat in flats), strict=True)


def _flat(x: Tensor) -> tuple[torch.memory_format, Tensor] | None:
    """The elements in memory order, with the name of that order; None if there are gaps."""
    if x.is_contiguous():
        return torch.contiguous_format, x.view(-1)
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last, x.permute(0, 2, 3, 1).view(-1)
    return None


def spread(unit: Tensor, weight: Tensor) -> Tensor:
    """``unit`` (1,) or (O,) shaped to broadcast over ``weight`` (O, ...)."""
    return unit.reshape(-1, *(1,) * (weight.dim() - 1))


class QuantizeActivation(Function):
    """``unit * clip(round(x / unit))`` with one unit.

    Args of ``apply``: x; scale (the learned parameter, or None); unit (its value times the lsb, a
    float or a tensor ()); levels; gradient_scale (of the parameter: LSQ's factor times d unit /
    d scale).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor | None,
        unit: float | Tensor,
        levels: LevelRange,
        gradient_scale: float,
    ) -> Tensor:
        out = quantize_into(torch.empty_like(x), x, unit, levels)
        ctx.unit, ctx.levels, ctx.gradient_scale = unit, levels, gradient_scale
        ctx.scale_shape = None if scale is None else scale.shape
        ctx.save_for_backward(*((x,) if scale is None else (x, out)))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        x = ctx.saved_tensors[0]
        low, high = ctx.levels.low * ctx.unit, ctx.levels.high * ctx.unit
        if ctx.scale_shape is None:
            return _inside(grad, x, low, high), None, None, None, None
        inside = torch.empty_like(x)
        slope = torch.zeros((), dtype=x.dtype, device=x.device)
        for g, source, out, target in blocks(grad, x, ctx.saved_tensors[1], inside):
            _inside(g, source, low, high, target)
            slope += dot(g, out)
            slope -= dot(target, source)
        factor = ctx.gradient_scale / ctx.unit
        if isinstance(factor, Tensor):
            factor = factor.to(slope.dtype)
        scale_grad = (slope * factor).reshape(ctx.scale_shape)
        return inside, scale_grad, None, None, None


def _inside(
    grad: Tensor,
    x: Tensor,
    low: float | Tensor,
    high: float | Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """The gradient where ``x`` lies strictly between two numbers, else 0."""
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        nothing = torch.zeros((), dtype=grad.dtype, device=grad.device)
        return torch.where((x > low) & (x < high), grad, nothing, out=out)
    if out is None:
        inside: Tensor = torch.ops.aten.hardtanh_backward(grad, x, low, high)
        return inside
    torch.ops.aten.hardtanh_backward.grad_input(grad, x, low, high, grad_input=out)
    return out


def signs(x: Tensor, unit: float | Tensor) -> Tensor:
    """``+unit`` where x >= 0 (-0.0 included), else ``-unit``; the unit broadcasts over ``x``.

    A comparison that gives reals: ``torch.where`` and ``torch.heaviside`` are scalar code on a CPU
    (more than ten times this, measured).
    """
    out = torch.ge(x, 0, out=torch.empty_like(x))
    return out.mul_(2 * unit).sub_(unit)


class SignActivation(Function):
    """+unit where x >= 0, else -unit; the gradient passes where |x| <= 1: the hard tanh
    straight-through estimator (BNN, Hubara et al. 2016, eq. 4).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, unit: float | Tensor) -> Tensor:
        ctx.save_for_backward(x)
        # NaN is no sign: 0 x carries it on, so that training that diverges is seen to. Infinity has
        # a sign, and 0 x would make NaN of it.
        return signs(x, unit).add_(x.clamp(-1, 1), alpha=0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return torch.ops.aten.hardtanh_backward(grad, x, -1.0, 1.0), None


class SignWeight(Function):
    """+unit where a weight is >= 0, else -unit; the gradient passes where its magnitude is at most
    1. BinaryConnect clips weights to [-1, 1]; stopping the gradient there does the same.

    Args of ``apply``: weight (O, ...); unit, one number or a tensor that broadcasts over it.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, unit: float | Tensor) -> Tensor:
        ctx.save_for_backward(weight)
        return signs(weight, unit)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (weight,) = ctx.saved_tensors
        beyond = 1 + torch.finfo(weight.dtype).eps  # the op stops what lies on its limits
        return torch.ops.aten.hardtanh_backward(grad, weight, -beyond, beyond), None


class SubstituteWeight(Function):
    """The quantized tensor forward, the gradient straight to the float one backward.

    Args of ``apply``: weight; quantized; keep (bool mask of the values that get a gradient; None:
    all of them, and then the gradient is not touched at all).
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, quantized: Tensor, keep: Tensor | None) -> Tensor:
        ctx.save_for_backward(*(() if keep is None else (keep,)))
        return quantized

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if not ctx.saved_tensors:
            return grad, None, None
        return grad * ctx.saved_tensors[0], None, None


class LearnedWeight(Function):
    """``unit * clip(round(weight / unit))`` with a learned scale a tensor or an output channel.

    Args of ``apply``: weight (O, ...); scale (the parameter, (1,) or (O,)); unit (its value times
    the lsb, same shape); levels; gradient_scale as above.
    """

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        scale: Tensor,
        unit: Tensor,
        levels: LevelRange,
        gradient_scale: float,
    ) -> Tensor:
        wide = spread(unit, weight)
        out = to_levels_(weight / wide, levels).mul_(wide)
        ctx.save_for_backward(weight, unit, out)
        ctx.levels, ctx.gradient_scale = levels, gradient_scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        weight, unit, out = ctx.saved_tensors
        low, high = ctx.levels.low, ctx.levels.high
        wide = spread(unit, weight)
        passed = grad * ((weight >= low * wide) & (weight <= high * wide))
        slope = (grad * out - passed * weight).reshape(unit.numel(), -1).sum(dim=1)
        return passed, slope / unit * ctx.gradient_scale, None, None, None


class QuantizeRange(Function):
    """``unit * clip(round(x / unit), low, high)`` with gradients for a learned range.

    Args of ``apply``: x (N, ...) of activations or (O, ...) of weights; limits, the parameter: (R,
    2) where minimum and maximum are trained, (R, 1) where one number stands for both, R = 1 or O;
    unit (R,); levels; steps that the parameter spans: all codes but one between minimum and
    maximum, else those from zero to the one end.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, limits: Tensor, unit: Tensor, levels: LevelRange, steps: int
    ) -> Tensor:
        wide = spread(unit, x)
        out = to_levels_(x / wide, levels).mul_(wide)
        ctx.save_for_backward(x, unit, out)
        ctx.levels, ctx.steps, ctx.shape = levels, steps, limits.shape
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        x, unit, out = ctx.saved_tensors
        low, high, steps = ctx.levels.low, ctx.levels.high, ctx.steps
        wide, rows = spread(unit, x), ctx.shape[0]
        below, above = grad * (x < low * wide), grad * (x > high * wide)
        passed = grad - below - above
        slope = _sums(passed * (out - x), rows) / unit / steps
        if ctx.shape[1] == 2:
            limits = torch.stack([_sums(below, rows) - slope, _sums(above, rows) + slope], dim=1)
        else:
            limits = (slope + _sums(below * low + above * high, rows) / steps)[:, None]
        return passed, limits.reshape(ctx.shape), None, None, None


def _sums(x: Tensor, rows: int) -> Tensor:
    """(rows,): the sum of each row of ``x``, or of everything, in at least 32 bits."""
    wide = torch.promote_types(x.dtype, torch.float32)
    if rows == 1:
        return x.sum(dtype=wide).reshape(1)
    return x.reshape(rows, -1).sum(dim=1, dtype=wide)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Sum of products, in one pass and without a temporary where the layouts allow it."""
    left, right = _flat(a), _flat(b)
    if left is None or right is None or left[0] != right[0]:
        return (a * b).sum()
    return torch.dot(left[1], right[1])
