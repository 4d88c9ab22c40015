# SPDX-License-Identifier: Apache-2.0
"""Where constants lie: in the image, and in the engine's small memories."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


@dataclass
class Blob:
    """Constant words of the image; equal pieces are kept once."""

    lanes: int
    pieces: list[Bytes] = field(default_factory=list)
    words: int = 0
    known: dict[bytes, int] = field(default_factory=dict)

    def add(self, data: Bytes) -> int:
        """Put bytes, padded to whole words; the first word's number."""
        flat = data.reshape(-1)
        flat = np.concatenate([flat, np.zeros(-len(flat) % self.lanes, np.uint8)])
        key = flat.tobytes()
        if key not in self.known:
            self.known[key] = self.words
            self.pieces.append(flat)
            self.words += len(flat) // self.lanes
        return self.known[key]

    @property
    def table(self) -> Bytes:
        """All words."""
        empty = np.zeros(0, np.uint8)
        return np.concatenate([empty, *self.pieces]).reshape(-1, self.lanes)


@dataclass
class Ring:
    """Places for pieces that are used one after the other."""

    size: int
    next: int = 0

    def take(self, count: int) -> int:
        if self.next + count > self.size:
            self.next = 0
        start, self.next = self.next, self.next + count
        return start

    def make_room(self, count: int) -> None:
        """Let the next ``count`` lie one behind the other."""
        if self.next + count > self.size:
            self.next = 0
