# SPDX-License-Identifier: Apache-2.0
"""What the function of a step gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bitwright.base.progress import Progress

LOGS = "logs"
"""Folder of a step for what tells times; it does not count as a part of the result."""


@dataclass(frozen=True)
class StepContext:
    """What a step's function gets.

    Attributes:
        folder: where it writes; may hold what an interrupted call left if it ``keeps_partial``.
        inputs: folders of the finished steps it reads.
        progress: to be called during slow work.
    """

    folder: Path
    inputs: Mapping[str, Path]
    progress: Progress
