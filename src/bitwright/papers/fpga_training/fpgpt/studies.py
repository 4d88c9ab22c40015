# SPDX-License-Identifier: Apache-2.0
"""Studies of FPGPT's models (Vink 2023, chapter 5; specification 004, 2.4.11).

Throughput counts two operations a multiply-accumulate, zeros inside a dilated kernel left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import fmean, pstdev

import numpy as np
from numpy.typing import NDArray

from bitwright.papers.fpga_training.devices import Board, Memory
from bitwright.papers.fpga_training.fpgpt.cover import fewest_kernels
from bitwright.papers.fpga_training.fpgpt.explore import Sharing, Tried, best_kernel, tried
from bitwright.papers.fpga_training.fpgpt.kernel import Kernel, Numbers
from bitwright.papers.fpga_training.fpgpt.resources import TENSORS, partitions, share_of
from bitwright.papers.fpga_training.fpgpt.simulate import compared
from bitwright.papers.fpga_training.jobs import ConvolutionJob

#: Words that a host lays out as windows a second: an assumption, some 4 GB/s of float32.
HOST_WORDS = 1e9


@dataclass(frozen=True)
class Errors:
    """How far a model lies above what it models, relative to that, over some convolutions."""

    mean: float
    deviation: float
    largest: float
    smallest: float
    values: tuple[float, ...]

    def histogram(self, bins: int = 10) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Counts, and the edges between them."""
        counts, edges = np.histogram(self.values, bins)
        return counts, edges


def model_errors(
    jobs: Sequence[ConvolutionJob], kernels: Sequence[Kernel]
) -> dict[str, Errors]:  # fmt: skip
    """Study 1 (table 5.4): the model's cycles beside the simulator's, by product; each convolution
    on its kernel. Errors are magnitudes, as the table has them."""
    found: dict[str, list[float]] = {}
    for job, kernel in zip(jobs, kernels, strict=True):
        error = abs(compared(job, kernel)[2])
        found.setdefault(job.product.value, []).append(error)
    return {name: _errors(values) for name, values in found.items()}


def _errors(values: Sequence[float]) -> Errors:
    return Errors(fmean(values), pstdev(values), max(values), min(values), tuple(values))


def memory_errors(
    kernels: Sequence[Kernel], memory: Memory, blocks_of: Callable[[int, int], int]
) -> dict[str, Errors]:
    """Study 2: the model's memory blocks beside those that a tool takes, by tensor; above zero
    where the model takes more.

    Args:
        memory: the kind of block.
        blocks_of: what a memory of so many words of so many bits takes, one read and one written a
            cycle: of one partition, which all of a tensor are alike.
    """
    found: dict[str, list[float]] = {name: [] for name in TENSORS}
    for kernel in kernels:
        for name, part in partitions(kernel).items():
            took = int(part.partitions) * blocks_of(int(part.words), kernel.numbers.bits)
            found[name].append(int(part.blocks(memory, kernel.numbers.bits)) / took - 1)
    return {name: _errors(values) for name, values in found.items()}


def within_blocks(job: ConvolutionJob, board: Board, numbers: Numbers, blocks: int) -> float:
    """Study 2: the share of a convolution's kernels that fit a die which do with so many blocks of
    its smaller kind of memory alone."""
    few = replace(share_of(board), bram=blocks, uram=0)
    fit, every = (tried(job, board, numbers, share) for share in (few, share_of(board)))
    return np.size(fit.cycles) / np.size(every.cycles)


@dataclass(frozen=True)
class Spread:
    """Cycles of all kernels of one convolution that fit, sorted.

    Attributes:
        cycles: from the fastest on; elements: of each.
    """

    cycles: NDArray[np.int64]
    elements: NDArray[np.int64]

    def best(self, count: int) -> Spread:
        """The fastest ones."""
        return Spread(self.cycles[:count], self.elements[:count])


def latencies(job: ConvolutionJob, board: Board, numbers: Numbers) -> Spread:
    """Study 3: of every feasible X and Y."""
    found = tried(job, board, numbers)
    elements = np.broadcast_to(found.kernel.elements, np.shape(found.cycles))
    order = np.lexsort((elements, found.cycles))
    return Spread(np.asarray(found.cycles)[order], elements[order])


