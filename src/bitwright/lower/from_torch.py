# SPDX-License-Identifier: Apache-2.0
"""Frozen torch model -> integer graph, one node a leaf module.

Images turn from NCHW to NHWC; a flatten keeps
the NHWC order, so the columns of the dense layer behind it are permuted to match. Every node keeps
the user's layer path in ``source`` and the frozen model's node name as the name of its edge, except
the ends: the input levels are ``x``, the scores ``scores``, the class ``label``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import fx, nn

from bitwright.errors import GraphError, ModelError
from bitwright.formats.thresholds import affine_thresholds
from bitwright.ir import INTEGER, Attr, Graph, GraphBuilder, IntArray, TensorType
from bitwright.quant.frozen import (
    AffineActivation,
    Dequantize,
    IntegerConv2d,
    IntegerLinear,
    QuantizeInput,
    ShiftActivation,
)

INPUT, SCORES, LABEL = "x", "scores", "label"
_ENDS = (INPUT, SCORES, LABEL)


@dataclass(frozen=True)
class _Value:
    """What a frozen node gives: an edge, and for a flattened image torch's place of each element.

    ``order[i]`` is the index in torch's (C, H, W) vector of element i of our (H, W, C) vector.
    """

    edge: str
    order: IntArray | None = None


@dataclass
class _Lowering:
    """The walk's state.

    Attributes:
        scores: the node whose integers are the scores.
        scaled: the layer or activation that sets their scale: upstream of pools and flattens.
    """

    frozen: fx.GraphModule
    builder: GraphBuilder
    input_type: tuple[int, ...]
    scores: fx.Node
    scaled: fx.Node
    values: dict[fx.Node, _Value] = field(default_factory=dict)

    def add(
        self,
        op: str,
        node: fx.Node,
        value: _Value,
        source: str,
        attrs: Mapping[str, Attr],
        params: Mapping[str, IntArray],
    ) -> str:
        """Append a node; the dialect's complaints become errors about the user's layer."""
        name = node_name(node)
        try:
            return self.builder.add(
                op,
                (value.edge,),
                name=name,
                outputs=(SCORES,) if node is self.scores else (name,),
                attrs=attrs,
                params=params,
                source=source,
            )
        except GraphError as error:
            raise ModelError(
                f"cannot be lowered: {error.message}",
                where=f"{source or name} ({op})",
                hint=error.hint or "change the layer or its formats in the policy",
            ) from error

    def kind(self, value: _Value) -> TensorType:
        return self.builder.types[value.edge]


def node_name(node: fx.Node) -> str:
    """Name of a frozen node's graph node and edge; the names of the ends are kept free."""
    return f"{node.name}_layer" if node.name in _ENDS else node.name


def nhwc_order(shape: tuple[int, int, int]) -> IntArray:
    """For an (H, W, C) image flattened: the index of each element in torch's flat (C, H, W)."""
    height, width, channels = shape
    places = np.arange(height * width * channels, dtype=np.int64)
    return places.reshape(channels, height, width).transpose(1, 2, 0).ravel()


def _levels(tensor: torch.Tensor, where: str) -> IntArray:
    array = tensor.detach().cpu().to(torch.float64).numpy()
    levels: IntArray = array.astype(np.int64)
    if not np.array_equal(levels, array):
        raise ModelError("holds numbers that are no integers", where=where, hint="freeze it again")
    return levels


def _ordered(array: IntArray, value: _Value) -> IntArray:
    """Rows that follow torch's flat order, put into ours; one row for all stays one."""
    return array if value.order is None or len(array) == 1 else array[value.order]


def _input(low: _Lowering, node: fx.Node, module: QuantizeInput, value: _Value) -> _Value:
    kind = TensorType(
        low.input_type,
        module.format,
        (float(module.scale) * module.format.lsb,),
        module.format.min_level - module.zero_point,
        module.format.max_level - module.zero_point,
    )
    return _Value(low.builder.input(INPUT, kind))


def _weights(
    low: _Lowering, node: fx.Node, module: IntegerConv2d | IntegerLinear, value: _Value
) -> tuple[IntArray, dict[str, Attr], dict[str, IntArray]]:
    weight = _levels(module.weight, module.source)
    params = {} if module.bias is None else {"bias": _levels(module.bias, module.source)}
    attrs: dict[str, Attr] = {
        "weight_format": module.weight_format.name,
        "weight_scale": _scale(low, node, "weight_unit", low.kind(value).scale[0]),
    }
    return weight, attrs, params


def _scale(
    low: _Lowering, node: fx.Node, attribute: str, input_scale: float = 1.0
) -> tuple[float, ...]:
    """The real value of a level that a frozen module carries: scales are for reports alone."""
    if node is low.scaled:  # divided back from the scores, so that the product is theirs exactly
        return (_score_scale(low.frozen) / input_scale,)
    found = getattr(low.frozen.get_submodule(str(node.target)), attribute)
    return tuple(float(s) for s in np.asarray(found, dtype=np.float64).reshape(-1))


def _score_scale(frozen: fx.GraphModule) -> float:
    last = frozen.graph.output_node().args[0]
    return float(frozen.get_submodule(str(last.target)).scale)


