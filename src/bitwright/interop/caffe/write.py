# SPDX-License-Identifier: Apache-2.0
"""A `Network` -> Caffe's ``NetParameter``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.errors import ModelError
from bitwright.interop import ops
from bitwright.interop.caffe.files import QUANTIZATION, fill_blob, write_caffe
from bitwright.interop.caffe.schema import net_class
from bitwright.interop.network import CHANNEL_ORDERS, Layer, Network
from bitwright.interop.network_passes import merge_pads
from bitwright.interop.ops import Pair, Size

#: Fields of ``quantization_param`` by name: numbers, and words of enumerations.
Quantization = Mapping[str, int | str]
#: The types of layers with formats.
RISTRETTO = {"Convolution": "ConvolutionRistretto", "InnerProduct": "FcRistretto"}
_ACTIVATIONS = {"relu": "ReLU", "sigmoid": "Sigmoid", "tanh": "TanH", "softmax": "Softmax"}


def save_caffe(
    network: Network,
    prototxt: Path,
    caffemodel: Path | None = None,
    *,
    quantization: Mapping[str, Quantization] | None = None,
) -> tuple[Path, Path]:
    """Write a network as Caffe's architecture and numbers.

    A batch norm becomes ``BatchNorm`` (third blob 1, ``use_global_stats``) and ``Scale``. Caffe
    rounds the size of a pool up; where the network rounds it down the additional row or column is
    cut off by ``Slice`` and thrown away by ``Silence``, which every Caffe has. Channel order and
    input scale stand in comments and ``transform_param``.

    Args:
        caffemodel: by default beside the prototxt, with its ending.
        quantization: ``quantization_param`` by layer; those layers get Ristretto's types.

    Returns:
        Both paths.

    Raises:
        ModelError: something has no counterpart in Caffe; nothing is written.
    """
    target = prototxt.with_suffix(".caffemodel") if caffemodel is None else caffemodel
    net = net_of(network, quantization=quantization)
    convention = network.convention
    if convention.channel_order not in ("", *CHANNEL_ORDERS):
        raise ModelError(
            f"the channel order {convention.channel_order!r:.80} has no counterpart in Caffe",
            where="input",
            hint=f"one of {', '.join(CHANNEL_ORDERS)}, or none",
        )
    facts = {"channel_order": convention.channel_order or "unknown", "layout": "NCHW"}
    write_caffe(net, prototxt, target, facts)
    return prototxt, target


def net_of(network: Network, *, quantization: Mapping[str, Quantization] | None = None) -> Any:
    """The ``NetParameter`` with its blobs; see `save_caffe`."""
    network = merge_pads(network)
    wanted = {layer.name: layer.notes[QUANTIZATION] for layer in network.layers
              if QUANTIZATION in layer.notes} | dict(quantization or {})  # fmt: skip
    products = [n.name for n in network.layers if isinstance(n.op, ops.Conv | ops.Dense)]
    unknown = [name for name in wanted if name not in products]
    if unknown:
        raise ModelError(
            f"no convolution or dense layer {unknown[0]!r} to quantize", where=network.name
        )
    return _Writer(network, wanted).write()


def set_quantization(message: Any, fields: Quantization) -> None:
    """Give a ``LayerParameter`` a ``quantization_param``; an older one is dropped.

    Raises:
        ModelError: a field is unknown, or its value of another kind.
    """
    message.type = RISTRETTO.get(message.type, message.type)
    message.ClearField("quantization_param")
    try:
        for name, value in fields.items():
            setattr(message.quantization_param, name, value)
    except (AttributeError, TypeError, ValueError) as error:
        raise ModelError(
            f"no quantization_param: {error}", where=f"layer {message.name}"
        ) from error


class _Writer:
    """Fills one message; ``top`` maps each layer to the blob that carries its output."""

    def __init__(self, network: Network, quantization: Mapping[str, Quantization]) -> None:
        self.network, self.quantization = network, quantization
        self.net = net_class()(name=network.name)
        self.top: dict[str, str] = {}
        self.names = {layer.name for layer in network.layers}

    def _beside(self, name: str) -> str:
        """A name for a layer or blob that the network does not have: as wanted, or with lines
        behind it where one has it.
        """
        while name in self.names:
            name += "_"
        self.names.add(name)
        return name

    def write(self) -> Any:
        for layer in self.network.layers:
            self._layer(layer)
        return self.net

    def _new(self, name: str, kind: str, bottoms: tuple[str, ...]) -> Any:
        message = self.net.layer.add(name=name, type=kind)
        message.bottom.extend(bottoms)
        message.top.append(name)
        if name in self.quantization:
            set_quantization(message, self.quantization[name])
        return message

    def _layer(self, layer: Layer) -> None:  # noqa: PLR0912 - one kind of layer each
        bottoms = tuple(self.top[name] for name in layer.inputs)
        self.top[layer.name] = layer.name
        match layer.op:
            case ops.Input(shape):
                self._input(layer.name, shape)
            case ops.Conv():
                self._conv(layer, layer.op, bottoms)
            case ops.Dense():
                self._dense(layer, bottoms)
            case ops.Norm():
                self._norm(layer, layer.op, bottoms)
            case ops.Scale():
                self._scale(layer.name, bottoms, layer)
            case ops.Activation(function, slope) if function in _ACTIVATIONS:
                message = self._new(layer.name, _ACTIVATIONS[function], bottoms)
                if slope:
                    message.relu_param.negative_slope = slope
            case ops.Activation(function):
                raise ModelError(
                    f"{function} has no counterpart in Caffe", where=f"layer {layer.name}"
                )
            case ops.Pool():
                self._pool(layer, layer.op, bottoms)
            case ops.GlobalPool(mode):
                message = self._new(layer.name, "Pooling", bottoms)
                message.pooling_param.pool = "MAX" if mode == "max" else "AVE"
                message.pooling_param.global_pooling = True
            case ops.Concat():
                self._new(layer.name, "Concat", bottoms).concat_param.axis = 1
            case ops.Add():
                self._new(layer.name, "Eltwise", bottoms).eltwise_param.operation = "SUM"
            case ops.Flatten():
                self._new(layer.name, "Flatten", bottoms)
            case ops.Dropout(share):
                self._new(layer.name, "Dropout", bottoms).dropout_param.dropout_ratio = share
            case _:
                raise ModelError(
                    f"{type(layer.op).__name__} has no counterpart in Caffe",
                    where=f"layer {layer.name}",
                    hint="put zeros around an image by the padding of the layer behind",
                )

    def _input(self, name: str, shape: Size) -> None:
        message = self._new(name, "Input", ())
        message.input_param.shape.add().dim.extend((1, *shape))
        convention = self.network.convention
        if convention.scale != 1.0:
            message.transform_param.scale = convention.scale
        if convention.mean:
            message.transform_param.mean_value.extend(convention.mean)

    def _conv(self, layer: Layer, op: ops.Conv, bottoms: tuple[str, ...]) -> None:
        message = self._new(layer.name, "Convolution", bottoms)
        param = message.convolution_param
        weight = layer.arrays["weight"]
        param.num_output = weight.shape[0]
        param.bias_term = "bias" in layer.arrays
        if op.groups != 1:
            param.group = op.groups
        _sides(param, "pad", op.padding, 0)
        _sides(param, "kernel", (weight.shape[2], weight.shape[3]), None)
        _sides(param, "stride", op.stride, 1)
        if op.dilation != (1, 1):
            param.dilation.extend(op.dilation)
        _blobs(message, layer, ("weight", "bias"))

    def _dense(self, layer: Layer, bottoms: tuple[str, ...]) -> None:
        message = self._new(layer.name, "InnerProduct", bottoms)
        message.inner_product_param.num_output = layer.arrays["weight"].shape[0]
        message.inner_product_param.bias_term = "bias" in layer.arrays
        _blobs(message, layer, ("weight", "bias"))

    def _norm(self, layer: Layer, op: ops.Norm, bottoms: tuple[str, ...]) -> None:
        message = self._new(layer.name, "BatchNorm", bottoms)
        message.batch_norm_param.use_global_stats = True
        message.batch_norm_param.eps = op.eps
        _blobs(message, layer, ("mean", "variance"))
        fill_blob(message.blobs.add(), np.ones(1, np.float32))  # the moving average's own factor
        if "gamma" in layer.arrays or "beta" in layer.arrays:
            name = self._beside(f"{layer.name}/scale")
            ones = np.ones_like(layer.arrays["mean"])  # Caffe has no offset without a factor
            both = replace(layer, arrays={"gamma": ones, **layer.arrays})
            self._scale(name, (layer.name,), both)
            self.top[layer.name] = name

    def _scale(self, name: str, bottoms: tuple[str, ...], layer: Layer) -> None:
        message = self._new(name, "Scale", bottoms)
        message.scale_param.bias_term = "beta" in layer.arrays
        _blobs(message, layer, ("gamma", "beta"))

    def _pool(self, layer: Layer, op: ops.Pool, bottoms: tuple[str, ...]) -> None:
        if op.mode == "mean" and not op.count_padding and op.padding != (0, 0):
            raise ModelError(
                "Caffe's averages count the padding, this one does not",
                where=f"layer {layer.name}",
                hint="build it with count_include_pad=True, or without padding",
            )
        message = self._new(layer.name, "Pooling", bottoms)
        param = message.pooling_param
        param.pool = "MAX" if op.mode == "max" else "AVE"
        for name, value in (("pad", op.padding), ("kernel", op.kernel), ("stride", op.stride)):
            _sides(param, name, value, None if name == "kernel" else int(name == "stride"))
        sides = self.network.shapes[layer.inputs[0]][1:]
        wanted = self.network.shapes[layer.name][1:]
        for axis, (side, size) in enumerate(zip(sides, wanted, strict=True)):
            made = caffe_windows(side, op.kernel[axis], op.stride[axis], op.padding[axis])
            if (made - 1) * op.stride[axis] >= side + op.padding[axis]:
                raise ModelError(
                    f"Caffe makes a window more, of {op.kernel[axis]} with stride "
                    f"{op.stride[axis]}, that stands beside the image",
                    where=f"layer {layer.name}",
                    hint="cut what the last windows leave over off the image first",
                )
            if made < size:
                raise ModelError(
                    f"Caffe makes {made} windows, not {size}", where=f"layer {layer.name}"
                )
            if made > size:
                self._cut(layer.name, axis + 2, size)

    def _cut(self, name: str, axis: int, size: int) -> None:
        """Keep the first rows or columns of what Caffe's rounding up makes too many."""
        kept, rest, cut, end = (
            self._beside(f"{name}/{what}{axis}") for what in ("kept", "rest", "slice", "silence")
        )
        message = self.net.layer.add(name=cut, type="Slice")
        message.bottom.append(self.top[name])
        message.top.extend((kept, rest))
        message.slice_param.axis = axis
        message.slice_param.slice_point.append(size)
        self.net.layer.add(name=end, type="Silence").bottom.append(rest)
        self.top[name] = kept


def caffe_windows(size: int, kernel: int, stride: int, padding: int) -> int:
    """How many windows Caffe's pooling makes along one axis (its ``PoolingLayer::Reshape``)."""
    count = ceil((size + 2 * padding - kernel) / stride) + 1
    if padding and (count - 1) * stride >= size + padding:
        count -= 1
    return count


def _sides(param: Any, name: str, value: Pair, default: int | None) -> None:
    """A size as one field where both sides are equal, else as ``_h`` and ``_w``."""
    if value == (default, default):
        return
    if value[0] == value[1]:
        whole = "kernel_size" if name == "kernel" else name
        if param.DESCRIPTOR.name == "ConvolutionParameter":  # there the field is repeated
            getattr(param, whole).append(value[0])
        else:
            setattr(param, whole, value[0])
        return
    setattr(param, f"{name}_h", value[0])
    setattr(param, f"{name}_w", value[1])


def _blobs(message: Any, layer: Layer, names: tuple[str, ...]) -> None:
    for name in names:
        if name in layer.arrays:
            fill_blob(message.blobs.add(), layer.arrays[name])
