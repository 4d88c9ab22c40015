# SPDX-License-Identifier: Apache-2.0
"""Operators of float ONNX files as the layers of a `Network`: what their attributes mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from bitwright.interop import ops
from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.ops import FloatArray, Four, Pair, Size

#: A method of the reader: gives the layer that makes the node's output, if there is one.
Handler = Callable[[Any, OnnxNode], str | None]

ACTIVATIONS = ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "Softmax", "Clip")
POOLS = ("MaxPool", "AveragePool")
#: Types of ONNX: a cast to reals gives what it gets, one to whole numbers only of whole numbers.
REALS = frozenset((1, 10, 11, 16))  # float, float16, double, bfloat16
WHOLE = frozenset((2, 3, 4, 5, 6, 7, 12, 13))  # (u)int8 to (u)int64
_RELU6 = (0.0, 6.0)
_IMAGE = 3
_RANK = _IMAGE + 1
_SOFTMAX_OF_AN_AXIS = 13  # operator set since which a softmax is along one axis, the last


@dataclass(frozen=True)
class Padded:
    """How windows move over an image.

    Attributes:
        both: zeros at either side of rows and of columns.
        rest: top, left, bottom, right: all of them, where the sides differ.
    """

    stride: Pair
    dilation: Pair
    both: Pair
    rest: Four


def padded(node: OnnxNode, given: Size, kernel: Size) -> Padded:
    """Stride, dilation and padding of a convolution or pool on an image (C, H, W).

    Raises:
        ModelError: not of two axes, or an unknown ``auto_pad``.
    """
    if len(kernel) != 2 or len(given) != _IMAGE:
        raise node.error(f"a window {kernel} over {given}: only images are read")
    stride, dilation = _pair(node, "strides"), _pair(node, "dilations")
    pads = node.ints("pads", (0, 0, 0, 0))
    how = node.string("auto_pad", "NOTSET")
    if how in ("SAME_UPPER", "SAME_LOWER"):
        totals = [
            max((-(-side // s) - 1) * s + d * (k - 1) + 1 - side, 0)
            for side, s, d, k in zip(given[1:], stride, dilation, kernel, strict=True)
        ]
        less = [total // 2 for total in totals]
        more = [total - half for total, half in zip(totals, less, strict=True)]
        pads = (*less, *more) if how == "SAME_UPPER" else (*more, *less)
    elif how == "VALID":
        pads = (0, 0, 0, 0)
    elif how != "NOTSET":
        raise node.error(f"auto_pad {how!r}")
    if len(pads) != 4:
        raise node.error(f"pads {pads}; expected top, left, bottom, right")
    top, left, bottom, right = pads
    if (top, left) == (bottom, right) and min(pads) >= 0:
        return Padded(stride, dilation, (top, left), (0, 0, 0, 0))
    return Padded(stride, dilation, (0, 0), (top, left, bottom, right))


def _pair(node: OnnxNode, name: str) -> Pair:
    found = node.ints(name, (1, 1))
    if len(found) != 2 or min(found) < 1:
        raise node.error(f"{name} {found}; expected two numbers of 1 or more")
    return found[0], found[1]


def pool_of(node: OnnxNode, given: Size) -> ops.Pool:
    """``MaxPool`` or ``AveragePool``.

    Raises:
        ModelError: it dilates, or pads more at one side than at the other.
    """
    kernel = node.ints("kernel_shape", ())
    how = padded(node, given, kernel)
    if how.dilation != (1, 1) or any(how.rest):
        raise node.error(
            "a pool that dilates, or pads one side more than the other", "put a Pad in front of it"
        )
    mode = "max" if node.op == "MaxPool" else "mean"
    counts = bool(node.integer("count_include_pad", 0))
    rounds_up = bool(node.integer("ceil_mode", 0))
    return ops.Pool(mode, (kernel[0], kernel[1]), how.stride, how.both, rounds_up, counts)


def activation(
    node: OnnxNode, given: Size, bounds: tuple[float, float] | None
) -> ops.Activation | ops.Clip:
    """A function of each number, or the softmax of all channels.

    Args:
        bounds: of ``Clip``.

    Raises:
        ModelError: a softmax along another axis.
    """
    if bounds is not None:
        return ops.Activation("relu6") if bounds == _RELU6 else ops.Clip(*bounds)
    if node.op == "Softmax":
        axis = node.integer("axis", -1 if node.opset >= _SOFTMAX_OF_AN_AXIS else 1)
        if axis not in (1, -len(given)):
            raise node.error(f"along axis {axis}; only along the channels")
        if node.opset < _SOFTMAX_OF_AN_AXIS and prod(given[1:]) != 1:
            raise node.error(
                f"of {given}: in operator set {node.opset} along channels, rows and columns at once"
            )
    slope = node.real("alpha", 0.01) if node.op == "LeakyRelu" else 0.0
    return ops.Activation("relu" if node.op == "LeakyRelu" else node.op.lower(), slope)


def pads_of_axes(node: OnnxNode, pads: Size, axes: Size) -> Size:
    """Numbers of a ``Pad`` that names its axes, as those of every axis.

    Raises:
        ModelError: axes and numbers do not fit each other.
    """
    places = [axis + _RANK if axis < 0 else axis for axis in axes]
    if len(pads) != 2 * len(places) or not {*places} <= {*range(_RANK)}:
        raise node.error(f"pads {pads} along axes {axes}")
    found = [0] * (2 * _RANK)
    for number, place in enumerate(places):
        found[place], found[place + _RANK] = pads[number], pads[number + len(places)]
    return tuple(found)


def channel_vector(node: OnnxNode, values: FloatArray, given: Size) -> FloatArray:
    """A constant beside a tensor (C, ...), as one number a channel.

    Raises:
        ModelError: it differs within a channel.
    """
    rank = len(given) + 1
    shape = (1,) * (rank - values.ndim) + values.shape
    if values.ndim > rank or any(side != 1 for k, side in enumerate(shape) if k != 1):
        raise node.error(
            f"a constant of shape {values.shape} beside a tensor {given}",
            "one number, or one a channel",
        )
    flat = np.ravel(values)
    if len(flat) not in (1, given[0]):
        raise node.error(f"a constant of {len(flat)} numbers beside {given[0]} channels")
    return np.array(np.broadcast_to(flat, (given[0],)))
