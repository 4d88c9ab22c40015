# SPDX-License-Identifier: Apache-2.0
"""Frozen torch model -> integer graph, one node a leaf module.

Images turn from NCHW to NHWC; a flatten keeps the NHWC order and a rearrangement the standard order
of channels, so the weights of the layers behind are permuted to match (`torch_orders`). Every node
keeps the user's layer path in ``source`` and the frozen model's node name as the name of its edge,
except the ends: the input levels are ``x``, the scores ``scores``, the class ``label``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from torch import fx, nn

from bitwright.base.errors import GraphError, ModelError
from bitwright.formats.thresholds import affine_thresholds
from bitwright.ir import INTEGER, Attr, Graph, GraphBuilder, IntArray, TensorType
from bitwright.lower.torch_orders import KNOWN, group_blocks, nhwc_order, place
from bitwright.lower.torch_walk import (
    INPUT,
    LABEL,
    SCORES,
    Lowering,
    Value,
    exact_levels,
    node_name,
    ordered,
)
from bitwright.quantize.frozen import (
    AffineActivation,
    Dequantize,
    IntegerConv2d,
    IntegerLinear,
    QuantizeInput,
    ShiftActivation,
)
from bitwright.quantize.frozen_float import FloatActivation
from bitwright.quantize.frozen_joins import (
    IntegerAdd,
    IntegerConcat,
    IntegerSumPool2d,
    LookupActivation,
    PaddedMaxPool2d,
    SpaceToDepth,
    ThresholdActivation,
    Upsample,
)

__all__ = ["INPUT", "LABEL", "SCORES", "lower", "nhwc_order", "node_name"]


def _input(low: Lowering, node: fx.Node, module: QuantizeInput, value: Value) -> Value:
    kind = TensorType(
        low.input_type,
        module.format,
        (float(module.scale) * module.format.lsb,),
        module.format.min_level - module.zero_point,
        module.format.max_level - module.zero_point,
    )
    return Value(low.builder.input(INPUT, kind))


def _weights(
    low: Lowering, node: fx.Node, module: IntegerConv2d | IntegerLinear, value: Value
) -> tuple[IntArray, dict[str, Attr], dict[str, IntArray]]:
    weight = exact_levels(module.weight, module.source)
    params = {} if module.bias is None else {"bias": exact_levels(module.bias, module.source)}
    scales = low.kind(value).scale
    attrs: dict[str, Attr] = {
        "weight_format": module.weight_format.name,
        "weight_scale": _scale(low, node, "weight_unit", scales[0] if len(scales) == 1 else None),
    }
    return weight, attrs, params


def _scale(
    low: Lowering, node: fx.Node, attribute: str, input_scale: float | None = 1.0
) -> tuple[float, ...]:
    """The real value of a level that a frozen module carries: scales are for reports alone."""
    whole = _score_scale(low.frozen)
    if node is low.scaled and input_scale is not None and isinstance(whole, float):
        # Divided back from the scores, so that the product is theirs exactly.
        return (whole / input_scale,)
    found = getattr(low.frozen.get_submodule(str(node.target)), attribute)
    return tuple(float(s) for s in np.asarray(found, dtype=np.float64).reshape(-1))


def _score_scale(frozen: fx.GraphModule) -> float | tuple[float, ...]:
    last = frozen.graph.output_node().args[0]
    scale: float | tuple[float, ...] = frozen.get_submodule(str(last.target)).scale
    return scale


def _conv(low: Lowering, node: fx.Node, module: IntegerConv2d, value: Value) -> Value:
    weight, attrs, params = _weights(low, node, module, value)
    attrs |= {
        "stride": tuple(module.stride),
        "padding": module.border,
        "dilation": tuple(module.dilation),
        "groups": module.groups,
    }
    columns, rows = _permutations(module, value)
    if columns is not None:
        weight = np.take_along_axis(weight[rows], columns[:, :, np.newaxis, np.newaxis], axis=1)
        params = {name: array[rows] for name, array in params.items()}
        scales = attrs["weight_scale"]
        if isinstance(scales, tuple) and len(scales) > 1:
            attrs["weight_scale"] = tuple(float(scales[row]) for row in rows)
    params["weight"] = weight.transpose(0, 2, 3, 1)
    return Value(low.add("conv", node, value, module.source, attrs, params))


def _permutations(module: IntegerConv2d, value: Value) -> tuple[IntArray | None, IntArray]:
    """Which columns each of our rows reads, as torch numbers them; and torch's index of each row.

    The columns are None where nothing is permuted.
    """
    count = int(module.weight.shape[0])
    order = value.order
    if order is None:
        return None, np.arange(count)
    if module.groups == 1:
        return np.broadcast_to(order, (count, len(order))), np.arange(count)
    blocks, width = group_blocks(module, order), len(order) // module.groups
    if blocks is None:
        raise ModelError("internal: the order was not restored", where=module.source)
    each = count // module.groups
    rows = (blocks[:, np.newaxis] * each + np.arange(each)).ravel()
    inside = order.reshape(module.groups, width) - blocks[:, np.newaxis] * width
    return np.repeat(inside, each, axis=0), rows


def _linear(low: Lowering, node: fx.Node, module: IntegerLinear, value: Value) -> Value:
    if len(low.kind(value).shape) != 1:
        raise ModelError(
            f"a dense layer takes a vector, its input is an image {low.kind(value).shape}",
            where=module.source,
            hint="put nn.Flatten in front of it",
        )
    weight, attrs, params = _weights(low, node, module, value)
    params["weight"] = weight if value.order is None else weight[:, value.order]
    return Value(low.add("dense", node, value, module.source, attrs, params))


def _affine(low: Lowering, node: fx.Node, module: AffineActivation, value: Value) -> Value:
    kind = low.kind(value)
    found = affine_thresholds(
        module.a.cpu().numpy(),
        module.b.cpu().numpy(),
        kind.lo,
        kind.hi,
        module.format,
        module.rounding,
    )
    params = {"thresholds": ordered(found.thresholds, value)}
    if found.flip.any():
        params["flip"] = ordered(found.flip.astype(np.int64), value)
    attrs: dict[str, Attr] = {
        "base": found.base,
        "step": found.step,
        "format": module.format.name,
        "scale": _scale(low, node, "unit"),
    }
    edge = low.add("threshold", node, value, module.source, attrs, params)
    return replace(value, edge=edge)


def _shift(low: Lowering, node: fx.Node, module: ShiftActivation, value: Value) -> Value:
    attrs: dict[str, Attr] = {
        "shift": module.shift,
        "rounding": str(module.rounding),
        "lo": module.lo,
        "hi": module.hi,
        "format": module.format.name,
        "scale": _scale(low, node, "unit"),
    }
    params = {
        "multiplier": ordered(module.multiplier.cpu().numpy(), value),
        "offset": ordered(module.offset.cpu().numpy(), value),
    }
    return replace(value, edge=low.add("requant", node, value, module.source, attrs, params))


def _float(low: Lowering, node: fx.Node, module: FloatActivation, value: Value) -> Value:
    attrs: dict[str, Attr] = {
        "shift": module.shift,
        "significant": module.significant,
        "smallest": module.smallest,
        "rounding": str(module.rounding),
        "lo": module.lo,
        "hi": module.hi,
        "format": module.format.name,
        "scale": _scale(low, node, "unit"),
    }
    params = {
        "multiplier": ordered(module.multiplier.cpu().numpy(), value),
        "offset": ordered(module.offset.cpu().numpy(), value),
    }
    edge = low.add("requant_float", node, value, module.source, attrs, params)
    return replace(value, edge=edge)


def _thresholds(low: Lowering, node: fx.Node, module: ThresholdActivation, value: Value) -> Value:
    params = {"thresholds": ordered(module.thresholds.cpu().numpy(), value)}
    if module.flip.any():
        params["flip"] = ordered(module.flip.cpu().numpy(), value)
    attrs: dict[str, Attr] = {
        "base": module.base,
        "step": module.step,
        "format": module.format.name,
        "scale": _scale(low, node, "unit"),
    }
    return replace(value, edge=low.add("threshold", node, value, module.source, attrs, params))


def _lookup(low: Lowering, node: fx.Node, module: LookupActivation, value: Value) -> Value:
    kind, table = low.kind(value), module.table.cpu().numpy()
    # The edge may be known to be narrower than the frozen module's table.
    first = kind.lo - module.input_lo
    params = {"table": table[np.newaxis, first : first + kind.hi - kind.lo + 1]}
    attrs: dict[str, Attr] = {"format": module.format.name, "scale": _scale(low, node, "unit")}
    return Value(low.add("lookup", node, value, module.source, attrs, params))


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _max_pool(low: Lowering, node: fx.Node, module: nn.MaxPool2d, value: Value) -> Value:
    path = str(node.target)
    if module.ceil_mode or _pair(module.dilation) != (1, 1):
        raise ModelError(
            "a max pool with ceil_mode or dilation has no hardware",
            where=path,
            hint="use ceil_mode=False and dilation=1",
        )
    vertical, horizontal = _pair(module.padding)
    attrs: dict[str, Attr] = {
        "kernel": _pair(module.kernel_size),
        "stride": _pair(module.stride),
        "padding": (vertical, horizontal, vertical, horizontal),
    }
    return Value(low.add("max_pool", node, value, path, attrs, {}))


def _padded_pool(low: Lowering, node: fx.Node, module: PaddedMaxPool2d, value: Value) -> Value:
    attrs: dict[str, Attr] = {
        "kernel": module.kernel,
        "stride": module.stride,
        "padding": module.padding,
    }
    return Value(low.add("max_pool", node, value, module.source, attrs, {}))


def _sum_pool(low: Lowering, node: fx.Node, module: IntegerSumPool2d, value: Value) -> Value:
    attrs: dict[str, Attr] = {
        "kernel": module.kernel,
        "stride": module.stride,
        "padding": module.padding,
    }
    return Value(low.add("sum_pool", node, value, module.source, attrs, {}))


def _add(low: Lowering, node: fx.Node, module: IntegerAdd, *values: Value) -> Value:
    attrs: dict[str, Attr] = {
        "multipliers": module.multipliers,
        "scale": _scale(low, node, "unit"),
    }
    return Value(low.add("add", node, values, module.source, attrs, {}))


def _concat(low: Lowering, node: fx.Node, module: IntegerConcat, *values: Value) -> Value:
    return Value(low.add("concat", node, values, module.source, {}, {}))


def _space_to_depth(low: Lowering, node: fx.Node, module: SpaceToDepth, value: Value) -> Value:
    if module.block == 1:  # channels change places, in name only
        return value
    attrs: dict[str, Attr] = {"block": module.block}
    return Value(low.add("space_to_depth", node, value, module.source, attrs, {}))


def _upsample(low: Lowering, node: fx.Node, module: Upsample, value: Value) -> Value:
    attrs: dict[str, Attr] = {"factor": module.factor}
    return Value(low.add("upsample", node, value, module.source, attrs, {}))


def _flatten(low: Lowering, node: fx.Node, module: nn.Flatten, value: Value) -> Value:
    if len(low.kind(value).shape) == 1:
        return value
    return Value(low.add("flatten", node, value, str(node.target), {}, {}))


_STEPS: dict[type[nn.Module], Callable[..., Value]] = {
    QuantizeInput: _input,
    IntegerConv2d: _conv,
    IntegerLinear: _linear,
    AffineActivation: _affine,
    ShiftActivation: _shift,
    FloatActivation: _float,
    ThresholdActivation: _thresholds,
    LookupActivation: _lookup,
    nn.MaxPool2d: _max_pool,
    PaddedMaxPool2d: _padded_pool,
    IntegerSumPool2d: _sum_pool,
    IntegerAdd: _add,
    IntegerConcat: _concat,
    SpaceToDepth: _space_to_depth,
    Upsample: _upsample,
    nn.Flatten: _flatten,
}


def _scores_node(frozen: fx.GraphModule) -> fx.Node:
    """The node whose integers are the scores: the argument of the final `Dequantize`."""
    last = frozen.graph.output_node().args[0]
    ends_right = isinstance(last, fx.Node) and last.op == "call_module"
    if not ends_right or not isinstance(frozen.get_submodule(str(last.target)), Dequantize):
        raise ModelError(
            f"a frozen model ends with Dequantize, this one with {last}",
            where="lower",
            hint="lower takes what apply(model, policy, 'freeze') returns",
        )
    return last.args[0]


def _scaled_node(frozen: fx.GraphModule, node: fx.Node) -> fx.Node:
    """The layer or activation upstream of pools and flattens."""
    while node.op == "call_module" and isinstance(
        frozen.get_submodule(str(node.target)),
        nn.MaxPool2d | PaddedMaxPool2d | Upsample | SpaceToDepth | nn.Flatten,
    ):
        (node,) = node.all_input_nodes
    return node


def _module(frozen: fx.GraphModule, node: fx.Node) -> nn.Module:
    module = frozen.get_submodule(str(node.target)) if node.op == "call_module" else None
    if type(module) in KNOWN or isinstance(module, Dequantize):
        return module
    name = str(node.target) if module is None else f"{node.target} ({type(module).__name__})"
    raise ModelError(
        f"{node.op} {name} is no part of a frozen model",
        where="lower",
        hint="lower takes what apply(model, policy, 'freeze') returns",
    )


def lower(frozen: fx.GraphModule, input_shape: tuple[int, ...], *, name: str = "network") -> Graph:
    """The integer graph of a frozen model: the same integers on every edge, in NHWC.

    Args:
        frozen: from ``apply(model, policy, "freeze")``.
        input_shape: shape of one sample as the torch model takes it: (C, H, W) or (C,).

    Returns:
        A graph of the integer dialect with the outputs ``scores`` (classes,) and ``label`` (1,);
        where the scores are an image, with the one output ``scores`` (H, W, C).

    Raises:
        ModelError: names the layer, what it cannot be lowered for, and what to do.
    """
    if len(input_shape) not in (1, 3):
        raise ModelError(
            f"input shape {input_shape} is neither (C, H, W) nor (C,)",
            where="lower",
            hint="give the shape of one sample, without the batch axis",
        )
    low = _walked(frozen, input_shape, name, named=True)
    if low.values[low.scores].order is not None:
        low = _walked(frozen, input_shape, name, named=False)
    return _finish(low)


def _walked(
    frozen: fx.GraphModule, input_shape: tuple[int, ...], name: str, *, named: bool
) -> Lowering:
    channels, *size = (int(d) for d in input_shape)
    scores = _scores_node(frozen)
    low = Lowering(
        frozen,
        GraphBuilder(name, INTEGER),
        (*size, channels),
        scores,
        _scaled_node(frozen, scores),
        named,
    )
    for node in frozen.graph.nodes:
        if node.op == "placeholder":
            low.values[node] = Value("")
        elif node.op != "output":
            module = _module(frozen, node)
            if not isinstance(module, Dequantize):
                low.values[node] = _lowered(low, node, module)
    return low


def _lowered(low: Lowering, node: fx.Node, module: nn.Module) -> Value:
    """One module: operands in the order it needs, then its node, then the order of the result."""
    operands = [low.values[source] for source in node.args]
    if isinstance(module, QuantizeInput):
        return _input(low, node, module, operands[0])
    shapes = [low.shape(value) for value in operands]
    placed = place(module, [value.order for value in operands], shapes)
    for index, restore in enumerate(placed.restore):
        if restore:
            name, source = f"{node_name(node)}_in{index}", getattr(module, "source", "")
            operands[index] = low.restored(operands[index], name, source)
    result = _STEPS[type(module)](low, node, module, *operands)
    return replace(result, order=placed.order)


def _finish(low: Lowering) -> Graph:
    value = low.values[low.scores]
    value = low.restored(value, SCORES, str(low.scores.target))
    if len(low.kind(value).shape) > 1:
        return low.builder.finish(value.edge)
    try:
        label = low.builder.add("top_k", (value.edge,), name=LABEL)
    except GraphError as error:
        raise ModelError(
            f"the scores cannot be compared: {error.message}",
            where=str(low.scores.target),
            hint="end with a layer whose weights have one scale",
        ) from error
    return low.builder.finish(value.edge, label)
