# SPDX-License-Identifier: Apache-2.0
"""The definition of what a program does: numpy, without time.

Instructions are executed one after the other in the order of the program, which is one of the
orders that their tokens allow (the checker proves that all give the same). Every byte knows whether
it was ever written: an EXEC that reads one that was not is an error with its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import ProgramError
from bitwright.engine.config import EngineConfig
from bitwright.engine.execute import Machine, execute
from bitwright.engine.isa import (
    Buffer,
    Exec,
    Halt,
    Input,
    Instruction,
    Load,
    LoadMode,
    Loop,
    Output,
    Store,
    check,
)

Bytes = NDArray[np.uint8]


@dataclass
class Memory:
    """The memory outside: ``words`` (N, lanes) bytes, and which of them were ever written."""

    words: Bytes
    written: NDArray[np.bool_]

    @staticmethod
    def empty(words: int, lanes: int) -> Memory:
        return Memory(np.zeros((words, lanes), np.uint8), np.zeros((words, lanes), np.bool_))

    def put(self, word: int, data: Bytes) -> None:
        """Write words ``(n, lanes)`` from a word on, as the host does."""
        self.words[word : word + len(data)] = data
        self.written[word : word + len(data)] = True

    def get(self, word: int, count: int, what: str) -> Bytes:
        """Words that must have been written.

        Raises:
            ProgramError: one was not.
        """
        missing = np.flatnonzero(~self.written[word : word + count].all(axis=1))
        if len(missing):
            raise ProgramError(
                f"word {word + int(missing[0])} of the memory was never written", where=what
            )
        return self.words[word : word + count]


def expand(program: Sequence[Instruction]) -> Iterator[tuple[int, Instruction, tuple[int, ...]]]:
    """The instructions as they are dealt, loops unrolled: number, instruction, base registers.

    Raises:
        ProgramError: a loop reaches in front of the program or into another one; no HALT.
    """
    bases = [0] * 8
    repeated = 0  # the number of the last loop
    for number, instruction in enumerate(program):
        if isinstance(instruction, Halt):
            return
        if isinstance(instruction, Loop):
            start = number - instruction.length
            if start < repeated:
                raise ProgramError(
                    "a loop must lie behind the one before it", where=f"instruction {number}"
                )
            repeated = number + 1
            for _ in range(instruction.count - 1):
                bases[instruction.base_a] += instruction.step_a
                bases[instruction.base_b] += instruction.step_b
                for inner in range(start, number):
                    yield inner, program[inner], tuple(bases)
            bases[instruction.base_a] = bases[instruction.base_b] = 0
        else:
            yield number, instruction, tuple(bases)
    raise ProgramError("the program has no HALT")


def emulate(program: Sequence[Instruction], memory: Memory, config: EngineConfig) -> Machine:
    """Execute a program; ``memory`` is changed in place.

    Returns:
        the machine's state at the end.

    Raises:
        ProgramError: an instruction breaks a rule or an EXEC reads what nothing has written; says
            which and where.
    """
    machine = Machine(config)
    for number, instruction, bases in expand(program):
        step(machine, memory, instruction, bases, f"instruction {number}")
    return machine


def step(
    machine: Machine, memory: Memory, instruction: Instruction, bases: Sequence[int], where: str
) -> None:
    """Execute one instruction of a unit.

    Raises:
        ProgramError: as `emulate`.
    """
    check(instruction, where)
    if isinstance(instruction, Input):
        machine.input = instruction
    elif isinstance(instruction, Output):
        machine.output = instruction
    elif isinstance(instruction, Exec):
        execute(machine, instruction, where)
    elif isinstance(instruction, Load):
        _load(machine, memory, instruction, bases, where)
    elif isinstance(instruction, Store):
        _store(machine, memory, instruction, bases, where)


def outside_words(
    move: Load | Store, bases: Sequence[int], size: int, where: str
) -> NDArray[np.int64]:
    """Addresses in memory of a LOAD's or STORE's words, in order.

    Raises:
        ProgramError: one lies outside of the memory.
    """
    steps = (move.memory_z, move.memory_y, 1)
    words = block(move.memory + bases[move.base], (move.z, move.y, move.x), steps)
    if words.min() < 0 or words.max() >= size:
        raise ProgramError(
            f"words {words.min()} .. {words.max()} leave the memory of {size} words", where=where
        )
    return words


def block(start: int, counts: Sequence[int], steps: Sequence[int]) -> NDArray[np.int64]:
    """Addresses of nested loops, the last one innermost, as one row."""
    result = np.array([start], np.int64)
    for count, step in zip(counts, steps, strict=True):
        result = (result[:, np.newaxis] + np.arange(count, dtype=np.int64) * step).ravel()
    return result


def _load(
    machine: Machine, memory: Memory, load: Load, bases: Sequence[int], where: str
) -> None:  # fmt: skip
    config, counts = machine.config, (load.z, load.y, load.x)
    source = outside_words(load, bases, len(memory.words), where)
    data, written = memory.words[source], memory.written[source]
    if load.mode != LoadMode.PLAIN:
        steps = (load.buffer_z, load.buffer_y, config.outputs)
        rows = block(load.address, counts, steps) // config.outputs % config.weight_rows
        mask = diagonal_mask(config, load.mode)
        machine.weights[rows] = data[:, np.newaxis] & mask
        machine.weights_written[rows] = written[:, np.newaxis]
        return
    target = block(load.address, counts, (load.buffer_z, load.buffer_y, 1))
    buffer, flags = machine.flat(load.buffer, where)
    target %= len(buffer)
    buffer[target] = data
    flags[target] = written


def diagonal_mask(config: EngineConfig, mode: LoadMode) -> Bytes:
    """(O, lanes): the bits of a word that bank b keeps."""
    lanes = np.arange(config.lanes)
    if mode == LoadMode.DIAGONAL8:
        kept = lanes % config.outputs == np.arange(config.outputs)[:, np.newaxis]
        return np.where(kept, 0xFF, 0).astype(np.uint8)
    banks = np.arange(config.outputs)[:, np.newaxis]
    low = np.where(2 * lanes % config.outputs == banks, 0x0F, 0)
    high = np.where((2 * lanes + 1) % config.outputs == banks, 0xF0, 0)
    return (low | high).astype(np.uint8)


def _store(
    machine: Machine, memory: Memory, store: Store, bases: Sequence[int], where: str
) -> None:  # fmt: skip
    target = outside_words(store, bases, len(memory.words), where)
    buffer, flags = machine.flat(Buffer.FEATURES, where)
    counts = (store.z, store.y, store.x)
    source = block(store.address, counts, (store.buffer_z, store.buffer_y, 1)) % len(buffer)
    memory.words[target] = buffer[source]
    memory.written[target] = flags[source]
