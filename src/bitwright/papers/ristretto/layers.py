# SPDX-License-Identifier: Apache-2.0
"""``ConvolutionRistretto`` and ``FcRistretto``: layers that simulate quantized arithmetic in float.

Input, weights and output are put on a grid, the products are summed in float32, everything between
such layers stays float. That is how Ristretto (Gysel et al. 2016) evaluates a network; exact
integer execution of such formats is `quant.apply`. What the public code does is kept beside what
it should have done: see `Behaviour`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.formats.rounding import Rounding
from bitwright.interop.caffe.quantization_param import Precision, QuantizationParam, RoundingScheme
from bitwright.papers.ristretto.behaviour import Behaviour
from bitwright.quantize.range_formulas import parameter_il

BIAS_BITS = 32
MENDED = Behaviour()


@dataclass(frozen=True)
class LayerRule:
    """What happens in one layer.

    Attributes:
        param: the formats.
        behaviour: where the public code and sound arithmetic part.
        inputs, weights, outputs: which of the three are quantized (biases go with the weights);
            a search and a sensitivity table quantize some alone.
        shift_in, shift_params, shift_out: base-2 logarithm of the scale of a minifloat tensor.
    """

    param: QuantizationParam
    behaviour: Behaviour = MENDED
    inputs: bool = True
    weights: bool = True
    outputs: bool = True
    shift_in: int = 0
    shift_params: int = 0
    shift_out: int = 0


def fixed_point(
    x: Tensor, bits: int, fl: int, rounding: Rounding, generator: torch.Generator | None = None
) -> Tensor:
    """``round(clamp(x) * 2^fl) * 2^-fl``, clamped to ``bits`` bits of two's complement."""
    peak = 1 << (bits - 1)
    scaled = x.to(torch.float64) * 2.0**fl
    return (_rounded(scaled.clamp(-peak, peak - 1), rounding, generator) * 2.0**-fl).to(x.dtype)


