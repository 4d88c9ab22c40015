# SPDX-License-Identifier: Apache-2.0
"""How much memory a function takes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable


def peak(work: Callable[[], object]) -> int:
    """Bytes that a function takes at the most, of those that Python and numpy ask for."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
