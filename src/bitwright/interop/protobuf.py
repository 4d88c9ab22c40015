# SPDX-License-Identifier: Apache-2.0
"""Messages of protobuf in files of strangers (ONNX, Caffe).

An entry that says nothing takes two bytes of a file and 150 of memory, and none can be counted
before all are parsed. So a process of its own parses a large file first, in as much memory as one
with real tensors needs.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from bitwright.base.errors import DataError
from bitwright.base.tools.confined import run_confined

#: Bytes of a file that is parsed at once; of others, what parsing may take of memory and time.
_SMALL = 4 << 20
_SPARE, _EACH = 256 << 20, 6
_SECONDS, _A_SECOND = 20, 20 << 20


def parsed(kind: type[Any], body: bytes, where: str, *, broken: str, hint: str) -> Any:
    """The message of a file.

    Args:
        kind: class of the message.
        broken: what is said of a file that is none.

    Raises:
        DataError: it is none, or takes more memory than a file with tensors of its size.
    """
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    if len(body) > _SMALL and (wrong := _wrong(kind, body, where)) is not None:
        said = f"{broken}, or takes more memory than a file with tensors of its size: {wrong}"
        raise DataError(said, where=where, hint=hint)
    message = kind()
    try:
        message.ParseFromString(body)
    except (DecodeError, UnicodeDecodeError, RuntimeError) as error:
        raise DataError(f"{broken}: {error}", where=where, hint=hint) from error
    return message


def _wrong(kind: type[Any], body: bytes, where: str) -> str | None:
    """Why another process cannot parse it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "message").write_bytes(body)
        (folder / "schema").write_bytes(kind.DESCRIPTOR.file.serialized_pb)
        return run_confined(
            Path(__file__).with_name("protobuf_child.py"),
            [folder / "message", folder / "schema", kind.DESCRIPTOR.full_name],
            folder=folder, memory=_SPARE + _EACH * len(body),
            seconds=_SECONDS + len(body) // _A_SECOND, library="protobuf", where=where,
        )  # fmt: skip
