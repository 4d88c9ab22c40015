# SPDX-License-Identifier: Apache-2.0
"""What a session with a board has done, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Statistics:
    """What a session has done.

    Attributes:
        answers: frames answered.
        seconds: while there was something to do.
        sent_bytes, got_bytes: on the line, repetitions included.
        repeated_bytes: of the input stream, sent more than once.
        repeated_frames: images that were sent again because their answer was lost.
        skipped_bytes: received ones that belonged to no whole packet.
        damaged: packets that the board refused as damaged.
        timeouts: silences that were broken by sending again.
    """

    answers: int = 0
    seconds: float = 0.0
    sent_bytes: int = 0
    got_bytes: int = 0
    repeated_bytes: int = 0
    repeated_frames: int = 0
    skipped_bytes: int = 0
    damaged: int = 0
    timeouts: int = 0

    @property
    def rate(self) -> float:
        """Answers a second over the line; 0 before there are any."""
        return self.answers / self.seconds if self.seconds else 0.0
