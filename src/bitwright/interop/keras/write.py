# SPDX-License-Identifier: Apache-2.0
"""A `Network` -> Keras' HDF5: the whole model (Keras 2 and 3 load it) or ``.weights.h5``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.base.names import NameCounter
from bitwright.interop import ops
from bitwright.interop.hdf5 import written
from bitwright.interop.keras.arrays import flat_orders, is_depthwise, keras_name, order_of, to_keras
from bitwright.interop.keras.files import CONVENTION, KerasNode
from bitwright.interop.network import Layer, Network
from bitwright.interop.network_passes import never_negative
from bitwright.interop.ops import FloatArray, Pair, windows

#: The version whose layout is written: its files load in every later Keras.
_VERSION = "2.15.0"
_LAST = {"data_format": "channels_last"}


def save_keras(network: Network, path: Path) -> Path:
    """Write a network as Keras stores it, exactly.

    A name that ends in ``.weights.h5`` gets Keras 3's numbered variables, any other the whole model
    with ``model_config``. A convolution whose padding Keras cannot say gets a ``ZeroPadding2D`` in
    front.

    Raises:
        ModelError: something has no counterpart in Keras; nothing is written.
    """
    nodes, output = keras_nodes(network)
    if path.name.endswith(".weights.h5"):
        return written(path, lambda file: _fill_numbered(file, nodes))
    config: dict[str, Any] = {
        "class_name": "Functional",
        "config": _config(network.name, nodes, output),
    }

    def fill(file: Any) -> None:
        file.attrs["keras_version"] = _VERSION
        file.attrs["backend"] = "tensorflow"
        file.attrs["model_config"] = json.dumps(config)
        file.attrs[CONVENTION] = json.dumps(network.convention.to_json())
        _fill_named(file.create_group("model_weights"), nodes)

    return written(path, fill)


def _fill_named(group: Any, nodes: list[KerasNode]) -> None:
    group.attrs["layer_names"] = np.array([n.name.encode() for n in nodes])
    group.attrs["keras_version"] = _VERSION
    group.attrs["backend"] = "tensorflow"
    for node in nodes:
        place = group.create_group(node.name)
        names = [f"{node.name}/{role}:0" for role in node.arrays]
        place.attrs["weight_names"] = np.array([n.encode() for n in names], dtype="S")
        for name, values in zip(names, node.arrays.values(), strict=True):
            place.create_dataset(name, data=np.ascontiguousarray(values))


def _fill_numbered(file: Any, nodes: list[KerasNode]) -> None:
    group = file.create_group("layers")
    counts: dict[str, int] = {}
    for node in nodes:
        snake = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", node.kind)  # Keras' own two steps
        snake = re.sub("([a-z])([A-Z])", r"\1_\2", snake).lower()
        number = counts.get(snake, 0)
        counts[snake] = number + 1
        key = f"{snake}_{number}" if number else snake
        place = group.create_group(key).create_group("vars")
        place.attrs["name"] = node.name
        for index, values in enumerate(node.arrays.values()):
            place.create_dataset(str(index), data=np.ascontiguousarray(values))
    file.create_group("vars")


def _config(name: str, nodes: list[KerasNode], output: str) -> dict[str, Any]:
    layers: list[dict[str, Any]] = [
        {
            "class_name": node.kind,
            "config": {"name": node.name, **node.config},
            "name": node.name,
            "inbound_nodes": [[[i, 0, 0, {}] for i in node.inputs]] if node.inputs else [],
        }
        for node in nodes
    ]
    return {
        "name": keras_name(name),
        "layers": layers,
        "input_layers": [[nodes[0].name, 0, 0]],
        "output_layers": [[output, 0, 0]],
    }


def keras_nodes(network: Network) -> tuple[list[KerasNode], str]:
    """Keras' layers of a network, and the name of the one that is its output."""
    writer = _Writer(network)
    for layer in network.layers:
        writer.layer(layer)
    output = writer.made[network.output]
    return _in_keras_order(writer.nodes, output), output


