# SPDX-License-Identifier: Apache-2.0
"""A trained quantized model -> the same network in exact integers.

Between two quantizers every tensor is an integer times a per-channel gain plus a per-channel
offset. The gain and offset (scales, biases, batch norm) are gathered in float64 while walking the
graph and spent in the next activation: ``level = round((gain * acc + offset) / unit)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor, fx, nn

from bitwright.errors import ModelError
from bitwright.formats.rounding import FloatArray
from bitwright.quant.frozen import (
    AffineActivation,
    Dequantize,
    FrozenModel,
    IntegerConv2d,
    IntegerLinear,
    QuantizeInput,
    ShiftActivation,
)
from bitwright.quant.layers import QuantConv2d, QuantLinear
from bitwright.quant.policy import Policy, Role
from bitwright.quant.quantizers import ActivationQuantizer
from bitwright.quant.trace import user_line

#: Bits of the largest multiplier of a `ShiftActivation` (without the sign): 17 + sign fit the
#: 18-bit multipliers of FPGAs and keep at least 16 significant bits.
MULTIPLIER_BITS = 17
_MAX_SHIFT = 48


@dataclass(frozen=True)
class Edge:
    """A tensor while freezing: ``real = gain[c] * level + offset[c]``.

    Attributes:
        node: the new graph's node that gives the integers.
        gain, offset: (C,) or (1,) float64.
        lo, hi: interval of the integers.
        source: path of the user's layer they come from.
        pools: max pools written behind a batch norm and not done yet: they follow the activation,
            with which they commute because it is monotone; with a negative gain they would not.
    """

    node: fx.Node
    gain: FloatArray
    offset: FloatArray
    lo: int
    hi: int
    source: str
    pools: tuple[tuple[str, nn.MaxPool2d], ...] = ()

    @property
    def is_levels(self) -> bool:
        """One positive scale, no offset: levels that a layer can take."""
        return self.gain.size == 1 and bool(self.gain > 0) and not self.offset.any()


@dataclass
class _Freezer:
    """The walk's state: the trained model, and the graph and modules growing from it."""

    model: fx.GraphModule
    policy: Policy
    graph: fx.Graph = field(default_factory=fx.Graph)
    root: nn.Module = field(default_factory=nn.Module)
    edges: dict[fx.Node, Edge] = field(default_factory=dict)

    def emit(self, path: str, module: nn.Module, argument: fx.Node) -> fx.Node:
        """Add a module and a call of it."""
        parent, _, name = path.rpartition(".")
        owner = self.root
        for part in parent.split(".") if parent else ():
            if part not in owner._modules:
                owner.add_module(part, nn.Module())
            owner = owner.get_submodule(part)
        number, unique = 1, name
        while unique in owner._modules:
            number, unique = number + 1, f"{name}_{number}"
        owner.add_module(unique, module)
        return self.graph.call_module(f"{parent}.{unique}" if parent else unique, (argument,))


@torch.no_grad()
def freeze(model: fx.GraphModule, policy: Policy) -> FrozenModel:
    """The exact integer form of a converted model.

    Raises:
        ModelError: the model adds or concatenates or averages (no hardware for these yet), keeps an
            operand in float, or has a quantizer without a scale.
    """
    _refuse_unfreezable(model)
    walk = _Freezer(model, policy)
    for node in model.graph.nodes:
        _step(walk, node)
    frozen = FrozenModel(walk.root, walk.graph, class_name="Frozen")
    frozen.meta["bitwright_frozen"] = True
    return frozen.eval()