@dataclass(frozen=True)
class Shared:
    """Kernels for a network at an accepted penalty.

    Attributes:
        limit: largest penalty of a convolution; kernels: how many.
        cycles: of a step on them; optimum: each convolution on its own kernel.
    """

    limit: float
    kernels: int
    cycles: int
    optimum: int

    @property
    def penalty(self) -> float:
        """Of the whole step."""
        return self.cycles / self.optimum - 1


def penalties(
    jobs: Sequence[ConvolutionJob], board: Board, numbers: Numbers, limits: Sequence[float]
) -> list[Shared]:
    """Study 4: kernels and time against the accepted penalty."""
    found = []
    for limit in limits:
        sharing = Sharing(jobs, board, numbers, limit)
        groups = fewest_kernels(sharing)
        optimum = sum(best.cycles for best in sharing.best)
        lost = sum(
            round(sharing.penalty(group.kernel, index) * sharing.best[index].cycles)
            for group in groups
            for index in group.members
        )
        found.append(Shared(limit, len(groups), optimum + lost, optimum))
    return found


@dataclass(frozen=True)
class Throughput:
    """Study 5: of the convolutions of a step, each on its best kernel.

    Attributes:
        seconds: of the step's convolutions; host: with windows laid out by the host before.
        peak: of the fastest convolution; mean: of all; with_host: of all, host included; GOPS.
        peak_per_watt, peak_per_dsp: of the fastest one, by the board's power and by the multiplier
            blocks of its kernel.
    """

    seconds: float
    host: float
    peak: float
    mean: float
    with_host: float
    peak_per_watt: float
    peak_per_dsp: float

    def hours(self, images: int, batch: int) -> float:
        """Of the convolutions of an epoch."""
        return self.seconds * images / batch / 3600


def throughput(
    jobs: Sequence[ConvolutionJob], board: Board, numbers: Numbers, host_words: float = HOST_WORDS
) -> Throughput:
    """GOPS of a network's convolutions on their best kernels.

    Args:
        host_words: words of windows that the host lays out in a second, where it does (the transfer
            of the larger matrices is left out, as in the document).
    """
    known: dict[ConvolutionJob, Tried] = {}
    seconds = laid_out = operations = 0.0
    peak = per_dsp = 0.0
    for job in jobs:
        if job.shape not in known:
            known[job.shape] = best_kernel(job, board, numbers)
        best = known[job.shape]
        took = best.cycles / board.clock_hz
        rate = 2 * job.macs / took / 1e9
        if rate > peak:
            peak, per_dsp = rate, rate / best.kernel.dsp
        seconds, operations = seconds + took, operations + 2 * job.macs
        windows = job.groups * job.accumulated * job.images * job.positions * job.window
        laid_out += windows / host_words
    whole = seconds + laid_out
    return Throughput(
        seconds, whole, peak, operations / seconds / 1e9, operations / whole / 1e9,
        peak / board.watts, per_dsp,
    )  # fmt: skip


@dataclass(frozen=True)
class Ideal:
    """A board with so many times the bandwidth, the multipliers and the memory, and its GOPS."""

    bandwidth: int
    dsp: int
    memory: int
    gops: float


def ideal_boards(
    jobs: Sequence[ConvolutionJob],
    board: Board,
    numbers: Numbers,
    bandwidth: Sequence[int],
    dsp: Sequence[int],
    memory: Sequence[int],
) -> list[Ideal]:
    """Study 6: convolutions on boards of the future. Bandwidth grows no faster than memory."""
    found = []
    for wide, many, large in product(bandwidth, dsp, memory):
        if wide > large:
            continue
        uram = board.uram and board.uram.model_copy(update={"blocks": board.uram.blocks * large})
        grown = board.model_copy(
            update={
                "port_bits": board.port_bits * wide,
                "dsp": board.dsp * many,
                "bram": board.bram.model_copy(update={"blocks": board.bram.blocks * large}),
                "uram": uram,
            }
        )
        found.append(Ideal(wide, many, large, throughput(jobs, grown, numbers).mean))
    return found


def pareto(points: Sequence[Ideal]) -> list[Ideal]:
    """Those that no other one beats: with no more of anything at least as fast, and not the same;
    slowest first."""

    def beats(one: Ideal, other: Ideal) -> bool:
        less = one.bandwidth <= other.bandwidth and one.dsp <= other.dsp
        less = less and one.memory <= other.memory and one.gops >= other.gops
        return less and one != other

    kept = [p for p in points if not any(beats(other, p) for other in points)]
    return sorted(kept, key=lambda p: p.gops)
