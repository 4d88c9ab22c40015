# SPDX-License-Identifier: Apache-2.0
"""The C program that quantizes: reals to reals (`kernels`), and reals to levels that are integers
(`low_precision.arithmetic.operand_quantizer`).
"""

from __future__ import annotations

import ctypes

from bitwright.base.native import INT64, POINTER, UINT64, Program
from bitwright.formats import Rounding

#: Numbers of the rounding rules in C.
MODES = {mode: number for number, mode in enumerate(Rounding)}


class CSpec(ctypes.Structure):
    """`Spec` of ``native/quantize.h``."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in "kind mode mantissa flush zero count room".split()),
        *((name, ctypes.c_int64) for name in "block top_exponent plain".split()),
        *((name, ctypes.c_double) for name in "low high lsb".split()),
        *((name, ctypes.c_void_p) for name in "levels limits".split()),
    ]


class CLevels(ctypes.Structure):
    """`Levels` of ``native/levels.c``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "levels")),
        *((name, ctypes.c_int64) for name in "count pixels channels bytes mode low high".split()),
        *((name, ctypes.c_int64) for name in ("dynamic", "exponent", "threads")),
        ("seed", ctypes.c_uint64),
        ("bad", ctypes.c_int64),
    ]


QUANTIZE = Program(
    name="quantize",
    package="bitwright.formats.pytorch",
    sources=("quantize.c", "levels.c", "table.c", "noise.c"),
    headers=("quantize.h", "rounding.h", "noise.h"),
    functions={
        "bw_quantize": (
            INT64, POINTER, POINTER, POINTER, INT64, INT64, POINTER, INT64, INT64, UINT64, INT64,
        ),
        "bw_quantize_levels": (INT64, POINTER),
    },
    values={
        "bw_spec_size": ctypes.sizeof(CSpec),
        "bw_levels_size": ctypes.sizeof(CLevels),
    },
    libraries=("-lm",),
    # No contraction: a fused multiply-add rounds once where the definition rounds twice.
    flags=("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    threads=True,
)  # fmt: skip
