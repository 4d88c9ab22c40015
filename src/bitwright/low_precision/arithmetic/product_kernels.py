# SPDX-License-Identifier: Apache-2.0
"""The C program that multiplies integers: built once per machine, called with a described shape."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bitwright.base.native import INT64, POINTER, Program

#: Elements that are worth a thread of their own.
_WORTH_A_THREAD = 1 << 15
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


_PRODUCT = (INT64, *[POINTER] * 4)
_NORM = (INT64, POINTER)
_RELU = (None, *[POINTER] * 3, INT64, INT64)
PRODUCT = Program(
    name="product",
    package="bitwright.low_precision.arithmetic",
    sources=(
        "product_tile.c", "product_sums.c", "product_squares.c", "product_correlate.c",
        "product_weight.c", "product_winograd.c", "norm.c",
    ),
    headers=("product.h",),
    functions={
        "bw_product_correlate": _PRODUCT,
        "bw_product_winograd": _PRODUCT,
        "bw_product_weight": _PRODUCT,
        "bw_norm_forward": _NORM,
        "bw_norm_backward": _NORM,
        "bw_relu_forward": _RELU,
        "bw_relu_backward": _RELU,
        "bw_most_squares": (INT64, POINTER, *[INT64] * 4),
    },
    values={
        "bw_product_shape_size": ctypes.sizeof(CShape),
        "bw_norm_size": ctypes.sizeof(CNorm),
    },
    libraries=("-lm",),
    # No contraction: both passes of a batch norm must find the same sign in front of a ReLU.
    flags=("-ffp-contract=off",),
    threads=True,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class GatherIndices:
    """What each position along one axis gathers from the source; see ``native/product.h``.

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
    def of(cls, pairs: list[list[tuple[int, int]]], slot: list[int], join: bool) -> GatherIndices:
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


def multiply(
    name: str, left: Tensor, right: Tensor, out: Tensor, numbers: dict[str, int],
    rows: GatherIndices, columns: GatherIndices,
) -> None:  # fmt: skip
    """Run one of the kernels; tensors as its comment says, in memory of the CPU.

    Raises:
        MemoryError: not enough memory for its buffers.
    """
    library = PRODUCT.cdll
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
        raise MemoryError(f"{name}: not enough memory for its buffers")


def most_squares(levels: Tensor) -> int:
    """The largest sum of squares that a channel of (N, C, H, W) has, of up to 16 bits, exactly."""
    images, channels, height, width = levels.shape
    library = PRODUCT.cdll if levels.device.type == "cpu" else None
    dense = levels.is_contiguous(memory_format=torch.channels_last)
    if library is None or not dense or levels.dtype not in (torch.int8, torch.int16):
        return int(levels.double().square().sum((0, 2, 3)).amax())
    pixels = images * height * width
    threads = max(1, min(torch.get_num_threads(), levels.numel() // _WORTH_A_THREAD))
    place, size = levels.data_ptr(), levels.element_size()
    found = int(library.bw_most_squares(place, size, pixels, channels, threads))
    if found < 0:
        raise MemoryError("not enough memory for sums of squares")
    return found
