# SPDX-License-Identifier: Apache-2.0
"""Keras' files -> `Network`, and the arrays of a file for a network that is known already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from bitwright.base.bounded import bounded_reader
from bitwright.base.errors import DataError
from bitwright.interop import ops
from bitwright.interop.keras.arrays import flat_orders, from_keras, keras_name, order_of
from bitwright.interop.keras.config import nodes_of
from bitwright.interop.keras.files import KerasFile, KerasLayer, read_keras
from bitwright.interop.keras.layers import build
from bitwright.interop.network import InputConvention, Layer, Network, located_in
from bitwright.interop.network_json import convention_of
from bitwright.interop.network_passes import merge_pads, prune
from bitwright.interop.ops import FloatArray

_KINDS = {ops.Conv: "conv", ops.Dense: "dense", ops.Norm: "norm"}


@bounded_reader
def load_keras(path: Path, *, output: str | None = None) -> Network:
    """The network of a whole-model file (HDF5 with ``model_config``, or ``.keras``).

    Raises:
        DataError: the file is damaged, foreign, or holds weights only.
        ModelError: a layer is of a kind that is not supported.
    """
    file = read_keras(path)
    if file.config is None:
        raise DataError(
            "holds weights only, not the model",
            where=str(path),
            hint="name the model that they belong to (--model), or save with model.save",
        )
    with located_in(path):
        nodes, said = nodes_of(file.config)
        network = build(nodes, file, output or said)
        tidy = merge_pads(prune(network, network.output))
        return replace(tidy, convention=_convention(file))


def _convention(file: KerasFile) -> InputConvention:
    try:
        return convention_of(file.convention)
    except (TypeError, ValueError) as error:
        raise DataError(f"has a broken input convention: {error}", where=str(file.path)) from error


def arrays_for(network: Network, path: Path) -> Network:
    """The network with the numbers of a Keras file, weights only or whole.

    Layers are matched by name if the names of all layers with weights are equal; else one after the
    other among those of one kind (convolution, dense, batch norm), in the order of the file, which
    is the order in which Keras made them. Every shape is checked.

    Raises:
        DataError: the file is damaged, or of another network.
    """
    file = read_keras(path)
    orders = flat_orders(network)
    arrays: dict[str, Mapping[str, FloatArray]] = {}
    for layer, found in _matched(network, file):
        arrays[layer.name] = from_keras(layer, found.arrays, order_of(layer, orders), str(path))
    return network.with_arrays(arrays)


def _matched(network: Network, file: KerasFile) -> list[tuple[Layer, KerasLayer]]:
    wanted = [layer for layer in network.layers if layer.arrays]
    named = {keras_name(name): layer for name, layer in file.by_name.items()}
    if len(named) == len(wanted) and {keras_name(layer.name) for layer in wanted} == set(named):
        return [(layer, named[keras_name(layer.name)]) for layer in wanted]
    pairs: list[tuple[Layer, KerasLayer]] = []
    for op, kind in _KINDS.items():
        own = [layer for layer in wanted if isinstance(layer.op, op)]
        found = [layer for layer in file.layers if layer.kind == kind]
        if len(own) != len(found):
            raise DataError(
                f"has {len(found)} {kind} layers, the model has {len(own)}",
                where=str(file.path),
                hint="the file is of another network",
            )
        pairs += zip(own, found, strict=True)
    strange = [layer.name for layer in file.layers if not layer.kind]
    if strange:
        raise DataError(f"layer {strange[0]!r} is of no known kind", where=str(file.path))
    return pairs
