# SPDX-License-Identifier: Apache-2.0
"""What each type of Caffe layer is in a `Network`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bitwright.base.errors import DataError, ModelError
from bitwright.interop import ops
from bitwright.interop.ops import FloatArray, Pair, Size


@dataclass(frozen=True)
class Given:
    """What a layer has to say, and the shapes and numbers that it gets.

    Attributes:
        message: the ``LayerParameter``.
        shapes: of its bottoms.
        blobs: its numbers, in Caffe's order.
        source: the file of the numbers, for errors.
    """

    message: Any
    shapes: list[Size]
    blobs: list[FloatArray]
    source: str

    @property
    def where(self) -> str:
        return f"layer {self.message.name}"

    def refuse(self, text: str, hint: str | None = None) -> ModelError:
        return ModelError(text, where=self.where, hint=hint)

    def blob(self, place: int, what: str, shape: Size) -> FloatArray:
        """One blob; old files fill its shape up with ones in front.

        Raises:
            DataError: it is missing or has another shape.
        """
        if place >= len(self.blobs):
            raise DataError(
                f"has no {what} for layer {self.message.name!r}: {len(self.blobs)} blobs",
                where=self.source,
                hint="the file is cut short, or of another network",
            )
        found = self.blobs[place]
        sides = list(found.shape)
        while len(sides) > len(shape) and sides[0] == 1:
            sides.pop(0)
        if tuple(sides) != shape:
            raise DataError(
                f"{what} of layer {self.message.name!r} has the shape {found.shape}, the "
                f"architecture asks for {shape}",
                where=self.source,
                hint="the file is of another network",
            )
        return found.reshape(shape)


#: A layer to be: operation and numbers.
Pending = tuple[ops.Op, Mapping[str, FloatArray]]


def _image(given: Given) -> Size:
    if len(given.shapes) != 1 or len(given.shapes[0]) != 3:
        raise given.refuse(f"takes one image, found shapes {given.shapes}")
    return given.shapes[0]


def _spread(given: Given, values: Any, what: str, default: int) -> Pair:
    sides = [int(v) for v in values] or [default]
    if len(sides) > 2:
        raise given.refuse(f"{what} for {len(sides)} axes; only images have a counterpart")
    return (sides[0], sides[-1])


def _sized(given: Given, param: Any, name: str, default: int | None) -> Pair:
    """Kernel, stride or padding, said once or as ``_h`` and ``_w``."""
    whole = "kernel_size" if name == "kernel" else name
    if param.HasField(f"{name}_h") or param.HasField(f"{name}_w"):
        return (int(getattr(param, f"{name}_h")), int(getattr(param, f"{name}_w")))
    values = getattr(param, whole)
    if isinstance(values, int):
        said = param.HasField(whole) or default is not None
        sides = (values, values) if said else (0, 0)
    else:
        sides = _spread(given, values, name, default or 0)
    if name != "pad" and min(sides) < 1:
        raise given.refuse(f"has no {name}")
    return sides


def _convolution(given: Given) -> list[Pending]:
    param = given.message.convolution_param
    channels = _image(given)[0]
    if param.axis != 1:
        raise given.refuse(f"axis {param.axis}; only 1")
    kernel = _sized(given, param, "kernel", None)
    op = ops.Conv(
        _sized(given, param, "stride", 1),
        _sized(given, param, "pad", 0),
        _spread(given, param.dilation, "dilation", 1),
        int(param.group),
    )
    if param.num_output < 1 or op.groups < 1 or channels % op.groups:
        raise given.refuse(f"{param.num_output} outputs in {op.groups} groups of {channels} inputs")
    weight = given.blob(0, "weights", (int(param.num_output), channels // op.groups, *kernel))
    arrays = {"weight": weight}
    if param.bias_term:
        arrays["bias"] = given.blob(1, "bias", (int(param.num_output),))
    return [(op, arrays)]


def _inner_product(given: Given) -> list[Pending]:
    param = given.message.inner_product_param
    if param.axis != 1 or len(given.shapes) != 1:
        raise given.refuse(f"axis {param.axis}; only 1")
    inputs, outputs = int(np.prod(given.shapes[0])), int(param.num_output)
    if outputs < 1:
        raise given.refuse("has no outputs")
    if param.transpose:
        weight = np.ascontiguousarray(given.blob(0, "weights", (inputs, outputs)).T)
    else:
        weight = given.blob(0, "weights", (outputs, inputs))
    arrays = {"weight": weight}
    if param.bias_term:
        arrays["bias"] = given.blob(1, "bias", (outputs,))
    flat: list[Pending] = [(ops.Flatten(), {})] if len(given.shapes[0]) > 1 else []
    return [*flat, (ops.Dense(), arrays)]


def _batch_norm(given: Given) -> list[Pending]:
    """The stored sums are divided by the third blob, the moving average's own factor."""
    param = given.message.batch_norm_param
    if param.HasField("use_global_stats") and not param.use_global_stats:
        raise given.refuse(
            "normalises by the batch (use_global_stats: false), not by stored statistics",
            "set use_global_stats: true in the prototxt that is deployed",
        )
    channels = given.shapes[0][0]
    mean = given.blob(0, "means", (channels,))
    variance = given.blob(1, "variances", (channels,))
    if len(given.blobs) > 2:
        factor = given.blob(2, "the moving average's factor", (1,))[0]
        share = factor.dtype.type(0 if factor == 0 else 1 / factor)
        if not np.isfinite(share):
            raise DataError(
                f"layer {given.message.name!r} has a moving average's factor of {factor}",
                where=given.source,
            )
        mean, variance = mean * share, variance * share
    return [(ops.Norm(decimal(param.eps)), {"mean": mean, "variance": variance})]


