# SPDX-License-Identifier: Apache-2.0
"""Keras' arrays <-> torch's: axes, depthwise kernels, and the order of a flattened image.

Keras stores a convolution as (H, W, I, O), a depthwise one as (H, W, I, M), a dense layer as (I,
O), and flattens images with the channel fastest; torch has (O, I, H, W), (O, I), and the channel
slowest. All of it is moving numbers, so back and forth gives the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

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


def flat_orders(network: Network) -> dict[str, Size]:
    """For every vector that is a flattened image of several pixels and channels, that image's
    (C, H, W).

    Raises:
        ModelError: such a vector goes where its order cannot be followed.
    """
    orders: dict[str, Size] = {}
    for layer in network.layers:
        given = network.shapes[layer.inputs[0]] if layer.inputs else ()
        # Of one channel, or one pixel, both orders are the same.
        if isinstance(layer.op, ops.Flatten) and given[1:] not in ((), (1, 1)) and given[0] != 1:
            orders[layer.name] = given
            continue
        found = [orders[name] for name in layer.inputs if name in orders]
        if not found or isinstance(layer.op, ops.Dense):
            continue
        together = isinstance(layer.op, ops.Add) and found == [found[0]] * len(layer.inputs)
        if not together and not isinstance(
            layer.op, ops.Norm | ops.Scale | ops.Activation | ops.Dropout | ops.Flatten
        ):
            raise ModelError(
                "reads a flattened image; Keras orders it differently, which only a dense layer "
                "can make up for",
                where=f"layer {layer.name}",
            )
        orders[layer.name] = found[0]
    if network.output in orders:
        raise ModelError(
            "ends in a flattened image, which Keras orders differently", where=network.name
        )
    return orders


def order_of(layer: Layer, orders: Mapping[str, Size]) -> Size | None:
    """The image whose flattened form a layer reads; None if it reads none."""
    return orders.get(layer.inputs[0]) if layer.inputs else None


def keras_positions(image: Size) -> NDArray[np.int64]:
    """For every place in Keras' vector the place in torch's."""
    places = np.arange(int(np.prod(image)), dtype=np.int64).reshape(image)
    return places.transpose(1, 2, 0).ravel()


def to_keras(layer: Layer, image: Size | None, inputs: int) -> dict[str, FloatArray]:
    """A layer's arrays as Keras stores them, in Keras' order of weights.

    Args:
        image: see `order_of`.
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
            found = {"kernel": weight if image is None else weight[keras_positions(image)]}
        case ops.Norm():
            order = slice(None) if image is None else keras_positions(image)
            return {keras: arrays[own][order] for own, keras in _NORM.items() if own in arrays}
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
    layer: Layer, given: Mapping[str, FloatArray], image: Size | None, source: str
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
        moved = _moved(layer, name, values, image)
        if moved is None or moved.shape != wanted:
            raise DataError(
                f"{name} of layer {layer.name!r} has the shape {values.shape} in Keras' order, "
                f"the model's is {wanted} in torch's",
                where=source,
                hint="the file is of another network",
            )
        found[name] = np.ascontiguousarray(moved)
    return found


def _moved(layer: Layer, name: str, values: FloatArray, image: Size | None) -> FloatArray | None:
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
            if values.ndim != 2 or (image and values.shape[0] != int(np.prod(image))):
                return None
            if image is None:
                return values.T
            moved = np.empty_like(values)
            moved[keras_positions(image)] = values
            return moved.T
        case ops.Norm() if image is not None:
            if values.shape != (int(np.prod(image)),):
                return None
            vector = np.empty_like(values)
            vector[keras_positions(image)] = values
            return vector
    return values
