# SPDX-License-Identifier: Apache-2.0
"""Jobs of a module that takes its time to be imported."""

from __future__ import annotations

import time

from tests.explore_calls import sleeps

time.sleep(1.0)
__all__ = ["sleeps"]
