# SPDX-License-Identifier: Apache-2.0
"""Keras' arrays <-> torch's: axes, depthwise kernels, and the order of a flattened image.

Keras stores a convolution as (H, W, I, O), a depthwise one as (H, W, I, M), a dense layer as (I,
O), and flattens images with the channel fastest; torch has (O, I, H, W), (O, I), and the channel
slowest. All of it is moving numbers, so back and forth gives the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError, ModelError
from bitwright.interop import ops
from bitwright.interop.network import Layer, Network
from bitwright.interop.ops import FloatArray, Size

_NORM = {
    "gamma": "gamma", "beta": "beta", "mean": "moving_mean", "variance": "moving_variance",
}  # fmt: skip


def keras_name(name: str) -> str:
    """A layer's name as every Keras and each of its backends takes it: no dots, no slashes."""
    clean = re.sub(r"[^A-Za-z0-9_]", "_", name)
    return clean if re.match(r"[A-Za-z]", clean) else f"layer_{clean}"


Order = NDArray[np.int64]
"""For every place in Keras' vector the place in torch's."""


def flat_orders(network: Network) -> dict[str, Order]:
    """The order of every vector of flattened images of several pixels and channels.

    Raises:
        ModelError: such a vector goes where its order cannot be followed.
    """
    orders: dict[str, Order] = {}
    for layer in network.layers:
        given = [network.shapes[name] for name in layer.inputs]
        order = order_behind(layer, given, [orders.get(name) for name in layer.inputs])
        if order is not None:
            orders[layer.name] = order
    if network.output in orders:
        raise ModelError(
            "ends in a flattened image, which Keras orders differently", where=network.name
        )
    return orders


def order_behind(
    layer: Layer, shapes: Sequence[Size], given: Sequence[Order | None]
) -> Order | None:
    """The order of what a layer gives; None where Keras' is torch's.

    Args:
        shapes: of its inputs.
        given: orders of its inputs.

    Raises:
        ModelError: what it gives is in an order that the layers behind it cannot make up for.
    """
    # Of one channel, or one pixel, both orders are the same.
    if isinstance(layer.op, ops.Flatten) and len(shapes[0]) == 3 and shapes[0][0] > 1:
        return keras_positions(shapes[0]) if shapes[0][1:] != (1, 1) else None
    known = [order for order in given if order is not None]
    if not known or isinstance(layer.op, ops.Dense):
        return None
    if isinstance(layer.op, ops.Concat):
        parts, begin = [], 0
        for (length, *_), order in zip(shapes, given, strict=True):
            parts.append((np.arange(length) if order is None else order) + begin)
            begin += length
        return np.concatenate(parts)
    followed = isinstance(
        layer.op, ops.Norm | ops.Scale | ops.Activation | ops.Dropout | ops.Flatten
    )
    if isinstance(layer.op, ops.Add):
        followed = all(order is not None and np.array_equal(order, known[0]) for order in given)
    if not followed:
        raise ModelError(
            "reads a flattened image; Keras orders it differently, which only a dense layer "
            "can make up for",
            where=f"layer {layer.name}",
        )
    return known[0]


def order_of(layer: Layer, orders: Mapping[str, Order]) -> Order | None:
    """The order of the vector that a layer reads; None where Keras' is torch's."""
    return orders.get(layer.inputs[0]) if layer.inputs else None


def keras_positions(image: Size) -> Order:
    """The order of a flattened image."""
    places = np.arange(int(np.prod(image)), dtype=np.int64).reshape(image)
    return places.transpose(1, 2, 0).ravel()


def to_keras(layer: Layer, order: Order | None, inputs: int) -> dict[str, FloatArray]:
    """A layer's arrays as Keras stores them, in Keras' order of weights.

    Args:
        order: see `order_of`.
        inputs: channels of the layer's input.
    """
    arrays = layer.arrays
    match layer.op:
        case ops.Conv() if is_depthwise(layer, inputs):
            weight = arrays["weight"]
            outputs, _, height, width = weight.shape
            kernel = weight.reshape(inputs, outputs // inputs, height, width).transpose(2, 3, 0, 1)
            found = {"depthwise_kernel": kernel}
        case ops.Conv():
            found = {"kernel": arrays["weight"].transpose(2, 3, 1, 0)}
        case ops.Scale():
            found = {"depthwise_kernel": arrays["gamma"][None, None, :, None]}
            return _with_bias(found, arrays.get("beta"))
        case ops.Dense():
            weight = arrays["weight"].T
            found = {"kernel": weight if order is None else weight[order]}
        case ops.Norm():
            moved = slice(None) if order is None else order
            return {keras: arrays[own][moved] for own, keras in _NORM.items() if own in arrays}
        case _:
            return {}
    return _with_bias(found, arrays.get("bias"))


def _with_bias(found: dict[str, FloatArray], bias: FloatArray | None) -> dict[str, FloatArray]:
    whole = {name: np.ascontiguousarray(values) for name, values in found.items()}
    return whole if bias is None else {**whole, "bias": bias}


def is_depthwise(layer: Layer, inputs: int) -> bool:
    """Whether every channel has its own filters: Keras' DepthwiseConv2D."""
    return isinstance(layer.op, ops.Conv) and layer.op.groups == inputs > 1


def from_keras(
    layer: Layer, given: Mapping[str, FloatArray], order: Order | None, source: str
) -> dict[str, FloatArray]:
    """Arrays of a layer whose operation and shapes are known, from those that Keras stored.

    Args:
        layer: its present arrays say which shapes are wanted.

    Raises:
        DataError: they have other shapes, one is missing, or there is one too many.
    """
    pairs: dict[str, FloatArray] = {}
    for name, values in given.items():
        own = {"kernel": "weight", "depthwise_kernel": "weight", "moving_mean": "mean",
               "moving_variance": "variance"}.get(name, name)  # fmt: skip
        pairs[own] = values
    if set(pairs) != set(layer.arrays):
        raise DataError(
            f"layer {layer.name!r} has {', '.join(sorted(pairs))}; the model has "
            f"{', '.join(sorted(layer.arrays))}",
            where=source,
            hint="does one of them have a bias (or center, scale) and the other not?",
        )
    found = {}
    for name, values in pairs.items():
        wanted = layer.arrays[name].shape
        moved = _moved(layer, name, values, order)
        if moved is None or moved.shape != wanted:
            raise DataError(
                f"{name} of layer {layer.name!r} has the shape {values.shape} in Keras' order, "
                f"the model's is {wanted} in torch's",
                where=source,
                hint="the file is of another network",
            )
        found[name] = np.ascontiguousarray(moved)
    return found


def _moved(layer: Layer, name: str, values: FloatArray, order: Order | None) -> FloatArray | None:
    """Keras' array in torch's order; None if it has the wrong number of axes."""
    match layer.op:
        case ops.Conv(groups=groups) if name == "weight":
            if values.ndim != 4:
                return None
            height, width = values.shape[:2]
            depthwise = layer.arrays[name].shape[1] == 1 < groups == values.shape[2]
            if depthwise:  # Keras' Conv2D in groups has I / groups there, which can equal them
                return values.transpose(2, 3, 0, 1).reshape(-1, 1, height, width)
            return values.transpose(3, 2, 0, 1)
        case ops.Dense() if name == "weight":
            if values.ndim != 2 or (order is not None and len(values) != len(order)):
                return None
            if order is None:
                return values.T
            moved = np.empty_like(values)
            moved[order] = values
            return moved.T
        case ops.Norm() if order is not None:
            if values.shape != order.shape:
                return None
            vector = np.empty_like(values)
            vector[order] = values
            return vector
    return values
