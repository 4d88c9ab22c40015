# SPDX-License-Identifier: Apache-2.0
"""A trained quantized model -> the same network in exact integers.

Between two quantizers every tensor is an integer times a per-channel gain plus a per-channel
offset. The gain and offset (scales, biases, batch norm) are gathered in float64 while walking the
graph and spent in the next activation: ``level = round((gain * acc + offset) / unit)``.
"""

from __future__ import annotations

import operator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, fx, nn

from bitwright.base.errors import ModelError
from bitwright.formats import MinifloatFormat
from bitwright.formats.rounding import FloatArray
from bitwright.quantize import elementwise, freeze_joins
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.freeze_functions import functional_activation
from bitwright.quantize.freeze_shift import shift_parameters
from bitwright.quantize.freeze_weights import frozen_weight
from bitwright.quantize.frozen import (
    AffineActivation,
    Dequantize,
    FrozenModel,
    IntegerConv2d,
    IntegerLinear,
    QuantizeInput,
    ShiftActivation,
)
from bitwright.quantize.frozen_float import FloatActivation
from bitwright.quantize.frozen_joins import NO_BORDER, Border, LookupActivation, ThresholdActivation
from bitwright.quantize.joins import Concatenate, GlobalAverage, QuantAdd, Rearrange, ScaleShift
from bitwright.quantize.layers import QuantConv2d, QuantLinear, frozen_bias
from bitwright.quantize.policy import Policy, Role
from bitwright.quantize.policy_defaults import simulated_only
from bitwright.quantize.shapes import model_shapes
from bitwright.quantize.trace import user_line
from bitwright.quantize.walk import Edge, Walk, broken, each

#: A bias of more bits than this says that its layer's input has died.
_BIAS_BITS = 48
#: Levels from here on are those of floats.
_WIDE_LEVELS = 1 << 16


@torch.no_grad()
def freeze(
    model: fx.GraphModule, policy: Policy, sample_shape: tuple[int, ...] | None = None
) -> FrozenModel:
    """The exact integer form of a converted model.

    Args:
        sample_shape: of one input sample; needed for concatenations, averages and rearrangements.

    Raises:
        ModelError: the model keeps an operand in float, has a quantizer without a scale, or holds
            something that depends on a shape that is not known.
    """
    _refuse_unfreezable(model)
    shapes = {} if sample_shape is None else model_shapes(model, sample_shape)
    walk = Walk(model, policy, shapes)
    for node in model.graph.nodes:
        _step(walk, node)
    frozen = FrozenModel(walk.root, walk.graph, class_name="Frozen")
    frozen.graph.eliminate_dead_code()
    frozen.delete_all_unused_submodules()
    frozen.recompile()
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
        reason = None if module is None else _no_integers(module)
        place = f"{node.target if module is not None else node.name}"
        line = user_line(node)
        place += f" at {line}" if line else ""
        if node.op in ("placeholder", "output", "get_attr"):
            continue
        if isinstance(module, nn.Conv2d | nn.Linear):
            problems.append(f"{place}: its weight is kept float; give it a format in the policy")
        elif module is None or isinstance(module, nn.ReLU | nn.Hardtanh):
            problems.append(f"{place}: it is kept float; give activations a format in the policy")
        elif isinstance(module, ActivationQuantizer) and not module.ready:
            problems.append(f"{place}: its scale was never set; train or calibrate first")
        elif reason is not None:
            problems.append(f"{place}: {reason}")
        elif type(module) not in _STEPS:
            problems.append(f"{place}: {type(module).__name__} has no integer form")
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise ModelError(f"the model cannot be frozen:\n{listed}", where="freeze")


def _no_integers(module: nn.Module) -> str | None:
    """Why integers cannot compute with the format of a module's weights or activations."""
    if isinstance(module, QuantConv2d | QuantLinear):
        return simulated_only(module.weight_quantizer.spec.format, Role.WEIGHT)
    if isinstance(module, ActivationQuantizer):
        return simulated_only(module.spec.format, module.role)
    return None


