# SPDX-License-Identifier: Apache-2.0
"""Sizes of Barista kernels for a network: one for all its products, or one a layer; CPU or FPGA.

Vink 2023, equations 4.12 and 4.13 (specification 004, 2.3.5). The times of all sizes are counted at
once, as arrays; `times` of `model` is the same for one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import TargetError
from bitwright.papers.fpga_training.barista.model import Arithmetic, Tiles, times
from bitwright.papers.fpga_training.devices import Board
from bitwright.papers.fpga_training.jobs import MatrixJob

_Sizes = NDArray[np.int64]


@dataclass(frozen=True)
class Found:
    """A kernel for some products.

    Attributes:
        tiles: its sizes.
        seconds: of all products, transfers included.
        operations: two a multiply-accumulate.
        watts: of the board.
    """

    tiles: Tiles
    seconds: float
    operations: int
    watts: float

    @property
    def gops(self) -> float:
        """10^9 operations a second."""
        return self.operations / self.seconds / 1e9

    @property
    def gops_per_watt(self) -> float:
        """The figure of merit of the document."""
        return self.gops / self.watts


def legal_tiles(
    board: Board, arithmetic: Arithmetic, rows: Iterable[int], inner: Iterable[int]
) -> tuple[_Sizes, _Sizes, _Sizes]:
    """All <T_r, T_c, T_p> that the board has multipliers and memory for, as three arrays.

    Raises:
        TargetError: no size fits the board; says what the smallest takes.
    """
    sides, depths = np.array(sorted(set(rows))), np.array(sorted(set(inner)))
    r, c, p = (grid.ravel() for grid in np.meshgrid(sides, sides, depths, indexing="ij"))
    dsp = r * c * arithmetic.dsp
    bits = arithmetic.bits * (r * p + p * c + r * c * arithmetic.sums)
    fits = (dsp <= board.dsp) & (bits <= board.bram.blocks * board.bram.bits)
    if not fits.any():
        raise TargetError(
            f"no kernel fits: the smallest, <{r[0]},{c[0]},{p[0]}>, takes {dsp[0]} multiplier "
            f"blocks and {bits[0]} bits of block RAM, of {board.dsp} and "
            f"{board.bram.blocks * board.bram.bits}",
            where=board.name,
            hint="allow smaller tiles, or take fixed point, whose elements are smaller",
        )
    return r[fits], c[fits], p[fits]


def seconds_of(
    jobs: Sequence[MatrixJob],
    sizes: tuple[_Sizes, _Sizes, _Sizes],
    arithmetic: Arithmetic,
    board: Board,
) -> NDArray[np.float64]:
    """Seconds of each job (rows) on a kernel of each size (columns), equation 4.9."""
    r, c, p = sizes
    rows, inner, columns, repeats = (
        np.array([getattr(job, name) for job in jobs])[:, None]
        for name in ("rows", "inner", "columns", "repeats")
    )
    across = -(-rows // r) * -(-columns // c)
    memory = arithmetic.bits * across * ((r + c) * inner + r * c) / board.bits_per_second
    cycles = across * (-(-inner // p) * (p + c + r - 2) + arithmetic.sums**2)
    moved = arithmetic.bits * (rows * inner + columns * inner + rows * columns)
    host = moved / board.host_bits_per_second
    seconds: NDArray[np.float64] = repeats * (np.maximum(cycles / board.clock_hz, memory) + host)
    return seconds


def _found(tiles: Tiles, seconds: float, jobs: Iterable[MatrixJob], board: Board) -> Found:
    return Found(tiles, seconds, 2 * sum(job.macs for job in jobs), board.watts)


def best_kernel(
    jobs: Sequence[MatrixJob],
    board: Board,
    arithmetic: Arithmetic,
    rows: Iterable[int] = range(8, 129, 4),
    inner: Iterable[int] = range(8, 257, 2),
) -> Found:
    """The kernel with which all jobs together take least time; of equals the smallest.

    Raises:
        TargetError: no size fits the board.
    """
    sizes = legal_tiles(board, arithmetic, rows, inner)
    together = seconds_of(jobs, sizes, arithmetic, board).sum(axis=0)
    best = int(np.argmin(together))
    tiles = Tiles(*(int(size[best]) for size in sizes))
    return _found(tiles, float(together[best]), jobs, board)


def best_of_layers(
    jobs: Sequence[MatrixJob],
    board: Board,
    arithmetic: Arithmetic,
    rows: Iterable[int] = range(8, 129, 4),
    inner: Iterable[int] = range(8, 257, 2),
) -> dict[str, Found]:
    """A kernel for each layer, by its path: a bitstream each.

    Raises:
        TargetError: no size fits the board.
    """
    layers: dict[str, list[MatrixJob]] = {}
    for job in jobs:
        layers.setdefault(job.layer, []).append(job)
    rows, inner = list(rows), list(inner)
    return {
        layer: best_kernel(mine, board, arithmetic, rows, inner) for layer, mine in layers.items()
    }


def on_kernel(
    jobs: Sequence[MatrixJob], tiles: Tiles, board: Board, arithmetic: Arithmetic
) -> Found:
    """What jobs take on a given kernel."""
    seconds = sum(times(job, tiles, arithmetic, board, repeated=True).total for job in jobs)
    return _found(tiles, seconds, jobs, board)


@dataclass(frozen=True)
class Placed:
    """Where a layer runs best by operations a joule.

    Attributes:
        layer: its path.
        place: ``fpga`` or ``cpu``.
        fpga, cpu: GOPS/W there.
    """

    layer: str
    place: str
    fpga: float
    cpu: float


def place_layers(
    kernels: Mapping[str, Found], cpu_gops_per_watt: Callable[[str], float]
) -> list[Placed]:
    """CPU or FPGA for each layer (table 4.1): where a joule does more operations."""
    placed = []
    for layer, found in kernels.items():
        here, there = found.gops_per_watt, cpu_gops_per_watt(layer)
        placed.append(Placed(layer, "fpga" if here >= there else "cpu", here, there))
    return placed
