# SPDX-License-Identifier: Apache-2.0
"""Memory blocks and multipliers of an FPGPT kernel: equations 5.14 to 5.22, and what a board has.

Vink 2023, 5.4.3 (specification 004, 2.4.8). Memories are cut into partitions that are read side by
side; a partition takes whole blocks, so the model never takes too little.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from bitwright.papers.fpga_training.devices import Board, Memory
from bitwright.papers.fpga_training.fpgpt.counts import Count, align, largest, up
from bitwright.papers.fpga_training.fpgpt.kernel import Kernel

TENSORS = ("inp", "kern", "out")


@dataclass(frozen=True)
class Partitions:
    """The memory of one tensor.

    Attributes:
        words: of one partition (5.14 to 5.16).
        partitions: how many (5.18 to 5.20).
        ports: that are used in one cycle (5.21).
    """

    words: Count
    partitions: Count
    ports: Count

    def blocks(self, memory: Memory, bits: int) -> Count:
        """Blocks of a kind of memory that it takes (5.17 to 5.22)."""
        deep = up(self.words, memory.words_of(bits))
        return largest(deep * self.partitions, up(self.ports, memory.ports))


def partitions(kernel: Kernel) -> dict[str, Partitions]:
    """The memories of INP, KERN and OUT, each with two halves that take turns but KERN of FGI (read
    once) and OUT of GW (added up in place)."""
    x, y, z = kernel.columns, kernel.rows, kernel.span
    inp = align(align(align(kernel.channel, kernel.band), z), 2 * z)
    if kernel.weight_gradient:
        kern = Partitions(align(kernel.kern_words, y), 2 * y**2, y)
        return {
            "inp": Partitions(inp, 2, z),
            "kern": kern,
            "out": Partitions(kernel.out_blocks, x, x),
        }
    return {
        "inp": Partitions(inp, 2, z),
        "kern": Partitions(kernel.kern_groups * kernel.kern_words, y, y),
        "out": Partitions(y * kernel.out_blocks, 2 * x, x),
    }


@dataclass(frozen=True)
class Share:
    """What one accelerator may take: a die of the board.

    Attributes:
        dsp: multiplier blocks.
        bram, uram: blocks of memory, ``uram`` 0 where the board has none.
    """

    dsp: int
    bram: int
    uram: int


def share_of(board: Board) -> Share:
    """A die's part of a board (the document's U250: 3 072 multipliers, 1 344 blocks)."""
    uram = board.uram.blocks if board.uram else 0
    return Share(board.dsp // board.slrs, board.bram.blocks // board.slrs, uram // board.slrs)


@dataclass(frozen=True)
class Placement:
    """Which memory holds each tensor, and how many blocks that takes of each kind."""

    memory: dict[str, str]
    bram: Count
    uram: Count


def placements(kernel: Kernel, board: Board) -> Iterator[Placement]:
    """All ways to lay the three tensors into the kinds of memory that the board has."""
    parts, bits = partitions(kernel), kernel.numbers.bits
    kinds = ("bram", "uram") if board.uram else ("bram",)
    memories = {"bram": board.bram, "uram": board.uram}
    taken = {
        (name, kind): parts[name].blocks(memory, bits)
        for name in TENSORS
        for kind in kinds
        if (memory := memories[kind])
    }
    for choice in product(kinds, repeat=len(TENSORS)):
        held = dict(zip(TENSORS, choice, strict=True))
        sums = {
            kind: sum(taken[name, kind] for name in TENSORS if held[name] == kind) for kind in kinds
        }
        yield Placement(held, sums["bram"], sums.get("uram", 0))


def place(kernel: Kernel, board: Board, share: Share | None = None) -> Placement | None:
    """The first placement that fits a die, or None; of multipliers too many, None as well."""
    limit = share or share_of(board)
    if kernel.dsp > limit.dsp:
        return None
    for placement in placements(kernel, board):
        if placement.bram <= limit.bram and placement.uram <= limit.uram:
            return placement
    return None


def placeable(kernels: Kernel, board: Board, share: Share | None = None) -> Any:
    """Of kernels side by side, which `place` finds a placement for."""
    limit = share or share_of(board)
    found = np.zeros(np.shape(kernels.columns), bool)
    for placement in placements(kernels, board):
        found |= (placement.bram <= limit.bram) & (placement.uram <= limit.uram)
    return found & (kernels.dsp <= limit.dsp)


def why_not(kernel: Kernel, board: Board, limit: Share) -> str:
    """In words, what a kernel takes too much of: multipliers, or which tensor's memory."""
    if kernel.dsp > limit.dsp:
        return f"{kernel.elements} elements take {kernel.dsp} multiplier blocks of {limit.dsp}"
    parts, bits = partitions(kernel), kernel.numbers.bits
    blocks = {name: part.blocks(board.bram, bits) for name, part in parts.items()}
    worst = max(blocks, key=lambda name: blocks[name])
    if blocks[worst] <= limit.bram:
        taken = ", ".join(f"{name.upper()} {count}" for name, count in blocks.items())
        return f"the memories take {taken} of {limit.bram} blocks"
    part = parts[worst]
    return (
        f"the memory of {worst.upper()} takes {blocks[worst]} of {limit.bram} blocks "
        f"({part.partitions} partitions of {part.words} words)"
    )
