# SPDX-License-Identifier: Apache-2.0
"""Build the C kernels once per machine with the system's C compiler, and load them.

Without a working compiler the executor runs on numpy; `native_status` says why.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from bitwright.base.errors import ToolError
from bitwright.base.native import FLAG_SETS, Program, find_compiler
from bitwright.ir.executor.layout import PAD_ROWS, CFeed, COp, CPlan, Feature, Op

_PROGRAM = Program(
    name="executor",
    package="bitwright.ir.executor",
    sources=(
        *("run.c", "pool.c", "gemm.c", "depthwise.c", "dot.c", "bits.c", "lut.c", "epilogue.c"),
        *("pointwise.c", "joins.c"),
    ),
    headers=("plan.h",),
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


def _load(path: Path) -> Library:
    handle = _PROGRAM.open(path)
    try:
        handle.bw_run.argtypes = [
            ctypes.POINTER(CPlan),
            ctypes.POINTER(CFeed),
            ctypes.POINTER(ctypes.c_void_p),
            ctypes.c_int64,
            ctypes.c_void_p,
            ctypes.c_int,
        ]
        handle.bw_sizes.restype = ctypes.c_int64
        sizes = [handle.bw_sizes(i) for i in range(3)]
    except AttributeError as error:
        raise ToolError(f"cannot load {path.name}: {error}", where="executor") from error
    if sizes != [ctypes.sizeof(COp), ctypes.sizeof(CPlan), PAD_ROWS]:
        raise ToolError(f"{path.name} has other structures: {sizes}", where="executor")
    lanes = {op: int(handle.bw_lanes(int(op))) for op in (Op.DOT8, Op.DOT16, Op.XNOR, Op.LUT)}
    return Library(path, handle, int(handle.bw_features()), lanes)


def build_library(compiler: str, flags: tuple[str, ...], folder: Path | None = None) -> Library:
    """Compile (or find in the cache) and load the kernels.

    Args:
        compiler: path of the C compiler.
        flags: optimisation flags; ``-DBW_GENERIC`` leaves out the vector intrinsics.
        folder: cache folder, by default the user's.

    Raises:
        ToolError: the compiler failed or its result cannot be loaded.
    """
    return _PROGRAM.build(compiler, flags, _load, folder)


@lru_cache(maxsize=1)
def _attempt() -> tuple[Library | None, NativeStatus]:
    compiler = find_compiler()
    if compiler is None:
        return None, NativeStatus(False, "", "no C compiler on PATH; using numpy")
    note = ""
    for flags in FLAG_SETS:
        try:
            library = build_library(compiler, flags)
        except ToolError as error:
            note = note or error.message
            continue
        names = tuple(feature.name for feature in Feature if library.has(feature))
        return library, NativeStatus(True, compiler, " ".join(flags), names)
    return None, NativeStatus(False, compiler, f"{note}; using numpy")


def native_library() -> Library | None:
    """The kernels of this machine, or None where they cannot be built; tried once per process."""
    return _attempt()[0]


def native_status() -> NativeStatus:
    """Whether the native executor works here, with what, or why not."""
    return _attempt()[1]
