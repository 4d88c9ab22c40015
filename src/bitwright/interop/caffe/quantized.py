# SPDX-License-Identifier: Apache-2.0
"""The formats that Ristretto's layers name -> a policy, and a network with places for all of them.

A ``ConvolutionRistretto`` or ``FcRistretto`` rounds its input, its weights and biases, and its
output; everything between such layers is float. Here as there:

* dynamic fixed point of B bits and fraction length F is ``intB`` with the constant scale 2^-F;
* a minifloat of E and M bits is ``eEmM<finite,flush>``: IEEE's bias, no special codes, no
  denormals (the public simulation also knows +-2^-bias, whose code is that of zero);
* weights as powers of two, 2^exp_min .. 2^exp_max without zero, are ``po2_N`` with scale 2^exp_min;
  biases beside them are as fine as the accumulator.

The output's rounding moves behind a ReLU that alone reads it (they commute). Where a layer reads
values that are not on its own grid, and no activation in front can give them that grid, a `Clip` to
the grid's range is put in front, and its output is rounded. Ties are rounded to even.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.errors import DataError, FormatError, ModelError
from bitwright.formats import Format, parse_format
from bitwright.interop import ops
from bitwright.interop.caffe.files import QUANTIZATION, prototxt_of, read_prototxt
from bitwright.interop.caffe.quantization_param import (
    Precision,
    QuantizationParam,
    RoundingScheme,
)
from bitwright.interop.caffe.write import RISTRETTO, set_quantization
from bitwright.interop.network import Layer, Network
from bitwright.interop.network_to_torch import module_path, module_paths


@dataclass(frozen=True)
class Grid:
    """The values that a quantizer gives: a format times a constant scale."""

    format: Format
    scale: float

    @property
    def rule(self) -> dict[str, Any]:
        """The fields of a policy's rule."""
        fields: dict[str, Any] = {"format": self.format.name, "scale": "const", "value": self.scale}
        return fields | {"granularity": "per_tensor", "narrow": False}

    @property
    def clip(self) -> ops.Clip:
        unit = self.scale * self.format.lsb
        return ops.Clip(self.format.min_level * unit, self.format.max_level * unit)


@dataclass(frozen=True)
class _Grids:
    """Of one layer; ``bias`` None: as fine as the accumulator."""

    input: Grid
    weight: Grid
    bias: Grid | None
    output: Grid


def is_quantized(network: Network) -> bool:
    """Whether any layer names formats."""
    return any(QUANTIZATION in layer.notes for layer in network.layers)


def quantized(network: Network) -> tuple[Network, dict[str, Any]]:
    """The network with a place for every quantizer, and its policy as a recipe's ``quant`` section.

    Raises:
        DataError: a ``quantization_param`` is none.
        ModelError: what it says has no counterpart: stochastic rounding, a format or a window of
            exponents that does not exist, one tensor in two formats, a bias finer than the
            accumulator.
    """
    work = _Work(network)
    for layer in network.layers:
        work.add(layer)
    made = replace(network, layers=tuple(work.layers), output=work.now[network.output])
    return made, _policy(made, work)


def _policy(network: Network, work: _Work) -> dict[str, Any]:
    paths = module_paths(network)
    rules = []
    for name, grid in work.placed.items():
        rules.append({"layers": paths[name], "role": "activation", **grid.rule})
    for name, grids in work.grids.items():
        rules.append({"layers": paths[name], "role": "weight", **grids.weight.rule})
        if grids.bias is not None and "bias" in network[name].arrays:
            rules.append({"layers": paths[name], "role": "bias", **grids.bias.rule})
    given = "float" if work.image is None else work.image.rule
    return {"input": given, "weight": "float", "activation": "float", "rules": rules}


