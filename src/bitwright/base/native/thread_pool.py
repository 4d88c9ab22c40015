# SPDX-License-Identifier: Apache-2.0
"""The threads that our C programs share with a numeric library in the same process."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

#: The files of a `Program` with threads.
POOL_SOURCE, POOL_HEADER = "base/native/thread_pool.c", "base/native/thread_pool.h"
_MAPS = Path("/proc/self/maps")


@lru_cache(maxsize=1)
def openmp_fork() -> int | None:
    """Address of ``GOMP_parallel`` of the OpenMP that is loaded (torch's, say), if it is GNU's.

    Threads of our own would compete with its threads, which wait actively for more work.
    """
    if not _MAPS.exists():
        return None
    for line in _MAPS.read_text(errors="replace").splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libgomp" in path and path.startswith("/"):
            try:
                return ctypes.cast(ctypes.CDLL(path).GOMP_parallel, ctypes.c_void_p).value
            except (OSError, AttributeError):
                return None
    return None
