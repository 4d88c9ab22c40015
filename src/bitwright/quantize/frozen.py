# SPDX-License-Identifier: Apache-2.0
"""The modules of a frozen model: exact integers, carried as float tensors.

Levels and accumulators are float32 tensors of whole numbers, or float64 where an interval reaches
2^24; sums of whole numbers below that are exact in any order, so the fast float kernels compute
integer arithmetic. Each module keeps the path of the user's layer in ``source`` and the interval
of what it gives in ``lo`` and ``hi``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError
from bitwright.formats import BipolarFormat, Format, Rounding
from bitwright.formats.pytorch.rounding import encode_levels, round_to_int
from bitwright.formats.rounding import FloatArray
from bitwright.formats.thresholds import Thresholds, affine_thresholds, float32_affine

_EXACT_FLOAT32 = 1 << 24
_EXACT_FLOAT64 = 1 << 53


def carrier(lo: int, hi: int, source: str) -> torch.dtype:
    """The float type that holds every integer of an interval exactly."""
    largest = max(abs(lo), abs(hi))
    if largest < _EXACT_FLOAT32:
        return torch.float32
    if largest < _EXACT_FLOAT64:
        return torch.float64
    raise ModelError(
        f"the accumulator interval {lo} .. {hi} exceeds 53 bits",
        where=source,
        hint="use fewer bits; of small floats fewer exponent bits, or integers on one side",
    )


class QuantizeInput(nn.Module):
    """Reals (N, ...) -> levels, computed in float64.

    Args:
        format, scale, zero_point, rounding: ``Format.encode`` then ``levels``.
        source: name of the model's input.
    """

    def __init__(
        self,
        format: Format,
        scale: float,
        zero_point: int = 0,
        rounding: Rounding = Rounding.HALF_EVEN,
        source: str = "x",
    ) -> None:
        super().__init__()
        self.format, self.scale, self.zero_point = format, scale, zero_point
        self.rounding, self.source = rounding, source
        self.lo, self.hi = format.min_level - zero_point, format.max_level - zero_point

    def forward(self, x: Tensor) -> Tensor:
        levels = encode_levels(x, self.format, self.scale, self.zero_point, rounding=self.rounding)
        return levels.to(torch.float32)

    def extra_repr(self) -> str:
        return f"{self.format}, scale={self.scale!r}, zero_point={self.zero_point}"


class _IntegerLayer(nn.Module):
    """What the two integer layers share: buffers, intervals, carrier type."""

    weight: Tensor
    bias: Tensor | None
    #: Real value of a weight's level 1, one or one per row: for reports, not for arithmetic.
    weight_unit: FloatArray = np.ones(1)
    #: The format in which the weights are stored: of blocks, not that of their integers.
    storage_format: Format | None = None

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        weight_format: Format,
        input_interval: tuple[int, int],
        source: str,
    ) -> None:
        super().__init__()
        self.weight_format, self.source = weight_format, source
        self.lo_channel, self.hi_channel = _reach(weight, bias, input_interval)
        self.lo, self.hi = int(self.lo_channel.min()), int(self.hi_channel.max())
        # Partial sums may leave the interval of the result: their bound is the sum of magnitudes.
        bound = _magnitude(weight, bias, input_interval)
        self.dtype = carrier(-bound, bound, source)
        self.register_buffer("weight", weight.to(self.dtype))
        self.register_buffer("bias", None if bias is None else bias.to(self.dtype))


class IntegerConv2d(_IntegerLayer):
    """Levels (N, I, H, W) -> exact accumulators (N, O, OH, OW); zero padding is level 0.

    Args:
        weight: (O, I / groups, KH, KW) integer levels.
        bias: (O,) integer levels of the accumulator, or None.
        weight_format: format of the weight levels.
        stride, dilation: (vertical, horizontal).
        padding: the same, or (top, left, bottom, right) where opposite sides differ.
        groups: as in `nn.Conv2d`.
        input_interval: smallest and largest input level.
        source: path of the user's layer.
    """

    def __init__(  # noqa: PLR0913 - a convolution has this many parameters
        self,
        weight: Tensor,
        bias: Tensor | None,
        weight_format: Format,
        *,
        stride: tuple[int, int],
        padding: tuple[int, ...],
        dilation: tuple[int, int],
        groups: int,
        input_interval: tuple[int, int],
        source: str,
    ) -> None:
        super().__init__(weight, bias, weight_format, input_interval, source)
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.groups = groups

    @property
    def border(self) -> tuple[int, int, int, int]:
        """The padding as (top, left, bottom, right)."""
        top, left, bottom, right = self.padding if len(self.padding) > 2 else self.padding * 2
        return top, left, bottom, right

    def forward(self, x: Tensor) -> Tensor:
        x, padding = x.to(self.dtype), self.padding
        if len(padding) > 2:
            top, left, bottom, right = padding
            x, padding = F.pad(x, (left, right, top, bottom)), (0, 0)
        if x.device.type == "cpu":
            # NNPACK's Winograd transforms are not exact on integers; the other kernels are.
            with torch.backends.nnpack.flags(enabled=False):
                return F.conv2d(
                    x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
                )
        return self._by_matmul(x, padding)

    def _by_matmul(self, x: Tensor, padding: tuple[int, ...]) -> Tensor:
        """im2col and matrix product: no transform that leaves the integers (GPUs choose Winograd
        or TF32 for convolutions), so it is exact.
        """
        rows, _, *kernel = self.weight.shape
        columns = F.unfold(x, tuple(kernel), self.dilation, padding, self.stride)
        batch, depth, pixels = columns.shape
        columns = columns.view(batch, self.groups, depth // self.groups, pixels)
        weight = self.weight.view(self.groups, rows // self.groups, depth // self.groups)
        allowed = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            product = torch.matmul(weight, columns)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = allowed
        height = _out_size(x.shape[2] + 2 * padding[0], kernel[0], self, 0)
        out = product.reshape(batch, rows, height, pixels // height)
        return out if self.bias is None else out + self.bias.view(1, -1, 1, 1)

    def extra_repr(self) -> str:
        shape = tuple(self.weight.shape)
        return f"{shape} {self.weight_format}, stride={self.stride}, padding={self.padding}"


class IntegerLinear(_IntegerLayer):
    """Levels (N, I) -> exact accumulators (N, O); arguments as for `IntegerConv2d`."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.dtype)
        if x.device.type == "cpu":
            return F.linear(x, self.weight, self.bias)
        allowed = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            return F.linear(x, self.weight, self.bias)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = allowed

    def extra_repr(self) -> str:
        return f"{tuple(self.weight.shape)} {self.weight_format}"


