# SPDX-License-Identifier: Apache-2.0
"""House rules that a machine can hold: imports run one way, the core needs no torch."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from bitwright.ir import INTEGER

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "bitwright"
#: Rooms that work without torch; of the number formats everything but their torch side.
TORCH_FREE = (
    "base",
    "formats",
    "ir",
    "hw",
    "engine",
    "rtl",
    "sim",
    "host",
    "build",
    "jobs",
    "report",
)
TORCH_SIDE = ("formats/pytorch",)
#: From the ground up: a room imports from rooms in front of it, never from those behind.
ORDER = (
    "base", "formats", "ir", "data", "models", "quantize", "low_precision", "tasks", "train",
    "lower", "interop", "hw", "engine", "rtl", "sim", "host", "build", "jobs", "report", "pipeline",
    "explore", "cli",
    "papers", "__main__",
)  # fmt: skip
#: Imports against the order that are still to be removed: this list may only become shorter.
KNOWN: frozenset[str] = frozenset()


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Rooms of our own that a file imports anywhere, type checking included."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            if name.startswith("bitwright."):
                rooms.add(name.split(".")[1])
    return rooms


def test_imports_only_go_down() -> None:
    wrong = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        room = room_of(path)
        if room == "__init__":
            continue
        assert room in ORDER, f"{path}: a new room needs a place in the order"
        wrong |= {
            f"{path.relative_to(PACKAGE)} imports {other}"
            for other in imports(path)
            if ORDER.index(other) > ORDER.index(room)
        }
    assert not wrong - KNOWN, "\n".join(sorted(wrong - KNOWN))
    assert not KNOWN - wrong, "mended; take out of KNOWN: " + ", ".join(sorted(KNOWN - wrong))


@pytest.mark.parametrize("room", ORDER)
def test_no_circle_of_files(room: str) -> None:
    """Not inside a room either, late and typing-only imports counted."""
    names = {
        ".".join(("bitwright", *p.relative_to(PACKAGE).with_suffix("").parts)): p
        for p in PACKAGE.rglob("*.py")
        if room_of(p) == room and p.name != "__init__.py"
    }
    needs: dict[str, set[str]] = {}
    for name, path in names.items():
        nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)]
        found = {n.module or "" for n in nodes}
        found |= {f"{n.module}.{alias.name}" for n in nodes for alias in n.names}
        needs[name] = (found & names.keys()) - {name}
    TopologicalSorter(needs).prepare()  # raises CycleError with the circle


@pytest.mark.parametrize("room", [r for r in TORCH_FREE if (PACKAGE / r).is_dir()])
def test_the_core_never_imports_torch(room: str) -> None:
    modules = [
        ".".join(("bitwright", *p.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for p in sorted((PACKAGE / room).rglob("*.py"))
        if not p.relative_to(PACKAGE).as_posix().startswith(TORCH_SIDE)
        if p.stem not in ("__main__", "_pyosys_main")
    ]
    script = f"import sys\nfor m in {modules!r}: __import__(m)\nassert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_no_file_is_longer_than_500_lines() -> None:
    suffixes = {".py", ".sv", ".c", ".h", ".cpp"}
    long = [
        f"{p.relative_to(ROOT)}: {n}"
        for folder in ("src", "tests", "benchmarks")
        for p in (ROOT / folder).rglob("*")
        if p.suffix in suffixes and (n := len(p.read_text().splitlines())) > 500
    ]
    assert not long, long


def test_results_name_no_folder_of_the_machine_that_made_them() -> None:
    """A command that is shown must mean something elsewhere."""
    absolute = re.compile(r"(?m)(?:^|[ \"`=])(/[A-Za-z][\w.-]*/[^ \"`]*)")
    found = [
        f"{p.relative_to(ROOT)}: {path}"
        for p in sorted((ROOT / "docs" / "results").rglob("*"))
        if p.suffix in (".json", ".md")
        for path in absolute.findall(p.read_text(encoding="utf-8"))
    ]
    assert not found, found


def test_the_readme_says_of_skynet_what_was_measured() -> None:
    """The design is measured anew now and then, a step at a time."""
    results = json.loads((ROOT / "docs" / "results" / "skynet_hardware.json").read_text())
    row = results["skynet-w4a4"]
    made, fmax = row["synthesis"], row["placed"]["fmax_mhz"]
    assert row["interval"] == row["simulated"]["interval"]
    cycles, luts = (f"{number:,}".replace(",", " ") for number in (row["interval"], made["lut"]))
    (line,) = (li for li in (ROOT / "README.md").read_text().splitlines() if "whole SkyNet" in li)
    assert f"{cycles} cycles a frame" in line and f"at {fmax:.1f} MHz" in line
    assert f"{luts} LUT and {made['bram']} of 208 block RAMs" in line
    assert f"whole SkyNet: {fmax:.1f} MHz" in (ROOT / "docs" / "rates.md").read_text()
    rate = fmax * 1e6 / row["interval"]
    assert f"design of SkyNet: {rate:.2f})" in (ROOT / "docs" / "engine.md").read_text()


def test_the_dialect_page_is_what_the_table_says() -> None:
    """Make it again with ``python -m bitwright.hw > docs/dialects.md``."""
    from bitwright.hw.dialect import HARDWARE

    made = INTEGER.documentation() + "\n" + HARDWARE.documentation()
    assert (ROOT / "docs" / "dialects.md").read_text() == made
