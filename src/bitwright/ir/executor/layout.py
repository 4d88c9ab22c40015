# SPDX-License-Identifier: Apache-2.0
"""The structures of ``native/plan.h``, field by field."""

from __future__ import annotations

from ctypes import POINTER, Structure, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import Any

from bitwright.base.errors import GraphError
from bitwright.ir.types import TensorType

PAD_ROWS = 128


class Kind(IntEnum):
    """How a tensor is stored; see the head of ``plan.h``."""

    U8 = 0
    I16 = 1
    I32 = 2
    I64 = 3

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return (1, 2, 4, 8)[self]


class Op(IntEnum):
    """What a step of a plan does."""

    INPUT = 0
    OUTPUT = 1
    PACK_U8 = 2
    PACK_I16 = 3
    PACK_BITS = 4
    PACK_INDEX = 5
    PATCHES = 6
    DOT8 = 7
    DOT16 = 8
    XNOR = 9
    LUT = 10
    DEPTHWISE = 11
    WIDE = 12
    POOL = 13
    THRESHOLD = 14
    REQUANT = 15
    TOP_K = 16
    MOVE = 17
    ADD = 18
    SUM_POOL = 19
    LOOKUP = 20


class Epilogue(IntEnum):
    """What happens to accumulators inside the step that makes them."""

    RAW = 0
    THRESHOLD = 1
    REQUANT = 2


class Feature(IntEnum):
    """Bits of ``bw_features``."""

    AVX2 = 1
    VNNI = 2
    VPOPCNT = 4
    THREADS = 8
    VNNI512 = 16


class CTensor(Structure):
    """``bw_tensor``."""

    _fields_ = (
        ("offset", c_int64),
        ("pitch", c_int64),
        ("kind", c_int32),
        ("zero", c_int32),
        ("h", c_int32),
        ("w", c_int32),
        ("c", c_int32),
        ("pixel", c_int32),
    )


_NUMBERS_1 = ("op", "port", "narrow", "wraps", "epilogue", "significant")
_NUMBERS_2 = (
    "kh", "kw", "sh", "sw", "dh", "dw", "pt", "pl",
    "groups", "rows", "panels", "group_bytes", "pieces", "pack", "radix", "fill",
)  # fmt: skip
_POINTERS = (
    "piece_offset", "piece_length", "piece_flush", "weight", "start", "table",
    "threshold", "base", "step", "multiplier", "addend",
)  # fmt: skip


class COp(Structure):
    """``bw_op``."""

    _fields_ = (
        *((name, c_int32) for name in _NUMBERS_1),
        ("input", CTensor),
        ("output", CTensor),
        ("other", CTensor),
        ("times", c_int64 * 2),
        *((name, c_int32) for name in _NUMBERS_2),
        ("panel_bytes", c_int64),
        ("lo", c_int64),
        ("hi", c_int64),
        ("smallest", c_int64),
        ("bipolar", c_int32),
        ("steps", c_int32),
        ("shift", c_int32),
        ("rounding", c_int32),
        ("padded", c_int64),
        *((name, c_void_p) for name in _POINTERS),
    )

    def __setattr__(self, name: str, value: Any) -> None:
        """Numbers are those of the plan: ctypes would keep the low bits of larger ones."""
        if name in _OF_32_BITS and not -(1 << 31) <= value < 1 << 31:
            raise GraphError(f"{name} = {value} is no number of 32 bits", where="executor's plan")
        super().__setattr__(name, value)


_OF_32_BITS = frozenset(field[0] for field in COp._fields_ if field[1] is c_int32)


class CPlan(Structure):
    """``bw_plan``."""

    _fields_ = (
        ("ops", POINTER(COp)),
        ("arena", c_int64),
        ("work", c_int64),
        ("n_ops", c_int32),
        ("tile", c_int32),
    )


class CFeed(Structure):
    """``bw_feed``."""

    _fields_ = (("data", c_void_p), ("kind", c_int32))


def storage(tensor: TensorType) -> tuple[Kind, int]:
    """How the levels of a type are stored: the kind, and the zero with ``code = level - zero``."""
    low, high = min(tensor.lo, 0), max(tensor.hi, 0)
    if high - low <= 255:
        return Kind.U8, low
    if -(1 << 31) <= low and high < 1 << 31:
        return Kind.I32, 0
    return Kind.I64, 0
