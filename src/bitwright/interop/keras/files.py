# SPDX-License-Identifier: Apache-2.0
"""The arrays and the configuration in Keras' files.

Three layouts are understood: HDF5 of Keras 2 and 3 with ``layer_names`` and ``weight_names``
(weights alone or the whole model with its ``model_config``), Keras 3's ``.weights.h5`` (numbered
variables in groups that are named after the class), and the ``.keras`` archive of both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bitwright.base.archives import opened_zip, read_member
from bitwright.base.errors import DataError
from bitwright.base.files import parse_json
from bitwright.base.regular import open_regular
from bitwright.interop.hdf5 import Hdf5, read_hdf5
from bitwright.interop.network import require_finite
from bitwright.interop.ops import FloatArray

#: Attribute of the root under which the input convention stands; Keras ignores it.
CONVENTION = "bitwright_input"
_HDF5 = b"\x89HDF\r\n\x1a\n"
_ZIP = b"PK\x03\x04"
_MOST_CONFIG = 16 << 20
_ROLES = (
    "depthwise_kernel", "kernel", "bias", "gamma", "beta", "moving_mean", "moving_variance",
)  # fmt: skip
_NUMBERED = ("/layers", "/_layer_checkpoint_dependencies")
_NORM = ("gamma", "beta", "moving_mean", "moving_variance")


@dataclass(frozen=True, eq=False)
class KerasNode:
    """One layer of a configuration: its class, options, weights, and the layers that it reads."""

    name: str
    kind: str
    config: Mapping[str, Any]
    inputs: tuple[str, ...]
    arrays: Mapping[str, FloatArray] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class KerasLayer:
    """One layer with weights, as the file has it; ``kind`` is conv, dense, norm or empty."""

    name: str
    arrays: Mapping[str, FloatArray]

    @property
    def kind(self) -> str:
        if "moving_mean" in self.arrays:
            return "norm"
        kernel = self.arrays.get("kernel", self.arrays.get("depthwise_kernel"))
        return {4: "conv", 2: "dense"}.get(getattr(kernel, "ndim", 0), "")


@dataclass(frozen=True, eq=False)
class KerasFile:
    """What a file holds.

    Attributes:
        layers: those with weights, in the file's order.
        config: ``model_config``; None where the file has weights only.
        convention: what Bitwright says about the input; empty in files of other origin.
    """

    path: Path
    layers: tuple[KerasLayer, ...]
    config: Mapping[str, Any] | None = None
    convention: Mapping[str, Any] = field(default_factory=dict)
    by_name: Mapping[str, KerasLayer] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", {layer.name: layer for layer in self.layers})


def read_keras(path: Path) -> KerasFile:
    """Read a Keras file of any layout.

    Raises:
        DataError: the file is missing, damaged, cut short, of another kind, or holds numbers that
            are not finite.
    """
    try:
        with open_regular(path) as file:
            start = file.read(8)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(path)) from error
    if start.startswith(_ZIP):
        found = _archive(path)
    elif start == _HDF5:
        found = _hdf5(path, path, None)
    else:
        raise DataError(
            "is neither HDF5 nor a .keras archive",
            where=str(path),
            hint="save the model in Keras with model.save('NAME.h5') or save_weights",
        )
    for layer in found.layers:
        for role, values in layer.arrays.items():
            name = "variance" if role == "moving_variance" else role
            require_finite(layer.name, name, values, str(path))
    return found


def _archive(path: Path) -> KerasFile:
    where = str(path)
    with opened_zip(path, ".keras archive", "copy it again") as archive:
        config = _json(read_member(archive, "config.json", where, _MOST_CONFIG), where)
        weights = read_member(archive, "model.weights.h5", where)
    return _hdf5(path, weights, config)


def _json(content: str | bytes, where: str) -> Mapping[str, Any]:
    try:
        config = parse_json(content)
    except ValueError as error:
        raise DataError(f"has a configuration that is no JSON: {error}", where=where) from error
    if not isinstance(config, dict):
        raise DataError("has a configuration that is no object", where=where)
    return config


def _hdf5(path: Path, content: Path | bytes, config: Mapping[str, Any] | None) -> KerasFile:
    file, where = read_hdf5(content, str(path)), str(path)
    said = file.attributes["/"].get("model_config")
    if config is None and said is not None:
        config = _json(said, where)
    root = "/model_weights" if "/model_weights" in file.attributes else "/"
    try:
        if "layer_names" in file.attributes[root]:
            layers = _named(file, root, where)
        elif any(place in file.attributes for place in _NUMBERED):
            layers = _numbered(file, where)
        else:
            raise DataError(
                "is an HDF5 file, but none of Keras: it has neither layer_names nor layers",
                where=where,
                hint="save the model in Keras with model.save('NAME.h5') or save_weights",
            )
    except (KeyError, ValueError) as error:
        raise DataError(f"is no whole file of Keras: {error}", where=where) from error
    if not layers:
        raise DataError("holds no weights", where=where)
    noted = file.attributes["/"].get(CONVENTION)
    return KerasFile(path, tuple(layers), config, {} if noted is None else _json(noted, where))


def _named(file: Hdf5, root: str, where: str) -> list[KerasLayer]:
    """Keras 2 and the HDF5 files of Keras 3: every layer lists the names of its weights."""
    layers = []
    names = file.list_of(root, "layer_names")
    if len({*names}) != len(names):
        raise DataError("lists a layer twice in layer_names", where=where)
    for layer_name in names:
        place = f"{root.rstrip('/')}/{layer_name}"
        if place not in file.attributes:
            raise DataError(f"lists the layer {layer_name!r} and does not hold it", where=where)
        arrays: dict[str, FloatArray] = {}
        for name in file.list_of(place, "weight_names"):
            if f"{place}/{name}" not in file.arrays:
                raise DataError(f"lists the weight {name!r} and does not hold it", where=where)
            role = _role(name)
            if role is None or role in arrays:
                raise DataError(
                    f"layer {layer_name!r} has a weight {name!r}",
                    where=where,
                    hint="understood are convolutions, dense layers and batch norms; a model "
                    "inside a model has to be taken apart first",
                )
            arrays[role] = file.arrays[f"{place}/{name}"]
        if arrays:
            layers.append(KerasLayer(layer_name, arrays))
    return layers


def _role(name: str) -> str | None:
    """``conv1/kernel:0`` is a kernel."""
    last = name.rpartition("/")[2].partition(":")[0]
    return last if last in _ROLES else None


def _numbered(file: Hdf5, where: str) -> list[KerasLayer]:
    """Keras 3: ``layers/conv2d_1/vars/0``; the attribute ``name`` is the layer's own name."""
    root = next(place for place in _NUMBERED if place in file.attributes)
    layers = []
    for key in sorted(file.children(root), key=_natural):
        place = f"{root}/{key}/vars"
        if place not in file.attributes:
            raise DataError(f"{key!r} holds no vars", where=where)
        if file.children(f"{root}/{key}/layers"):
            raise DataError(f"{key!r} holds a model inside the model", where=where)
        numbers = sorted(file.children(place), key=int)
        values = [file.arrays[f"{place}/{number}"] for number in numbers]
        if values:
            name = str(file.attributes[place].get("name", key))
            layers.append(KerasLayer(name, _roles(key, values, where)))
    return layers


def _natural(name: str) -> tuple[str, int]:
    """conv2d, conv2d_1, ..., conv2d_10: in this order."""
    match = re.fullmatch(r"(.*?)(?:_(\d+))?", name, re.DOTALL)
    assert match is not None
    return match[1], int(match[2] or 0)


def _roles(key: str, values: list[FloatArray], where: str) -> dict[str, FloatArray]:
    if _natural(key)[0] == "batch_normalization":
        if len(values) == len(_NORM):
            return dict(zip(_NORM, values, strict=True))
        if len(values) == 2:
            return dict(zip(_NORM[2:], values, strict=True))
    elif len(values) in (1, 2) and values[0].ndim in (2, 4):
        return dict(zip(("kernel", "bias"), values, strict=False))
    shapes = [v.shape for v in values]
    raise DataError(
        f"{key!r} holds variables of shapes {shapes}",
        where=where,
        hint="understood are convolutions, dense layers and batch norms",
    )
