# SPDX-License-Identifier: Apache-2.0
"""Layers of Keras -> layers of a `Network`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import ceil
from typing import Any

import numpy as np

from bitwright.base.errors import DataError, ModelError
from bitwright.interop import ops
from bitwright.interop.keras.arrays import Order, flat_orders, from_keras, order_behind
from bitwright.interop.keras.config import Config
from bitwright.interop.keras.files import KerasFile, KerasNode
from bitwright.interop.network import Layer, Network, NetworkBuilder
from bitwright.interop.network_json import BROKEN
from bitwright.interop.network_passes import never_negative, prune
from bitwright.interop.ops import FloatArray, Pair, Size, windows

#: Words of arguments, the first where a file has none.
_FORMATS, _PADDINGS = ("channels_last", "channels_first"), ("valid", "same")


def build(nodes: list[KerasNode], file: KerasFile, output: str | None) -> Network:
    """The network with the numbers of the file; `passes.merge_pads` tidies it afterwards.

    Raises:
        ModelError: a layer is not supported, or a flattened image, which Keras orders differently,
            goes where its order cannot be followed.
    """
    builder = _Builder(file)
    for node in nodes:
        try:
            builder.node(node)
        except BROKEN as error:
            raise ModelError(
                f"a {node.kind} whose configuration is broken: {type(error).__name__} {error}",
                where=f"layer {node.name}",
            ) from error
    ends = builder.made.get(output or nodes[-1].name)
    if ends is None:
        raise ModelError(f"no layer {output!r}, named as the output")
    network = builder.network("network", ends)
    flat_orders(prune(network, network.output))
    return network


class _Builder(NetworkBuilder):
    """Also knows behind which layers images lie flattened (``orders``)."""

    def __init__(self, file: KerasFile) -> None:
        super().__init__()
        self.file = file
        self.orders: dict[str, Order] = {}
        self.made: dict[str, str] = {}
        self.known: dict[str, bool] = {}  # see `never_negative`

    def node(self, node: KerasNode) -> None:
        """Append what one Keras layer is."""
        if _word(node, "data_format", _FORMATS) == "channels_first":
            raise ModelError("stores images channels first", where=f"layer {node.name}")
        convert = _READERS.get(node.kind)
        if node.name in self.made:
            raise ModelError("a second layer of this name", where=f"layer {node.name}")
        if convert is None:
            raise ModelError(
                f"layers of class {node.kind!r} are not supported",
                where=f"layer {node.name}",
                hint=f"supported: {', '.join(sorted(_READERS))}",
            )
        unknown = [name for name in node.inputs if name not in self.made]
        if unknown:
            raise ModelError(f"reads {unknown[0]!r}, which comes later", where=f"layer {node.name}")
        self.made[node.name] = convert(self, node)

    def front(self, node: KerasNode) -> str:
        """The layer that a node with one input reads."""
        if len(node.inputs) != 1:
            raise ModelError(
                f"reads {len(node.inputs)} layers; expected one", where=f"layer {node.name}"
            )
        return self.made[node.inputs[0]]

    def add(
        self,
        name: str,
        op: ops.Op,
        inputs: tuple[str, ...] = (),
        arrays: Mapping[str, FloatArray] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> str:
        """Append one layer."""
        name = super().add(name, op, inputs, arrays, notes)
        given = [self.shapes[one] for one in inputs]
        orders = [self.orders.get(one) for one in inputs]
        # One that cannot be followed is refused at the end, if it is in front of the output.
        with suppress(ModelError):
            order = order_behind(self.layers[name], given, orders)
            if order is not None:
                self.orders[name] = order
        return name

    def filled(self, node: KerasNode, op: ops.Op, front: str, shapes: Mapping[str, Size]) -> str:
        """Append a layer with weights of these shapes (torch's order), and its activation."""
        found = self.file.by_name.get(node.name)
        if found is None:
            raise DataError(f"holds no weights of layer {node.name!r}", where=str(self.file.path))
        # Shapes alone, of which nothing is allocated: the configuration may claim any.
        none = np.float32(0)
        wanted = {name: np.broadcast_to(none, shape) for name, shape in shapes.items()}
        blank = Layer(node.name, op, (front,), wanted)
        arrays = from_keras(blank, found.arrays, self.orders.get(front), str(self.file.path))
        return self.activated(node, self.add(node.name, op, (front,), arrays))

    def activated(self, node: KerasNode, made: str) -> str:
        """Keras lets products have an activation of their own."""
        function = _name(node.config.get("activation", "linear"))
        if function in ("linear", None):
            return made
        return self.add(f"{node.name}_{function}", _function(function, node.name), (made,))

    def same(self, node: KerasNode, front: str, kernel: Pair, stride: Pair) -> tuple[int, ...]:
        """Keras' padding ``same``: top, left, bottom, right, the smaller half in front."""
        amounts = []
        for side, k, s in zip(self.shapes[front][1:], kernel, stride, strict=True):
            total = max((ceil(side / s) - 1) * s + k - side, 0)
            amounts.append((total // 2, total - total // 2))
        (top, bottom), (left, right) = amounts
        return top, left, bottom, right

    def padded(self, node: KerasNode, front: str, amounts: tuple[int, ...]) -> str:
        """Zeros around the image, if any."""
        if not any(amounts):
            return front
        top, left, bottom, right = amounts
        return self.add(f"{node.name}_pad", ops.Pad((top, left, bottom, right)), (front,))


def _name(value: Any) -> Any:
    """An activation is a name, or in Keras 3 sometimes an object with a class."""
    if isinstance(value, dict):
        return str(value.get("config", value.get("class_name"))).lower()
    return value


def _function(function: Any, name: str) -> ops.Activation:
    if function in ("relu", "relu6", "sigmoid", "tanh", "softmax"):
        return ops.Activation(str(function))
    raise ModelError(f"activation {function!r} is not supported", where=f"layer {name}")


def _pair(value: Any) -> Pair:
    """One whole number for both sides, or one for each.

    Raises:
        ValueError: it is neither.
    """
    first, second = (value, value) if type(value) is int else _listed(value)
    return first, second


def _listed(value: Any) -> list[int]:
    if not isinstance(value, list | tuple) or any(type(side) is not int for side in value):
        raise ValueError(f"expected whole numbers, found {value!r:.60}")
    return [*value]


def _whole(config: Config, name: str, default: int | None = None) -> int:
    """A whole number of a layer.

    Raises:
        ValueError: it is none.
    """
    return _listed([config.get(name, default)])[0]


def _real(config: Config, name: str, default: float) -> float:
    """A number of a layer.

    Raises:
        ValueError: it is none.
    """
    value = config.get(name)
    value = default if value is None else value
    if type(value) not in (int, float):
        raise ValueError(f"{name} {value!r:.60} is no number")
    return float(value)


def _input(builder: _Builder, node: KerasNode) -> str:
    shape = node.config.get("batch_shape") or node.config.get("batch_input_shape")
    sides = _listed(shape[1:])  # type: ignore[index]
    return builder.add(node.name, ops.Input((sides[-1], *sides[:-1])), ())


def _word(node: KerasNode, name: str, words: tuple[str, ...]) -> str:
    """An argument that is one of some words, in any case; the first where it is missing."""
    found = node.config.get(name)
    word = words[0] if found is None else str(found).lower()
    if word not in words:
        expected = " or ".join(map(repr, words))
        raise ModelError(f"{name} {found!r:.40}, not {expected}", where=f"layer {node.name}")
    return word


def _conv(builder: _Builder, node: KerasNode) -> str:
    config, front = node.config, builder.front(node)
    kernel, stride = _pair(config["kernel_size"]), _pair(config["strides"])
    dilation = _pair(config.get("dilation_rate", 1))
    inputs = builder.shapes[front][0]
    if node.kind == "DepthwiseConv2D":
        groups, outputs = inputs, inputs * _whole(config, "depth_multiplier", 1)
    else:
        groups, outputs = _whole(config, "groups", 1), _whole(config, "filters")
    reach = (dilation[0] * (kernel[0] - 1) + 1, dilation[1] * (kernel[1] - 1) + 1)
    if _word(node, "padding", _PADDINGS) == "same":
        front = builder.padded(node, front, builder.same(node, front, reach, stride))
    shapes: dict[str, Size] = {"weight": (outputs, inputs // max(groups, 1), *kernel)}
    if config.get("use_bias", True):
        shapes["bias"] = (outputs,)
    return builder.filled(node, ops.Conv(stride, (0, 0), dilation, groups), front, shapes)


def _dense(builder: _Builder, node: KerasNode) -> str:
    front = builder.front(node)
    given, units = builder.shapes[front], _whole(node.config, "units")
    if len(given) != 1:
        raise ModelError(f"takes a vector, found {given}", where=f"layer {node.name}")
    shapes: dict[str, Size] = {"weight": (units, given[0])}
    if node.config.get("use_bias", True):
        shapes["bias"] = (units,)
    return builder.filled(node, ops.Dense(), front, shapes)


def _norm(builder: _Builder, node: KerasNode) -> str:
    front = builder.front(node)
    given = builder.shapes[front]
    axis = node.config.get("axis", -1)
    axis = axis[0] if isinstance(axis, list) else axis
    if axis not in (-1, len(given)):
        raise ModelError(f"normalises axis {axis}; only the last", where=f"layer {node.name}")
    names = ["mean", "variance"]
    names += ["gamma"] if node.config.get("scale", True) else []
    names += ["beta"] if node.config.get("center", True) else []
    shapes: dict[str, Size] = {name: (given[0],) for name in names}
    return builder.filled(node, ops.Norm(_real(node.config, "epsilon", 1e-3)), front, shapes)


def _pool(builder: _Builder, node: KerasNode) -> str:
    front = builder.front(node)
    mode = "max" if node.kind == "MaxPooling2D" else "mean"
    kernel = _pair(node.config["pool_size"])
    stride = _pair(node.config.get("strides") or kernel)
    op = ops.Pool(mode, kernel, stride)
    if _word(node, "padding", _PADDINGS) == "same":
        amounts = builder.same(node, front, kernel, stride)
        top, left, bottom, right = amounts
        sides = builder.shapes[front][1:]
        counts = [ceil(side / s) for side, s in zip(sides, stride, strict=True)]
        if (top, left) == (0, 0) and counts == [
            windows(side, k, s, 0, round_up=True)
            for side, k, s in zip(sides, kernel, stride, strict=True)
        ]:
            op = ops.Pool(mode, kernel, stride, round_up=any(amounts))
        elif (top, left) == (bottom, right):
            op = ops.Pool(mode, kernel, stride, (top, left), count_padding=False)
        elif mode == "max" and never_negative(builder.layers, front, builder.known):
            front = builder.padded(node, front, amounts)
        else:
            raise ModelError(
                "pads one side more than the other", where=f"layer {node.name}",
                hint="put a ZeroPadding2D and a pool with padding 'valid' instead",
            )  # fmt: skip
    return builder.add(node.name, op, (front,))


def _global_pool(builder: _Builder, node: KerasNode) -> str:
    front = builder.front(node)
    mode = "max" if "Max" in node.kind else "mean"
    made = builder.add(node.name, ops.GlobalPool(mode), (front,))
    if node.config.get("keepdims"):
        return made
    return builder.add(f"{node.name}_flat", ops.Flatten(), (made,))


def _zero_padding(builder: _Builder, node: KerasNode) -> str:
    name = "padding" if node.kind == "ZeroPadding2D" else "cropping"
    sign = 1 if name == "padding" else -1
    value = node.config[name]
    sides = [[value] * 2] * 2 if isinstance(value, int) else value
    rows, columns = ([side] * 2 if isinstance(side, int) else side for side in sides)
    top, bottom, left, right = (sign * side for side in _listed([*rows, *columns]))
    return builder.add(node.name, ops.Pad((top, left, bottom, right)), (builder.front(node),))


def _relu(builder: _Builder, node: KerasNode) -> str:
    config = node.config
    limit, slope = config.get("max_value"), _real(config, "negative_slope", 0.0)
    if config.get("threshold") or limit not in (None, 6, 6.0) or (limit and slope):
        raise ModelError("a ReLU with a threshold or another limit", where=f"layer {node.name}")
    op = ops.Activation("relu6") if limit else ops.Activation("relu", slope)
    return builder.add(node.name, op, (builder.front(node),))


def _leaky(config: Config) -> ops.Activation:
    names = [name for name in ("negative_slope", "alpha") if name in config]
    slopes = [_real(config, name, 0.3) for name in names]
    if len(set(slopes)) > 1:
        raise ModelError("a leaky ReLU with two slopes, negative_slope and alpha")
    return ops.Activation("relu", slopes[0] if slopes else 0.3)


def _join(builder: _Builder, node: KerasNode) -> str:
    inputs = tuple(builder.made[name] for name in node.inputs)
    if node.kind == "Add":
        return builder.add(node.name, ops.Add(), inputs)
    axis = node.config.get("axis", -1)
    if axis not in (-1, len(builder.shapes[inputs[0]])):
        raise ModelError(f"joins axis {axis}; only the last", where=f"layer {node.name}")
    return builder.add(node.name, ops.Concat(), inputs)


def _activation(builder: _Builder, node: KerasNode) -> str:
    op = _function(_name(node.config["activation"]), node.name)
    return builder.add(node.name, op, (builder.front(node),))


def _softmax(builder: _Builder, node: KerasNode) -> str:
    front = builder.front(node)
    axis = node.config.get("axis", -1)
    axis = axis[0] if isinstance(axis, list) and len(axis) == 1 else axis
    if axis not in (-1, len(builder.shapes[front])):
        raise ModelError(f"softmax over axis {axis}; only the last", where=f"layer {node.name}")
    return builder.add(node.name, ops.Activation("softmax"), (front,))


def _simple(op: Callable[[Config], ops.Op]) -> Callable[[_Builder, KerasNode], str]:
    return lambda builder, node: builder.add(node.name, op(node.config), (builder.front(node),))


_READERS: Mapping[str, Callable[[_Builder, KerasNode], str]] = {
    "InputLayer": _input,
    "Conv2D": _conv,
    "DepthwiseConv2D": _conv,
    "Dense": _dense,
    "BatchNormalization": _norm,
    "MaxPooling2D": _pool,
    "AveragePooling2D": _pool,
    "GlobalAveragePooling2D": _global_pool,
    "GlobalMaxPooling2D": _global_pool,
    "ZeroPadding2D": _zero_padding,
    "Cropping2D": _zero_padding,
    "Activation": _activation,
    "ReLU": _relu,
    "LeakyReLU": _simple(_leaky),
    "Softmax": _softmax,
    "Add": _join,
    "Concatenate": _join,
    "Flatten": _simple(lambda config: ops.Flatten()),
    "Dropout": _simple(lambda config: ops.Dropout(_real(config, "rate", 0.5))),
}
