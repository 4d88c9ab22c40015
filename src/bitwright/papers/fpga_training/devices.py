# SPDX-License-Identifier: Apache-2.0
"""FPGA boards to train on: what a training accelerator may use of one, as TOML.

A device of the user's own is a path to such a file. Every figure names its source.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from bitwright.base.described import Strict, read_described

_DEVICES = Path(__file__).parent / "devices"
_Count = Annotated[int, Field(ge=1, le=1 << 40)]
_Positive = Annotated[float, Field(ge=1e-9, le=1e18)]


class Memory(Strict):
    """Blocks of one kind of memory on the chip.

    Attributes:
        blocks: how many there are.
        bits: of one block.
        words: of 32 bits that a block holds (WPB of equation 5.17).
        ports: of a block (PPB of equation 5.21).
    """

    blocks: Annotated[int, Field(ge=0, le=1 << 40)]
    bits: _Count
    words: _Count
    ports: _Count = 2

    def words_of(self, bits: int) -> int:
        """Words of so many bits in one block: narrower ones make it deeper."""
        return max(1, self.words * 32 // bits)


class Board(Strict):
    """What an accelerator may use of a board.

    Attributes:
        name: short name.
        description: one line.
        slrs: dies (super logic regions) of the chip; an accelerator of `fpgpt` lies on one.
        dsp: multiplier blocks of the whole chip.
        bram, uram: memories of the whole chip.
        port_bits: of the memory port of one accelerator, a cycle.
        bits_per_second: of the memory on the card.
        host_bits_per_second: between host and card.
        clock_mhz: at which published designs ran.
        watts: that the card takes while it computes.
        card_bytes: of the memory on the card.
        source: of all these figures.
    """

    name: str
    description: str
    slrs: _Count = 1
    dsp: Annotated[int, Field(ge=1, le=1 << 16)]  # kernels of every size up to it are tried
    bram: Memory
    uram: Memory | None = None
    port_bits: Annotated[int, Field(ge=1, le=1 << 20)]
    bits_per_second: _Positive
    host_bits_per_second: _Positive
    clock_mhz: _Positive
    watts: _Positive
    card_bytes: _Count
    source: Annotated[str, Field(min_length=1)]

    @property
    def clock_hz(self) -> float:
        """Cycles a second."""
        return self.clock_mhz * 1e6


def list_boards() -> list[str]:
    """Names of the boards that come with the package."""
    return sorted(path.stem for path in _DEVICES.glob("*.toml"))


def load_board(name: str | Path) -> Board:
    """A board by its name, or by the path of a TOML file of the user's own.

    Raises:
        TargetError: no such board, or a file that describes none, with the fields that are wrong.
    """
    return read_described(name, _DEVICES, Board, "training board")
