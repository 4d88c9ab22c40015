# SPDX-License-Identifier: Apache-2.0
"""C programs of our own: compiled once per machine with the system's compiler, cached, loaded."""

from __future__ import annotations

from bitwright.base.native.compiler import (
    DOUBLE,
    FLAG_SETS,
    INT,
    INT64,
    POINTER,
    UINT64,
    Loaded,
    Program,
    find_compiler,
)

__all__ = [
    "DOUBLE",
    "FLAG_SETS",
    "INT",
    "INT64",
    "POINTER",
    "UINT64",
    "Loaded",
    "Program",
    "find_compiler",
]