def minifloat(
    x: Tensor,
    exponent: int,
    mantissa: int,
    rounding: Rounding,
    *,
    denormals: bool = False,
    stop_at_zero: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Sign, exponent and mantissa bits with IEEE's bias, saturating, no special codes.

    Args:
        denormals: below ``2^(1 - bias)`` count evenly down to zero; else every exponent code is a
            normal number and what lies below ``2^-bias`` becomes zero.
        stop_at_zero: as `Behaviour` says; the order is that of memory.
    """
    bias = (1 << (exponent - 1)) - 1
    top = (1 << exponent) - 1 - bias
    values = x.to(torch.float64)
    magnitude = values.abs()
    power = torch.frexp(magnitude).exponent.to(torch.float64) - 1
    lowest = 1 - bias if denormals else -bias
    step = torch.exp2(power.clamp(lowest, top) - mantissa)
    levels = _rounded(magnitude / step, rounding, generator)
    largest = (2.0 - 2.0**-mantissa) * 2.0**top
    result = (levels * step).clamp(max=largest) * torch.sign(values)
    if not denormals:
        gone = (magnitude == 0) | (power < lowest)
        result = torch.where(gone, torch.zeros_like(result), result)
    if stop_at_zero:
        seen = (result == 0).reshape(-1).cumsum(0).reshape(x.shape) - (result == 0).to(torch.int64)
        result = torch.where(seen > 0, values, result)
    return result.to(x.dtype)


def power_of_two(
    w: Tensor,
    window: tuple[int, int],
    rounding: Rounding,
    *,
    zero: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """``+-2^e``, e rounded in the log domain and clamped to the window; 0 becomes ``+2^exp_min``.

    Args:
        zero: the lowest exponent of the window means 0 instead, and what rounds to it or below
            becomes 0.
    """
    low, high = window
    logarithm = torch.log2(w.to(torch.float64).abs())
    exponent = _rounded(logarithm.clamp(low - 1, high + 1), rounding, generator).clamp(low, high)
    sign = torch.where(w >= 0, 1.0, -1.0).to(torch.float64)
    result = sign * torch.exp2(exponent)
    if zero:
        result = torch.where(exponent <= low, torch.zeros_like(result), result)
    return result.to(w.dtype)


def _rounded(x: Tensor, rounding: Rounding, generator: torch.Generator | None) -> Tensor:
    if rounding is Rounding.STOCHASTIC:
        uniform = torch.rand(x.shape, generator=generator, dtype=x.dtype, device=x.device)
        return torch.floor(x + uniform)
    if rounding is Rounding.HALF_AWAY:
        return torch.sign(x) * torch.floor(x.abs() + 0.5)
    return torch.round(x)


class _RistrettoLayer(nn.Module):
    """What the two layers share.

    In training weights are rounded stochastically at every pass, features stay float, and
    gradients go straight to the float weights. In evaluation all that the rule says is quantized,
    rounded as ``rounding_scheme`` says. ``generator`` seeds stochastic rounding.
    """

    def __init__(self, layer: nn.Conv2d | nn.Linear, rule: LayerRule) -> None:
        super().__init__()
        self.rule = rule
        self.weight, self.bias = layer.weight, layer.bias
        self.generator: torch.Generator | None = None

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        rule = self.rule
        if rule.inputs and not self.training:
            x = self._feature(x, "in")
        weight, bias = self.weight, self.bias
        if rule.weights:
            weight = weight + (self._weight(weight.detach()) - weight.detach())
            if bias is not None:
                bias = bias + (self._bias(bias.detach()) - bias.detach())
        y = self.product(x, weight, bias)
        return self._feature(y, "out") if rule.outputs and not self.training else y

    @property
    def _rounding(self) -> Rounding:
        stochastic = self.rule.param.rounding_scheme is RoundingScheme.STOCHASTIC
        return Rounding.STOCHASTIC if self.training or stochastic else self.rule.behaviour.tie

    def _feature(self, x: Tensor, side: str) -> Tensor:
        param, behaviour = self.rule.param, self.rule.behaviour
        if param.precision is Precision.MINIFLOAT:
            return self._float(x, self.rule.shift_in if side == "in" else self.rule.shift_out)
        if param.precision is Precision.INTEGER_POWER_OF_2_WEIGHTS and behaviour.float_features:
            return x
        bits = param.bw_layer_in if side == "in" else param.bw_layer_out
        fl = param.fl_layer_in if side == "in" else param.fl_layer_out
        return fixed_point(x, bits, fl, self._rounding, self.generator)

    def _weight(self, weight: Tensor) -> Tensor:
        param = self.rule.param
        if param.precision is Precision.MINIFLOAT:
            return self._float(weight, self.rule.shift_params)
        if param.precision is Precision.INTEGER_POWER_OF_2_WEIGHTS:
            window = (param.exp_min, param.exp_max)
            zero = not self.rule.behaviour.no_zero
            return power_of_two(weight, window, self._rounding, zero=zero, generator=self.generator)
        bits, fl = param.bw_params, param.fl_params
        return fixed_point(weight, bits, fl, self._rounding, self.generator)

    def _bias(self, bias: Tensor) -> Tensor:
        if self.rule.param.precision is Precision.INTEGER_POWER_OF_2_WEIGHTS:
            return bias
        if self.rule.behaviour.bias_as_weight:
            return self._weight(bias)
        fl = BIAS_BITS - parameter_il(float(bias.abs().max()))
        return fixed_point(bias, BIAS_BITS, fl, self._rounding, self.generator)

    def _float(self, x: Tensor, shift: int) -> Tensor:
        param, behaviour = self.rule.param, self.rule.behaviour
        scaled = x if shift == 0 else torch.ldexp(x, torch.tensor(-shift))
        result = minifloat(
            scaled,
            param.exp_bits,
            param.mant_bits,
            self._rounding,
            denormals=not behaviour.fixed_exponents,
            stop_at_zero=behaviour.stop_at_zero,
            generator=self.generator,
        )
        return result if shift == 0 else torch.ldexp(result, torch.tensor(shift))

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v}" for k, v in self.rule.param.to_dict().items())


class ConvolutionRistretto(_RistrettoLayer):
    """A convolution as Ristretto quantizes it; takes the parameters of the float layer over."""

    def __init__(self, layer: nn.Conv2d, rule: LayerRule) -> None:
        super().__init__(layer, rule)
        self.stride, self.padding = layer.stride, layer.padding
        self.dilation, self.groups = layer.dilation, layer.groups

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return nn.functional.conv2d(
            x, weight, bias, self.stride, self.padding, self.dilation, self.groups
        )


class FcRistretto(_RistrettoLayer):
    """A dense layer as Ristretto quantizes it; takes the parameters of the float layer over."""

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return nn.functional.linear(x, weight, bias)


def layers_of(model: nn.Module) -> dict[str, nn.Conv2d | nn.Linear]:
    """Convolutions and dense layers by path, in the order of the model."""
    return {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear)
    }


def with_rules(model: nn.Module, rules: Mapping[str, LayerRule]) -> nn.Module:
    """A copy of a model in which some layers are quantized; it shares the parameters.

    Raises:
        ModelError: a path names no convolution or dense layer.
    """
    known = layers_of(model)
    unknown = sorted(set(rules) - set(known))
    if unknown:
        raise ModelError(
            f"no convolution or dense layer {unknown[0]!r}", hint=f"layers: {', '.join(known)}"
        )
    shared = {id(p): p for p in (*model.parameters(), *model.buffers())}
    copied = copy.deepcopy(model, dict(shared))
    for path, rule in rules.items():
        layer = copied.get_submodule(path)
        made = (
            ConvolutionRistretto(layer, rule)
            if isinstance(layer, nn.Conv2d)
            else FcRistretto(layer, rule)  # type: ignore[arg-type]
        )
        made.train(layer.training)
        parent, _, name = path.rpartition(".")
        copied.get_submodule(parent).add_module(name, made)
    return copied
