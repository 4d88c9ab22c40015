# SPDX-License-Identifier: Apache-2.0
"""The processors of this machine."""

from __future__ import annotations

import os


def available_threads() -> int:
    """Cores that this process may use, at least one."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