def _in_keras_order(nodes: list[KerasNode], output: str) -> list[KerasNode]:
    """The order of Keras' ``model.layers``, by which it reads HDF5 weights.

    By the longest way to the output, the longest first; of equal ones, the one that is met first on
    a depth-first walk from the output back.
    """
    by_name = {node.name: node for node in nodes}
    depth = {node.name: 0 for node in nodes}
    for node in reversed(nodes):
        for name in node.inputs:
            depth[name] = max(depth[name], depth[node.name] + 1)
    met: dict[str, int] = {}
    waiting = [output]
    while waiting:
        name = waiting.pop()
        if name not in met:
            met[name] = len(met)
            waiting += reversed(by_name[name].inputs)
    return sorted(nodes, key=lambda node: (-depth[node.name], met.get(node.name, len(met))))


class _Writer:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.orders = flat_orders(network)
        self.layers = {layer.name: layer for layer in network.layers}
        self.known: dict[str, bool] = {}  # see `never_negative`
        self.nodes: list[KerasNode] = []
        self._names: set[str] = set()
        self._counter = NameCounter()
        self.made: dict[str, str] = {}  # the Keras layer that makes a layer's output

    def layer(self, layer: Layer) -> None:
        inputs = tuple(self.made[name] for name in layer.inputs)
        op = layer.op
        if isinstance(op, ops.Flatten) and self._is_flat(layer):
            self.made[layer.name] = inputs[0]
            return
        if isinstance(op, ops.Conv) and not self._is_same(layer):
            inputs = self._padded(layer, op.padding, inputs)
        kind, config = self._describe(layer)
        if isinstance(op, ops.Pool):
            inputs = self._pool_input(layer, op, inputs)
        given = self.network.shapes[layer.inputs[0]] if layer.inputs else (0,)
        arrays = to_keras(layer, order_of(layer, self.orders), given[0])
        self.made[layer.name] = self._add(layer.name, kind, config, inputs, arrays)

    def _is_flat(self, layer: Layer) -> bool:
        """Keras' global pools give vectors already, where nobody wants the image."""
        front = self.layers[layer.inputs[0]]
        if isinstance(front.op, ops.GlobalPool):
            return self._only_flattened(front)
        return len(self.network.shapes[front.name]) == 1

    def _add(
        self,
        name: str,
        kind: str,
        config: dict[str, Any],
        inputs: tuple[str, ...],
        arrays: dict[str, FloatArray] | None = None,
    ) -> str:
        unique = self._counter.free(keras_name(name), self._names)
        self._names.add(unique)
        self.nodes.append(KerasNode(unique, kind, config, inputs, arrays or {}))
        return unique

    def _padded(self, layer: Layer, amount: Pair, inputs: tuple[str, ...]) -> tuple[str, ...]:
        """A layer of zeros in front."""
        if amount == (0, 0):
            return inputs
        config = {"padding": [[side] * 2 for side in amount], **_LAST}
        return (self._add(f"{layer.name}_pad", "ZeroPadding2D", config, inputs),)

    def _is_same(self, layer: Layer) -> bool:
        """Whether Keras' ``same`` is this padding: stride 1, half the kernel on every side."""
        op = layer.op
        if not isinstance(op, ops.Conv) or op.stride != (1, 1):
            return False
        kernel = layer.arrays["weight"].shape[2:]
        spans = (d * (k - 1) for d, k in zip(op.dilation, kernel, strict=True))
        return all(2 * p == span for p, span in zip(op.padding, spans, strict=True))

    def _describe(self, layer: Layer) -> tuple[str, dict[str, Any]]:  # noqa: PLR0911, PLR0912 - one each
        match layer.op:
            case ops.Input(shape):
                size = [None, *shape[1:], shape[0]]
                return "InputLayer", {"batch_input_shape": size, "dtype": "float32"}
            case ops.Conv():
                return self._conv(layer, layer.op)
            case ops.Scale():
                self._require_image(layer)
                common = {"kernel_size": [1, 1], "strides": [1, 1], "padding": "valid", **_LAST}
                bias = {"use_bias": "beta" in layer.arrays, "depth_multiplier": 1}
                return "DepthwiseConv2D", {**common, **bias, "activation": "linear"}
            case ops.Dense():
                units = {"units": layer.arrays["weight"].shape[0], "activation": "linear"}
                return "Dense", {**units, "use_bias": "bias" in layer.arrays}
            case ops.Norm(eps):
                flags = {"center": "beta" in layer.arrays, "scale": "gamma" in layer.arrays}
                return "BatchNormalization", {"axis": -1, "epsilon": eps, **flags}
            case ops.Activation("relu" | "relu6" as function, slope):
                limit = 6.0 if function == "relu6" else None
                return "ReLU", {"max_value": limit, "negative_slope": slope, "threshold": 0.0}
            case ops.Activation(function):
                return "Activation", {"activation": function}
            case ops.Pool(mode, kernel, stride):
                kind = "MaxPooling2D" if mode == "max" else "AveragePooling2D"
                sizes = {"pool_size": list(kernel), "strides": list(stride)}
                return kind, {**sizes, "padding": "valid", **_LAST}
            case ops.GlobalPool(mode):
                kind = "GlobalMaxPooling2D" if mode == "max" else "GlobalAveragePooling2D"
                return kind, {**_LAST, "keepdims": not self._only_flattened(layer)}
            case ops.Pad((top, left, bottom, right)) if min(top, left, bottom, right) >= 0:
                return "ZeroPadding2D", {"padding": [[top, bottom], [left, right]], **_LAST}
            case ops.Pad((top, left, bottom, right)) if max(top, left, bottom, right) <= 0:
                sides = [[-top, -bottom], [-left, -right]]
                return "Cropping2D", {"cropping": sides, **_LAST}
            case ops.Concat():
                return "Concatenate", {"axis": -1}
            case ops.Add():
                return "Add", {}
            case ops.Flatten():
                return "Flatten", {**_LAST}
            case ops.Dropout(share):
                return "Dropout", {"rate": share}
        raise ModelError(f"{layer.op} has no counterpart in Keras", where=f"layer {layer.name}")

    def _only_flattened(self, layer: Layer) -> bool:
        readers = self.network.readers(layer.name)
        return (
            layer.name != self.network.output
            and bool(readers)
            and all(isinstance(r.op, ops.Flatten) for r in readers)
        )

    def _require_image(self, layer: Layer) -> None:
        if len(self.network.shapes[layer.inputs[0]]) != 3:
            raise ModelError("factors of a vector; only of an image", where=f"layer {layer.name}")

    def _conv(self, layer: Layer, op: ops.Conv) -> tuple[str, dict[str, Any]]:
        outputs, _, *kernel = layer.arrays["weight"].shape
        inputs = self.network.shapes[layer.inputs[0]][0]
        config: dict[str, Any] = {
            "kernel_size": list(kernel),
            "strides": list(op.stride),
            "padding": "same" if op.padding != (0, 0) and self._is_same(layer) else "valid",
            "dilation_rate": list(op.dilation),
            "activation": "linear",
            "use_bias": "bias" in layer.arrays,
            **_LAST,
        }
        if is_depthwise(layer, inputs):
            if op.stride[0] != op.stride[1]:
                raise ModelError(
                    "Keras has no depthwise convolution with two strides",
                    where=f"layer {layer.name}",
                )
            return "DepthwiseConv2D", {**config, "depth_multiplier": outputs // inputs}
        return "Conv2D", {**config, "filters": outputs, "groups": op.groups}

    def _pool_input(self, layer: Layer, op: ops.Pool, inputs: tuple[str, ...]) -> tuple[str, ...]:
        """Keras' pools round down; padding is a layer of its own, of zeros."""
        where = f"layer {layer.name}"
        sides = self.network.shapes[layer.inputs[0]][1:]
        down = tuple(
            windows(side, k, s, p, round_up=False)
            for side, k, s, p in zip(sides, op.kernel, op.stride, op.padding, strict=True)
        )
        if down != self.network.shapes[layer.name][1:]:
            raise ModelError("rounds the size up, Keras' pools round it down", where=where)
        if op.padding == (0, 0):
            return inputs
        if op.mode == "max" and not never_negative(self.layers, layer.inputs[0], self.known):
            raise ModelError(
                "pads a maximum of numbers below zero; Keras pads with zeros",
                where=where,
                hint="put the activation in front of the pool",
            )
        if op.mode == "mean" and not op.count_padding:
            raise ModelError("averages without the padding; Keras' padding counts", where=where)
        return self._padded(layer, op.padding, inputs)
