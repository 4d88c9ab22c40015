# SPDX-License-Identifier: Apache-2.0
"""Jobs of a module that does at its import what a module should not: it takes its time, reads,
prints, and starts a program.
"""

from __future__ import annotations

import subprocess
import sys
import time

from tests.explore_calls import sleeps, square

sys.stdin.readline()
print("{}")
PROGRAM = subprocess.Popen(["sleep", "1.2"])
time.sleep(1.0)
__all__ = ["sleeps", "square"]
