# SPDX-License-Identifier: Apache-2.0
"""When every instruction of a program begins and ends, to the cycle, whatever the memory does.

The rules are those of the RTL (``engine/native/timing.cpp``), and the memory is the test bench's
own: the same memory and seed make the same stalls there and here, so what is predicted is what is
simulated, instruction by instruction. No data is computed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import ProgramError, ToolError
from bitwright.base.native import INT, INT64, POINTER, Program
from bitwright.base.progress import Progress, no_progress
from bitwright.engine.config import EngineConfig
from bitwright.engine.estimate import exec_period
from bitwright.engine.isa import Buffer, Exec, Halt, Input, Instruction, Load, Loop, Output, Store
from bitwright.engine.sdram import SDRAM_TIMES

Cycles = NDArray[np.int64]

_CONF, _EXEC, _LOAD, _STORE, _HALT = range(5)
_FIELDS = 11  # of the structure Instruction of timing.cpp
LIMIT = 4_000_000_000
"""Cycles that are timed at most, whoever asks."""
_TOO_LONG, _NO_ROOM = 1, 4  # of what bw_engine_timing gives back
_WHERE = "the engine's timing"

TIMING = Program(
    name="engine-timing",
    package="bitwright.engine",
    sources=("timing.cpp",),
    headers=("sim/memory.h", "sim/random.h", "sim/sdram.h"),
    functions={"bw_engine_timing": (INT, POINTER, INT64, *(POINTER,) * 9)},
    values={
        "bw_engine_instruction_size": 8 * _FIELDS,
        "bw_engine_sdram_size": 8 * len(SDRAM_TIMES),
    },
    libraries=("-lstdc++",),
    hint="the timing model needs a C++ compiler; `bitwright doctor` says how to install one",
)


class OutsideMemory(Protocol):
    """How the memory outside behaves: what `sim.MemoryModel` says."""

    @property
    def base(self) -> int: ...
    @property
    def latency(self) -> int: ...
    @property
    def jitter(self) -> int: ...
    @property
    def beats_per_cycle(self) -> float: ...
    @property
    def stop(self) -> float: ...
    @property
    def go(self) -> float: ...
    @property
    def mixed(self) -> bool: ...
    @property
    def sdram(self) -> Mapping[str, int] | None:
        """Times of the SDRAM's controller; None: it is none, and the rest says how it behaves."""


@dataclass(frozen=True)
class Timing:
    """What was found, in cycles from reset on.

    Attributes:
        begin, end: (runs, instructions): when it was taken with its tokens, and when it was
            complete; -1 for INPUT, OUTPUT and HALT, which have no tokens.
        start, done: (runs,): the pulse of start, and the first cycle in which the engine is done.
    """

    begin: Cycles = field(repr=False)
    end: Cycles = field(repr=False)
    start: Cycles
    done: Cycles

    @property
    def cycles(self) -> Cycles:
        """Of each run, as the engine counts them."""
        return self.done - self.start - 1


def simulate(  # noqa: PLR0913 - each with a usual value
    program: Sequence[Instruction],
    config: EngineConfig,
    memory: OutsideMemory,
    size: int,
    *,
    seed: int = 1,
    runs: int = 1,
    pause: int = 0,
    limit: int = LIMIT,
    progress: Progress = no_progress,
) -> Timing:
    """Time a program.

    Args:
        memory: how the memory outside behaves.
        size: its bytes.
        seed: as in the `StallPattern` of the simulation.
        runs: how often the program runs, one run behind the other.
        pause: cycles before every start.
        limit: most cycles.
        progress: told cycles now and then; what it raises ends the search, as does Ctrl-C.

    Raises:
        ProgramError: the program has a LOOP, asks for what the memory does not have, or does not
            end within the limit (it takes longer, or waits for a token that nobody gives).
        ToolError: there is no C++ compiler, or no room for the memory.
    """
    table = _table(program, config)
    begin = np.full((runs, len(table)), -1, np.int64)
    end, start, done = begin.copy(), np.zeros(runs, np.int64), np.zeros(runs, np.int64)
    shape = np.array([config.lanes, config.exec_result, runs, pause, limit], np.int64)
    outside = np.array(
        [memory.base, memory.latency, memory.jitter, int(memory.mixed), size, seed * 1000 + 900],
        np.int64,
    )
    rates = np.array([memory.beats_per_cycle, memory.stop, memory.go], np.float64)
    times = {} if memory.sdram is None else memory.sdram
    sdram = np.array([times.get(name, 0) for name in SDRAM_TIMES], np.int64)
    raised: list[BaseException] = []

    def stops(cycle: int) -> int:  # in Python, where Ctrl-C is noticed
        try:
            progress("timing the program, cycles", cycle, 0)
        except BaseException as error:  # C gives it back
            raised.append(error)
        return len(raised)

    asked = ctypes.CFUNCTYPE(INT, INT64)(stops)
    first, second = (shape, outside, rates, sdram), (begin, end, start, done)
    pointers = [array.ctypes.data_as(ctypes.c_void_p) for array in (table, *first)]
    pointers += [ctypes.cast(asked, ctypes.c_void_p)]
    pointers += [array.ctypes.data_as(ctypes.c_void_p) for array in second]
    code = TIMING.require().bw_engine_timing(pointers[0], len(table), *pointers[1:])
    if raised:
        raise raised[0]
    if code == _NO_ROOM:
        raise ToolError(f"there is no room for a memory of {size} bytes", where=_WHERE)
    if code:
        reason = (
            f"the program does not end within {limit} cycles: it takes longer, or an instruction "
            "waits for a token that nobody gives"
            if code == _TOO_LONG
            else f"the program asks for what a memory of {size} bytes does not have"
        )
        raise ProgramError(reason, where=_WHERE)
    return Timing(begin, end, start, done)


def _table(program: Sequence[Instruction], config: EngineConfig) -> NDArray[np.int64]:
    """The rows that timing.cpp reads, up to and with HALT."""
    rows, given, finish = [], Input(), Output()
    for number, instruction in enumerate(program):
        row = [_CONF, instruction.wait, instruction.signal, *(0,) * (_FIELDS - 3)]
        if isinstance(instruction, Loop):
            raise ProgramError("LOOP is not timed", where=f"instruction {number}")
        if isinstance(instruction, Input):
            given = instruction
        if isinstance(instruction, Output):
            finish = instruction
        if isinstance(instruction, Exec):
            row[0], row[3] = _EXEC, exec_period(instruction, given, finish, config)
        if isinstance(instruction, Load | Store):
            features = isinstance(instruction, Store) or instruction.buffer == Buffer.FEATURES
            row[0] = _LOAD if isinstance(instruction, Load) else _STORE
            row[4:] = [
                int(features), instruction.x, instruction.y, instruction.z, instruction.memory,
                instruction.memory_y, instruction.memory_z,
            ]  # fmt: skip
        if isinstance(instruction, Halt):
            row[0] = _HALT
            rows.append(row)
            return np.array(rows, np.int64)
        rows.append(row)
    raise ProgramError("the program has no HALT")
