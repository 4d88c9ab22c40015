# SPDX-License-Identifier: Apache-2.0
"""What running a program takes of memory and of work, found out before it is run.

As `ir.footprint` for graphs: 32 bytes can ask for billions of addresses, a LOOP for 65 536 times
what stands in front of it. Nothing is executed here.
"""

from __future__ import annotations

from collections.abc import Sequence

from bitwright.base.errors import ModelError, ProgramError
from bitwright.base.memory import LARGE, is_chosen, room_for, shown
from bitwright.engine.config import EngineConfig
from bitwright.engine.isa import (
    Bits,
    Exec,
    Halt,
    Input,
    Instruction,
    Load,
    Loop,
    Store,
)
from bitwright.ir.footprint import MOST_WORK

#: Instructions that a compilation makes: those of YOLOv3-sized networks are some ten thousand.
MOST_MADE = 1 << 18
#: Cycles of a program of a stranger that are timed one by one: a minute at most. Memories outside
#: may be so slow that little work takes many.
MOST_CYCLES = 1 << 27
_BYTES = 8  # of an address or a lane while it is computed with
_EACH = 4 * _BYTES  # four of those: as it is, signed, as reals, transposed
#: Of the memory outside: each byte, and whether it was ever written.
_OUTSIDE = 2
_COMPARED = 4  # of a sum: compared with 15 thresholds at a time, a byte each
#: Operations on elements that one instruction takes, whatever it does.
_LEAST = 20_000
_OWN = f"for a program of your own: {LARGE}=1"


def check_running(
    program: Sequence[Instruction], config: EngineConfig, words: int, where: str
) -> None:
    """Refuse a program whose run takes more than a stranger may ask for.

    Args:
        words: of the memory outside.
        where: what is said to be wrong.

    Raises:
        ProgramError: it takes too much memory or work.
    """
    room = room_for(chosen=False)
    outside = _OUTSIDE * words * config.lanes
    if outside > room:
        raise ProgramError(
            f"its memory of {words} words takes {shown(outside)}; {shown(room)} are allowed",
            where=where,
            hint=_OWN,
        )
    work, given = 0, Input()
    body: list[int] = []  # behind the last loop
    for number, instruction in enumerate(program):
        if isinstance(instruction, Halt):
            break
        if isinstance(instruction, Input):
            given = instruction
        elements, operations = _cost(instruction, given, config)
        if _EACH * elements > room:
            raise ProgramError(
                f"instruction {number} computes with {elements} elements at a time; "
                f"{room // _EACH} are allowed",
                where=where,
                hint=_OWN,
            )
        work += _LEAST + operations
        if isinstance(instruction, Loop):
            work += (instruction.count - 1) * sum(body[-instruction.length :])
            body = []
        else:
            body.append(_LEAST + operations)
    if work > MOST_WORK and not is_chosen():
        raise ProgramError(
            f"one run takes {work / 1e9:.1f} thousand million operations on elements; "
            f"{MOST_WORK / 1e9:.1f} are done because a file says so",
            where=where,
            hint=_OWN,
        )


def check_length(instructions: int, where: str) -> None:
    """Refuse to make a program of very many instructions: each takes four kilobytes meanwhile.

    Raises:
        ModelError: it has more than `MOST_MADE`, and the user has not said that the file is theirs.
    """
    if instructions > MOST_MADE and not is_chosen():
        raise ModelError(
            f"its program has more than {MOST_MADE} instructions",
            where=where,
            hint=f"use smaller images, or an engine with larger memories; {_OWN}",
        )


def _cost(instruction: Instruction, given: Input, config: EngineConfig) -> tuple[int, int]:
    """Elements that the emulator holds at a time, and operations on elements."""
    if isinstance(instruction, Load | Store):
        bytes_ = config.lanes * (1 if isinstance(instruction, Store) else config.outputs)
        elements = instruction.x * instruction.y * instruction.z * max(1, bytes_ // _BYTES)
        return elements, _BYTES * elements
    if not isinstance(instruction, Exec):
        return 1, 1
    across = 1 << given.patch
    columns = instruction.groups_x * across
    rows = instruction.groups_y * max(1, config.pixels >> given.patch)
    lanes = config.lanes << (given.bits == Bits.FOUR)
    steps = instruction.kc * instruction.kh * instruction.kw * lanes
    outputs = instruction.outputs * config.outputs
    held = max(
        columns * max(steps, outputs),  # a strip has a row at least
        rows * columns * outputs * _COMPARED,
        steps * outputs,
    )
    return held, rows * columns * steps * outputs
