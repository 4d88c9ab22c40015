# SPDX-License-Identifier: Apache-2.0
"""A network as plain values, between torch and the files of other frameworks. No torch here.

A file format reads or writes a `Network`; `network_from_torch` and `network_to_torch` do the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite, prod
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.errors import DataError, ModelError
from bitwright.base.names import NameCounter
from bitwright.interop import ops
from bitwright.interop.ops import ARRAYS, FloatArray, Size, windows
from bitwright.ir.types import MAX_NODES

#: Numbers that a layer may give for one image: 1 GiB of them.
_MOST = 1 << 28
#: Integers of a layer lie below; beyond are numbers that no framework takes.
_LARGEST = 1 << 31
#: What files say of the order of an image's channels.
CHANNEL_ORDERS = ("RGB", "BGR", "grey")
#: Signs of a layer's name, and parts of it between dots, each of which becomes a module.
_LONGEST_NAME, _MOST_PARTS = 10_000, 100
_SHOWN = 60


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer.

    Attributes:
        name: unique; for layers from torch the path of the module.
        inputs: names of layers in front of it.
        arrays: its numbers, see `ARRAYS`.
        notes: what the source says besides, such as Ristretto's ``quantization_param``.
    """

    name: str
    op: ops.Op
    inputs: tuple[str, ...] = ()
    arrays: Mapping[str, FloatArray] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class InputConvention:
    """What the network expects to be fed, beside the shape; numbers are finite, the scale not 0.

    Attributes:
        channel_order: ``RGB``, ``BGR`` or ``grey``; empty if unknown.
        scale: a pixel of 0 .. 255 is multiplied by this, after the mean is taken off.
        mean: one a channel, in units of the pixel; empty for none.
    """

    channel_order: str = ""
    scale: float = 1.0
    mean: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not all(map(isfinite, (self.scale, *self.mean))) or not self.scale:
            raise ModelError(
                f"the scale {self.scale} and the mean {self.mean} of the input must be finite, and "
                "the scale not 0",
                where="input",
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "channel_order": self.channel_order,
            "scale": self.scale,
            "mean": list(self.mean),
            "layout": "NCHW",
        }


@dataclass(frozen=True, eq=False)
class Network:
    """Layers in an order in which each stands behind its inputs; the first is the `Input`.

    Raises:
        ModelError: a name is twice there or can be none, an input unknown, or shapes do not fit.
    """

    name: str
    layers: tuple[Layer, ...]
    output: str
    convention: InputConvention = InputConvention()
    shapes: Mapping[str, Size] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        shapes: dict[str, Size] = {}
        _check_name(self.name, "network")
        if len(self.layers) > MAX_NODES:
            raise ModelError(f"{len(self.layers)} layers; at most {MAX_NODES} are read")
        for layer in self.layers:
            _check_name(layer.name, "layer")
            if layer.name in shapes:
                raise ModelError("a second layer of this name", where=f"layer {layer.name}")
            for name in layer.inputs:
                if name not in shapes:
                    raise ModelError(
                        f"reads {name!r}, which no layer in front of it makes",
                        where=f"layer {layer.name}",
                    )
            shapes[layer.name] = shape_of(layer, [shapes[name] for name in layer.inputs])
        inputs = [layer for layer in self.layers if isinstance(layer.op, ops.Input)]
        if inputs != [*self.layers[:1]]:
            raise ModelError(
                f"has {len(inputs)} inputs; expected one, in front of all layers", where=self.name
            )
        assert isinstance(inputs[0].op, ops.Input)
        channels, means = inputs[0].op.shape[0], len(self.convention.mean)
        if means not in (0, 1, channels):
            raise ModelError(f"{means} means for {channels} channels of the input", where=self.name)
        if self.output not in shapes:
            raise ModelError(f"no layer {self.output!r}, named as the output", where=self.name)
        object.__setattr__(self, "shapes", shapes)

    @property
    def input(self) -> Layer:
        return self.layers[0]

    def __getitem__(self, name: str) -> Layer:
        return self._by_name[name]

    def readers(self, name: str) -> tuple[Layer, ...]:
        """The layers that read one."""
        return self._readers.get(name, ())

    @cached_property
    def _by_name(self) -> dict[str, Layer]:
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def _readers(self) -> dict[str, tuple[Layer, ...]]:
        found: dict[str, list[Layer]] = {}
        for layer in self.layers:
            for name in dict.fromkeys(layer.inputs):
                found.setdefault(name, []).append(layer)
        return {name: tuple(layers) for name, layers in found.items()}

    def with_arrays(self, arrays: Mapping[str, Mapping[str, FloatArray]]) -> Network:
        """The same network with other numbers, by layer."""
        layers = tuple(
            replace(layer, arrays=arrays[layer.name]) if layer.name in arrays else layer
            for layer in self.layers
        )
        return replace(self, layers=layers)

    def parameters(self) -> int:
        """Numbers in all arrays."""
        return sum(a.size for layer in self.layers for a in layer.arrays.values())


