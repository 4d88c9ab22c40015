# SPDX-License-Identifier: Apache-2.0
"""What the fuzz knows of a kind of file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Reader:
    """A kind of file.

    Attributes:
        make: writes a real one into a folder.
        read: gives anything, or raises a `BitwrightError`.
        share: of all mutated files; those that start a process get few.
        place: of the file that is mutated, where ``make`` gives a folder.
    """

    name: str
    make: Callable[[Path], Path]
    read: Callable[[Path], object]
    share: float = 1.0
    place: str = ""