def decimal(value: float) -> float:
    """The decimal number that a file meant by a float32."""
    return float(str(np.float32(value)))


def _scale(given: Given) -> list[Pending]:
    param = given.message.scale_param
    if len(given.shapes) != 1:
        raise given.refuse("multiplies two blobs; only factors of its own are supported")
    if param.axis != 1 or param.num_axes != 1:
        raise given.refuse(f"axis {param.axis}, num_axes {param.num_axes}; only 1 and 1")
    channels = given.shapes[0][0]
    arrays = {"gamma": given.blob(0, "factors", (channels,))}
    if param.bias_term:
        arrays["beta"] = given.blob(1, "offsets", (channels,))
    return [(ops.Scale(), arrays)]


def _pooling(given: Given) -> list[Pending]:
    param = given.message.pooling_param
    shape = _image(given)
    mode = {0: "max", 1: "mean"}.get(param.pool)
    if mode is None:
        raise given.refuse("stochastic pooling is not supported")
    if param.global_pooling:
        return [(ops.GlobalPool(mode), {})]
    kernel = _sized(given, param, "kernel", None)
    stride = _sized(given, param, "stride", 1)
    padding = _sized(given, param, "pad", 0)
    floor = param.round_mode == 1
    if not floor:
        for side, k, s, p in zip(shape[1:], kernel, stride, padding, strict=True):
            overhang = -(-(side + 2 * p - k) // s) * s
            if not p and overhang >= side:
                raise given.refuse(f"a window of {k} with stride {s} stands beside the image")
    exact = all(
        (side + 2 * p - k) % s == 0
        for side, k, s, p in zip(shape[1:], kernel, stride, padding, strict=True)
    )
    return [(ops.Pool(mode, kernel, stride, padding, round_up=not floor and not exact), {})]


def _slice(given: Given) -> list[Pending]:
    """The first part of an image; `_Reader.check_silence` sees to the rest."""
    param = given.message.slice_param
    shape = _image(given)
    if param.axis not in (2, 3) or len(param.slice_point) != 1 or len(given.message.top) != 2:
        raise given.refuse("is understood only where it cuts rows or columns off an image")
    size, point = shape[param.axis - 1], int(param.slice_point[0])
    if not 0 < point < size:
        raise given.refuse(f"slice point {point} of {size}")
    cut = point - size
    return [(ops.Pad((0, 0, cut, 0) if param.axis == 2 else (0, 0, 0, cut)), {})]


def _eltwise(given: Given) -> list[Pending]:
    param = given.message.eltwise_param
    if param.operation != 1 or any(c != 1 for c in param.coeff):
        raise given.refuse("only sums with coefficients of 1 are supported")
    return [(ops.Add(), {})]


def _concat(given: Given) -> list[Pending]:
    param = given.message.concat_param
    axis = param.concat_dim if param.HasField("concat_dim") else param.axis
    if axis not in (1, -3):
        raise given.refuse(f"axis {axis}; only channels (1)")
    return [(ops.Concat(), {})]


def _flatten(given: Given) -> list[Pending]:
    param = given.message.flatten_param
    if param.axis != 1 or param.end_axis not in (-1, 3):
        raise given.refuse("flattens other axes than all but the batch")
    return [(ops.Flatten(), {})]


def _softmax(given: Given) -> list[Pending]:
    if given.message.softmax_param.axis != 1:
        raise given.refuse("only over channels (axis 1)")
    return [(ops.Activation("softmax"), {})]


def _plain(op: Callable[[Any], ops.Op]) -> Callable[[Given], list[Pending]]:
    return lambda given: [(op(given.message), {})]


#: Every type that can be read; several layers stand behind one another.
READERS: Mapping[str, Callable[[Given], list[Pending]]] = {
    "Convolution": _convolution,
    "ConvolutionRistretto": _convolution,
    "InnerProduct": _inner_product,
    "FcRistretto": _inner_product,
    "BatchNorm": _batch_norm,
    "Scale": _scale,
    "Pooling": _pooling,
    "Slice": _slice,
    "Eltwise": _eltwise,
    "Concat": _concat,
    "Flatten": _flatten,
    "ReLU": _plain(lambda m: ops.Activation("relu", decimal(m.relu_param.negative_slope))),
    "Sigmoid": _plain(lambda message: ops.Activation("sigmoid")),
    "TanH": _plain(lambda message: ops.Activation("tanh")),
    "Softmax": _softmax,
    "Dropout": _plain(lambda message: ops.Dropout(decimal(message.dropout_param.dropout_ratio))),
    "Split": lambda given: [],
}
_WITH_BLOBS = (
    "Convolution", "ConvolutionRistretto", "InnerProduct", "FcRistretto", "BatchNorm", "Scale",
)  # fmt: skip
#: Types that have no numbers.
BLOBLESS = (*(name for name in READERS if name not in _WITH_BLOBS), "Silence")
