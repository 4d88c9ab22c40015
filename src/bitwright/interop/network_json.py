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
    if not isinstance(fields, Mapping) or fields.get("version") != VERSION:
        found = fields.get("version") if isinstance(fields, Mapping) else fields
        raise DataError(
            f"'layers' must be the layers of a network in version {VERSION}, found {found!r}"[:200],
            where=where,
            hint="the file is damaged, or of another version",
        )
    place = "layers"
    try:
        layers = []
        for number, layer in enumerate(fields["layers"]):
            place = f"layers.layers.{number}"
            layers.append(_layer(layer, arrays, where))
        place = "layers"
        return Network(
            str(fields["name"]),
            tuple(layers),
            str(fields["output"]),
            convention_of(fields["input"]),
        )
    except BROKEN as error:
        raise DataError(
            f"{place!r}, the description of the layers, is broken: {type(error).__name__} {error}",
            where=where,
        ) from error


#: What fields of a file raise that are of another kind than they should be.
BROKEN = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


def convention_of(fields: Any) -> InputConvention:
    """The input convention from JSON.

    Raises:
        ValueError: it is none; names the field.
    """
    if not isinstance(fields, Mapping):
        raise ValueError(f"'input' must be an object, found {fields!r}"[:200])
    scale, mean = fields.get("scale", 1.0), fields.get("mean", ())
    try:
        numbers = [float(value) for value in (scale, *mean)]
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"'input.scale' and 'input.mean' must be numbers: {error}") from error
    return InputConvention(str(fields.get("channel_order", "")), numbers[0], tuple(numbers[1:]))


#: Of an image: 1 GiB of float32.
_MOST_NUMBERS = 1 << 28


def image_shape_of(sides: Any) -> tuple[int, int, int]:
    """(H, W, C) of an image from JSON.

    Raises:
        ValueError: it is none.
    """
    whole = isinstance(sides, list) and all(type(side) is int and side > 0 for side in sides)
    if not whole or len(sides) != 3:
        raise ValueError(f"'input_shape' must be three whole numbers, found {sides!r}"[:200])
    if sides[0] * sides[1] * sides[2] > _MOST_NUMBERS:
        raise ValueError(f"'input_shape' is larger than any image, found {sides!r}"[:200])
    return (sides[0], sides[1], sides[2])


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
    return Layer(str(fields["name"]), op, tuple(fields["inputs"]), own, dict(fields["notes"]))


@cache
def _checked(kind: type[Op]) -> TypeAdapter[Op]:
    """A layer's kind whose fields are of the types that it says."""
    return TypeAdapter(kind)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(inner) for inner in value) if isinstance(value, list) else value
