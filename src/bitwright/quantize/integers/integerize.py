# SPDX-License-Identifier: Apache-2.0
"""`integerize`: a converted model -> its integer graph, NHWC, one walk through the model.

Every edge is named after the user's layer, except the ends: the input levels are ``x``, the scores
``scores``, the class ``label``. What a kind of layer does is one function of the table `LAYERS`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, fx, nn

from bitwright.base.errors import GraphError, ModelError
from bitwright.formats.rounding import FloatArray
from bitwright.ir import INTEGER, Graph, GraphBuilder
from bitwright.quantize import elementwise
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.integers import activations, joins, products
from bitwright.quantize.integers.affine import (
    LABEL,
    SCORES,
    AffineValue,
    Context,
    unquantized,
)
from bitwright.quantize.integers.model import IntegerModel
from bitwright.quantize.joins import (
    Concatenate,
    GlobalAverage,
    LowerSignal,
    QuantAdd,
    RaiseSignal,
    Rearrange,
    ScaleShift,
)
from bitwright.quantize.layers import QuantConv2d, QuantLayer, QuantLinear
from bitwright.quantize.policy import Policy
from bitwright.quantize.policy_defaults import simulated_only
from bitwright.quantize.shapes import model_shapes
from bitwright.quantize.spec import Role
from bitwright.quantize.trace import user_line

#: (context, node, module, operands ...) -> what the node is in integers.
Integerize = Callable[..., AffineValue]


@torch.no_grad()
def integerize(
    model: fx.GraphModule,
    policy: Policy,
    sample_shape: tuple[int, ...] | None,
    name: str = "network",
) -> IntegerModel:
    """The integer network of a converted model: the only derivation of its integers.

    Args:
        model: converted, every scale set.
        policy: by which it was converted.
        sample_shape: of one input sample as torch has it, (C, H, W), (C, L) or (C,).
        name: of the graph.

    Returns:
        A graph with the outputs ``scores`` (classes,) and ``label`` (1,); where the scores are an
        image, with the one output ``scores`` (H, W, C). And how inputs become its levels.

    Raises:
        ModelError: names each layer that has no integer form, why, and what to do.
    """
    problems = integer_problems(model)
    if problems:
        listed = "\n".join(f"  - {problem}" for problem in problems)
        raise ModelError(f"the model has no integer form:\n{listed}", where="integerize")
    if sample_shape is None:
        raise ModelError(
            "the size of its input is not known",
            where="integerize",
            hint="pass example_input or sample_shape to apply, or run the model once before",
        )
    if len(sample_shape) not in (1, 2, 3):
        raise ModelError(
            f"input shape {sample_shape} is none of (C, H, W), (C, L) and (C,)",
            where="integerize",
            hint="give the shape of one sample, without the batch axis",
        )
    shapes = model_shapes(model, sample_shape)
    context = Context(model, policy, shapes, GraphBuilder(name, INTEGER))
    for node in model.graph.nodes:
        if node.op == "placeholder":
            one, zero = np.ones(1), np.zeros(1)
            context.values[node] = AffineValue("", one, zero, str(node.target), tuple(sample_shape))
        elif node.op == "get_attr":
            context.constants[node] = operator.attrgetter(str(node.target))(model)
        elif node.op == "call_module":
            context.values[node] = _layer(context, node)
    scores = context.values[model.graph.output_node().args[0]]
    graph, last = _finish(context, scores)
    values = {
        node: replace(value, edge=SCORES) if value.edge == last else value
        for node, value in context.values.items()
    }
    return IntegerModel(graph, _input_quantizer(model).spec.rounding, values)


def _layer(context: Context, node: fx.Node) -> AffineValue:
    module = context.model.get_submodule(str(node.target))
    operands = [context.values[source] for source in node.args if source in context.values]
    if any(any(value.border) for value in operands) and type(module) not in _BORDERED:
        raise unquantized(str(node.target), "a border of zeros is in front of it", "pad elsewhere")
    return LAYERS[type(module)](context, node, module, *operands)


def integer_problems(model: fx.GraphModule) -> list[str]:
    """Why a converted model computes in float: nothing, or a line for each operand and layer."""
    modules = dict(model.named_modules())
    problems = [
        f"{name} holds NaN or infinity: training has diverged"
        for name, tensor in model.state_dict().items()
        if not bool(torch.isfinite(tensor).all())
    ]
    for node in model.graph.nodes:
        if node.op == "placeholder":
            if not all(_is_of_input(modules.get(str(user.target))) for user in node.users):
                problems.append(f"{node.target}: it is kept float; give input a format")
            continue
        if node.op in ("output", "get_attr"):
            continue
        module = modules.get(str(node.target)) if node.op == "call_module" else None
        reason = _problem(module)
        if reason is not None:
            line = user_line(node)
            place = f"{node.target if module is not None else node.name}"
            problems.append(f"{place}{f' at {line}' if line else ''}: {reason}")
    return problems


def _problem(module: nn.Module | None) -> str | None:
    """Why integers cannot compute what a module does."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        return "its weight is kept float; give it a format in the policy"
    if module is None or isinstance(module, nn.ReLU | nn.Hardtanh):
        return "it is kept float; give activations a format in the policy"
    if isinstance(module, ActivationQuantizer):
        if not module.ready:
            return "its scale was never set; train or calibrate first"
        return simulated_only(module.spec.format, module.role)
    if isinstance(module, QuantLayer):
        return simulated_only(module.weight_quantizer.spec.format, Role.WEIGHT)
    if type(module) not in LAYERS:
        return f"{type(module).__name__} has no integer form"
    return None


