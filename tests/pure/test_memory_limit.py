# SPDX-License-Identifier: Apache-2.0
"""A command that wants more memory than there is ends with a message; the machine goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux counts what may be written to"
)
SOURCE = Path(__file__).resolve().parents[2] / "src"
COMMAND = """
from bitwright.base import memory
from bitwright.cli import app, entry

@app.app.command()
def hungry(size: int) -> None:
    import numpy
    print(numpy.ones(size, numpy.uint8).size)

machine = memory.machine_memory
memory.machine_memory = lambda: min(machine(), 3 << 30)
entry.main()
"""
BODY = """
import os, resource
import bitwright.base.memory as memory
memory.machine_memory = lambda: {memory}
os.cpu_count = lambda: {cores}
memory.limit_memory()
print(resource.getrlimit(resource.RLIMIT_DATA)[0])
try:
    bytearray({asked})
    print("has it")
except MemoryError:
    print("refused")
"""


def run(size: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", COMMAND, "hungry", str(size)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


@LINUX
def test_a_command_has_no_more_memory_than_the_machine() -> None:
    assert run(1 << 20).stdout.strip() == str(1 << 20)
    done = run(4 << 30)
    assert done.returncode == 8 and "not enough memory" in done.stderr


def limited(asked: int, memory: int, cores: int = 2, **env: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", BODY.format(asked=asked, memory=memory, cores=cores)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, **env, "PYTHONPATH": str(SOURCE)},
    )
    limit, said = done.stdout.split("\n", 1)
    return int(limit), said.strip()


@LINUX
def test_more_is_refused() -> None:
    assert limited(3 << 30, memory=2 << 30)[1] == "refused"
    assert limited(1 << 30, memory=2 << 30)[1] == "has it"


@LINUX
@pytest.mark.parametrize("cores", [2, 16, 128])
def test_a_small_container_has_what_imports_set_aside(cores: int) -> None:
    """Measured: torch and numpy set aside 760 MiB and 53 MiB a core, and touch little of it."""
    limit, _ = limited(0, memory=512 << 20, cores=cores)
    assert limit > (760 + 53 * cores) << 20


@LINUX
def test_the_user_can_lift_it() -> None:
    assert limited(3 << 30, memory=1 << 30, BITWRIGHT_LARGE_FRAMES="1")[1] == "has it"
