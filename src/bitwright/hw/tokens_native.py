# SPDX-License-Identifier: Apache-2.0
"""The C program behind `hw.tokens`: its structures, built once per machine and loaded."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from bitwright.base.errors import ToolError
from bitwright.base.native import Program
from bitwright.base.tools import require

_PROGRAM = Program("tokens", "bitwright.hw", ("tokens.c",))
_FLAGS = ("-O2",)

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
    return _PROGRAM.build(require("cc").command[0], _FLAGS, _load)


def _load(path: Path) -> ctypes.CDLL:
    handle = _PROGRAM.open(path)
    pointer = ctypes.POINTER(ctypes.c_int64)
    try:
        handle.bw_tokens.argtypes = [
            ctypes.POINTER(CBlock), ctypes.c_int64, ctypes.POINTER(CQueue), ctypes.c_int64,
            ctypes.c_int64, ctypes.c_int64, pointer, pointer,
        ]  # fmt: skip
        handle.bw_tokens_size.restype = ctypes.c_int64
    except AttributeError as error:
        raise ToolError(f"cannot load {path.name}: {error}", where="tokens") from error
    sizes = [int(handle.bw_tokens_size(which)) for which in (0, 1)]
    if sizes != [ctypes.sizeof(CBlock), ctypes.sizeof(CQueue)]:
        raise ToolError(f"{path.name} has other structures: {sizes}", where="tokens")
    return handle
