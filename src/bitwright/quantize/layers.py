# SPDX-License-Identifier: Apache-2.0
"""Convolution and dense layers with quantized weights, named as in Brevitas.

They keep the parameter names of the float layer (``weight``, ``bias``), so its state dict fits. In
evaluation the quantized weight is computed once, by the exact rule that freezing uses, and kept
until the weight changes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.op_checks import pair
from bitwright.quantize.quantizer import Phase
from bitwright.quantize.snapshot import Snapshot, same_content
from bitwright.quantize.spec import QuantSpec
from bitwright.quantize.weight_quantizer import WeightQuantizer
from bitwright.quantize.weight_state import fit_codebook, forget


class _WeightCache:
    """The last evaluation weight, valid while the float weight and the quantizer stand still."""

    def __init__(self) -> None:
        self._kept: tuple[Tensor, Snapshot, Tensor] | None = None

    def get(self, weight: Tensor, quantizer: WeightQuantizer) -> Tensor:
        kept = self._kept
        if kept is None or not (same_content(weight, kept[0]) and kept[1].matches(quantizer)):
            value = quantizer(weight)  # may fit its state first
            kept = self._kept = (weight.detach().clone(), Snapshot(quantizer), value)
        return kept[2]

    def clear(self) -> None:
        self._kept = None


def _quantized_weight(layer: QuantConv2d | QuantLinear) -> Tensor:
    if layer.training or torch.is_grad_enabled():
        layer.cache.clear()
        return layer.weight_quantizer(layer.weight)
    return layer.cache.get(layer.weight, layer.weight_quantizer)


def _bias(layer: QuantConv2d | QuantLinear) -> Tensor | None:
    """The bias in its own format, if it has one, and on the accumulator's grid where it stays an
    integer after freezing.
    """
    bias, source = layer.bias, layer.input_quantizer
    if bias is None or layer.weight_quantizer.phase is Phase.CALIBRATE:
        return bias
    if layer.bias_quantizer is not None:
        bias = layer.bias_quantizer(bias)
    exact = layer.weight_quantizer.spec.format.exact_levels
    if source is None or not source.ready or not exact:
        return bias
    unit = layer.weight_quantizer.current_scale(layer.weight)
    unit = (unit * (layer.weight_quantizer.spec.format.lsb * source.unit)).to(bias.dtype)
    rounded = torch.round(bias.detach() / unit) * unit
    return bias + (rounded - bias).detach()


def exact_bias(layer: QuantConv2d | QuantLinear) -> Tensor | None:
    """The bias in its own format, if it has one, in float64: as integers take it."""
    if layer.bias is None:
        return None
    bias = layer.bias.detach().to(torch.float64)
    if layer.bias_quantizer is None:
        return bias
    levels, unit = layer.bias_quantizer.levels(layer.bias)
    return levels * unit


def _bias_quantizer(bias: Tensor | None, spec: QuantSpec | None) -> WeightQuantizer | None:
    return None if bias is None or spec is None else WeightQuantizer(spec, len(bias))


def own_border(layer: QuantConv2d) -> tuple[int, int, int, int]:
    """Zeros that a convolution puts around its input: (top, left, bottom, right)."""
    if isinstance(layer.padding, str):
        if layer.padding == "valid":
            return 0, 0, 0, 0
        spans = zip(pair(layer.dilation), pair(layer.kernel_size), strict=True)
        rows, columns = (d * (k - 1) for d, k in spans)
        # As torch does it: what is left over goes to the bottom and the right.
        return rows // 2, columns // 2, rows - rows // 2, columns - columns // 2
    return (*pair(layer.padding), *pair(layer.padding))


class CodebookGroup:
    """Layers whose weights share one table, fitted to all of them together.

    Args:
        layers: their quantizers must have the same specification.
    """

    def __init__(self, layers: list[QuantConv2d | QuantLinear]) -> None:
        self.layers = layers
        for layer in layers:
            layer.weight_quantizer.__dict__["codebooks"] = self

    def fit(self) -> None:
        """Find the table for the layers' present weights."""
        spec = self.layers[0].weight_quantizer.spec
        codebook, scales = fit_codebook([layer.weight for layer in self.layers], spec)
        for layer, scale in zip(self.layers, scales, strict=True):
            layer.weight_quantizer.set_table(codebook, scale)


class QuantConv2d(nn.Module):
    """`nn.Conv2d` with a quantized weight.

    Args:
        conv: the float layer; its parameters are taken over, not copied.
        spec: how to quantize the weight.
        bias_spec: how to quantize the bias; None leaves it as it is.
    """

    def __init__(
        self, conv: nn.Conv2d, spec: QuantSpec, bias_spec: QuantSpec | None = None
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels = conv.in_channels, conv.out_channels
        self.kernel_size, self.stride = conv.kernel_size, conv.stride
        self.padding, self.dilation, self.groups = conv.padding, conv.dilation, conv.groups
        self.weight, self.bias = conv.weight, conv.bias
        self.weight_quantizer = WeightQuantizer(spec, conv.out_channels)
        self.bias_quantizer = _bias_quantizer(conv.bias, bias_spec)
        self.cache = _WeightCache()
        self.__dict__["input_quantizer"] = None
        self.register_load_state_dict_pre_hook(forget)

    def bind_input(self, quantizer: ActivationQuantizer) -> None:
        """Round the bias to the accumulator's grid, which this input quantizer's scale sets."""
        self.__dict__["input_quantizer"] = quantizer  # not a child: it lives elsewhere

    def forward(self, x: Tensor) -> Tensor:
        weight = _quantized_weight(self)
        return F.conv2d(
            x, weight, _bias(self), self.stride, self.padding, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, groups={self.groups}, "
            f"bias={self.bias is not None}"
        )


class QuantLinear(nn.Module):
    """`nn.Linear` with a quantized weight; arguments as for `QuantConv2d`."""

    def __init__(
        self, linear: nn.Linear, spec: QuantSpec, bias_spec: QuantSpec | None = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.weight_quantizer = WeightQuantizer(spec, linear.out_features)
        self.bias_quantizer = _bias_quantizer(linear.bias, bias_spec)
        self.cache = _WeightCache()
        self.__dict__["input_quantizer"] = None
        self.register_load_state_dict_pre_hook(forget)

    def bind_input(self, quantizer: ActivationQuantizer) -> None:
        """As `QuantConv2d.bind_input`."""
        self.__dict__["input_quantizer"] = quantizer

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, _quantized_weight(self), _bias(self))

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}"
