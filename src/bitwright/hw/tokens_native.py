# SPDX-License-Identifier: Apache-2.0
"""The C program behind `hw.tokens`: its structures, built once per machine and loaded."""

from __future__ import annotations

import ctypes

from bitwright.base.native import INT, INT64, POINTER, Program

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


TOKENS = Program(
    name="tokens",
    package="bitwright.hw",
    sources=("tokens.c",),
    functions={"bw_tokens": (INT, POINTER, INT64, POINTER, INT64, INT64, INT64, POINTER, POINTER)},
    values={
        "bw_tokens_block_size": ctypes.sizeof(CBlock),
        "bw_tokens_queue_size": ctypes.sizeof(CQueue),
    },
)
