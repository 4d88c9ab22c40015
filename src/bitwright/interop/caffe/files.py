# SPDX-License-Identifier: Apache-2.0
"""Caffe's two files: the architecture as protobuf text, the numbers as protobuf binary."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from bitwright.base.bounded import bounded_reader
from bitwright.base.errors import DataError
from bitwright.base.files import atomic_write, read_bytes, read_text
from bitwright.interop.caffe.schema import net_class
from bitwright.interop.ops import FloatArray, Size
from bitwright.interop.protobuf import parsed

_MOST_TEXT = 8 << 20
_MOST_BINARY = (1 << 31) - 1  # protobuf's own limit
#: Numbers in one blob; a broken file may claim any size.
_MOST_NUMBERS = 1 << 29
#: Key of a layer's notes under which Ristretto's parameters stand.
QUANTIZATION = "quantization"
_BARE = re.compile(r"^# bitwright: (?P<key>\w+) = (?P<value>\S+)$", re.MULTILINE)


def parse_prototxt(text: str, where: str = "prototxt") -> Any:
    """A ``NetParameter`` from its text.

    Raises:
        DataError: it is no protobuf text (cut short, say), or has a field that Caffe's networks do
            not have; the message has line and column.
    """
    from google.protobuf import text_format  # type: ignore[import-untyped]

    net = net_class()()
    try:
        text_format.Parse(text, net)
    except text_format.ParseError as error:
        raise DataError(
            f"is no Caffe network: {error}",
            where=where,
            hint="the file is cut short, or no prototxt of Caffe 1.0 or Ristretto",
        ) from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"is no Caffe network: {error}", where=where) from error
    return net


@bounded_reader
def read_prototxt(path: Path) -> tuple[Any, dict[str, str]]:
    """The ``NetParameter`` of a file, and what Bitwright wrote in comments at its head.

    Raises:
        DataError: the file is missing, no text, too long, or no network.
    """
    hint = "the architecture is a short text, the .prototxt; the .caffemodel goes with --weights"
    text = read_text(path, hint=hint, most=_MOST_TEXT)
    net = parse_prototxt(text, str(path))
    _require_layers(net, path, "upgrade_net_proto_text", None)
    return net, {m["key"]: m["value"] for m in _BARE.finditer(text)}


@bounded_reader
def read_caffemodel(path: Path) -> Any:
    """The ``NetParameter`` of a binary file.

    Raises:
        DataError: the file is missing, cut short, or no network.
    """
    content = read_bytes(path, most=_MOST_BINARY)
    hint = "the file is cut short, or no caffemodel; copy it again"
    net = parsed(net_class(), content, str(path), broken="is no Caffe model", hint=hint)
    _require_layers(net, path, "upgrade_net_proto_binary", hint)
    return net


def _require_layers(net: Any, path: Path, tool: str, hint: str | None) -> None:
    if net.layers and not net.layer:
        upgrade = f"Caffe's {tool} brings old files to the present form"
        raise DataError("has layers of the old form (V1)", where=str(path), hint=upgrade)
    if not net.layer:
        raise DataError("has no layers", where=str(path), hint=hint)


def prototxt_of(net: Any, facts: dict[str, str]) -> str:
    """The text of a network without its numbers, with facts as comments at the head."""
    from google.protobuf import text_format

    bare = net_class()()
    bare.CopyFrom(net)
    for layer in bare.layer:
        del layer.blobs[:]
    head = "".join(f"# bitwright: {key} = {value}\n" for key, value in facts.items())
    return head + str(text_format.MessageToString(bare))


def write_caffe(net: Any, prototxt: Path, caffemodel: Path, facts: dict[str, str]) -> None:
    """Write both files, the numbers first: an architecture never stands without them."""
    atomic_write(caffemodel, net.SerializeToString(deterministic=True))
    atomic_write(prototxt, prototxt_of(net, facts))


def blob_array(blob: Any, where: str) -> FloatArray:
    """The numbers of a blob in its shape; old files say it as num, channels, height, width.

    Raises:
        DataError: there are more or fewer numbers than the shape says.
    """
    if blob.HasField("shape"):
        shape: Size = tuple(blob.shape.dim)
    else:
        shape = (blob.num, blob.channels, blob.height, blob.width)
    data: FloatArray
    if len(blob.double_data):
        data = np.array(blob.double_data, dtype=np.float64)
    else:
        data = np.array(blob.data, dtype=np.float32)
    size = 1
    for side in shape:
        size *= side
    if min(shape, default=1) < 0 or size > _MOST_NUMBERS or size != data.size:
        raise DataError(
            f"a blob of shape {' x '.join(map(str, shape))} holds {data.size} numbers",
            where=where,
            hint="the file is cut short or damaged",
        )
    return data.reshape(shape)


def fill_blob(blob: Any, values: FloatArray) -> None:
    """Put an array into a blob, bit for bit."""
    blob.shape.dim.extend(values.shape)
    if values.dtype == np.float64:
        blob.double_data.extend(values.ravel().tolist())
    else:
        blob.data.extend(values.ravel().tolist())
