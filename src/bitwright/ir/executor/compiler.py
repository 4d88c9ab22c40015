# SPDX-License-Identifier: Apache-2.0
"""Build the C kernels once per machine with the system's C compiler, and load them.

Without a working compiler the executor runs on numpy; `native_status` says why.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

from bitwright.base.native import INT, INT64, POINTER, Program
from bitwright.ir.executor.layout import PAD_ROWS, COp, CPlan, Feature, Op

EXECUTOR = Program(
    name="executor",
    package="bitwright.ir.executor",
    sources=(
        *("run.c", "pool.c", "gemm.c", "depthwise.c", "dot.c", "bits.c", "lut.c", "epilogue.c"),
        *("pointwise.c", "joins.c"),
    ),
    headers=("plan.h", "xnor.h"),
    functions={
        "bw_run": (INT, POINTER, POINTER, POINTER, INT64, POINTER, INT),
        "bw_lanes": (INT, INT),
        "bw_features": (INT,),
    },
    values={
        "bw_op_size": ctypes.sizeof(COp),
        "bw_plan_size": ctypes.sizeof(CPlan),
        "bw_pad_rows": PAD_ROWS,
    },
    hint="numpy is used instead; `bitwright doctor` says how to install a C compiler",
)


@dataclass(frozen=True)
class Library:
    """The loaded kernels.

    Attributes:
        path: the shared library.
        features: bits of `Feature` that it was compiled with.
        lanes: rows per panel of each product kernel.
    """

    path: Path
    handle: ctypes.CDLL
    features: int
    lanes: dict[Op, int]

    def has(self, feature: Feature) -> bool:
        """Whether the library was compiled with a CPU feature."""
        return bool(self.features & feature)


@dataclass(frozen=True)
class NativeStatus:
    """What `doctor` shows about the native executor."""

    available: bool
    compiler: str
    note: str
    features: tuple[str, ...] = ()


def build_library(compiler: str, flags: tuple[str, ...], folder: Path | None = None) -> Library:
    """Compile (or find in the cache) and load the kernels.

    Args:
        compiler: path of the C compiler.
        flags: optimisation flags; ``-DBW_GENERIC`` leaves out the vector intrinsics.
        folder: cache folder, by default the user's.

    Raises:
        ToolError: the compiler failed or its result cannot be loaded.
    """
    return _described(EXECUTOR.build(compiler, flags, folder))


def _described(handle: ctypes.CDLL) -> Library:
    lanes = {op: int(handle.bw_lanes(int(op))) for op in (Op.DOT8, Op.DOT16, Op.XNOR, Op.LUT)}
    return Library(Path(handle._name), handle, int(handle.bw_features()), lanes)


def native_library() -> Library | None:
    """The kernels of this machine, or None where they cannot be built; tried once per process."""
    handle = EXECUTOR.cdll
    return None if handle is None else _described(handle)


def native_status() -> NativeStatus:
    """Whether the native executor works here, with what, or why not."""
    found, library = EXECUTOR.loaded, native_library()
    if library is None:
        assert found.error is not None
        return NativeStatus(False, found.compiler, f"{found.error.message}; using numpy")
    names = tuple(feature.name for feature in Feature if library.has(feature))
    return NativeStatus(True, found.compiler, " ".join(found.flags), names)
