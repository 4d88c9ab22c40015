# SPDX-License-Identifier: Apache-2.0
"""Images a second of a board: what its core, its serial link and a weight memory each allow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from bitwright.base.errors import TargetError
from bitwright.build.target import Target, load_board
from bitwright.host.protocol import element_bytes
from bitwright.host.protocol import line_bytes as packet_bytes

_BITS_A_BYTE = 10  # a start bit, eight of data, a stop bit


@dataclass(frozen=True)
class Stream:
    """One stream of a design: transfers a frame, bits of each without padding, and elements."""

    beats: int
    width: int
    lanes: int = 1

    @property
    def bytes(self) -> int:
        """To the device: each beat is padded to whole ones."""
        return self.beats * ceil(self.width / 8)

    @property
    def answer_bytes(self) -> int:
        """From the device: each element is an integer of a computer (`host.description.Output`)."""
        return self.beats * self.lanes * element_bytes(self.width // self.lanes)


@dataclass(frozen=True)
class LinkRate:
    """A serial line.

    Attributes:
        board: whose.
        baud: bits a second, those that frame a byte counted.
        bytes_in, bytes_out: on the line for one image, to the device and back.
    """

    board: str
    baud: float
    bytes_in: int
    bytes_out: int

    @property
    def images_per_s(self) -> float:
        """Both directions carry at the same time, so the longer one sets the rate."""
        return self.baud / _BITS_A_BYTE / max(self.bytes_in, self.bytes_out)


def line_bytes(inputs: Iterable[Stream], outputs: Iterable[Stream]) -> tuple[int, int]:
    """Bytes on the line for one image, in and out, packets and checksums included."""
    answer = sum(stream.answer_bytes for stream in outputs)
    return packet_bytes(sum(stream.bytes for stream in inputs), answer)


def link_of(
    target: Target, inputs: Iterable[Stream], outputs: Iterable[Stream], baud: float | None = None
) -> LinkRate | None:
    """The serial link of a target's board under a design; None without a board or one input.

    Args:
        baud: what the board's clock makes of its nominal rate; None: the nominal one.
    """
    sources, sinks = tuple(inputs), tuple(outputs)
    if target.board is None or len(sources) != 1 or not sinks:
        return None
    try:
        board = load_board(target.board)
    except TargetError:  # a target of the user's own may name a board that is not here
        return None
    rate = board.uart_baud if baud is None else baud
    return LinkRate(board.name, rate, *line_bytes(sources, sinks))
