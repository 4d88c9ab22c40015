# SPDX-License-Identifier: Apache-2.0
"""Build the C kernels once per machine with the system's C compiler, and load them.

The library is cached by the hash of sources, flags, compiler version and CPU, built in a temporary
file and renamed into place. Without a working compiler the executor runs on numpy; `native_status`
says why.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path

from bitwright.errors import ToolError
from bitwright.files import cache_dir
from bitwright.ir.executor.layout import PAD_ROWS, CFeed, COp, CPlan, Feature, Op
from bitwright.tools import locate, output_of

SOURCES = (
    *("run.c", "pool.c", "gemm.c", "depthwise.c", "dot.c", "bits.c", "lut.c", "epilogue.c"),
    *("pointwise.c", "joins.c"),
)
HEADER = "plan.h"
_BASE_FLAGS = ("-std=gnu11", "-shared", "-fPIC", "-fno-strict-aliasing")
# Tried in this order: some compilers do not know -march=native, some systems have no POSIX threads.
FLAG_SETS = (
    ("-O3", "-march=native", "-pthread"),
    ("-O3", "-pthread"),
    ("-O3", "-DBW_NO_THREADS"),
)
_TIMEOUT_S = 180


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


def find_compiler() -> str | None:
    """Path of the system's C compiler, or None."""
    tool = locate("cc")
    return None if tool is None else tool.command[0]


def _run(command: list[str]) -> str:
    return output_of(
        command,
        name="executor",
        timeout=_TIMEOUT_S,
        hint="numpy is used instead; `bitwright doctor` says how to install a C compiler",
    )


def _cpu() -> str:
    """What -march=native depends on."""
    info = Path("/proc/cpuinfo")
    names = ("model name", "flags", "Features", "CPU part", "cpu family", "model", "stepping")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    found = {line for line in lines if line.split(":")[0].strip() in names}
    return "\n".join([platform.machine(), platform.processor(), *sorted(found)])


def _sources() -> dict[str, bytes]:
    folder = resources.files("bitwright.ir.executor") / "native"
    return {name: (folder / name).read_bytes() for name in (HEADER, *SOURCES)}


def _build(compiler: str, flags: tuple[str, ...], sources: dict[str, bytes], target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as name:
        folder = Path(name)
        for source, body in sources.items():
            (folder / source).write_bytes(body)
        built = folder / target.name
        inputs = [str(folder / source) for source in SOURCES]
        _run([compiler, *_BASE_FLAGS, *flags, *inputs, "-o", str(built)])
        built.replace(target)


def _load(path: Path) -> Library:
    try:
        handle = ctypes.CDLL(str(path))
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
    except (OSError, AttributeError) as error:
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
    sources = _sources()
    digest = hashlib.sha256()
    for part in (*sources.values(), " ".join(flags).encode(), _cpu().encode()):
        digest.update(hashlib.sha256(part).digest())
    digest.update(_run([compiler, "--version"]).encode())
    try:
        folder = cache_dir("executor") if folder is None else folder
        target = folder / f"bw-executor-{digest.hexdigest()[:24]}.so"
        if target.exists():
            try:
                return _load(target)
            except ToolError:  # a damaged cache entry is built again
                target.unlink(missing_ok=True)
        _build(compiler, flags, sources, target)
    except OSError as error:
        raise ToolError(
            f"the cache folder is not usable: {error}",
            where="executor",
            hint="set BITWRIGHT_CACHE to a writable folder",
        ) from error
    return _load(target)


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