def _refuse_unfreezable(model: fx.GraphModule) -> None:
    modules = dict(model.named_modules())
    problems = [
        f"{name} holds NaN or infinity: training has diverged"
        for name, tensor in model.state_dict().items()
        if not bool(torch.isfinite(tensor).all())
    ]
    for node in model.graph.nodes:
        module = modules.get(str(node.target)) if node.op == "call_module" else None
        place = f"{node.target if module is not None else node.name}"
        line = user_line(node)
        place += f" at {line}" if line else ""
        if node.op in ("placeholder", "output"):
            continue
        if isinstance(module, nn.Conv2d | nn.Linear):
            problems.append(f"{place}: its weight is kept float; give it a format in the policy")
        elif isinstance(module, nn.ReLU | nn.Hardtanh):
            problems.append(f"{place}: it is kept float; give activations a format in the policy")
        elif isinstance(module, ActivationQuantizer) and not module.ready:
            problems.append(f"{place}: its scale was never set; train or calibrate first")
        elif type(module) not in _STEPS:
            name = type(module).__name__ if module is not None else str(node.target)
            problems.append(f"{place}: {name} trains, but cannot be turned into hardware yet")
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise ModelError(f"the model cannot be frozen:\n{listed}", where="freeze")


def _step(walk: _Freezer, node: fx.Node) -> None:
    if node.op == "placeholder":
        new = walk.graph.placeholder(str(node.target))
        one = np.ones(1)
        walk.edges[node] = Edge(new, one, np.zeros(1), 0, 0, str(node.target))
    elif node.op == "output":
        _finish(walk, walk.edges[node.args[0]])
    else:
        module = walk.model.get_submodule(str(node.target))
        walk.edges[node] = _STEPS[type(module)](walk, node, module, walk.edges[node.args[0]])


def _finish(walk: _Freezer, edge: Edge) -> None:
    if not edge.is_levels or edge.pools:
        raise ModelError(
            "the scores have no common scale",
            where=edge.source,
            hint="end with a convolution or dense layer with per-tensor weights",
        )
    scores = walk.emit("dequantize", Dequantize(float(edge.gain[0]), edge.source), edge.node)
    walk.graph.output(scores)


def _quantize(walk: _Freezer, node: fx.Node, quantizer: ActivationQuantizer, edge: Edge) -> Edge:
    spec, unit = quantizer.spec, quantizer.unit
    path = str(node.target)
    if quantizer.role is Role.INPUT:
        scale = unit / spec.format.lsb
        module = QuantizeInput(spec.format, scale, 0, spec.rounding, edge.source)
        new = walk.emit(path, module, edge.node)
        return Edge(new, np.full(1, unit), np.zeros(1), module.lo, module.hi, path)
    gain, offset = np.broadcast_arrays(edge.gain / unit, edge.offset / unit)
    interval = (edge.lo, edge.hi)
    activation: AffineActivation | ShiftActivation
    if spec.format.bits <= walk.policy.threshold_bits:
        activation = AffineActivation(gain, offset, spec.format, spec.rounding, interval, path)
    else:
        multiplier, shift_offset, shift = shift_parameters(gain, offset, edge)
        activation = ShiftActivation(
            multiplier, shift_offset, shift, spec.format, spec.rounding, interval, path
        )
    activation.unit = float(unit)
    new = walk.emit(path, activation, edge.node)
    for pool_path, pool in edge.pools:
        new = walk.emit(pool_path, _pool(pool), new)
    return Edge(new, np.full(1, unit), np.zeros(1), activation.lo, activation.hi, path)


def shift_parameters(
    gain: FloatArray, offset: FloatArray, edge: Edge
) -> tuple[Tensor, Tensor, int]:
    """Integers with ``(acc * m + o) / 2^shift`` nearest to ``acc * gain + offset``.

    The shift is common to all channels; the largest multiplier has `MULTIPLIER_BITS` bits, unless
    the shift would exceed `_MAX_SHIFT`.
    """
    largest = float(np.abs(gain).max())
    exponent = 0 if largest == 0 else int(np.floor(np.log2(largest))) + 1
    shift = min(max(MULTIPLIER_BITS - exponent, 0), _MAX_SHIFT)
    multiplier = np.rint(gain * 2.0**shift)
    scaled = np.rint(offset * 2.0**shift)
    reach = max(abs(edge.lo), abs(edge.hi))
    if np.abs(scaled).max() + reach * np.abs(multiplier).max() >= 2.0**62:
        raise ModelError(
            "multiplier and offset do not fit 62 bits", where=edge.source, hint="use fewer bits"
        )
    return torch.from_numpy(multiplier), torch.from_numpy(scaled), shift


