# SPDX-License-Identifier: Apache-2.0
"""Libraries that may crash on files of strangers, or take what these ask for: in a process of their
own, with limits of memory and time.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bitwright.base.memory import machine_memory, too_little
from bitwright.base.tools.confine import NO_MEMORY
from bitwright.base.tools.python import SAFE_PATH, python

#: Seconds of the clock for each of the processor: other programs want it, too; and in any case.
_SLOWER, _LEAST_S = 10, 60


def run_confined(
    script: Path,
    arguments: Sequence[str | Path],
    *,
    folder: Path,
    memory: int,
    seconds: int,
    library: str,
    where: str,
) -> str | None:
    """Run a script of ours that confines itself (`base.tools.confine`); its last two arguments are
    the limits.

    Args:
        folder: where it works, which holds nothing of strangers but what it is told to read.
        memory: bytes that it may take besides its libraries; not more than the machine has.
        seconds: of the processor.
        library: for messages: ``HDF5``.
        where: the file.

    Returns:
        None if it has done its work; or what was wrong, in words.

    Raises:
        DataError: the machine has too little memory for what the file may ask for.
    """
    machine = machine_memory()
    memory = min(memory, machine)
    command = python("-I", str(script), *map(str, arguments), str(memory), str(seconds))
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **SAFE_PATH},
            cwd=folder,
            text=True,
            errors="replace",
            timeout=_LEAST_S + _SLOWER * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return f"it was not done in {error.timeout:.0f} s"
    if not done.returncode:
        return None
    if done.returncode == NO_MEMORY and memory == machine:
        raise too_little(where)
    lines = done.stderr.strip().splitlines()
    if done.returncode == NO_MEMORY:
        return f"it asks for more than {memory >> 20} MiB, which no real file of its size does"
    if done.returncode == -getattr(signal, "SIGXCPU", 0):
        return f"it takes more than {seconds} s to read, which no real file of its size does"
    return lines[-1] if done.returncode > 0 and lines else f"{library} crashes on it"
