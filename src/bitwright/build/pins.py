# SPDX-License-Identifier: Apache-2.0
"""Pin files: what says to place and route which port of a board's top stands on which pin."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bitwright.base.errors import TargetError
from bitwright.build.target import Board


def pin_suffix(family: str) -> str:
    """Ending of a family's pin files, with its dot.

    Raises:
        TargetError: no open place and route for the family, so no pin file.
    """
    return _writer(family).suffix


def pin_file(board: Board, family: str, *, sdram: bool = False) -> str:
    """The pin file of a board top, in the form that the family's place and route reads; ``sdram``:
    with the pins of the memory.

    Raises:
        TargetError: as for :func:`pin_suffix`.
    """
    shown = board if sdram else board.model_copy(update={"sdram": {}})
    return _writer(family).write(shown)


@dataclass(frozen=True)
class _Writer:
    suffix: str
    write: Callable[[Board], str]


def _lpf(board: Board) -> str:
    lines = [f'FREQUENCY PORT "clk" {board.clock_mhz:g} MHZ;']
    for port, site in board.pins.items():
        lines.append(f'LOCATE COMP "{port}" SITE "{site}";')
        pull = f" PULLMODE={board.pulls[port]}" if port in board.pulls else ""
        kind = board.io_types.get(port, board.io_type)
        lines.append(f'IOBUF PORT "{port}" IO_TYPE={kind}{pull};')
    return "\n".join([*lines, *_lpf_memory(board)]) + "\n"


def _lpf_memory(board: Board) -> list[str]:
    """Pins of the SDRAM: fast edges, little current, as the board's own file has them."""
    lines = []
    for name, sites in board.sdram.items():
        for bit, site in enumerate(sites):
            port = f"sdram_{name}[{bit}]" if len(sites) > 1 else f"sdram_{name}"
            lines.append(f'LOCATE COMP "{port}" SITE "{site}";')
            kind = f"IO_TYPE={board.io_type} PULLMODE=NONE DRIVE=4 SLEWRATE=FAST"
            lines.append(f'IOBUF PORT "{port}" {kind};')
    return lines


def _pcf(board: Board) -> str:
    """Physical constraints of iCE40; the voltage is that of the bank's supply.

    Raises:
        TargetError: a pull-down, which iCE40 has not.
    """
    down = [port for port, pull in board.pulls.items() if pull == "DOWN"]
    if down:
        raise TargetError(
            f"pulls: {', '.join(down)} is DOWN, and iCE40 has no pull-downs",
            where=f"board {board.name}",
        )
    lines = []
    for port, site in board.pins.items():
        pull = " -pullup yes" if board.pulls.get(port) == "UP" else ""
        lines.append(f"set_io{pull} {port} {site}")
    lines.append(f"set_frequency clk {board.clock_mhz:g}")
    return "\n".join(lines) + "\n"


_WRITERS: Mapping[str, _Writer] = {"ecp5": _Writer(".lpf", _lpf), "ice40": _Writer(".pcf", _pcf)}


def _writer(family: str) -> _Writer:
    if family not in _WRITERS:
        raise TargetError(
            f"the family {family} has no pin file here",
            hint=f"families that open tools place and route are {', '.join(_WRITERS)}",
        )
    return _WRITERS[family]
