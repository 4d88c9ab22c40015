# SPDX-License-Identifier: Apache-2.0
"""All hardware sources in tools that they are not made with: slang, Icarus, an older Verilator."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from tests.conftest import require as need
from tests.icarus import missing as no_icarus
from tests.verilator.lib_cases import CASES
from tests.yosys.lib_wrapper import write_synthesis

import bitwright
from bitwright.sim.toolchain import CHECKS

HERE = Path(__file__).parent
PACKAGE = Path(bitwright.__file__).parent
# Those of the vendors' primitives are left out: their modules are the vendors'.
SOURCES = [path for part in ("rtl/lib", "build/shell", "build/soc")
           for path in sorted((PACKAGE / part).glob("*.sv"))]  # fmt: skip
TOPS = [path.stem for path in SOURCES]
OLD_VERILATOR = "5.006"


@cache
def _agreed(tool: str) -> list[dict[str, str]]:
    table = tomllib.loads((HERE / "lint_exceptions.toml").read_text())["agreed"]
    return [entry for entry in table if entry["tool"] == tool]


def _left(tool: str, said: str, warning: str) -> list[str]:
    """What is said beyond what is agreed; `warning` finds the name of a warning in its line."""
    left = []
    for line in said.splitlines():
        found = re.search(warning, line)
        name = found[1] if found else ""
        agreed = any(
            entry["warning"] == name and re.search(entry.get("text", ""), line)
            for entry in _agreed(tool)
        )
        if re.search(r"\b(error|warning|sorry)\b", line, re.IGNORECASE) and not agreed:
            left.append(line)
    return left


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A folder with one module that has an instance of every point of the library's tests."""
    folder = tmp_path_factory.mktemp("points")
    return folder, write_synthesis(CASES, folder)


def _call(argv: list[str], folder: Path = HERE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )


def test_every_exception_has_a_reason() -> None:
    for entry in tomllib.loads((HERE / "lint_exceptions.toml").read_text())["agreed"]:
        assert entry["tool"] in ("verilator", "slang", "icarus", "yosys") and entry["warning"]
        assert len(entry["reason"]) > 20


def _slang(folder: Path, files: list[str], tops: list[str], *flags: str) -> None:
    pytest.importorskip("pyslang")
    named = [word for top in tops for word in ("--top", top)]
    argv = [sys.executable, str(HERE / "slang_lint.py"), "-Weverything", "--error-limit=0"]
    done = _call([*argv, *flags, *named, *files], folder)
    said = done.stdout + done.stderr
    assert _left("slang", said, r"\[-W([\w-]+)\]$") == []
    assert done.returncode == 0, said[-2000:]


@pytest.mark.parametrize("flags", [(), (CHECKS,)], ids=["plain", "checks"])
def test_slang_reads_every_module(flags: tuple[str, ...]) -> None:
    _slang(HERE, [str(path) for path in SOURCES], TOPS, *flags)


def test_slang_reads_every_point(points: tuple[Path, list[str]]) -> None:
    _slang(*points, ["wrap"], CHECKS)


def test_slang_is_heard(tmp_path: Path) -> None:
    (tmp_path / "bad.sv").write_text("module bad(input logic a);\n  logic b, c;\nendmodule\n")
    with pytest.raises(AssertionError, match="unused"):
        _slang(tmp_path, ["bad.sv"], ["bad"])


def _icarus(folder: Path, files: list[str], tops: list[str]) -> None:
    need(no_icarus())
    argv = ["iverilog", "-g2012", "-Wall", "-Wno-timescale", "-tnull"]
    done = _call([*argv, *(word for top in tops for word in ("-s", top)), *files], folder)
    assert done.stderr + done.stdout == "" and done.returncode == 0


def test_icarus_reads_every_module() -> None:
    _icarus(HERE, [str(path) for path in SOURCES], TOPS)


def test_icarus_reads_every_point(points: tuple[Path, list[str]]) -> None:
    _icarus(*points, ["wrap"])


@pytest.mark.long
@pytest.mark.parametrize("flags", [[], [CHECKS]], ids=["plain", "checks"])
def test_an_older_verilator_reads_every_module(flags: list[str]) -> None:
    """Debian's, which many have; the others of this folder use the newest."""
    program = shutil.which("verilator_bin") or shutil.which("verilator")
    version = _call([program, "--version"]).stdout.split() if program else []
    if program is None or OLD_VERILATOR not in version:
        pytest.skip(f"Verilator {OLD_VERILATOR} is not on the PATH")
    folders = sorted({str(path.parent) for path in SOURCES})
    places = [word for folder in folders for word in ("-y", folder)]
    for path in SOURCES:
        # An output that is connected to nothing, `.name_o()`, says that it is not used.
        argv = [program, "--lint-only", "-Wall", "-Wno-PINCONNECTEMPTY", *flags]
        done = _call([*argv, "--top-module", path.stem, str(path), *places, "+libext+.sv"])
        assert _left("verilator", done.stdout + done.stderr, r"-([A-Z]+):") == [], path.stem
        assert done.returncode == 0
