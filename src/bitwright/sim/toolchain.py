# SPDX-License-Identifier: Apache-2.0
"""Verilator and the C++ compiler: found once, run by path, results kept by content.

Verilator's own makefile is not used: the generated sources are compiled here in a few chunks, and
the harness and run-time library, which never change, once per machine. Only a C++ compiler is
needed beside the ``verilator`` package.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TypeVar

from bitwright.base.errors import ToolError
from bitwright.base.source import our_code
from bitwright.base.store import Store, content_key
from bitwright.base.tools.finder import Tool, require
from bitwright.base.tools.process import Tick, output_of

TIMEOUT_S = 600.0
MEMORY = 0.5
"""Share of the machine's memory that Verilator may take, or the compilers together: a graph of
kilobytes may be wholly unfolded, if its folder names a target that has no end."""
_Item = TypeVar("_Item")
CHECKS = "-DBITWRIGHT_CHECKS"
"""Turns on the assertions and measurements in the RTL, which not every tool can read."""
_JOBS = 2
_RUNTIME = ("verilated.cpp", "verilated_threads.cpp")
_RUNTIME_TRACE = ("verilated_vcd_c.cpp",)
_HARNESS = "harness.cpp"
_HEADERS = ("harness.h", "memory.h", "random.h", "sdram.h")
_CHUNK_BYTES = 400_000
_LONG_CYCLES = 15_000_000
_RUNTIME_LEVELS = ("-Og", "-O2")  # of Verilator's part, and of ours, which works in every cycle
_COMMON_HEADER = "common.h"
_COMMON = '#include <cstring>\n#include <vector>\n#include "verilated.h"\n'


def lint(
    files: Sequence[Path],
    top: str,
    parameters: Mapping[str, int | str] | None = None,
    *,
    checks: bool = True,
) -> str:
    """``verilator --lint-only -Wall``; what it said, empty if all is clean.

    Args:
        files: sources.
        top: module.
        parameters: of the top module.
        checks: read the assertions in the sources, too.

    Raises:
        ToolError: Verilator is missing.
    """
    tool = require("verilator")
    # An output that is connected to nothing, `.name_o()`, says that it is not used.
    argv = [*tool.command, "--lint-only", "-Wall", "-Wno-PINCONNECTEMPTY", "--top-module", top]
    argv += [CHECKS] if checks else []
    argv += parameter_flags(parameters or {}) + [str(file) for file in files]
    with tempfile.TemporaryDirectory(prefix="bitwright-") as folder:
        try:
            said = output_of(
                argv,
                cwd=Path(folder),
                name="verilator",
                env=dict(tool.env),
                timeout=TIMEOUT_S,
                memory=MEMORY,
            )
        except ToolError as error:
            return error.message
    return "\n".join(line for line in said.splitlines() if line.startswith("%"))


def parameter_flags(parameters: Mapping[str, int | str]) -> list[str]:
    """``-G`` flags. Text is passed as a string literal unless it is a sized literal (``8'hff``)."""
    return [f"-G{name}={parameter_literal(value)}" for name, value in parameters.items()]


def instance_parameters(parameters: Mapping[str, int | str]) -> str:
    """The same for an instance: `` #(.A(1), .B("x"))``; nothing where there are none."""
    named = ", ".join(f".{name}({parameter_literal(value)})" for name, value in parameters.items())
    return f" #({named})" if named else ""


def parameter_literal(value: int | str) -> str:
    """Text as a string literal unless it is a sized literal (``8'hff``); Yosys reads the same."""
    if isinstance(value, str) and "'" not in value:
        return f'"{value}"'
    return str(int(value)) if isinstance(value, int) else value


def optimisation(cycles: int) -> str:
    """How far the compiler optimises a simulator that will run for so many cycles.

    Measured on a network of three layers: ``-Og`` compiles in 8 s of processor time and runs
    1.4 million cycles in 5.9 s, ``-O2`` in 20 s and 4.8 s. Both times grow with the design, so the
    cycles from which on ``-O2`` pays depend little on it.
    """
    return "-O2" if cycles >= _LONG_CYCLES else "-Og"


@dataclass(frozen=True)
class Harness:
    """Hand-written C++ that drives a verilated design.

    Attributes:
        glue: file that is compiled with each design.
        shared: whether the stream harness, compiled once per machine, drives it through the glue;
            else the glue is a whole program.
    """

    glue: str
    shared: bool


STREAMS = Harness("glue.cpp", shared=True)
BOARD = Harness("board.cpp", shared=False)


def compile_program(
    folder: Path,
    sources: Sequence[Path],
    config: str,
    program: Path,
    *,
    level: str,
    trace: bool,
    harness: Harness = STREAMS,
) -> None:
    """Compile the verilated sources with the glue in ``folder`` and link them with the harness.

    Args:
        sources: C++ files that Verilator wrote into ``folder``.
        config: content of ``bitwright_config.h``.
        program: the executable to make.
        level: the compiler's optimisation, see `optimisation`.
        harness: what drives the design.

    Raises:
        ToolError: the compiler is missing or fails.
    """
    tool, compiler = require("verilator"), require("c++").command[0]
    flags = _flags(tool, trace)
    runtime = _runtime(tool, compiler, flags, trace)
    (folder / "bitwright_config.h").write_text(config)
    (folder / harness.glue).write_bytes(harness_file(harness.glue))
    units = _units(folder, [*sources, folder / harness.glue])
    objects = [folder / f"unit{number}.o" for number in range(len(units))]
    common = ["-include", str(runtime / _COMMON_HEADER), f"-I{runtime}", f"-I{folder}"]

    def one(pair: tuple[Path, Path], tick: Tick) -> None:
        argv = [compiler, *flags, level, *common, "-c", str(pair[0]), "-o", str(pair[1])]
        name = f"{Path(compiler).name} {pair[0].name}"
        each = MEMORY / _JOBS
        output_of(argv, cwd=folder, name=name, timeout=TIMEOUT_S, tick=tick, memory=each)

    _together(one, list(zip(units, objects, strict=True)))
    driver = Path(_HARNESS).stem
    objects += [o for o in sorted(runtime.glob("*.o")) if harness.shared or o.stem != driver]
    # Three times as fast as the usual linker, where it is there.
    linker = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []
    argv = [compiler, *linker, "-pthread", *map(str, objects), "-o", str(program), "-lm"]
    output_of(argv, cwd=folder, name="link", timeout=TIMEOUT_S)


def _together(one: Callable[[_Item, Tick], None], items: Sequence[_Item]) -> None:
    """Do something with each item, some at a time. What ends the first one, Ctrl-C included, ends
    them all: threads do not hear of it, but the programs that they run for are asked now and then.
    """
    over = threading.Event()

    def tick(seconds: float) -> None:
        if over.is_set():
            raise ToolError("was stopped", where="compilation")

    with ThreadPoolExecutor(_JOBS) as pool:
        try:
            waiting = [pool.submit(one, item, tick) for item in items]
            wait(waiting, return_when=FIRST_EXCEPTION)
            for each in waiting:
                if each.done():
                    each.result()
        except BaseException:
            over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def harness_file(name: str) -> bytes:
    """One of the hand-written C++ files of the harness."""
    return resources.files("bitwright.sim").joinpath(name).read_bytes()


def harness_identity(harness: Harness = STREAMS) -> bytes:
    """All hand-written C++, and this file, which says how it is compiled, for cache keys."""
    how = our_code().meaning(Path(__file__)).encode()
    return how + b"".join(harness_file(name) for name in (_HARNESS, harness.glue, *_HEADERS))


def _units(folder: Path, sources: Iterable[Path]) -> list[Path]:
    """Sources gathered into a few files: reading the headers costs more than small sources."""
    units: list[Path] = []
    size, text = 0, ""
    ordered = sorted(sources, key=lambda path: -path.stat().st_size)
    for number, source in enumerate(ordered):
        size += source.stat().st_size
        text += f'#include "{source.name}"\n'
        if size >= _CHUNK_BYTES or number == len(ordered) - 1:
            unit = folder / f"gathered{len(units)}.cpp"
            unit.write_text(text)
            units.append(unit)
            size, text = 0, ""
    return units


def _flags(tool: Tool, trace: bool) -> list[str]:
    on, include = int(trace), _include(tool)
    defines = {"VM_COVERAGE": 0, "VM_SC": 0, "VM_TRACE": on, "VM_TRACE_FST": 0, "VM_TRACE_VCD": on}
    return [
        "-std=gnu++17",
        "-pthread",
        "-w",
        f"-I{include}",
        f"-I{include / 'vltstd'}",
        *(f"-D{name}={value}" for name, value in defines.items()),
    ]


def _include(tool: Tool) -> Path:
    """Folder of the C++ sources that come with Verilator."""
    return Path(dict(tool.env)["VERILATOR_ROOT"]) / "include"


def _runtime(tool: Tool, compiler: str, flags: list[str], trace: bool) -> Path:
    """Folder with what all designs share, compiled once per machine: harness, run time, header."""
    names = _RUNTIME + (_RUNTIME_TRACE if trace else ())
    parts = [tool.identity, compiler, *flags, *_RUNTIME_LEVELS, _COMMON]
    parts += [str((_include(tool) / name).stat().st_mtime_ns) for name in names]
    key = content_key(parts, harness_identity())

    def compiled(work: Path) -> None:
        _compile_runtime(tool, compiler, flags, names, work)

    return Store().made("verilator", key, compiled).folder


def _compile_runtime(
    tool: Tool, compiler: str, flags: list[str], names: Sequence[str], folder: Path
) -> None:
    # The header is compiled too: reading it costs more than most of the generated sources.
    header = folder / _COMMON_HEADER
    header.write_text(_COMMON)
    for name in (_HARNESS, *_HEADERS):
        (folder / name).write_bytes(harness_file(name))

    def one(source: Path, tick: Tick) -> None:
        if source == header:
            argv = ["-x", "c++-header", str(header), "-o", f"{header}.gch"]
        else:
            argv = ["-c", str(source), "-o", str(folder / f"{source.stem}.o")]
        what = f"{Path(compiler).name} {source.name}"
        level = _RUNTIME_LEVELS[source.name not in names]
        argv = [compiler, *flags, level, *argv]
        output_of(argv, cwd=folder, name=what, timeout=TIMEOUT_S, tick=tick)

    sources = [_include(tool) / name for name in names]
    _together(one, [*sources, folder / _HARNESS, header])