class _Work:
    """Layers so far.

    Attributes:
        layers: with the clips that were put in.
        now: the layer that carries the value of a layer of the file.
        carried: on which grid a value lies, if on any.
        placed: grids of activations and clips; ``image``: of the input.
    """

    def __init__(self, network: Network) -> None:
        self.network = network
        self.grids = {
            layer.name: _grids(layer) for layer in network.layers if QUANTIZATION in layer.notes
        }
        self.layers: list[Layer] = []
        self.now: dict[str, str] = {}
        self.carried: dict[str, Grid | None] = {}
        self.placed: dict[str, Grid] = {}
        self.image: Grid | None = None
        self.clips: dict[tuple[str, Grid], str] = {}

    def add(self, layer: Layer) -> None:
        """Append a layer of the file, and the clips that it needs."""
        grids = self.grids.get(layer.name)
        inputs = [self.now[name] for name in layer.inputs]
        if grids is not None:
            _check_bias(layer, grids)
            inputs = [self._on_grid(inputs[0], grids.input, f"{layer.name}/in")]
        self.layers.append(replace(layer, inputs=tuple(inputs)))
        self.now[layer.name] = layer.name
        self.carried[layer.name] = self._grid_of(layer, inputs)
        if grids is None:
            return
        if self._relu_behind(layer.name):
            self.carried[layer.name] = grids.output
        else:
            self.now[layer.name] = self._clip(layer.name, grids.output, f"{layer.name}/out")

    def _grid_of(self, layer: Layer, inputs: list[str]) -> Grid | None:
        """The grid of an output; activations and the image get that of what reads them."""
        if isinstance(layer.op, ops.Input):
            self.image = self._wanted(layer.name)
            return self.image
        grid = self.carried[inputs[0]]
        if _passes(layer):
            return grid
        if isinstance(layer.op, ops.Activation):
            kept = grid if _is_relu(layer) else None
            found = kept or self._wanted(layer.name)
            if found is not None:
                self.placed[layer.name] = found
            return found
        same = all(self.carried[name] == grid for name in inputs)
        return grid if type(layer.op).__name__ == "Concat" and same else None

    def _wanted(self, name: str) -> Grid | None:
        """The one grid that everything wants which reads a value, straight or through pools."""
        wanted = {
            None if reader.name not in self.grids else self.grids[reader.name].input
            for reader in self._readers(name)
        }
        if name == self.network.output or None in wanted:
            wanted.discard(None)
            if not wanted:
                return None
            raise self._two(name, "float values, too")
        if len(wanted) > 1:
            raise self._two(name, "different formats")
        return wanted.pop() if wanted else None

    def _two(self, name: str, what: str) -> ModelError:
        return ModelError(
            f"is read by layers that expect {what}",
            where=f"layer {name}",
            hint="give the layers that read one tensor one bw_layer_in and fl_layer_in",
        )

    def _readers(self, name: str) -> list[Layer]:
        found = []
        waiting = [*reversed(self.network.readers(name))]
        while waiting:
            reader = waiting.pop()
            if _passes(reader):
                waiting += reversed(self.network.readers(reader.name))
            else:
                found.append(reader)
        return found

    def _relu_behind(self, name: str) -> bool:
        """Whether a ReLU alone reads a value, behind pools at most."""
        while name != self.network.output:
            readers = self.network.readers(name)
            if len(readers) != 1:
                return False
            if _is_relu(readers[0]):
                return True
            if not _passes(readers[0]) or isinstance(readers[0].op, ops.Pad):
                return False
            name = readers[0].name
        return False

    def _on_grid(self, name: str, grid: Grid, clip: str) -> str:
        return name if self.carried[name] == grid else self._clip(name, grid, clip)

    def _clip(self, name: str, grid: Grid, clip: str) -> str:
        if (name, grid) not in self.clips:
            self.layers.append(Layer(clip, grid.clip, (name,)))
            self.carried[clip] = self.placed[clip] = grid
            self.clips[name, grid] = clip
        return self.clips[name, grid]


