# SPDX-License-Identifier: Apache-2.0
"""A command may have most of the machine's memory, and what libraries set aside besides."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA is Linux's")
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
