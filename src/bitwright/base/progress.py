# SPDX-License-Identifier: Apache-2.0
"""How slow work tells how far it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as ``progress(what, done, total)`` during slow work; total 0 means unknown."""


def no_progress(what: str, done: int, total: int) -> None:
    """The progress callback that shows nothing."""
