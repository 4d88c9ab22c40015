# SPDX-License-Identifier: Apache-2.0
"""Whether a program gives the same on every memory and every queue: read from the program alone.

A program is safe if

1. every token that is taken is given by an instruction in front of the one that takes it, so it
   ends on queues of any depth;
2. of two accesses to the same word of which one writes, the first one's instruction is complete
   when the second one begins;
3. no counter of tokens can pass 255.

What is known to be complete when an instruction begins is a vector: of each unit, how many
instructions. Taking the k-th token of a unit tells everything that the giver of the k-th one knew
when it began, and that it is complete, with all that its unit did before it: a unit's instructions
complete in order. They do not begin in order: a LOAD begins while the words of the one before it
still come, an EXEC before the results of the one before it are written. So that an instruction has
begun says nothing of those of its own unit, but for what a wait of X for itself says. The words of
two LOADs go in, and those of two STOREs out, in the order of the program: these need no more. The
accesses are the instruction's own addresses, word by word; none of it is taken from the compiler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import ProgramError
from bitwright.engine.config import EngineConfig
from bitwright.engine.emulator import block, expand, outside_words
from bitwright.engine.isa import (
    Bits,
    Buffer,
    Exec,
    Init,
    Input,
    Instruction,
    Load,
    LoadMode,
    Output,
    Post,
    Result,
    Store,
    Unit,
    WeightOrder,
    check,
)

Words = NDArray[np.int64]
_UNITS = (Unit.LOAD, Unit.EXECUTE, Unit.STORE)
_MOST = 255


@dataclass
class Touched:
    """Words that an instruction reads and writes, by memory ("memory" is the one outside)."""

    reads: dict[str, Words] = field(default_factory=dict)
    writes: dict[str, Words] = field(default_factory=dict)


def check_program(program: Sequence[Instruction], config: EngineConfig, words: int) -> None:
    """Prove a program safe.

    Args:
        words: size of the memory outside.

    Raises:
        ProgramError: it is not; names the two instructions and the word.
    """
    _Checker(config, words).run(program)


class _Checker:
    def __init__(self, config: EngineConfig, words: int) -> None:
        self.config = config
        self.sizes = {
            "features": config.feature_words,
            "weights": config.weight_rows,
            "parameters": config.parameter_rows,
            "tables": config.table_words,
            "memory": words,
        }
        # Of every word and unit: number (in its unit) of the last one that wrote or read it, + 1.
        self.last = {
            (name, kind): np.zeros((len(_UNITS), size), np.int32)
            for name, size in self.sizes.items()
            for kind in ("writes", "reads")
        }
        self.numbers: list[list[int]] = [[], [], []]  # numbers in the program, by unit
        self.knows = np.zeros((len(_UNITS), len(_UNITS)), np.int64)
        # (giver, taker) -> what is complete with each token, and who took them.
        self.given: dict[tuple[int, int], list[Words]] = {}
        self.taken: dict[tuple[int, int], list[tuple[int, int]]] = {}
        self.input: Input | None = None
        self.output: Output | None = None

    def run(self, program: Sequence[Instruction]) -> None:
        for number, instruction, bases in expand(program):
            where = f"instruction {number}"
            check(instruction, where)
            if isinstance(instruction, Input):
                self.input = instruction
            elif isinstance(instruction, Output):
                self.output = instruction
            else:
                self._do(number, instruction, bases, where)
        for (giver, taker), tokens in self.given.items():
            self._count(giver, taker, len(tokens))

    def _do(
        self, number: int, instruction: Instruction, bases: tuple[int, ...], where: str
    ) -> None:  # fmt: skip
        unit = int(instruction.unit)
        own = len(self.numbers[unit])
        known = self.knows[unit].copy()
        for other in _UNITS:
            if not instruction.wait >> other & 1:
                continue
            if other == unit:
                known[unit] = own
                continue
            taken = self.taken.setdefault((other, unit), [])
            given = self.given.get((other, unit), [])
            if len(taken) >= len(given):
                raise ProgramError(
                    f"it waits for a token of {other.name} that nothing in front of it gives",
                    where=where,
                )
            known = np.maximum(known, given[len(taken)])
            taken.append((own, number))
        touched = self._touched(instruction, bases, where)
        self._compare(unit, known, touched, where)
        self.knows[unit] = known
        self.numbers[unit].append(number)
        complete = known.copy()
        complete[unit] = own + 1  # a unit's instructions complete in order
        for other in _UNITS:
            if instruction.signal >> other & 1:
                self.given.setdefault((unit, other), []).append(complete)

    def _compare(self, unit: int, known: Words, touched: Touched, where: str) -> None:
        """Everything that meets the accesses is complete; then note them."""
        for name, words in touched.reads.items():
            self._complete(unit, known, name, words, ("writes",), where)
        for name, words in touched.writes.items():
            self._complete(unit, known, name, words, ("writes", "reads"), where)
        own = len(self.numbers[unit]) + 1
        for name, words in touched.reads.items():
            self.last[name, "reads"][unit, words] = own
        for name, words in touched.writes.items():
            self.last[name, "writes"][unit, words] = own

    def _complete(
        self, unit: int, known: Words, name: str, words: Words, kinds: tuple[str, ...], where: str
    ) -> None:
        if not words.size:
            return
        for kind in kinds:
            table = self.last[name, kind]
            for other in _UNITS:
                # X writes in order, and reads before what it writes later: only what it wrote
                # must be complete before it reads.
                if other == unit and (unit != Unit.EXECUTE or len(kinds) > 1):
                    continue
                latest = table[other, words]
                if latest.max() > known[other]:
                    at = int(latest.argmax())
                    raise ProgramError(
                        f"nothing orders it behind instruction "
                        f"{self.numbers[other][int(latest[at]) - 1]}, which {kind} word "
                        f"{int(words[at])} of {name}",
                        where=where,
                        hint="a token is missing: this program may give wrong numbers",
                    )

    def _count(self, giver: int, taker: int, count: int) -> None:
        """The (k + 255)-th token is given only when the k-th was taken.

        Raises:
            ProgramError: a counter may pass 255.
        """
        taken = self.taken.get((giver, taker), [])
        for late in range(_MOST, count):
            early = late - _MOST
            known = self.given[giver, taker][late]
            if early >= len(taken) or known[taker] < taken[early][0] + 1:
                raise ProgramError(
                    f"{_MOST + 1} tokens of {Unit(giver).name} for {Unit(taker).name} may wait to "
                    "be taken",
                    hint="let the giver wait for the taker now and then",
                )

    # Accesses ---------------------------------------------------------------------------------

    def _touched(
        self, instruction: Instruction, bases: tuple[int, ...], where: str
    ) -> Touched:  # fmt: skip
        if isinstance(instruction, Load):
            return self._load(instruction, bases, where)
        if isinstance(instruction, Store):
            outside = outside_words(instruction, bases, self.sizes["memory"], where)
            return Touched({"features": self._inside(instruction)}, {"memory": outside})
        if isinstance(instruction, Exec):
            return self._exec(instruction, where)
        raise AssertionError(instruction)

    def _inside(self, move: Load | Store) -> Words:
        counts = (move.z, move.y, move.x)
        words = block(move.address, counts, (move.buffer_z, move.buffer_y, 1))
        return words % self.config.feature_words

    def _load(self, load: Load, bases: tuple[int, ...], where: str) -> Touched:
        config, counts = self.config, (load.z, load.y, load.x)
        outside = outside_words(load, bases, self.sizes["memory"], where)
        reads = {"memory": outside}
        if load.buffer == Buffer.FEATURES:
            return Touched(reads, {"features": self._inside(load)})
        step = 1 if load.mode == LoadMode.PLAIN else config.outputs
        words = block(load.address, counts, (load.buffer_z, load.buffer_y, step))
        if load.buffer == Buffer.WEIGHTS:
            return Touched(reads, {"weights": _once(words // config.outputs, config.weight_rows)})
        if load.buffer == Buffer.PARAMETERS:
            rows = words // config.parameter_row_words
            return Touched(reads, {"parameters": _once(rows, config.parameter_rows)})
        return Touched(reads, {"tables": _once(words, config.table_words)})

    def _exec(self, job: Exec, where: str) -> Touched:
        config, given, finish = self.config, self.input, self.output
        if given is None or finish is None:
            raise ProgramError("an EXEC needs an INPUT and an OUTPUT before it", where=where)
        across, down = 1 << given.patch, max(1, config.pixels >> given.patch)
        rows = np.arange((job.groups_y - 1) * down + job.last_y)[:, np.newaxis]
        columns = np.arange((job.groups_x - 1) * across + job.last_x)
        reads = {"features": self._features(job, given, rows, columns)}
        steps = job.kc * job.kh * job.kw
        count = {
            WeightOrder.SEQUENTIAL: job.outputs * steps,
            WeightOrder.REPEATED: steps,
            WeightOrder.SINGLE: 1,
        }[finish.weights]
        reads["weights"] = _once(job.weights + np.arange(count), config.weight_rows)
        channels = job.outputs * config.outputs
        count = channels if finish.post == Post.THRESHOLD else -(-channels // 8)
        reads["parameters"] = _once(job.parameters + np.arange(count), config.parameter_rows)
        if finish.lookup:
            reads["tables"] = np.arange(config.table_words)
        planes = {
            Result.EIGHT: job.outputs,
            Result.FOUR: -(-job.outputs // 2),
            Result.RAW: config.raw_words * job.outputs,
        }[finish.result]
        place = (rows * finish.row + columns * finish.pixel).reshape(-1, 1)
        target = job.out + place + np.arange(planes) * finish.plane
        written = _once(target.ravel(), config.feature_words)
        if job.init == Init.PARTIAL:
            reads["features"] = np.union1d(reads["features"], written)
        return Touched(reads, {"features": written})

    def _features(self, job: Exec, given: Input, rows: Words, columns: Words) -> Words:
        """Words of the features that are no padding."""
        config = self.config
        groups = range(job.outputs) if given.output else range(1)
        starts = {g >> 1 if given.bits == Bits.FOUR else g for g in groups}
        planes = np.add.outer(
            np.array(sorted(starts)) * given.output, np.arange(job.kc) * given.plane
        ).ravel()
        found = []
        for ky in range(job.kh):
            y = job.y + rows[:, 0] * given.stride_y + ky * given.dilation_y
            inside_y = (y >= 0) & (y < given.height)
            for kx in range(job.kw):
                x = job.x + columns * given.stride_x + kx * given.dilation_x
                inside_x = (x >= 0) & (x < given.width)
                offsets = (
                    rows[inside_y] * given.row + columns[inside_x] * given.pixel
                    + ky * given.tap_y + kx * given.tap_x
                )  # fmt: skip
                found.append(offsets.ravel())
        offsets = np.unique(np.concatenate(found))
        words = job.features + np.add.outer(planes, offsets).ravel()
        return _once(words, config.feature_words)


def _once(words: Words, size: int) -> Words:
    return np.unique(words % size)
