# SPDX-License-Identifier: Apache-2.0
"""Straight-through quantization as autograd functions with few passes over memory.

The kernels of ``torch.fake_quantize`` are scalar code on a CPU (35 times a ReLU, measured); these
use the vectorised clamp, round and multiply in place instead. Gradients:

* inside the range the rounding is taken as the identity (straight-through estimator, Bengio 2013);
  outside, the gradient is zero;
* a learned scale follows LSQ (Esser et al. 2020, eq. 3), which for input x, output y and incoming
  gradient g adds up to ``(sum(g * y) - sum(g_inside * x)) / unit``: two dot products, no tensor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from bitwright.formats import Rounding
from bitwright.quant.rounding_torch import round_to_int

#: (smallest level, largest level, rounding): what a staircase needs besides its unit.
Stairs = tuple[int, int, Rounding]


def to_levels_(ratio: Tensor, stairs: Stairs) -> Tensor:
    """Clip and round ``ratio`` (reals in units of a level), overwriting it where possible."""
    low, high, rounding = stairs
    # The ends are integers, so clipping first and rounding then is the same as the reverse.
    ratio.clamp_(low, high)
    if rounding is Rounding.HALF_EVEN:
        return ratio.round_()
    return round_to_int(ratio, rounding)


def spread(unit: Tensor, weight: Tensor) -> Tensor:
    """``unit`` (1,) or (O,) shaped to broadcast over ``weight`` (O, ...)."""
    return unit.reshape(-1, *(1,) * (weight.dim() - 1))


class QuantizeActivation(Function):
    """``unit * clip(round(x / unit))`` with one unit.

    Args of ``apply``: x; scale (the learned parameter, or None); unit (float, its value times
    the lsb); stairs; gradient_scale (of the parameter: LSQ's factor times d unit / d scale).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor | None,
        unit: float,
        stairs: Stairs,
        gradient_scale: float,
    ) -> Tensor:
        out = to_levels_(x * (1.0 / unit), stairs).mul_(unit)
        ctx.unit, ctx.stairs, ctx.gradient_scale = unit, stairs, gradient_scale
        ctx.scale_shape = None if scale is None else scale.shape
        ctx.save_for_backward(*((x,) if scale is None else (x, out)))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        x = ctx.saved_tensors[0]
        low, high, _ = ctx.stairs
        inside = torch.ops.aten.hardtanh_backward(grad, x, low * ctx.unit, high * ctx.unit)
        if ctx.scale_shape is None:
            return inside, None, None, None, None
        slope = dot(grad, ctx.saved_tensors[1]) - dot(inside, x)
        scale_grad = (slope * (ctx.gradient_scale / ctx.unit)).reshape(ctx.scale_shape)
        return inside, scale_grad, None, None, None


class SignActivation(Function):
    """+unit where x >= 0, else -unit; the gradient passes where |x| <= 1: the hard tanh
    straight-through estimator (BNN, Hubara et al. 2016, eq. 4).
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, unit: float) -> Tensor:
        ctx.save_for_backward(x)
        one = torch.ones((), dtype=x.dtype, device=x.device)
        # heaviside(x, 1) is 1 for x >= 0, -0.0 included, and 0 below.
        return torch.heaviside(x, one).mul_(2 * unit).sub_(unit)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return torch.ops.aten.hardtanh_backward(grad, x, -1.0, 1.0), None


class SubstituteWeight(Function):
    """The quantized weight forward, the gradient straight to the float weight backward.

    Args of ``apply``: weight; quantized; keep (bool mask of the weights that get a gradient; None:
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
    the lsb, same shape); stairs; gradient_scale as above.
    """

    @staticmethod
    def forward(
        ctx: Any,
        weight: Tensor,
        scale: Tensor,
        unit: Tensor,
        stairs: Stairs,
        gradient_scale: float,
    ) -> Tensor:
        wide = spread(unit, weight)
        out = to_levels_(weight / wide, stairs).mul_(wide)
        ctx.save_for_backward(weight, unit, out)
        ctx.stairs, ctx.gradient_scale = stairs, gradient_scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        weight, unit, out = ctx.saved_tensors
        low, high, _ = ctx.stairs
        wide = spread(unit, weight)
        passed = grad * ((weight >= low * wide) & (weight <= high * wide))
        slope = (grad * out - passed * weight).reshape(unit.numel(), -1).sum(dim=1)
        return passed, slope / unit * ctx.gradient_scale, None, None, None


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Sum of products, in one pass and without a temporary where the layouts allow it."""
    if a.is_contiguous() and b.is_contiguous():
        return torch.dot(a.view(-1), b.view(-1))
    layout = torch.channels_last
    if a.dim() == 4 and a.is_contiguous(memory_format=layout):
        if b.is_contiguous(memory_format=layout):
            return torch.dot(a.permute(0, 2, 3, 1).reshape(-1), b.permute(0, 2, 3, 1).reshape(-1))
    return (a * b).sum()
