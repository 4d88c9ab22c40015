# SPDX-License-Identifier: Apache-2.0
"""The document's kernels (spec 2.16) on this processor: one matrix by one vector a call."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.base.native import INT64, POINTER, Program
from bitwright.papers.bnn_soc.packing import pack32

INT32 = ctypes.c_int32
_BYTES = (None, POINTER, POINTER, POINTER, INT32, INT64)
_WORDS = (None, POINTER, POINTER, POINTER, INT32, INT32, INT64)
KERNELS = Program(
    name="bnn-kernels",
    package="bitwright.papers.bnn_soc",
    sources=("kernels.c",),
    functions={
        "bw_vector_mult_float": _BYTES,
        "bw_vector_mult_as_printed": _BYTES,
        "bw_vector_mult_xnor": _BYTES,
        "bw_vector_mult_compressed": _WORDS,
        "bw_vector_mult_popcount": _WORDS,
    },
)
#: Types of weights and inputs, of sums; whether rows are packed.
VARIANTS: dict[str, tuple[Any, Any, bool]] = {
    "float": (np.float32, np.float32, False),
    "as_printed": (np.float32, np.float32, False),
    "xnor": (np.uint8, np.float32, False),
    "compressed": (np.uint32, np.int32, True),
    "popcount": (np.uint32, np.int32, True),
}
#: Those that multiply signs; all give the same.
BINARY = ("xnor", "compressed", "popcount")


def stored(variant: str, levels: NDArray[Any]) -> NDArray[Any]:
    """A matrix as a kernel reads it: floats, signs as bytes (255 and 1), or packed rows.

    Raises:
        DataError: no such kernel, or no matrix.
    """
    if variant not in VARIANTS:
        raise DataError(f"no kernel {variant!r}", hint=f"one of {', '.join(VARIANTS)}")
    if levels.ndim != 2 or not levels.size:
        raise DataError(f"expected a matrix, got shape {levels.shape}", where="weights")
    kind, _, packed = VARIANTS[variant]
    if packed:
        return pack32(levels)
    if kind == np.uint8:
        return np.ascontiguousarray(np.where(levels >= 0, 1, 255).astype(np.uint8))
    return np.ascontiguousarray(levels, dtype=np.float32)


def vector_mult(
    variant: str, weight: NDArray[Any], x: NDArray[Any], library: ctypes.CDLL | None = None
) -> NDArray[Any]:
    """``weight @ x`` by one of `VARIANTS`.

    Args:
        weight: (rows, inputs).
        x: (inputs,).

    Raises:
        DataError: sizes do not match.
        ToolError: no C compiler works here.
    """
    if x.shape != weight.shape[1:]:
        raise DataError(f"expected {weight.shape[1]} inputs, got {x.shape}", where=variant)
    matrix, vector = stored(variant, weight), stored(variant, x[None])
    _, result, packed = VARIANTS[variant]
    out = np.zeros(len(matrix), dtype=result)
    lengths = (matrix.shape[1], x.size) if packed else (x.size,)
    function = getattr(library or KERNELS.require(), f"bw_vector_mult_{variant}")
    addresses = (array.ctypes.data for array in (matrix, vector, out))
    function(*addresses, *lengths, len(matrix))
    return out