def _weighted(walk: _Freezer, node: fx.Node, layer: QuantConv2d | QuantLinear, edge: Edge) -> Edge:
    path = str(node.target)
    if not edge.is_levels or edge.pools:
        raise ModelError(
            "its input is not quantized", where=path, hint="give activations and input a format"
        )
    levels, unit = layer.weight_quantizer.levels(layer.weight)
    gain = unit.cpu().numpy() * edge.gain
    offset = np.zeros(1)
    bias = None
    if layer.bias is not None:
        real = layer.bias.to(torch.float64).cpu().numpy()
        if layer.input_quantizer is None:
            offset = real  # taken up by the activation behind
        else:
            bias = torch.from_numpy(np.rint(real / gain))
    interval = (edge.lo, edge.hi)
    module: IntegerConv2d | IntegerLinear
    if isinstance(layer, QuantConv2d):
        module = IntegerConv2d(
            levels,
            bias,
            layer.weight_quantizer.spec.format,
            stride=_pair(layer.stride),
            padding=_padding(layer),
            dilation=_pair(layer.dilation),
            groups=layer.groups,
            input_interval=interval,
            source=path,
        )
    else:
        weight_format = layer.weight_quantizer.spec.format
        module = IntegerLinear(levels, bias, weight_format, interval, path)
    module.weight_unit = unit.to(torch.float64).cpu().numpy().reshape(-1)
    new = walk.emit(path, module, edge.node)
    return Edge(new, gain, offset, module.lo, module.hi, path)


def _batch_norm(
    walk: _Freezer, node: fx.Node, norm: nn.BatchNorm1d | nn.BatchNorm2d, edge: Edge
) -> Edge:
    """``(x - mean) * gamma / sqrt(var + eps) + beta``, gathered into gain and offset."""
    mean = norm.running_mean.to(torch.float64).cpu().numpy()
    factor = 1.0 / np.sqrt(norm.running_var.to(torch.float64).cpu().numpy() + norm.eps)
    shift = np.zeros_like(mean)
    if norm.affine:
        factor = factor * norm.weight.to(torch.float64).cpu().numpy()
        shift = norm.bias.to(torch.float64).cpu().numpy()
    return replace(edge, gain=edge.gain * factor, offset=(edge.offset - mean) * factor + shift)


def _max_pool(walk: _Freezer, node: fx.Node, pool: nn.MaxPool2d, edge: Edge) -> Edge:
    path = str(node.target)
    if bool((edge.gain > 0).all()) and not edge.pools:
        return replace(edge, node=walk.emit(path, _pool(pool), edge.node))
    return replace(edge, pools=(*edge.pools, (path, pool)))


def _pool(pool: nn.MaxPool2d) -> nn.MaxPool2d:
    return nn.MaxPool2d(pool.kernel_size, pool.stride, pool.padding)


def _flatten(walk: _Freezer, node: fx.Node, flatten: nn.Flatten, edge: Edge) -> Edge:
    if edge.gain.size != 1 or edge.offset.size != 1 or edge.pools:
        raise ModelError(
            "it flattens channels that have a scale each",
            where=str(node.target),
            hint="put the batch norm and activation before the flatten",
        )
    return replace(edge, node=walk.emit(str(node.target), nn.Flatten(), edge.node))


def _drop(walk: _Freezer, node: fx.Node, module: nn.Module, edge: Edge) -> Edge:
    return edge


_STEPS = {
    ActivationQuantizer: _quantize,
    QuantConv2d: _weighted,
    QuantLinear: _weighted,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.MaxPool2d: _max_pool,
    nn.Flatten: _flatten,
    nn.Dropout: _drop,
    nn.Dropout2d: _drop,
}


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _padding(layer: QuantConv2d) -> tuple[int, int]:
    if layer.padding == "valid":
        return (0, 0)
    if layer.padding == "same":
        kernel, dilation = _pair(layer.kernel_size), _pair(layer.dilation)
        return (dilation[0] * (kernel[0] - 1) // 2, dilation[1] * (kernel[1] - 1) // 2)
    return _pair(layer.padding)
