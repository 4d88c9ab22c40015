# SPDX-License-Identifier: Apache-2.0
"""Limits that a process of its own gives itself before it opens what a stranger has made.

Run by its path (``runpy.run_path``) in processes that import nothing of ours: Python alone.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: How a process ends where something is wrong with the file, and where its memory ran out.
WRONG, NO_MEMORY = 3, 4
_MOST_SAID = 1000


def confine(memory: int, seconds: int) -> None:
    """Let this process take so many bytes more, and so much more time of the processor, where the
    system has such limits.
    """
    try:
        import resource
    except ImportError:  # not on Windows
        return
    limits = {resource.RLIMIT_CPU: math.ceil(time.process_time()) + seconds}
    with suppress(OSError, ValueError):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limits[resource.RLIMIT_AS] = pages * os.sysconf("SC_PAGE_SIZE") + memory
    for kind, most in limits.items():
        with suppress(OSError, ValueError):  # less is allowed already
            resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def said(error: BaseException) -> str:
    """What an error says, in one line."""
    lines = f"{type(error).__name__}: {error}"[:_MOST_SAID].splitlines()
    return lines[0] if lines else type(error).__name__


@contextmanager
def blaming_the_file() -> Iterator[None]:
    """Whatever is raised inside is the file's fault, since the libraries that read it raise many
    kinds: the process ends with `WRONG` and one line on standard error, or with `NO_MEMORY`.
    """
    try:
        yield
    except MemoryError:
        sys.exit(NO_MEMORY)
    except Exception as error:
        print(said(error), file=sys.stderr)
        sys.exit(WRONG)