def _check_name(name: str, what: str) -> None:
    """Refuse a name that files and modules cannot have.

    Raises:
        ModelError: it is too long, is no Unicode, or holds the sign NUL.
    """
    reason = None
    if len(name) > _LONGEST_NAME:
        reason = f"{len(name)} signs, at most {_LONGEST_NAME} are allowed"
    elif name.count(".") >= _MOST_PARTS:
        reason = f"{name.count('.') + 1} parts, at most {_MOST_PARTS} are allowed"
    elif "\0" in name:
        reason = "the sign NUL"
    elif any("\ud800" <= sign <= "\udfff" for sign in name):
        reason = "half of a surrogate pair, which is no Unicode"
    if reason is not None:
        shown = ascii(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...")
        raise ModelError(
            f"the name of a {what} has {reason}",
            where=f"{what} {shown}",
            hint="rename it in the program that wrote the file",
        )


class NetworkBuilder:
    """Layers so far, with the shapes of their outputs: what every reader fills."""

    def __init__(self) -> None:
        self.layers: dict[str, Layer] = {}
        self.shapes: dict[str, Size] = {}
        self._counter = NameCounter()

    def add(
        self,
        name: str,
        op: ops.Op,
        inputs: tuple[str, ...] = (),
        arrays: Mapping[str, FloatArray] | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> str:
        """Append a layer; a name that is there already gets a number.

        Raises:
            ModelError: its shapes do not fit.
        """
        unique = self._counter.free(name, self.shapes)
        layer = Layer(unique, op, inputs, arrays or {}, notes or {})
        self.shapes[unique] = shape_of(layer, [self.shapes[i] for i in inputs])
        self.layers[unique] = layer
        return unique

    def network(self, name: str, output: str, convention: InputConvention | None = None) -> Network:
        """The whole network."""
        return Network(name, tuple(self.layers.values()), output, convention or InputConvention())


def _check_arrays(layer: Layer) -> None:
    names, needed = ARRAYS.get(type(layer.op), ((), 0))
    missing = [name for name in names[:needed] if name not in layer.arrays]
    extra = [name for name in layer.arrays if name not in names]
    if missing or extra:
        raise ModelError(
            f"has the arrays {sorted(layer.arrays)}, expected {', '.join(names) or 'none'}",
            where=f"layer {layer.name}",
        )


@contextmanager
def located_in(path: Path) -> Iterator[None]:
    """Inside, errors of a model name the file besides the layer."""
    try:
        yield
    except ModelError as error:
        where = f"{path.name}, {error.where}" if error.where else str(path)
        raise ModelError(error.message, where=where, hint=error.hint) from error


def require_finite(layer: str, name: str, values: FloatArray, source: str) -> None:
    """`DataError` if an array holds NaN or infinity, or a variance below zero."""
    if not np.isfinite(values).all():
        raise DataError(f"{name} of layer {layer!r} holds NaN or infinity", where=source)
    if name == "variance" and (values < 0).any():
        raise DataError(f"layer {layer!r} holds a negative variance", where=source)


def shape_of(layer: Layer, given: list[Size]) -> Size:
    """Shape of a layer's output for the shapes of its inputs.

    Raises:
        ModelError: they do not fit, the layer has the wrong arrays or options that none has, or its
            output is larger than any network's.
    """
    _check_values(layer)
    found = _shape_of(layer, given)
    if prod(found) > _MOST:
        raise ModelError(f"gives {_list([found])} numbers", where=f"layer {layer.name}")
    return found


def _check_values(layer: Layer) -> None:
    """Refuse options that no layer has, whichever file says them: all readers come by here.

    Raises:
        ModelError: an integer is too large, a real not finite, a word unknown, or out of its range.
    """
    op, where = layer.op, f"layer {layer.name}"
    for name, value in vars(op).items():
        for number in value if isinstance(value, tuple) else (value,):
            small = abs(number) < _LARGEST if isinstance(number, int) else True
            if not small or (isinstance(number, float) and not isfinite(number)):
                said = str(number) if small else f"an integer of {number.bit_length()} bits"
                raise ModelError(f"{type(op).__name__} with {name} = {said}", where=where)
    reason = None
    match op:
        case ops.Norm(eps) if eps < 0:
            reason = f"eps is {eps}, expected 0 or more"
        case ops.Dropout(share) if not 0 <= share <= 1:
            reason = f"the share that is dropped is {share}, expected 0 to 1"
        case ops.Clip(low, high) if low >= high:
            reason = f"clips to {low} .. {high}, expected two ends of a range"
        case ops.Pool(mode=mode) | ops.GlobalPool(mode) if mode not in ops.MODES:
            reason = f"pools by {mode!r}, expected {' or '.join(ops.MODES)}"
        case ops.Activation(function) if function not in ops.FUNCTIONS:
            reason = f"the activation {function!r}, expected one of {', '.join(ops.FUNCTIONS)}"
    if reason is not None:
        raise ModelError(reason, where=where)


def _shape_of(layer: Layer, given: list[Size]) -> Size:  # noqa: PLR0912 - one rule each
    _check_arrays(layer)
    op, where = layer.op, f"layer {layer.name}"
    _require_count(layer, len(given))
    match op:
        case ops.Input(shape):
            if len(shape) not in (1, 3) or min(shape) < 1:
                raise ModelError(f"input of shape {shape}; expected (C, H, W) or (C,)", where=where)
            return shape
        case ops.Conv():
            return _conv_shape(layer, op, given[0])
        case ops.Dense():
            return _dense_shape(layer, given[0])
        case ops.Pool():
            return (given[0][0], *_spatial(layer, given[0], op))
        case ops.GlobalPool():
            _require_image(where, given[0])
            return (given[0][0], 1, 1)
        case ops.Pad(amounts):
            _require_image(where, given[0])
            top, left, bottom, right = amounts
            channels, height, width = given[0]
            # A negative amount cuts pixels off; some must be left.
            left_over = (
                height + min(top, 0) + min(bottom, 0),
                width + min(left, 0) + min(right, 0),
            )
            if min(left_over) < 1:
                raise ModelError(f"cuts {amounts} off an image of {height} x {width}", where=where)
            return (channels, height + top + bottom, width + left + right)
        case ops.Concat():
            if any(other[1:] != given[0][1:] for other in given):
                raise ModelError(f"cannot join {_list(given)}", where=where)
            return (sum(shape[0] for shape in given), *given[0][1:])
        case ops.Add():
            if any(other != given[0] for other in given):
                raise ModelError(f"cannot add {_list(given)}", where=where)
            return given[0]
        case ops.Flatten():
            return (int(np.prod(given[0])),)
        case _:
            return _same_shape(layer, given[0])


def _require_count(layer: Layer, found: int) -> None:
    low, high = (0, 0) if isinstance(layer.op, ops.Input) else (1, 1)
    if isinstance(layer.op, ops.Concat | ops.Add):
        low, high = 2 if isinstance(layer.op, ops.Add) else 1, 1 << 16
    if not low <= found <= high:
        kind = type(layer.op).__name__
        raise ModelError(f"{kind} with {found} inputs; expected {low}", where=f"layer {layer.name}")


def _conv_shape(layer: Layer, op: ops.Conv, given: Size) -> Size:
    where = f"layer {layer.name}"
    _require_image(where, given)
    shape = layer.arrays["weight"].shape
    if len(shape) != 4:
        raise ModelError(f"weights of shape {shape}; expected (O, I, H, W)", where=where)
    outputs, inputs, *kernel = (int(side) for side in shape)
    if min(op.groups, *op.stride, *op.dilation) < 1 or min(op.padding) < 0:
        raise ModelError(f"no convolution: {op}", where=where)
    if min(shape) < 1:
        raise ModelError(f"weights of shape {shape} hold nothing", where=where)
    _check_padded(where, given, op.padding)
    if inputs * op.groups != given[0] or outputs % op.groups:
        raise ModelError(
            f"weights of shape {tuple(shape)} in {op.groups} groups do not fit {given[0]} channels",
            where=where,
        )
    _require_vector(layer, "bias", outputs)
    spatial = []
    for side, k, s, p, d in zip(given[1:], kernel, op.stride, op.padding, op.dilation, strict=True):
        spatial.append((side + 2 * p - d * (k - 1) - 1) // s + 1)
    if min(spatial) < 1:
        raise ModelError(f"a kernel of {kernel} does not fit an image of {given}", where=where)
    return (outputs, *spatial)


def _dense_shape(layer: Layer, given: Size) -> Size:
    where = f"layer {layer.name}"
    shape = layer.arrays["weight"].shape
    if len(shape) != 2 or min(shape) < 1 or len(given) != 1 or shape[1] != given[0]:
        raise ModelError(f"weights of shape {shape} do not fit an input of {given}", where=where)
    _require_vector(layer, "bias", int(shape[0]))
    return (int(shape[0]),)


def _same_shape(layer: Layer, given: Size) -> Size:
    if isinstance(layer.op, ops.Norm | ops.Scale):
        for name in ARRAYS[type(layer.op)][0]:
            _require_vector(layer, name, given[0])
    return given


def _require_vector(layer: Layer, name: str, length: int) -> None:
    if name in layer.arrays:
        found = layer.arrays[name].shape
        if found != (length,):
            raise ModelError(
                f"{name} has the shape {found}, expected ({length},)", where=f"layer {layer.name}"
            )


def _spatial(layer: Layer, given: Size, op: ops.Pool) -> Size:
    where = f"layer {layer.name}"
    _require_image(where, given)
    sides = []
    for side, k, s, p in zip(given[1:], op.kernel, op.stride, op.padding, strict=True):
        if k < 1 or s < 1 or not 0 <= 2 * p <= k:
            raise ModelError(f"no pool: kernel {k}, stride {s}, padding {p}", where=where)
        sides.append(windows(side, k, s, p, round_up=op.round_up))
    _check_padded(where, given, op.padding)
    if min(sides) < 1:
        raise ModelError(f"a window of {op.kernel} does not fit an image of {given}", where=where)
    return tuple(sides)


def _check_padded(where: str, given: Size, padding: Size) -> None:
    """Refuse zeros around an image that are more than any network's numbers."""
    channels, *sides = given
    padded = (channels, *(side + 2 * p for side, p in zip(sides, padding, strict=True)))
    if prod(padded) > _MOST:
        raise ModelError(f"pads an image to {_list([padded])} numbers", where=where)


def _require_image(where: str, given: Size) -> None:
    if len(given) != 3:
        raise ModelError(f"takes an image, found the shape {given}", where=where)


def _list(shapes: list[Size]) -> str:
    return ", ".join(" x ".join(map(str, shape)) for shape in shapes)