def _conv(low: _Lowering, node: fx.Node, module: IntegerConv2d, value: _Value) -> _Value:
    weight, attrs, params = _weights(low, node, module, value)
    vertical, horizontal = module.padding
    attrs |= {
        "stride": tuple(module.stride),
        "padding": (vertical, horizontal, vertical, horizontal),
        "dilation": tuple(module.dilation),
        "groups": module.groups,
    }
    params["weight"] = weight.transpose(0, 2, 3, 1)
    return _Value(low.add("conv", node, value, module.source, attrs, params))


def _linear(low: _Lowering, node: fx.Node, module: IntegerLinear, value: _Value) -> _Value:
    if len(low.kind(value).shape) != 1:
        raise ModelError(
            f"a dense layer takes a vector, its input is an image {low.kind(value).shape}",
            where=module.source,
            hint="put nn.Flatten in front of it",
        )
    weight, attrs, params = _weights(low, node, module, value)
    params["weight"] = weight if value.order is None else weight[:, value.order]
    return _Value(low.add("dense", node, value, module.source, attrs, params))


def _affine(low: _Lowering, node: fx.Node, module: AffineActivation, value: _Value) -> _Value:
    kind = low.kind(value)
    found = affine_thresholds(
        module.a.cpu().numpy(),
        module.b.cpu().numpy(),
        kind.lo,
        kind.hi,
        module.format,
        module.rounding,
    )
    params = {"thresholds": _ordered(found.thresholds, value)}
    if found.flip.any():
        params["flip"] = _ordered(found.flip.astype(np.int64), value)
    attrs: dict[str, Attr] = {
        "base": found.base,
        "step": found.step,
        "format": module.format.name,
        "scale": _scale(low, node, "unit"),
    }
    edge = low.add("threshold", node, value, module.source, attrs, params)
    return replace(value, edge=edge)


def _shift(low: _Lowering, node: fx.Node, module: ShiftActivation, value: _Value) -> _Value:
    attrs: dict[str, Attr] = {
        "shift": module.shift,
        "rounding": str(module.rounding),
        "lo": module.lo,
        "hi": module.hi,
        "format": module.format.name,
        "scale": _scale(low, node, "unit"),
    }
    params = {
        "multiplier": _ordered(module.multiplier.cpu().numpy(), value),
        "offset": _ordered(module.offset.cpu().numpy(), value),
    }
    return replace(value, edge=low.add("requant", node, value, module.source, attrs, params))


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def _max_pool(low: _Lowering, node: fx.Node, module: nn.MaxPool2d, value: _Value) -> _Value:
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
    return _Value(low.add("max_pool", node, value, path, attrs, {}))


def _flatten(low: _Lowering, node: fx.Node, module: nn.Flatten, value: _Value) -> _Value:
    shape = low.kind(value).shape
    if len(shape) == 1:
        return value
    edge = low.add("flatten", node, value, str(node.target), {}, {})
    height, width, channels = shape
    moved = height * width > 1 and channels > 1
    return _Value(edge, nhwc_order((height, width, channels)) if moved else None)


_STEPS: dict[type[nn.Module], Callable[..., _Value]] = {
    QuantizeInput: _input,
    IntegerConv2d: _conv,
    IntegerLinear: _linear,
    AffineActivation: _affine,
    ShiftActivation: _shift,
    nn.MaxPool2d: _max_pool,
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
        frozen.get_submodule(str(node.target)), nn.MaxPool2d | nn.Flatten
    ):
        (node,) = node.all_input_nodes
    return node


def _module(frozen: fx.GraphModule, node: fx.Node) -> nn.Module:
    module = frozen.get_submodule(str(node.target)) if node.op == "call_module" else None
    if type(module) in _STEPS or isinstance(module, Dequantize):
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
        A graph of the integer dialect with the outputs ``scores`` (classes,) and ``label`` (1,).

    Raises:
        ModelError: names the layer, what it cannot be lowered for, and what to do.
    """
    if len(input_shape) not in (1, 3):
        raise ModelError(
            f"input shape {input_shape} is neither (C, H, W) nor (C,)",
            where="lower",
            hint="give the shape of one sample, without the batch axis",
        )
    channels, *size = (int(d) for d in input_shape)
    scores = _scores_node(frozen)
    low = _Lowering(
        frozen,
        GraphBuilder(name, INTEGER),
        (*size, channels),
        scores,
        _scaled_node(frozen, scores),
    )
    for node in frozen.graph.nodes:
        if node.op == "placeholder":
            low.values[node] = _Value("")
        elif node.op != "output":
            module = _module(frozen, node)
            if not isinstance(module, Dequantize):
                low.values[node] = _STEPS[type(module)](low, node, module, _argument(low, node))
    return _finish(low)


def _argument(low: _Lowering, node: fx.Node) -> _Value:
    (argument,) = node.all_input_nodes
    return low.values[argument]


def _finish(low: _Lowering) -> Graph:
    value = low.values[low.scores]
    kind = low.kind(value)
    if len(kind.shape) != 1 or value.order is not None:
        raise ModelError(
            f"the scores are no vector made by a dense layer but have shape {kind.shape}",
            where=str(low.scores.target),
            hint="end with a dense layer",
        )
    label = low.builder.add("top_k", (value.edge,), name=LABEL)
    return low.builder.finish(value.edge, label)