def _is_of_input(module: nn.Module | None) -> bool:
    return isinstance(module, ActivationQuantizer) and module.role is Role.INPUT


def _input_quantizer(model: fx.GraphModule) -> ActivationQuantizer:
    found = (m for m in model.modules() if isinstance(m, ActivationQuantizer))
    return next(quantizer for quantizer in found if _is_of_input(quantizer))


def _finish(context: Context, scores: AffineValue) -> tuple[Graph, str]:
    """The graph, and the former name of the edge ``scores``."""
    image = len(scores.shape) != 1
    if not (scores.has_levels if image else scores.is_common) or any(scores.border):
        raise ModelError(
            "the scores have no common scale",
            where=scores.source,
            hint="end with a convolution or dense layer with per-tensor weights",
        )
    last = context.restored(scores, f"{scores.source}_order").edge
    edge = context.builder.rename(last, SCORES)
    if image:
        return context.builder.finish(edge), last
    try:
        label = context.builder.add("top_k", (edge,), name=LABEL)
    except GraphError as error:
        raise ModelError(
            f"the scores cannot be compared: {error.message}",
            where=scores.source,
            hint="end with a layer whose weights have one scale",
        ) from error
    return context.builder.finish(edge, label), last


def _scale_shift(
    context: Context, node: fx.Node, module: ScaleShift, value: AffineValue
) -> AffineValue:
    """A constant factor or shift, gathered into gain and offset."""
    constant: FloatArray | float | None = module.number
    if constant is None and module.operation != "neg":
        constant = _per_channel(context.constants[node.args[1]], value, str(node.target))
    factor, shift = module.affine(constant)
    offset = value.offset * factor + np.asarray(shift, dtype=np.float64)
    return replace(value, gain=value.gain * factor, offset=offset)


def _per_channel(constant: Tensor, value: AffineValue, path: str) -> FloatArray:
    """A constant of the model as (C,) or (1,).

    Raises:
        ModelError: it differs between pixels.
    """
    sizes, axes = list(constant.shape), max(len(value.shape), 1)
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


def _nothing(context: Context, node: fx.Node, module: nn.Module, value: AffineValue) -> AffineValue:
    return value


def _row(context: Context, node: fx.Node, module: nn.Module, value: AffineValue) -> AffineValue:
    """A signal is an image of one row: the same levels in the same order."""
    return replace(value, shape=tuple(context.shapes[node]))


#: What each kind of layer is in integers; `quantize.register_layer` adds to it.
LAYERS: dict[type[nn.Module], Integerize] = {
    ActivationQuantizer: activations.quantizer,
    **dict.fromkeys((QuantConv2d, QuantLinear), products.product),
    **dict.fromkeys((nn.BatchNorm1d, nn.BatchNorm2d), products.batch_norm),
    nn.MaxPool2d: joins.max_pool,
    **dict.fromkeys((nn.AvgPool2d, nn.AdaptiveAvgPool2d, GlobalAverage), joins.average),
    nn.Flatten: joins.flatten,
    **dict.fromkeys((nn.Dropout, nn.Dropout2d), _nothing),
    **dict.fromkeys((RaiseSignal, LowerSignal), _row),
    **dict.fromkeys((nn.Upsample, nn.UpsamplingNearest2d), joins.upsample),
    **dict.fromkeys((nn.PixelUnshuffle, nn.ChannelShuffle, Rearrange), joins.rearranged),
    **dict.fromkeys((nn.ZeroPad2d, nn.ConstantPad2d), joins.padded),
    QuantAdd: joins.add,
    Concatenate: joins.concat,
    ScaleShift: _scale_shift,
    **dict.fromkeys(elementwise.MODULES, activations.function),
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
