# SPDX-License-Identifier: Apache-2.0
"""A command that wants more memory than there is ends with a message; the machine goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def run(size: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", COMMAND, "hungry", str(size)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts what may be written to")
def test_a_command_has_no_more_memory_than_the_machine() -> None:
    assert run(1 << 20).stdout.strip() == str(1 << 20)
    done = run(4 << 30)
    assert done.returncode == 8 and "not enough memory" in done.stderr
