# SPDX-License-Identifier: Apache-2.0
"""C programs of our own: compiled once per machine with the system's compiler, loaded, declared.

A shared library is kept in the store by the hash of sources, flags, compiler version and CPU.
"""

from __future__ import annotations

import ctypes
import platform
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from bitwright.base.errors import ToolError
from bitwright.base.store import Store, content_key
from bitwright.base.tools.finder import locate
from bitwright.base.tools.process import output_of

#: Types of arguments and results, for `Program.functions`; None is no result.
POINTER, INT64, UINT64, INT, DOUBLE = (
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_uint64,
    ctypes.c_int,
    ctypes.c_double,
)

# Tried in this order: some compilers do not know -march=native, some systems have no POSIX threads.
FLAG_SETS = (
    ("-O3", "-march=native", "-pthread"),
    ("-O3", "-pthread"),
    ("-O3", "-DBW_NO_THREADS"),
)
_BASE_FLAGS = ("-std=gnu11", "-shared", "-fPIC", "-fno-strict-aliasing")
_TIMEOUT_S = 180
_KIND = "programs"
#: The files of a `Program` with threads.
POOL_SOURCE, POOL_HEADER = "base/native/thread_pool.c", "base/native/thread_pool.h"
_MAPS = Path("/proc/self/maps")


def find_compiler() -> str | None:
    """Path of the system's C compiler, or None."""
    tool = locate("cc")
    return None if tool is None else tool.command[0]


@dataclass(frozen=True)
class Loaded:
    """What became of a program on this machine.

    Attributes:
        cdll: with its functions declared; None where it cannot be built.
        compiler: path of the C compiler; empty if there is none.
        flags: those of `FLAG_SETS` that worked.
        error: why there is no library.
    """

    cdll: ctypes.CDLL | None
    compiler: str = ""
    flags: tuple[str, ...] = ()
    error: ToolError | None = None