def _step(walk: Walk, node: fx.Node) -> None:
    if node.op == "placeholder":
        new = walk.graph.placeholder(str(node.target))
        one = np.ones(1)
        shape = walk.shapes.get(node, ())
        walk.edges[node] = Edge(new, one, np.zeros(1), 0, 0, str(node.target), shape)
    elif node.op == "get_attr":
        walk.constants[node] = operator.attrgetter(str(node.target))(walk.model)
    elif node.op == "output":
        _finish(walk, walk.edges[node.args[0]])
    else:
        module = walk.model.get_submodule(str(node.target))
        operands = [walk.edges[source] for source in node.args if source in walk.edges]
        if any(any(edge.border) for edge in operands) and type(module) not in _BORDERED:
            raise broken(str(node.target), "a border of zeros is in front of it", "pad elsewhere")
        walk.edges[node] = _STEPS[type(module)](walk, node, module, *operands)


def _finish(walk: Walk, edge: Edge) -> None:
    image = len(edge.shape) != 1
    if not (edge.has_levels if image and edge.shape else edge.is_common) or any(edge.border):
        raise ModelError(
            "the scores have no common scale",
            where=edge.source,
            hint="end with a convolution or dense layer with per-tensor weights",
        )
    scale = tuple(float(g) for g in edge.gain) if edge.gain.size > 1 else float(edge.gain[0])
    scores = walk.emit("dequantize", Dequantize(scale, edge.source), edge.node)
    walk.graph.output(scores)


def _quantize(walk: Walk, node: fx.Node, quantizer: ActivationQuantizer, edge: Edge) -> Edge:
    spec, unit = quantizer.spec, quantizer.unit
    path, number_format = str(node.target), quantizer.format
    if quantizer.role is Role.INPUT:
        scale = unit / spec.format.lsb
        module = QuantizeInput(number_format, scale, 0, spec.rounding, edge.source)
        new = walk.emit(path, module, edge.node)
        return Edge(new, np.full(1, unit), np.zeros(1), module.lo, module.hi, path, edge.shape)
    gain, offset = np.broadcast_arrays(edge.gain / unit, edge.offset / unit)
    activation: (
        AffineActivation
        | ShiftActivation
        | FloatActivation
        | ThresholdActivation
        | LookupActivation
    )
    if edge.function is not None:
        activation = functional_activation(edge, quantizer, walk.policy.threshold_bits, path)
    elif isinstance(spec.format, MinifloatFormat):
        multiplier, shift_offset, shift = shift_parameters(gain, offset, edge, fewer=True)
        ends = (quantizer.stairs.low, quantizer.stairs.high)
        activation = FloatActivation(
            multiplier, shift_offset, shift, spec.format, spec.rounding, ends, edge.interval, path
        )
    elif spec.format.bits <= walk.policy.threshold_bits:
        activation = AffineActivation(
            gain, offset, number_format, spec.rounding, edge.interval, path
        )
    else:
        multiplier, shift_offset, shift = shift_parameters(gain, offset, edge)
        activation = ShiftActivation(
            multiplier, shift_offset, shift, number_format, spec.rounding, edge.interval, path
        )
    activation.unit = float(unit)
    new = walk.emit(path, activation, edge.node)
    for pending_path, module in edge.pending:
        new = walk.emit(pending_path, module, new)
    lo, hi = activation.lo, activation.hi
    return Edge(new, np.full(1, unit), np.zeros(1), lo, hi, path, edge.shape)


def _function(walk: Walk, node: fx.Node, module: nn.Module, edge: Edge) -> Edge:
    """Kept aside for the quantizer behind."""
    return replace(edge, function=module)


