# SPDX-License-Identifier: Apache-2.0
"""What the programs of training have in common: steps to a program, its memory, the emulator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import ModelError
from bitwright.engine.compiler.finish import parameter_bytes
from bitwright.engine.compiler.schedule import program_of
from bitwright.engine.compiler.steps import Access, Action, Space, Step
from bitwright.engine.compiler.values import Post
from bitwright.engine.config import EngineConfig
from bitwright.engine.emulator import Memory, emulate
from bitwright.engine.image import program_bytes, program_words
from bitwright.engine.isa import Buffer, Instruction, Load, Result, Store

Bytes = NDArray[np.uint8]
Levels = NDArray[Any]
Pair = tuple[int, int]
#: Rows, columns and output groups of an EXEC, at most: its fields have 8 bits.
MOST = 255
#: Words behind the last one that the fetcher may read.
_READ_AHEAD = 32


@dataclass(frozen=True)
class Window:
    """Shapes of a convolution: images (N, C, H, W), kernels (O, C, KH, KW), results (N, O, H', W').

    Attributes:
        padding: zeros above and left; below zero, rows and columns left out.
    """

    images: int
    channels: int
    size: Pair
    kernels: int
    kernel: Pair
    out: Pair
    stride: Pair = (1, 1)
    dilation: Pair = (1, 1)
    padding: Pair = (0, 0)

    def input_rows(self, first: int, end: int) -> Pair:
        """Rows of an image that rows ``first .. end - 1`` of the result read; one at least."""
        low = first * self.stride[0] - self.padding[0]
        high = (end - 1) * self.stride[0] + (self.kernel[0] - 1) * self.dilation[0]
        low = max(0, min(low, self.size[0] - 1))
        return low, max(low + 1, min(high - self.padding[0] + 1, self.size[0]))


def check_taps(window: Window, config: EngineConfig) -> None:
    """Refuse a kernel that an EXEC has no numbers for.

    Raises:
        ModelError: it has more than 255 rows or columns.
    """
    height, width = window.kernel
    if max(height, width) > MOST:
        raise ModelError(
            f"a kernel of {height} x {width} taps; an instruction has at most {MOST} of each",
            where=f"engine {config.name}",
            hint="leave this layer to another engine",
        )


class Program(ABC):
    """A program of the engine for a product of fixed shapes.

    Attributes:
        config: of the engine.
        post: of every output lane: raw sums, or sums times ``2^-shift`` in 8 bits.
        steps: its loads, EXECs and stores, addresses of memory counted behind the program.
        memory_words: of operands, parameters and results.
    """

    def __init__(self, config: EngineConfig, lanes: int, shift: int | None) -> None:
        self.config = config
        ones, zeros = np.ones(lanes, np.int64), np.zeros(lanes, np.int64)
        if shift is None:
            self.post = Post(Result.RAW, ones, zeros)
        else:
            self.post = Post(Result.EIGHT, ones, zeros, shift, low=-128, high=127)
        self.steps: list[Step] = []
        self.memory_words = 0
        self._parameters = self.area(parameter_bytes(self.post, config).size // config.lanes)

    def area(self, words: int) -> int:
        """Words of the memory outside, behind all others."""
        start, self.memory_words = self.memory_words, self.memory_words + words
        return start

    @property
    def planes(self) -> int:
        """Words of the results of a pixel in an output group."""
        return self.config.raw_words if self.post.result == Result.RAW else 1

    def load_parameters(self) -> Action:
        """All of them, at row 0. Those that are more than the memory has rows fall on the first
        ones again, which does no harm: all lanes have the same."""
        words = parameter_bytes(self.post, self.config).size // self.config.lanes
        rows = words // self.config.parameter_row_words
        load = Load(buffer=Buffer.PARAMETERS, memory=self._parameters, x=words)
        return Action(load, (Access(Space.PARAMETERS, 0, rows, True),), "parameters")

    def load_weights(self, memory: int, row: int, rows: int) -> Action:
        """Rows of weights that lie one behind the other."""
        words, outputs = rows * self.config.outputs, self.config.outputs
        load = Load(buffer=Buffer.WEIGHTS, memory=memory, x=words, address=row * outputs)
        access = Access(Space.MEMORY, memory, memory + words, False)
        return Action(load, (access, Access(Space.WEIGHTS, row, row + rows, True)), "weights")

    @cached_property
    def _placed(self) -> tuple[Instruction, ...]:
        placed = program_of(self.steps, self.config, self.memory_words)
        start = program_words(len(placed), self.config)
        return tuple(
            replace(p.instruction, memory=p.instruction.memory + start)
            if isinstance(p.instruction, Load | Store)
            else p.instruction
            for p in placed
        )

    @property
    def program(self) -> tuple[Instruction, ...]:
        """The instructions, HALT last."""
        return self._placed

    @property
    def start(self) -> int:
        """First word of memory behind the program."""
        return program_words(len(self.program), self.config)

    @property
    def words(self) -> int:
        """Of memory that the program and its data take."""
        return self.start + self.memory_words + _READ_AHEAD

    def memory(self, left: Levels, right: Levels) -> Memory:
        """Program and operands as the host lays them out in memory.

        Args:
            left, right: int8 operands, as the product takes them.
        """
        memory = Memory.empty(self.words, self.config.lanes)
        memory.put(0, program_bytes(self.program, self.config))
        parameters = parameter_bytes(self.post, self.config).reshape(-1, self.config.lanes)
        memory.put(self.start + self._parameters, parameters)
        for place, data in self.operands(left, right):
            flat = np.ascontiguousarray(data).view(np.uint8).reshape(-1, self.config.lanes)
            memory.put(self.start + place, flat)
        return memory

    def emulated(self, left: Levels, right: Levels) -> Levels:
        """The product, computed by the emulator: int64.

        Raises:
            ProgramError: the program breaks a rule of the engine.
        """
        memory = self.memory(left, right)
        emulate(self.program, memory, self.config)
        return self.results(memory.words[self.start :])

    def raw(self, words: Bytes) -> Levels:
        """(..., planes, lanes) bytes -> (..., outputs) numbers."""
        kind = "<i4" if self.post.result == Result.RAW else "i1"
        flat = np.ascontiguousarray(words).reshape(*words.shape[:-2], -1)
        return flat.view(kind).astype(np.int64)

    @abstractmethod
    def operands(self, left: Levels, right: Levels) -> list[tuple[int, Levels]]:
        """Places in memory and what lies there."""

    @abstractmethod
    def results(self, words: Bytes) -> Levels:
        """The product from the memory behind the program."""


def padded(array: Levels, axis: int, step: int) -> Levels:
    """Zeros behind an axis up to a multiple of ``step``."""
    more = -array.shape[axis] % step
    width = [(0, more if a == axis % array.ndim else 0) for a in range(array.ndim)]
    return np.pad(array, width)
