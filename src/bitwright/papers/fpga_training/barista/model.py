# SPDX-License-Identifier: Apache-2.0
"""What a Barista kernel takes of a device, and how long a product takes on it.

Vink 2023, equations 4.1 to 4.13 (specification 004, 2.3.4 and 2.3.5). The host's own work (windows
as matrices, tiling) is in none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from bitwright.base.errors import RecipeError
from bitwright.papers.fpga_training.devices import Board
from bitwright.papers.fpga_training.jobs import MatrixJob


@dataclass(frozen=True)
class Arithmetic:
    """Numbers that the processing elements multiply.

    Attributes:
        bits: WL, word length.
        dsp: V, multiplier blocks of one element.
        adder: S, cycles of its adder; partial sums of S + 1 outputs take turns.
    """

    bits: int
    dsp: int
    adder: int

    @property
    def sums(self) -> int:
        """Partial sums that an element keeps."""
        return self.adder + 1


#: As the text prints it (V = 9), and as its build and its best kernels must have been (V = 5):
#: <16, 16, 64> took 1 286 blocks, and <36, 36, 72> would need 11 664 of 6 840 with V = 9.
FLOAT32 = Arithmetic(32, 5, 10)
FLOAT32_PRINTED = Arithmetic(32, 9, 10)


def fixed_point(bits: int) -> Arithmetic:
    """Fixed point of 2 to 18 bits: three blocks an element, adders of one cycle.

    Raises:
        RecipeError: a width that one multiplier does not take.
    """
    if not 2 <= bits <= 18:
        raise RecipeError(
            f"fixed point of {bits} bits: a multiplier block takes 2 to 18",
            hint="give 8, 12, 14 or 16 bits, or float32",
        )
    return Arithmetic(bits, 3, 1)


@dataclass(frozen=True)
class Tiles:
    """<T_r, T_c, T_p>: rows and columns of the array, and the summed length of a tile."""

    rows: int
    columns: int
    inner: int

    def __str__(self) -> str:
        return f"<{self.rows},{self.columns},{self.inner}>"


@dataclass(frozen=True)
class Times:
    """One product on a kernel, each term of the model.

    Attributes:
        tile_bits, memory_bits, host_bits: moved for an output tile (4.1), between card and array
            (4.2), between host and card (4.7).
        tile_cycles, cycles: of an output tile (4.4), of all (4.5).
        memory, compute, host: seconds of 4.3, of the array alone, of 4.8.
    """

    tile_bits: int
    memory_bits: int
    host_bits: int
    tile_cycles: int
    cycles: int
    memory: float
    compute: float
    host: float

    @property
    def kernel(self) -> float:
        """Seconds that the kernel runs (4.6): memory and array work side by side."""
        return max(self.compute, self.memory)

    @property
    def total(self) -> float:
        """Seconds with the transfers (4.9), which do not overlap."""
        return self.host + self.kernel

    @property
    def bound(self) -> str:
        """What the kernel waits for."""
        return "memory" if self.memory > self.compute else "array"


def times(
    job: MatrixJob, tiles: Tiles, arithmetic: Arithmetic, board: Board, *, repeated: bool = False
) -> Times:
    """One product of a job on a kernel; all its repeats, one after the other, if ``repeated``."""
    length = job.inner
    across = ceil(job.rows / tiles.rows) * ceil(job.columns / tiles.columns)
    tile_bits = arithmetic.bits * (
        (tiles.rows + tiles.columns) * length + tiles.rows * tiles.columns
    )
    host_bits = arithmetic.bits * (
        job.rows * length + job.columns * length + job.rows * job.columns
    )
    flush = tiles.inner + tiles.columns + tiles.rows - 2
    tile_cycles = ceil(length / tiles.inner) * flush + arithmetic.sums**2
    n = job.repeats if repeated else 1
    return Times(
        tile_bits,
        n * across * tile_bits,
        n * host_bits,
        tile_cycles,
        n * across * tile_cycles,
        n * across * tile_bits / board.bits_per_second,
        n * across * tile_cycles / board.clock_hz,
        n * host_bits / board.host_bits_per_second,
    )


@dataclass(frozen=True)
class Resources:
    """Multiplier blocks (4.10) and bits of block RAM (4.11) of a kernel."""

    dsp: int
    bram_bits: int

    def fits(self, board: Board) -> bool:
        """Whether a board has them (4.12, 4.13)."""
        return self.dsp <= board.dsp and self.bram_bits <= board.bram.blocks * board.bram.bits


def resources(tiles: Tiles, arithmetic: Arithmetic) -> Resources:
    """What a kernel takes; the interleaved sums of its elements lie in LUTs and are not counted."""
    elements = tiles.rows * tiles.columns
    buffers = tiles.rows * tiles.inner + tiles.inner * tiles.columns + elements * arithmetic.sums
    return Resources(elements * arithmetic.dsp, arithmetic.bits * buffers)
