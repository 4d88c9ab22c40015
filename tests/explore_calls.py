# SPDX-License-Identifier: Apache-2.0
"""What the jobs of the tests do; each is called in a process of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bitwright.base.errors import DataError


def square(arguments: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The square of ``x``, and the process and its threads."""
    (folder / "made.txt").write_text(str(arguments["x"]))
    threads = int(os.environ["OMP_NUM_THREADS"])
    return {"square": arguments["x"] ** 2, "process": os.getpid(), "threads": threads}


def says(arguments: Mapping[str, Any], folder: Path) -> list[int]:
    """Prints; gives its session, its group and its process."""
    del folder
    print("said by", arguments["word"])
    return [os.getsid(0), os.getpgid(0), os.getpid()]


def refused(arguments: Mapping[str, Any], folder: Path) -> None:
    """A mistake of the user's."""
    del arguments
    raise DataError("holds no image", where=str(folder), hint="fill it")


def broken(arguments: Mapping[str, Any], folder: Path) -> float:
    """A mistake of ours."""
    del folder
    return 1 / float(arguments["zero"])


def dies(arguments: Mapping[str, Any], folder: Path) -> int:
    """Is killed like a process that takes too much memory, so many times."""
    deaths = len(list(folder.glob("died-*")))
    if deaths < int(arguments["times"]):
        (folder / f"died-{deaths}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return deaths


def sleeps(arguments: Mapping[str, Any], folder: Path) -> str:
    """Says which process it is, then takes its time."""
    (folder / "pid").write_text(str(os.getpid()))
    time.sleep(float(arguments["seconds"]))
    return "slept"


def waits_for_the_other(arguments: Mapping[str, Any], folder: Path) -> float:
    """Ends only if the other job runs at the same time."""
    (folder / "here").touch()
    other = folder.parent / str(arguments["other"]) / "here"
    deadline = time.monotonic() + 20
    while not other.exists():
        if time.monotonic() > deadline:
            raise DataError("the other job never ran")
        time.sleep(0.02)
    return 1.0


def loses_its_watcher(arguments: Mapping[str, Any], folder: Path) -> str:
    """Kills the process that has started it, so many times."""
    deaths = len(list(folder.glob("lost-*")))
    if deaths < int(arguments["times"]):
        (folder / f"lost-{deaths}").write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return f"after {deaths}"


def loses_the_server(arguments: Mapping[str, Any], folder: Path) -> int:
    """Kills the process that jobs are forked from, once."""
    del arguments
    if not (folder / "lost").exists():
        (folder / "lost").touch()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    return os.getppid()


print("an import says this")
