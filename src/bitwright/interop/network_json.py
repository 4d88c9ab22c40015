# SPDX-License-Identifier: Apache-2.0
"""The layers of a `Network` as plain JSON, without the numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from typing import Any, get_args

from pydantic import TypeAdapter

from bitwright.base.errors import DataError
from bitwright.interop.network import InputConvention, Layer, Network
from bitwright.interop.ops import ARRAYS, FloatArray, Op

_OPS: Mapping[str, Any] = {op.__name__: op for op in get_args(Op)}
VERSION = 1


def network_to_json(network: Network) -> dict[str, Any]:
    """Everything but the numbers."""
    return {
        "version": VERSION,
        "name": network.name,
        "output": network.output,
        "input": network.convention.to_json(),
        "layers": [
            {
                "name": layer.name,
                "op": type(layer.op).__name__,
                "options": asdict(layer.op),
                "inputs": list(layer.inputs),
                "arrays": list(layer.arrays),
                "notes": dict(layer.notes),
            }
            for layer in network.layers
        ],
    }


def network_from_json(
    fields: Mapping[str, Any], arrays: Mapping[str, FloatArray], where: str
) -> Network:
    """The network of `network_to_json` with numbers by ``LAYER/ARRAY``.

    Raises:
        DataError: it is broken, of another version, or a number is missing.
        ModelError: its layers do not fit together.
    """
    if fields.get("version") != VERSION:
        raise DataError(f"version {fields.get('version')!r} of the layers", where=where)
    try:
        layers = tuple(_layer(layer, arrays, where) for layer in fields["layers"])
        return Network(
            str(fields["name"]), layers, str(fields["output"]), convention_of(fields["input"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"the description of the layers is broken: {type(error).__name__} {error}", where=where
        ) from error


def convention_of(fields: Mapping[str, Any]) -> InputConvention:
    """The input convention from JSON."""
    mean = tuple(float(value) for value in fields.get("mean", ()))
    return InputConvention(
        str(fields.get("channel_order", "")), float(fields.get("scale", 1.0)), mean
    )


def array_key(layer: str, array: str) -> str:
    """The name of one array of a layer in a file."""
    return f"{layer}/{array}"


def _layer(fields: Mapping[str, Any], arrays: Mapping[str, FloatArray], where: str) -> Layer:
    kind = _OPS[fields["op"]]
    options = {key: _tuples(value) for key, value in fields["options"].items()}
    own = {}
    for name in fields["arrays"]:
        key = array_key(fields["name"], name)
        if name not in ARRAYS.get(kind, ((), 0))[0] or key not in arrays:
            raise DataError(f"no numbers {key!r}", where=where)
        own[name] = arrays[key]
    op = _checked(kind).validate_python(options)
    return Layer(str(fields["name"]), op, tuple(fields["inputs"]), own, fields["notes"])


@cache
def _checked(kind: type[Op]) -> TypeAdapter[Op]:
    """A layer's kind whose fields are of the types that it says."""
    return TypeAdapter(kind)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(inner) for inner in value) if isinstance(value, list) else value
