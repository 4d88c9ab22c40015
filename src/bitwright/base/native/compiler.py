# SPDX-License-Identifier: Apache-2.0
"""Build a C program once per machine with the system's C compiler, and load it.

A shared library is cached by the hash of sources, flags, compiler version and CPU, built in a
temporary folder and renamed into place.
"""

from __future__ import annotations

import ctypes
import hashlib
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TypeVar

from bitwright.base.errors import ToolError
from bitwright.base.files import cache_dir
from bitwright.base.tools import locate, output_of

T = TypeVar("T")

# Tried in this order: some compilers do not know -march=native, some systems have no POSIX threads.
FLAG_SETS = (
    ("-O3", "-march=native", "-pthread"),
    ("-O3", "-pthread"),
    ("-O3", "-DBW_NO_THREADS"),
)
_BASE_FLAGS = ("-std=gnu11", "-shared", "-fPIC", "-fno-strict-aliasing")
_TIMEOUT_S = 180


def find_compiler() -> str | None:
    """Path of the system's C compiler, or None."""
    tool = locate("cc")
    return None if tool is None else tool.command[0]


@dataclass(frozen=True)
class Program:
    """A C program that lies in a package.

    Attributes:
        name: of its cache folder and of errors.
        package: the Python package in whose folder ``native`` its files lie.
        sources: files that are compiled. A name with a slash is one of another package, from
            ours down: ``formats/pytorch/native/noise.c``.
        headers: files that they include, likewise.
        libraries: linker flags after the sources.
        hint: what to do where it cannot be built.
    """

    name: str
    package: str
    sources: tuple[str, ...]
    headers: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    hint: str = "`bitwright doctor` says how to install a C compiler"

    def build(
        self,
        compiler: str,
        flags: tuple[str, ...],
        load: Callable[[Path], T],
        folder: Path | None = None,
    ) -> T:
        """What ``load`` makes of the shared library, which is built unless the cache has it.

        Args:
            compiler: path of the C compiler.
            flags: beside the language and the kind of output.
            load: opens the library and checks it; `ToolError` if it does not fit. A cached one
                that does not fit is built again.
            folder: cache folder, by default the user's.

        Raises:
            ToolError: the compiler failed, its result cannot be loaded, or there is no place.
        """
        bodies = self._bodies()
        digest = hashlib.sha256()
        command = " ".join((*flags, *self.libraries))
        for part in (*bodies.values(), command.encode(), _cpu().encode()):
            digest.update(hashlib.sha256(part).digest())
        digest.update(self._run([compiler, "--version"]).encode())
        try:
            folder = cache_dir(self.name) if folder is None else folder
            target = folder / f"bw-{self.name}-{digest.hexdigest()[:24]}.so"
            if target.exists():
                try:
                    return load(target)
                except ToolError:  # a damaged cache entry is built again
                    target.unlink(missing_ok=True)
            self._compile(compiler, flags, bodies, target)
        except OSError as error:
            raise ToolError(
                f"the cache folder is not usable: {error}",
                where=self.name,
                hint="set BITWRIGHT_CACHE to a writable folder",
            ) from error
        return load(target)

    def open(self, path: Path) -> ctypes.CDLL:
        """The library as it is; `ToolError` if it cannot be loaded."""
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:
            raise ToolError(f"cannot load {path.name}: {error}", where=self.name) from error

    def first(self, load: Callable[[Path], T], extra: tuple[str, ...] = ()) -> T:
        """`build` with the system's compiler and the first of `FLAG_SETS` that works.

        Raises:
            ToolError: there is no compiler, or none of the flags work (the first reason).
        """
        compiler = find_compiler()
        if compiler is None:
            raise ToolError("no C compiler on PATH", where=self.name, hint=self.hint)
        first: ToolError | None = None
        for flags in FLAG_SETS:
            try:
                return self.build(compiler, (*flags, *extra), load)
            except ToolError as error:
                first = first or error
        assert first is not None
        raise first

    def _bodies(self) -> dict[str, bytes]:
        own, all_ours = resources.files(self.package) / "native", resources.files("bitwright")
        return {
            name.rpartition("/")[2]: (all_ours if "/" in name else own).joinpath(name).read_bytes()
            for name in (*self.headers, *self.sources)
        }

    def _run(self, command: list[str]) -> str:
        return output_of(command, name=self.name, timeout=_TIMEOUT_S, hint=self.hint)

    def _compile(
        self, compiler: str, flags: tuple[str, ...], bodies: dict[str, bytes], target: Path
    ) -> None:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".build-") as name:
            folder = Path(name)
            for source, body in bodies.items():
                (folder / source).write_bytes(body)
            built = folder / target.name
            inputs = [str(folder / source.rpartition("/")[2]) for source in self.sources]
            command = [compiler, *_BASE_FLAGS, *flags, *inputs, *self.libraries, "-o", str(built)]
            self._run(command)
            built.replace(target)


@lru_cache(maxsize=1)
def _cpu() -> str:
    """What -march=native depends on."""
    info = Path("/proc/cpuinfo")
    names = ("model name", "flags", "Features", "CPU part", "cpu family", "model", "stepping")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    found = {line for line in lines if line.split(":")[0].strip() in names}
    return "\n".join([platform.machine(), platform.processor(), *sorted(found)])