class AffineActivation(nn.Module):
    """``level = clip(round(acc * a + b), min, max)``, per channel (axis 1), in two IEEE doubles.

    For ``bipolar``: +1 if ``acc * a + b >= 0`` else -1. That is the definition. Where float32 has
    been proven to give the same level at every threshold of every channel (`float32_affine`), it
    runs instead.

    Args:
        a, b: (C,) float64.
        format, rounding: of the levels.
        interval: smallest and largest accumulator.
        source: path of the user's activation.
    """

    a: Tensor
    b: Tensor

    #: Real value of level 1: for reports, not for arithmetic.
    unit: float = 1.0

    def __init__(
        self,
        a: FloatArray,
        b: FloatArray,
        format: Format,
        rounding: Rounding = Rounding.HALF_EVEN,
        interval: tuple[int, int] = (-(1 << 24) + 1, (1 << 24) - 1),
        source: str = "",
    ) -> None:
        super().__init__()
        self.format, self.rounding, self.source = format, rounding, source
        self.interval = interval
        self.lo, self.hi = format.min_level, format.max_level
        self.register_buffer("a", torch.from_numpy(np.array(a, dtype=np.float64)))
        self.register_buffer("b", torch.from_numpy(np.array(b, dtype=np.float64)))
        fast = float32_affine(a, b, *interval, format, rounding)
        self.proven = bool(fast.proven.all())
        self.register_buffer("fast_a", torch.from_numpy(fast.a), persistent=False)
        self.register_buffer("fast_b", torch.from_numpy(fast.b), persistent=False)

    def forward(self, acc: Tensor) -> Tensor:
        shape = (1, -1, *(1,) * (acc.dim() - 2))
        if not self.proven or acc.dtype != torch.float32:
            return self.exact(acc).to(torch.float32)
        value = torch.mul(acc, self.fast_a.view(shape)).add_(self.fast_b.view(shape))
        if isinstance(self.format, BipolarFormat):
            return torch.heaviside(value, value.new_ones(())).mul_(2).sub_(1)
        return value.round_().clamp_(self.lo, self.hi)

    def exact(self, acc: Tensor) -> Tensor:
        """The definition, float64."""
        shape = (1, -1, *(1,) * (acc.dim() - 2))
        # Two statements, two kernels: multiply and add must not be fused.
        value = acc.to(torch.float64) * self.a.view(shape)
        value = value + self.b.view(shape)
        if isinstance(self.format, BipolarFormat):
            return (value >= 0).to(torch.float64) * 2 - 1
        return round_to_int(value, self.rounding).clamp_(self.lo, self.hi)

    def thresholds(self) -> Thresholds:
        """The same activation as integer thresholds over its interval."""
        gain, offset = self.a.cpu().numpy(), self.b.cpu().numpy()
        return affine_thresholds(gain, offset, *self.interval, self.format, self.rounding)

    def extra_repr(self) -> str:
        return f"{self.a.numel()} channels -> {self.format}, float32 proven={self.proven}"


