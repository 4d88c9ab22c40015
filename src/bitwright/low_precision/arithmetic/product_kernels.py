# SPDX-License-Identifier: Apache-2.0
"""The C program that multiplies integers: built once per machine, called with a described shape."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitwright.base.errors import ToolError
from bitwright.base.native import Program
from bitwright.base.native.thread_pool import POOL_HEADER, POOL_SOURCE, share_threads

_PROGRAM = Program(
    name="product",
    package="bitwright.low_precision.arithmetic",
    sources=(
        "product_tile.c", "product_sums.c", "product_correlate.c", "product_weight.c",
        "product_winograd.c", "norm.c", POOL_SOURCE,
    ),
    headers=("product.h", POOL_HEADER),
    libraries=("-lm",),
)  # fmt: skip
#: No contraction: both passes of a batch norm must find the same sign in front of a ReLU.
_FLAGS = ("-ffp-contract=off",)
_NUMBERS = (
    "images channels outputs height width out_height out_width kernel_height kernel_width "
    "left_bytes right_bytes limit split exponent threads transposed"
)
_POINTERS = (
    "row_start row_source row_tap row_length column_start column_source column_tap column_length "
    "row_slot column_slot"
)


class CShape(ctypes.Structure):
    """`Shape` of ``native/product.h``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _NUMBERS.split()),
        *((name, ctypes.c_void_p) for name in _POINTERS.split()),
        *((name, ctypes.c_int64) for name in ("row_offset", "column_offset")),
    ]


class CNorm(ctypes.Structure):
    """`Norm` of ``native/norm.c``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in "rows channels relu threads".split()),
        *((name, ctypes.c_double) for name in "eps momentum".split()),
        *(
            (name, ctypes.c_void_p)
            for name in (
                "x y weight bias out mean scale running_mean running_var grad_weight grad_bias"
            ).split()
        ),
    ]


@dataclass(frozen=True, eq=False)
class Meeting:
    """How positions along one axis meet those of the source; see ``native/product.h``.

    Attributes:
        start: int32, one more than positions: the entries of each.
        source: int32, for each entry the first of its neighbours in the source.
        tap: int32, what the first of them meets.
        length: int32, how many neighbours.
        slot: int32, where taps (or columns of the source) lie in packed memory.
    """

    start: np.ndarray[Any, Any]
    source: np.ndarray[Any, Any]
    tap: np.ndarray[Any, Any]
    length: np.ndarray[Any, Any]
    slot: np.ndarray[Any, Any]

    @classmethod
    def of(cls, pairs: list[list[tuple[int, int]]], slot: list[int], join: bool) -> Meeting:
        """From (source, tap) pairs of each position; ``join`` makes one of neighbours."""
        start, entries = [0], list[list[int]]()
        for found in pairs:
            begin = len(entries)
            for source, tap in sorted(found):
                last = entries[-1] if len(entries) > begin else None
                if join and last and (last[0] + last[2], last[1] + last[2]) == (source, tap):
                    last[2] += 1
                else:
                    entries.append([source, tap, 1])
            start.append(len(entries))
        columns = np.asarray(entries, dtype=np.int32).reshape(-1, 3).T
        first, meets, length = (np.ascontiguousarray(column) for column in columns)
        as_int = [np.asarray(values, dtype=np.int32) for values in (start, slot)]
        return cls(as_int[0], first, meets, length, as_int[1])

    def pointers(self, prefix: str) -> dict[str, int]:
        """Fields of `CShape`."""
        names = ("start", "source", "tap", "length", "slot")
        return {f"{prefix}_{name}": getattr(self, name).ctypes.data for name in names}


@lru_cache(maxsize=1)
def native_products() -> ctypes.CDLL | None:
    """The C program, or None where it cannot be built; tried once per process."""
    try:
        library = _PROGRAM.first(_load, _FLAGS)
    except ToolError:
        return None
    share_threads(library)
    return library


def multiply(
    name: str, left: Tensor, right: Tensor, out: Tensor, numbers: dict[str, int],
    rows: Meeting, columns: Meeting,
) -> None:  # fmt: skip
    """Run one of the kernels; tensors as its comment says, in memory of the CPU.

    Raises:
        MemoryError: no room for its buffers.
    """
    library = native_products()
    assert library is not None
    shape = CShape(
        **numbers,
        left_bytes=left.element_size(),
        right_bytes=right.element_size(),
        threads=torch.get_num_threads(),
        **rows.pointers("row"),
        **columns.pointers("column"),
    )
    kernel = getattr(library, name)
    if kernel(ctypes.byref(shape), left.data_ptr(), right.data_ptr(), out.data_ptr()):
        raise MemoryError(f"{name}: no room for its buffers")


def _load(path: Path) -> ctypes.CDLL:
    handle = _PROGRAM.open(path)
    sizes = {"bw_product_shape_size": CShape, "bw_norm_size": CNorm}
    kernels = {
        "bw_product_correlate": CShape, "bw_product_winograd": CShape,
        "bw_product_weight": CShape,
        "bw_norm_forward": CNorm, "bw_norm_backward": CNorm,
    }  # fmt: skip
    try:
        for name, structure in sizes.items():
            getattr(handle, name).restype = ctypes.c_int64
            if getattr(handle, name)() != ctypes.sizeof(structure):
                raise ToolError(f"{path.name} has other structures: {name}", where="product")
        for name, structure in kernels.items():
            kernel = getattr(handle, name)
            tensors = 3 if structure is CShape else 0
            kernel.argtypes = [ctypes.POINTER(structure), *[ctypes.c_void_p] * tensors]
            kernel.restype = ctypes.c_int64
        for name in ("bw_relu_forward", "bw_relu_backward"):
            kernel = getattr(handle, name)
            kernel.argtypes = [*[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64]
            kernel.restype = None
    except AttributeError as error:
        raise ToolError(f"cannot load {path.name}: {error}", where="product") from error
    return handle
