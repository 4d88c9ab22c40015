# SPDX-License-Identifier: Apache-2.0
"""External programs: found once, really tried, run with time limits, nothing left behind."""

from __future__ import annotations

from bitwright.base.tools.finder import (
    Tool,
    ToolStatus,
    doctor,
    find,
    forget,
    locate,
    require,
    run_tool,
)
from bitwright.base.tools.process import (
    Completed,
    Tick,
    check_finished,
    output_of,
    require_result,
    run_process,
)

__all__ = [
    "Completed",
    "Tick",
    "Tool",
    "ToolStatus",
    "check_finished",
    "doctor",
    "find",
    "forget",
    "locate",
    "output_of",
    "require",
    "require_result",
    "run_process",
    "run_tool",
]