@dataclass(frozen=True)
class Program:
    """A C program that lies in a package.

    Attributes:
        name: of its library and of errors.
        package: the Python package in whose folder ``native`` its files lie.
        sources: files that are compiled. A name with a slash is one of another package, from
            ours down: ``formats/pytorch/native/noise.c``.
        functions: name -> type of the result, types of the arguments.
        values: name of a function without arguments -> the int64 that it must give, such as the
            size of a structure that both sides declare.
        headers: files that the sources include, likewise.
        libraries: linker flags after the sources.
        flags: of the compiler, beside `FLAG_SETS`.
        threads: it uses ``thread_pool.h``, and with it the threads of torch, if torch is loaded.
        hint: what to do where it cannot be built.
    """

    name: str
    package: str
    sources: tuple[str, ...]
    functions: Mapping[str, tuple[Any, ...]]
    values: Mapping[str, int] = field(default_factory=dict)
    headers: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    threads: bool = False
    hint: str = "`bitwright doctor` says how to install a C compiler"

    @property
    def cdll(self) -> ctypes.CDLL | None:
        """The library, or None where it cannot be built; tried once per process."""
        return self.loaded.cdll

    def require(self) -> ctypes.CDLL:
        """The library.

        Raises:
            ToolError: it cannot be built or loaded here.
        """
        found = self.loaded
        if found.cdll is None:
            error = found.error
            assert error is not None
            raise ToolError(error.message, where=error.where, hint=error.hint)
        return found.cdll

    @cached_property
    def loaded(self) -> Loaded:
        """The library by the first of `FLAG_SETS` that works, or the reason why there is none."""
        compiler = find_compiler()
        if compiler is None:
            error = ToolError("no C compiler on PATH", where=self.name, hint=self.hint)
            return Loaded(None, error=error)
        first: ToolError | None = None
        for flags in FLAG_SETS:
            try:
                return Loaded(self.build(compiler, flags), compiler, flags)
            except ToolError as error:
                first = first or error
        return Loaded(None, compiler, error=first)

    def build(
        self, compiler: str, flags: tuple[str, ...], folder: Path | None = None
    ) -> ctypes.CDLL:
        """The library, which is compiled unless the cache has it.

        Args:
            compiler: path of the C compiler.
            flags: beside the program's own, the language and the kind of output.
            folder: cache folder, by default the user's.

        Raises:
            ToolError: the compiler failed, its result cannot be loaded, or there is no place.
        """
        bodies = self._bodies()
        flags = (*flags, *self.flags)
        version = self._run([compiler, "--version"])
        settings = [_BASE_FLAGS, flags, self.libraries, _cpu(), version]
        key = content_key(self.name, settings, *bodies.values())
        name = f"bw-{self.name}.so"

        def compiled(work: Path) -> None:
            self._compile(compiler, flags, bodies, work / name)

        try:
            entry = Store(folder).made(_KIND, key, compiled)
        except OSError as error:
            raise ToolError(
                f"the cache folder is not usable: {error}",
                where=self.name,
                hint="set BITWRIGHT_CACHE to a writable folder",
            ) from error
        return self._open(entry.folder / name)

    def _open(self, path: Path) -> ctypes.CDLL:
        """Load and declare a library; `ToolError` if it is not this program."""
        try:
            library = ctypes.CDLL(str(path))
            for name in self.values:
                getattr(library, name).restype = INT64
                getattr(library, name).argtypes = ()
            for name, (result, *arguments) in self.functions.items():
                getattr(library, name).restype = result
                getattr(library, name).argtypes = arguments
            if self.threads:
                library.bw_use_fork.argtypes = (POINTER,)
                library.bw_use_fork.restype = None
                library.bw_use_fork(openmp_fork())
        except (OSError, AttributeError) as error:
            raise ToolError(f"cannot load {path.name}: {error}", where=self.name) from error
        for name, expected in self.values.items():
            given = int(getattr(library, name)())
            if given != expected:
                raise ToolError(
                    f"{path.name} has other structures: {name} is {given}, expected {expected}",
                    where=self.name,
                )
        return library

    @property
    def _inputs(self) -> tuple[str, ...]:
        return (*self.sources, POOL_SOURCE) if self.threads else self.sources

    def _bodies(self) -> dict[str, bytes]:
        own, all_ours = resources.files(self.package) / "native", resources.files("bitwright")
        return {
            name.rpartition("/")[2]: (all_ours if "/" in name else own).joinpath(name).read_bytes()
            for name in (*self.headers, *((POOL_HEADER,) if self.threads else ()), *self._inputs)
        }

    def _run(self, command: list[str]) -> str:
        return output_of(command, name=self.name, timeout=_TIMEOUT_S, hint=self.hint)

    def _compile(
        self, compiler: str, flags: tuple[str, ...], bodies: dict[str, bytes], target: Path
    ) -> None:
        with tempfile.TemporaryDirectory(prefix="bitwright-c-") as name:
            folder = Path(name)
            for source, body in bodies.items():
                (folder / source).write_bytes(body)
            inputs = [str(folder / source.rpartition("/")[2]) for source in self._inputs]
            self._run([compiler, *_BASE_FLAGS, *flags, *inputs, *self.libraries, "-o", str(target)])


@lru_cache(maxsize=1)
def _cpu() -> str:
    """What -march=native depends on."""
    info = Path("/proc/cpuinfo")
    names = ("model name", "flags", "Features", "CPU part", "cpu family", "model", "stepping")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    found = {line for line in lines if line.split(":")[0].strip() in names}
    return "\n".join([platform.machine(), platform.processor(), *sorted(found)])


@lru_cache(maxsize=1)
def openmp_fork() -> int | None:
    """Address of ``GOMP_parallel`` of the OpenMP that is loaded (torch's, say), if it is GNU's.

    Threads of our own would compete with its threads, which wait actively for more work.
    """
    if not _MAPS.exists():
        return None
    for line in _MAPS.read_text(errors="replace").splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libgomp" in path and path.startswith("/"):
            try:
                return ctypes.cast(ctypes.CDLL(path).GOMP_parallel, ctypes.c_void_p).value
            except (OSError, AttributeError):
                return None
    return None