def _is_relu(layer: Layer) -> bool:
    return layer.op == ops.Activation("relu")


def _passes(layer: Layer) -> bool:
    """Whether every value behind a layer is one of those in front of it, or zero."""
    pooled = isinstance(layer.op, ops.Pool | ops.GlobalPool) and layer.op.mode == "max"
    return pooled or isinstance(layer.op, ops.Flatten | ops.Dropout | ops.Pad)


def _grids(layer: Layer) -> _Grids:
    where = f"layer {layer.name}"
    if not isinstance(layer.op, ops.Conv | ops.Dense):
        raise ModelError("only convolutions and dense layers have formats", where=where)
    param = QuantizationParam.from_dict(layer.notes[QUANTIZATION], where)
    if param.rounding_scheme is RoundingScheme.STOCHASTIC:
        raise ModelError(
            "rounds stochastically: its values are not the same from run to run",
            where=where,
            hint="write rounding_scheme: NEAREST",
        )
    try:
        return _formats(param)
    except FormatError as error:
        raise ModelError(error.message, where=where, hint=error.hint) from error


def _formats(param: QuantizationParam) -> _Grids:
    if param.precision is Precision.MINIFLOAT:
        name = f"e{param.exp_bits}m{param.mant_bits}<finite,flush>"
        grid = Grid(parse_format(name), 1.0)
        return _Grids(grid, grid, grid, grid)
    source = _fixed_point(param.bw_layer_in, param.fl_layer_in)
    target = _fixed_point(param.bw_layer_out, param.fl_layer_out)
    if param.precision is Precision.DYNAMIC_FIXED_POINT:
        weight = _fixed_point(param.bw_params, param.fl_params)
        return _Grids(source, weight, weight, target)
    powers = param.exp_max - param.exp_min + 1
    bits = powers.bit_length()
    if powers != 1 << (bits - 1):
        raise FormatError(
            f"a window of {powers} exponents ({param.exp_min} to {param.exp_max}) fills no code",
            hint="a format has 2, 4, 8, 16 or 32 of them",
        )
    return _Grids(source, Grid(parse_format(f"po2_{bits}"), 2.0**param.exp_min), None, target)


def _fixed_point(bits: int, fraction: int) -> Grid:
    return Grid(parse_format(f"int{bits}"), 2.0**-fraction)


def _check_bias(layer: Layer, grids: _Grids) -> None:
    """A quantized bias has to be a whole number of the accumulator's steps."""
    if grids.bias is None or "bias" not in layer.arrays:
        return
    levels = grids.bias.format.decode(
        grids.bias.format.encode(layer.arrays["bias"], grids.bias.scale)
    )
    steps = levels / (grids.input.scale * grids.input.format.lsb * grids.weight.format.lsb)
    if (np.rint(steps) != steps).any():
        raise ModelError(
            "has a bias that is finer than the steps of its accumulator: fl_layer_in is below zero",
            where=f"layer {layer.name}",
            hint="choose formats with fl_layer_in of 0 or more, or a network without this bias",
        )


def quantized_prototxt(source: Path, params: Mapping[str, QuantizationParam]) -> str:
    """The text of a prototxt in which some layers are quantized; all else is as it was.

    Args:
        params: by the names of layers, or by the paths that the reader of the network made of them.

    Raises:
        DataError: the file is damaged, or has no such convolution or dense layer.
    """
    net, facts = read_prototxt(source)
    products = (*RISTRETTO, *RISTRETTO.values())
    found = {module_path(layer.name): layer for layer in net.layer if layer.type in products}
    for path, param in params.items():
        layer = found.get(module_path(path))
        if layer is None:
            raise DataError(
                f"has no Convolution or InnerProduct layer {path!r}",
                where=str(source),
                hint=f"it has: {', '.join(layer.name for layer in found.values()) or 'none'}",
            )
        set_quantization(layer, param.to_dict())
    return prototxt_of(net, facts)
