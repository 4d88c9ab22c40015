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


class QuantLayer(nn.Module):
    """A layer with a quantized weight (O, ...) and, perhaps, a quantized bias (O,).

    Args:
        layer: the float layer; its parameters are taken over, not copied.
        spec: how to quantize the weight.
        bias_spec: how to quantize the bias; None leaves it as it is.
    """

    def __init__(
        self, layer: nn.Conv2d | nn.Linear, spec: QuantSpec, bias_spec: QuantSpec | None = None
    ) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        channels = len(layer.weight)
        self.weight_quantizer = WeightQuantizer(spec, channels)
        quantized = layer.bias is not None and bias_spec is not None
        self.bias_quantizer = WeightQuantizer(bias_spec, channels) if quantized else None
        self.cache = _WeightCache()
        self.__dict__["input_quantizer"] = None
        self.register_load_state_dict_pre_hook(forget)

    def bind_input(self, quantizer: ActivationQuantizer) -> None:
        """Round the bias to the accumulator's grid, which this input quantizer's scale sets."""
        self.__dict__["input_quantizer"] = quantizer  # not a child: it lives elsewhere

    def quantized_weight(self) -> Tensor:
        """The weight as forward uses it."""
        if self.training or torch.is_grad_enabled():
            self.cache.clear()
            return self.weight_quantizer(self.weight)
        return self.cache.get(self.weight, self.weight_quantizer)

    def quantized_bias(self) -> Tensor | None:
        """The bias in its own format, if it has one, and on the accumulator's grid where it stays
        an integer after freezing.
        """
        bias, source, quantizer = self.bias, self.input_quantizer, self.weight_quantizer
        if bias is None or quantizer.phase is Phase.CALIBRATE:
            return bias
        if self.bias_quantizer is not None:
            bias = self.bias_quantizer(bias)
        if source is None or not source.ready or not quantizer.spec.format.exact_levels:
            return bias
        unit = quantizer.current_scale(self.weight)
        unit = (unit * (source.unit_for(bias) * quantizer.spec.format.lsb)).to(bias.dtype)
        rounded = torch.round(bias.detach() / unit) * unit
        return bias + (rounded - bias).detach()

    def exact_bias(self) -> Tensor | None:
        """The bias in its own format, if it has one, in float64: as integers take it."""
        if self.bias is None:
            return None
        if self.bias_quantizer is None:
            return self.bias.detach().to(torch.float64)
        levels, unit = self.bias_quantizer.levels(self.bias)
        return levels * unit


class CodebookGroup:
    """Layers whose weights share one table, fitted to all of them together.

    Args:
        layers: their quantizers must have the same specification.
    """

    def __init__(self, layers: list[QuantLayer]) -> None:
        self.layers = layers
        for layer in layers:
            layer.weight_quantizer.__dict__["codebooks"] = self

    def fit(self) -> None:
        """Find the table for the layers' present weights."""
        spec = self.layers[0].weight_quantizer.spec
        codebook, scales = fit_codebook([layer.weight for layer in self.layers], spec)
        for layer, scale in zip(self.layers, scales, strict=True):
            layer.weight_quantizer.set_table(codebook, scale)


class QuantConv2d(QuantLayer):
    """`nn.Conv2d` with a quantized weight; arguments as for `QuantLayer`."""

    def __init__(
        self, conv: nn.Conv2d, spec: QuantSpec, bias_spec: QuantSpec | None = None
    ) -> None:
        super().__init__(conv, spec, bias_spec)
        self.in_channels, self.out_channels = conv.in_channels, conv.out_channels
        self.kernel_size, self.stride = conv.kernel_size, conv.stride
        self.padding, self.dilation, self.groups = conv.padding, conv.dilation, conv.groups
        self.register_load_state_dict_pre_hook(_take_signals)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.quantized_weight(), self.quantized_bias()
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def extra_repr(self) -> str:
        return (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}, groups={self.groups}, "
            f"bias={self.bias is not None}"
        )


def _take_signals(layer: nn.Module, state: dict[str, Tensor], prefix: str, *others: object) -> None:
    """The weight of a ``Conv1d``, (O, C, K), is that of a kernel of one row."""
    given, weight = state.get(f"{prefix}weight"), layer.weight
    if isinstance(given, Tensor) and given.dim() == weight.dim() - 1 and weight.shape[2] == 1:
        state[f"{prefix}weight"] = given.unsqueeze(2)


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


class QuantLinear(QuantLayer):
    """`nn.Linear` with a quantized weight; arguments as for `QuantLayer`."""

    def __init__(
        self, linear: nn.Linear, spec: QuantSpec, bias_spec: QuantSpec | None = None
    ) -> None:
        super().__init__(linear, spec, bias_spec)
        self.in_features, self.out_features = linear.in_features, linear.out_features

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.quantized_weight(), self.quantized_bias())

    def extra_repr(self) -> str:
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}"