class ShiftActivation(nn.Module):
    """``level = clip(round_shift(acc * multiplier + offset, shift))``, int64, per channel (axis 1).

    Args:
        multiplier, offset: (C,) integers.
        shift: bits shifted out, the same for all channels.
        format, rounding: of the levels; half_even, half_up or floor.
        interval: smallest and largest accumulator.
        source: path of the user's activation.
    """

    multiplier: Tensor
    offset: Tensor

    #: Real value of level 1: for reports, not for arithmetic.
    unit: float = 1.0

    def __init__(
        self,
        multiplier: Tensor,
        offset: Tensor,
        shift: int,
        format: Format,
        rounding: Rounding = Rounding.HALF_EVEN,
        interval: tuple[int, int] = (-(1 << 24) + 1, (1 << 24) - 1),
        source: str = "",
    ) -> None:
        super().__init__()
        self.shift, self.format, self.rounding = shift, format, rounding
        self.interval, self.source = interval, source
        self.lo, self.hi = format.min_level, format.max_level
        self.register_buffer("multiplier", multiplier.to(torch.int64))
        self.register_buffer("offset", offset.to(torch.int64))
        reach = max(abs(interval[0]), abs(interval[1]))
        peak = reach * int(multiplier.abs().max()) + int(offset.abs().max())
        if peak >= 1 << 62:
            raise ModelError(f"the product needs {peak.bit_length() + 1} bits", where=source)
        # Products below 2^53 are exact in float64, whose kernels are the faster ones.
        self.by_float = peak < _EXACT_FLOAT64

    def forward(self, acc: Tensor) -> Tensor:
        shape = (1, -1, *(1,) * (acc.dim() - 2))
        kind = torch.float64 if self.by_float else torch.int64
        value = acc.to(kind) * self.multiplier.to(kind).view(shape)
        value += self.offset.to(kind).view(shape)
        if self.by_float:
            value = round_to_int(value.mul_(2.0**-self.shift), self.rounding)
        else:
            value = round_shift(value, self.shift, self.rounding)
        return value.clamp_(self.lo, self.hi).to(torch.float32)

    def extra_repr(self) -> str:
        return f"{self.multiplier.numel()} channels -> {self.format}, shift={self.shift}"


