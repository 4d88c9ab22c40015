# SPDX-License-Identifier: Apache-2.0
"""The C program behind `hw.tokens`: its structures, built once per machine and loaded."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
from functools import cache
from importlib import resources
from pathlib import Path

from bitwright.errors import ToolError
from bitwright.files import cache_dir
from bitwright.tools import output_of, require

_SOURCE = "tokens.c"
_FLAGS = ("-std=gnu11", "-O2", "-shared", "-fPIC")
_TIMEOUT_S = 120
_HINT = "`bitwright doctor` says how to install a C compiler"

STEPS, WINDOW, SOURCE, SINK = range(4)
MAKES = 0x80


def _fields(names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_int64) for name in names.split()]


class CQueue(ctypes.Structure):
    """A stream between two machines: an output register or a FIFO."""

    _fields_ = _fields("capacity count fresh pushed popped delay high total")


class CBlock(ctypes.Structure):
    """One machine: what it is, and its state."""

    _fields_ = [
        *_fields("kind inputs outputs"),
        ("in_", ctypes.c_int64 * 2),
        ("out", ctypes.c_int64 * 2),
        *_fields("latency steps"),
        ("flags", ctypes.c_void_p),
        *_fields("words span pixel_out rows_out columns_out pixel_drop row_drop last_drop"),
        *_fields("step done active"),
        ("pipe", ctypes.c_uint64),
        *_fields("used ready dropped column row"),
    ]


@cache
def library() -> ctypes.CDLL:
    """The loaded program.

    Raises:
        ToolError: there is no C compiler, it fails, or its result cannot be loaded.
    """
    compiler = require("cc").command[0]
    source = (resources.files("bitwright.hw") / "native" / _SOURCE).read_bytes()
    version = output_of([compiler, "--version"], name="cc", timeout=_TIMEOUT_S, hint=_HINT)
    digest = hashlib.sha256(source + version.encode() + " ".join(_FLAGS).encode()).hexdigest()
    try:
        target = cache_dir("tokens") / f"bw-tokens-{digest[:24]}.so"
        if not target.exists():
            _build(compiler, source, target)
        handle = ctypes.CDLL(str(target))
    except OSError as error:
        raise ToolError(
            f"the simulation of beats cannot be built or loaded: {error}",
            where="tokens",
            hint="set BITWRIGHT_CACHE to a writable folder",
        ) from error
    pointer = ctypes.POINTER(ctypes.c_int64)
    handle.bw_tokens.argtypes = [
        ctypes.POINTER(CBlock), ctypes.c_int64, ctypes.POINTER(CQueue), ctypes.c_int64,
        ctypes.c_int64, ctypes.c_int64, pointer, pointer,
    ]  # fmt: skip
    handle.bw_tokens_size.restype = ctypes.c_int64
    sizes = [int(handle.bw_tokens_size(which)) for which in (0, 1)]
    if sizes != [ctypes.sizeof(CBlock), ctypes.sizeof(CQueue)]:
        raise ToolError(f"{target.name} has other structures: {sizes}", where="tokens")
    return handle


def _build(compiler: str, source: bytes, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as name:
        text, built = Path(name, _SOURCE), Path(name, target.name)
        text.write_bytes(source)
        command = [compiler, *_FLAGS, str(text), "-o", str(built)]
        output_of(command, name="cc", timeout=_TIMEOUT_S, hint=_HINT)
        built.replace(target)
