# SPDX-License-Identifier: Apache-2.0
"""Caffe's architecture and numbers -> `Network`."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bitwright.base.errors import DataError, ModelError
from bitwright.interop import ops
from bitwright.interop.caffe.files import QUANTIZATION, blob_array, read_caffemodel, read_prototxt
from bitwright.interop.caffe.layers import BLOBLESS, READERS, Given, Pending, decimal
from bitwright.interop.caffe.write import net_of
from bitwright.interop.network import (
    CHANNEL_ORDERS,
    InputConvention,
    Layer,
    Network,
    NetworkBuilder,
    located_in,
    require_finite,
)
from bitwright.interop.network_passes import merge_pads, merge_scales, prune
from bitwright.interop.ops import FloatArray, Size

_log = logging.getLogger(__name__)
_DATA = ("Input", "Data", "ImageData", "MemoryData", "HDF5Data", "DummyData", "WindowData")
_TEST = 1
#: Layers of training and testing alone; a network that is only run has no use for them.
_IGNORED = frozenset(
    ("Accuracy", "ArgMax", "SoftmaxWithLoss", "EuclideanLoss", "HingeLoss", "InfogainLoss",
     "SigmoidCrossEntropyLoss", "MultinomialLogisticLoss", "ContrastiveLoss", "HDF5Output")
)  # fmt: skip


def load_caffe(
    prototxt: Path,
    caffemodel: Path,
    *,
    input_shape: tuple[int, int, int] | None = None,
    output: str | None = None,
    ignore_extra: bool = False,
) -> Network:
    """Read a network in the form in which it is tested.

    ``BatchNorm`` with the ``Scale`` behind it becomes one batch norm, with its moving average's
    factor divided out. Layers of Ristretto keep their ``quantization_param`` in
    ``layer.notes["quantization"]``, as a mapping of the fields that are set (see `quantized`).

    Args:
        input_shape: (H, W, C) of an image, needed where the input is a database.
        output: the layer to end at; by default the one that no other reads.
        ignore_extra: accept numbers for layers that the architecture does not have, such as those
            of a classifier that was taken off.

    Raises:
        DataError: a file is missing, damaged or cut short, or the two belong to different networks.
        ModelError: a layer is of a kind that is not supported.
    """
    net, facts = read_prototxt(prototxt)
    numbers = _numbers(read_caffemodel(caffemodel), str(caffemodel))
    with located_in(prototxt):
        return network_of_net(
            net, numbers, facts, input_shape=input_shape, output=output,
            ignore_extra=ignore_extra, source=str(caffemodel),
        )  # fmt: skip


def network_of_net(
    net: Any,
    numbers: Mapping[str, list[FloatArray]],
    facts: Mapping[str, str],
    *,
    input_shape: tuple[int, int, int] | None = None,
    output: str | None = None,
    ignore_extra: bool = False,
    source: str = "caffemodel",
) -> Network:
    """As `load_caffe`, from the parsed ``NetParameter`` and the blobs of each layer."""
    layers = [m for m in net.layer if _is_tested(m, net.state)]
    _check_names(layers, numbers, ignore_extra, source)
    reader = _Reader(numbers, input_shape, source)
    reader.inputs(net, layers)
    for message in layers:
        if message.type not in _DATA and message.type not in _IGNORED:
            reader.layer(message)
    reader.check_silence()
    first = next((m for m in layers if m.type in _DATA), None)
    made = [*reader.made.layers.values()]
    convention = _convention(first, made[0], facts)
    whole = reader.made.network(net.name or "network", made[-1].name, convention)
    return merge_pads(merge_scales(prune(whole, output)))


def arrays_for(network: Network, caffemodel: Path) -> Network:
    """The network with the numbers of a caffemodel, matched by the names of layers.

    Raises:
        DataError: the file is damaged, or of another network.
        ModelError: the network has layers without counterpart in Caffe.
    """
    numbers = _numbers(read_caffemodel(caffemodel), str(caffemodel))
    net = net_of(network)
    found = network_of_net(net, numbers, {}, output=None, source=str(caffemodel))
    return network.with_arrays({layer.name: layer.arrays for layer in found.layers})


def _numbers(net: Any, source: str) -> dict[str, list[FloatArray]]:
    found: dict[str, list[FloatArray]] = {}
    for layer in net.layer:
        if layer.blobs:
            where = f"{source}, layer {layer.name}"
            found[layer.name] = [blob_array(blob, where) for blob in layer.blobs]
    return found


def _is_tested(message: Any, state: Any) -> bool:
    """Whether Caffe builds this layer in the phase TEST, at the net's own level and stages
    (``NetStateRule`` of caffe.proto).
    """
    stages = {*state.stage}

    def meets(rule: Any) -> bool:
        return (
            (not rule.HasField("phase") or rule.phase == _TEST)
            and (not rule.HasField("min_level") or state.level >= rule.min_level)
            and (not rule.HasField("max_level") or state.level <= rule.max_level)
            and stages.issuperset(rule.stage)
            and stages.isdisjoint(rule.not_stage)
        )

    if message.include:
        return any(meets(rule) for rule in message.include)
    return not any(meets(rule) for rule in message.exclude)


def _check_names(
    layers: list[Any], numbers: Mapping[str, Any], ignore_extra: bool, source: str
) -> None:
    """The first sign that the two files do not belong together is the names."""
    twice = [name for name, count in Counter(m.name for m in layers).items() if count > 1]
    if twice:
        raise DataError(f"two layers are called {twice[0]!r}", where="prototxt")
    without = {*BLOBLESS, *_DATA, *_IGNORED}
    needed = [m.name for m in layers if m.type not in without]
    missing = [name for name in needed if name not in numbers]
    names = {m.name for m in layers}
    extra = [name for name in numbers if name not in names]
    if needed and len(missing) == len(needed):
        raise DataError(
            f"is of another network: it has none of its layers ({needed[0]!r}, ...) but "
            f"{next(iter(numbers), 'none')!r}, ...",
            where=source,
        )
    if missing:
        raise DataError(
            f"has no numbers for layer {missing[0]!r}" + _more(missing),
            where=source,
            hint="the file is cut short, or of another network",
        )
    if extra and not ignore_extra:
        raise DataError(
            f"has numbers for layer {extra[0]!r}{_more(extra)}, which the architecture has not",
            where=source,
            hint="is the prototxt cut short? if those layers were taken off on purpose, say so: "
            "--ignore-extra",
        )


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


class _Reader:
    """Layers so far; ``maker`` maps each blob to the layer whose output it now carries."""

    def __init__(
        self,
        numbers: Mapping[str, list[FloatArray]],
        input_shape: tuple[int, int, int] | None,
        source: str,
    ) -> None:
        self.numbers, self.source = numbers, source
        self.input_shape = input_shape
        self.made = NetworkBuilder()
        self.maker: dict[str, str] = {}
        self.silenced: set[str] = set()
        self.left: dict[str, str] = {}  # blobs of a Slice that nobody may read but Silence

    def inputs(self, net: Any, layers: list[Any]) -> None:
        """The image, as a data layer or the deprecated fields of the net say it."""
        found = [(m.top[0], _data_shape(m)) for m in layers if m.type in _DATA and m.top]
        if not found and net.input:
            shape = tuple(net.input_shape[0].dim) if net.input_shape else tuple(net.input_dim[:4])
            found = [(net.input[0], shape[1:])]
        if len(found) != 1:
            raise ModelError(f"has {len(found)} inputs; expected one", where="prototxt")
        name, shape = found[0]
        if self.input_shape is not None:
            height, width, channels = self.input_shape
            if shape and tuple(shape) != (channels, height, width):
                raise ModelError(
                    f"takes (C, H, W) = {tuple(shape)}, not {(channels, height, width)}",
                    where=f"layer {name}",
                )
            shape = (channels, height, width)
        if not shape:
            raise ModelError(
                "does not say how large its images are",
                where=f"layer {name}",
                hint="give the shape: --input-shape H,W,C",
            )
        self.maker[name] = self.made.add(name, ops.Input(tuple(int(side) for side in shape)))

    def layer(self, message: Any) -> None:
        """Read one layer."""
        where = f"layer {message.name}"
        if message.type == "Silence":
            self.silenced.update(message.bottom)
            return
        bottoms = []
        for blob in message.bottom:
            if blob in self.left:
                raise ModelError(
                    f"reads {blob!r}, the second part of a Slice; only the first part is read",
                    where=where,
                )
            if blob not in self.maker:
                raise ModelError(f"reads {blob!r}, which no layer makes", where=where)
            bottoms.append(self.maker[blob])
        convert = READERS.get(message.type)
        if convert is None:
            raise ModelError(
                f"layers of type {message.type!r} are not supported",
                where=where,
                hint=f"supported: {', '.join(sorted(READERS))}",
            )
        if not bottoms:
            raise ModelError("reads no blob", where=where, hint="give it a `bottom`")
        shapes = [self.made.shapes[name] for name in bottoms]
        if not shapes:
            raise ModelError("has no input", where=where)
        given = Given(message, shapes, self.numbers.get(message.name, []), self.source)
        current = tuple(bottoms)
        pending = convert(given)
        for number, part in enumerate(pending):
            last = number == len(pending) - 1
            name = message.name if last else f"{message.name}/{number}"
            notes = _notes(message) if last else {}
            current = (self._add(name, part, current, notes),)
        if not message.top:
            raise ModelError("has no output", where=where)
        self.maker[message.top[0]] = current[0]
        for blob in message.top[1:]:
            if message.type == "Split":
                self.maker[blob] = current[0]
            else:
                self.left[blob] = message.name

    def check_silence(self) -> None:
        """What a Slice cuts off has to be thrown away."""
        loose = [blob for blob in self.left if blob not in self.silenced]
        if loose:
            raise ModelError(
                f"makes {loose[0]!r}, which nobody reads and no Silence takes",
                where=f"layer {self.left[loose[0]]}",
            )

    def _add(
        self, name: str, pending: Pending, inputs: tuple[str, ...], notes: Mapping[str, Any]
    ) -> str:
        op, arrays = pending
        for array, values in arrays.items():
            require_finite(name, array, values, self.source)
        if name in self.made.shapes:  # a layer with the name of the input blob
            name = f"{name}_layer"
        return self.made.add(name, op, inputs, arrays, notes)


def _notes(message: Any) -> dict[str, Any]:
    if not message.HasField("quantization_param"):
        return {}
    found = {
        field.name: field.enum_type.values_by_number[value].name if field.enum_type else value
        for field, value in message.quantization_param.ListFields()
    }
    return {QUANTIZATION: found}


def _data_shape(message: Any) -> Size:
    """(C, H, W) as a data layer says it; empty if it does not."""
    if message.input_param.shape:
        return tuple(message.input_param.shape[0].dim)[1:]
    if message.dummy_data_param.shape:
        return tuple(message.dummy_data_param.shape[0].dim)[1:]
    memory = message.memory_data_param
    if memory.channels:
        return (memory.channels, memory.height, memory.width)
    return ()


def _convention(message: Any, layer: Layer, facts: Mapping[str, str]) -> InputConvention:
    assert isinstance(layer.op, ops.Input)
    channels = layer.op.shape[0]
    order = facts.get("channel_order", "")
    if order not in CHANNEL_ORDERS:
        guess = {1: "grey", 3: "BGR"}.get(channels, "")  # Caffe reads images through OpenCV
        order = guess if order == "" else ""
    if message is None:
        return InputConvention(order)
    transform = message.transform_param
    if transform.HasField("mean_file"):
        _log.warning(
            "layer %s: the image %r is taken off its inputs; the input convention says nothing of "
            "that, since it is in another file",
            message.name, transform.mean_file,
        )  # fmt: skip
    crop = transform.crop_size
    if crop and layer.op.shape[1:] != (crop, crop):
        _log.warning(
            "layer %s: %d x %d pixels are cut out of its images; the input that was given is %s, "
            "and the input convention says nothing of cutting",
            message.name, crop, crop, " x ".join(map(str, layer.op.shape)),
        )  # fmt: skip
    return InputConvention(
        order, decimal(transform.scale), tuple(map(decimal, transform.mean_value))
    )