class Dequantize(nn.Module):
    """Levels or accumulators -> real scores: ``float32(level * scale)``.

    Args:
        scale: real value of one level; one a channel (axis 1) is possible for images.
        source: path of the last layer.
    """

    def __init__(self, scale: float | tuple[float, ...], source: str = "") -> None:
        super().__init__()
        self.scale, self.source = scale, source

    def forward(self, levels: Tensor) -> Tensor:
        wide = levels.to(torch.float64)
        if isinstance(self.scale, tuple):
            scale = torch.tensor(self.scale, dtype=torch.float64, device=levels.device)
            return (wide * scale.view(1, -1, *(1,) * (levels.dim() - 2))).to(torch.float32)
        return (wide * self.scale).to(torch.float32)

    def extra_repr(self) -> str:
        return f"scale={self.scale!r}"


class FrozenModel(fx.GraphModule):
    """A frozen network: real input -> real scores, all of it integers in between."""

    def levels(self, x: Tensor) -> Tensor:
        """The scores as exact integers (float tensor), before `Dequantize`."""
        return self.intermediates(x)[self._last_integer_node().name]

    @torch.no_grad()
    def intermediates(self, x: Tensor) -> dict[str, Tensor]:
        """Every node's levels by node name: for finding where two executions part."""
        values: dict[str, Tensor] = {}
        for node in self.graph.nodes:
            if node.op == "placeholder":
                values[node.name] = x
            elif node.op == "call_module":
                arguments = [values[source.name] for source in node.args]
                values[node.name] = self.get_submodule(str(node.target))(*arguments)
        return values

    @property
    def score_scale(self) -> float:
        """Real value of one level of the scores.

        Raises:
            ModelError: the scores are an image with one scale a channel.
        """
        node = self.graph.output_node().args[0]
        scale = self.get_submodule(str(node.target)).scale
        if isinstance(scale, tuple):
            raise ModelError("the scores have a scale per channel, not one")
        return float(scale)

    def _last_integer_node(self) -> fx.Node:
        return self.graph.output_node().args[0].args[0]


def round_shift(value: Tensor, shift: int | Tensor, rounding: Rounding) -> Tensor:
    """``value / 2^shift`` rounded, on int64: half_even, half_up or floor; a tensor of shifts gives
    each element its own.
    """
    places = torch.as_tensor(shift, dtype=torch.int64, device=value.device)
    if rounding is Rounding.FLOOR or (isinstance(shift, int) and shift == 0):
        return value >> places
    one = torch.ones_like(places)
    # Of no places nothing is rounded: half of 2^0 is no integer, and 0 stands for it.
    half = (one << places) >> 1
    rounded = (value + half) >> places
    if rounding is Rounding.HALF_EVEN:
        tie = ((value & ((one << places) - 1)) == half) & (places > 0)
        rounded = rounded - (tie & (rounded & 1 == 1)).to(torch.int64)
    return rounded


def _out_size(size: int, kernel: int, conv: IntegerConv2d, axis: int) -> int:
    span = conv.dilation[axis] * (kernel - 1) + 1
    return (size - span) // conv.stride[axis] + 1


def _reach(
    weight: Tensor, bias: Tensor | None, interval: tuple[int, int]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Exact interval of each output channel, int64; zero padding counts as level 0."""
    low, high = min(interval[0], 0), max(interval[1], 0)
    if weight.dim() == 2:
        low, high = interval
    table = weight.reshape(weight.shape[0], -1).to(torch.int64).cpu().numpy()
    smallest = np.minimum(table * low, table * high).sum(axis=1)
    largest = np.maximum(table * low, table * high).sum(axis=1)
    shift = 0 if bias is None else bias.to(torch.int64).cpu().numpy()
    return smallest + shift, largest + shift


def _magnitude(weight: Tensor, bias: Tensor | None, interval: tuple[int, int]) -> int:
    peak = max(abs(interval[0]), abs(interval[1]))
    sums = weight.reshape(weight.shape[0], -1).to(torch.float64).abs().sum(dim=1) * peak
    if bias is not None:
        sums = sums + bias.to(torch.float64).abs()
    return int(sums.max())