def _weighted(walk: Walk, node: fx.Node, layer: QuantConv2d | QuantLinear, edge: Edge) -> Edge:
    path = str(node.target)
    depthwise = isinstance(layer, QuantConv2d) and layer.groups == layer.in_channels
    if not (edge.has_levels if depthwise else edge.is_common):
        raise broken(path, "its input is not quantized")
    levels, unit, weight_format = frozen_weight(layer.weight_quantizer, layer.weight, path)
    weight_unit = unit.to(torch.float64).cpu().numpy().reshape(-1)
    rows = int(levels.shape[0])
    inputs = edge.gain
    if inputs.size > 1:
        inputs = np.repeat(inputs, rows // inputs.size)
        weight_unit = each(weight_unit, rows)
    gain = weight_unit * inputs
    offset = np.zeros(1)
    bias = None
    found = frozen_bias(layer)
    if found is not None:
        real = found.cpu().numpy()
        if layer.input_quantizer is None:
            offset = real  # taken up by the activation behind
        else:
            bias = torch.from_numpy(_integer_bias(real, gain, edge, path))
    module: IntegerConv2d | IntegerLinear
    if isinstance(layer, QuantConv2d):
        module = IntegerConv2d(
            levels,
            bias,
            weight_format,
            stride=_pair(layer.stride),
            padding=_padding(layer, edge.border),
            dilation=_pair(layer.dilation),
            groups=layer.groups,
            input_interval=edge.interval,
            source=path,
        )
    else:
        module = IntegerLinear(levels, bias, weight_format, edge.interval, path)
    module.weight_unit = weight_unit
    module.storage_format = layer.weight_quantizer.format
    new = walk.emit(path, module, edge.node)
    return Edge(new, gain, offset, module.lo, module.hi, path, walk.shapes.get(node, ()))


def _integer_bias(real: FloatArray, gain: FloatArray, edge: Edge, path: str) -> FloatArray:
    """The bias in units of the accumulator.

    Raises:
        ModelError: it would not fit: a scale, of input or weights, has shrunk to nothing.
    """
    bias = np.rint(real / gain)
    widest = float(np.abs(bias).max())
    if widest >= 2.0**_BIAS_BITS and max(abs(edge.lo), abs(edge.hi)) >= _WIDE_LEVELS:
        raise ModelError(
            f"its bias would have {int(np.log2(widest)) + 1} bits in units of the accumulator, "
            f"more than fit: the levels of its input, from {edge.source}, are that fine",
            where=path,
            hint="use fewer exponent bits, or integers",
        )
    weights, inputs = float(gain.min() / edge.gain.max()), float(edge.gain.min())
    if widest >= 2.0**_BIAS_BITS and weights < inputs:
        raise ModelError(
            f"its bias would have {int(np.log2(widest)) + 1} bits, more than fit: the scale of its "
            f"weights has shrunk to {weights:.3g}: they have died",
            where=path,
            hint="lower the learning rate, or choose another rule for the scale of weights",
        )
    if widest >= 2.0**_BIAS_BITS:
        raise ModelError(
            f"its bias would have {int(np.log2(np.abs(bias).max())) + 1} bits, more than fit: the "
            f"scale of its input, from {edge.source}, has shrunk to {float(edge.gain.max()):.3g}: "
            "an activation that has died",
            where=path,
            hint="calibrate with images that wake it, lower the learning rate, or remove the layer",
        )
    return bias


def _batch_norm(
    walk: Walk, node: fx.Node, norm: nn.BatchNorm1d | nn.BatchNorm2d, edge: Edge
) -> Edge:
    """``(x - mean) * gamma / sqrt(var + eps) + beta``, gathered into gain and offset."""
    mean = norm.running_mean.to(torch.float64).cpu().numpy()
    factor = 1.0 / np.sqrt(norm.running_var.to(torch.float64).cpu().numpy() + norm.eps)
    shift = np.zeros_like(mean)
    if norm.affine:
        factor = factor * norm.weight.to(torch.float64).cpu().numpy()
        shift = norm.bias.to(torch.float64).cpu().numpy()
    return replace(edge, gain=edge.gain * factor, offset=(edge.offset - mean) * factor + shift)


def _scale(walk: Walk, node: fx.Node, module: ScaleShift, edge: Edge) -> Edge:
    """A constant factor or shift, gathered into gain and offset."""
    constant: FloatArray | float | None = module.number
    if constant is None and module.operation != "neg":
        constant = _per_channel(walk.constants[node.args[1]], edge, str(node.target))
    factor, shift = module.affine(constant)
    offset = edge.offset * factor + np.asarray(shift, dtype=np.float64)
    return replace(edge, gain=edge.gain * factor, offset=offset)


def _per_channel(constant: Tensor, edge: Edge, path: str) -> FloatArray:
    """A constant of the model as (C,) or (1,).

    Raises:
        ModelError: it differs between pixels.
    """
    sizes = list(constant.shape)
    axes = max(len(edge.shape), 1)
    if len(sizes) == axes + 1 and sizes[0] == 1:
        sizes = sizes[1:]  # the batch axis
    sizes = [1] * (axes - len(sizes)) + sizes
    if len(sizes) != axes or any(size != 1 for size in sizes[1:]):
        raise ModelError(
            f"a constant of shape {tuple(constant.shape)} differs between pixels",
            where=path,
            hint="use one number, or one a channel: shape (1, C, 1, 1)",
        )
    return constant.detach().cpu().to(torch.float64).numpy().reshape(-1)


def _flatten(walk: Walk, node: fx.Node, flatten: nn.Flatten, edge: Edge) -> Edge:
    if len(edge.shape) == 1:
        return edge
    if edge.gain.size != 1 or edge.offset.size != 1 or edge.pending:
        raise ModelError(
            "it flattens channels that have a scale each",
            where=str(node.target),
            hint="put the batch norm and activation before the flatten",
        )
    new, shape = walk.emit(str(node.target), nn.Flatten(), edge.node), walk.shapes.get(node, ())
    return replace(edge, node=new, shape=shape)


def _drop(walk: Walk, node: fx.Node, module: nn.Module, edge: Edge) -> Edge:
    return edge


_STEPS = {
    ActivationQuantizer: _quantize,
    QuantConv2d: _weighted,
    QuantLinear: _weighted,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.MaxPool2d: freeze_joins.max_pool,
    nn.AvgPool2d: freeze_joins.average,
    nn.AdaptiveAvgPool2d: freeze_joins.average,
    GlobalAverage: freeze_joins.average,
    nn.Flatten: _flatten,
    nn.Dropout: _drop,
    nn.Dropout2d: _drop,
    nn.Upsample: freeze_joins.upsample,
    nn.UpsamplingNearest2d: freeze_joins.upsample,
    nn.PixelUnshuffle: freeze_joins.rearranged,
    nn.ChannelShuffle: freeze_joins.rearranged,
    Rearrange: freeze_joins.rearranged,
    nn.ZeroPad2d: freeze_joins.padded,
    nn.ConstantPad2d: freeze_joins.padded,
    QuantAdd: freeze_joins.add,
    Concatenate: freeze_joins.concat,
    ScaleShift: _scale,
    **dict.fromkeys(elementwise.MODULES, _function),
}
#: What takes a border of zeros along.
_BORDERED = (
    QuantConv2d,
    nn.MaxPool2d,
    nn.AvgPool2d,
    nn.ZeroPad2d,
    nn.ConstantPad2d,
    nn.Dropout,
    nn.Dropout2d,
)


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _padding(layer: QuantConv2d, border: Border) -> tuple[int, ...]:
    """(vertical, horizontal) where opposite sides are equal, else (top, left, bottom, right)."""
    if layer.padding == "valid":
        own = NO_BORDER
    elif layer.padding == "same":
        kernel, dilation = _pair(layer.kernel_size), _pair(layer.dilation)
        rows, columns = (d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
        # As torch does it: what is left over goes to the bottom and the right.
        own = (rows // 2, columns // 2, rows - rows // 2, columns - columns // 2)
    else:
        vertical, horizontal = _pair(layer.padding)
        own = (vertical, horizontal, vertical, horizontal)
    total = freeze_joins.added(own, border)
    return total[:2] if total[:2] == total[2:] else total
