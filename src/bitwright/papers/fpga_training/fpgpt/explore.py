# SPDX-License-Identifier: Apache-2.0
"""The kernel of least time for each convolution, and few kernels for all of them.

Vink 2023, 5.5 (specification 004, 2.4.9): all sizes are tried; kernels are shared by its greedy
merging, or by choosing the fewest from a pool that covers every convolution within the penalty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import TargetError
from bitwright.papers.fpga_training.devices import Board
from bitwright.papers.fpga_training.fpgpt.counts import Count
from bitwright.papers.fpga_training.fpgpt.cycles import cycles
from bitwright.papers.fpga_training.fpgpt.kernel import Kernel, Numbers, fits, kernel_for
from bitwright.papers.fpga_training.fpgpt.resources import (
    Share,
    place,
    placeable,
    share_of,
    why_not,
)
from bitwright.papers.fpga_training.jobs import ConvolutionJob


@dataclass(frozen=True)
class Tried:
    """A kernel for a convolution and its cycles, all groups of channels one after the other; or
    many kernels side by side."""

    kernel: Kernel
    cycles: Count


def tried(job: ConvolutionJob, board: Board, numbers: Numbers, share: Share | None = None) -> Tried:
    """All kernels of one convolution that fit the board, up to X = positions and Y = filters, side
    by side in the order of X, then Y."""
    limit = share or share_of(board)
    elements = limit.dsp // numbers.dsp
    most = np.arange(1, min(job.positions, elements) + 1)
    heights = np.minimum(job.kernels, elements // most)
    columns = np.repeat(most, heights)
    rows = np.arange(len(columns)) - np.repeat(np.cumsum(heights) - heights, heights) + 1
    if not len(columns):
        columns = rows = np.ones(1, int)
    kernels = kernel_for(job, columns, rows, numbers, board.port_bits)
    kept = np.flatnonzero(placeable(kernels, board, limit))
    kernels = kernels.at(kept)
    return Tried(kernels, job.groups * cycles(job, kernels).total)


def best_kernel(
    job: ConvolutionJob, board: Board, numbers: Numbers, share: Share | None = None
) -> Tried:
    """The kernel of least cycles; of equals the one with fewest elements.

    Raises:
        TargetError: no kernel of this convolution fits; which memory is too small.
    """
    limit = share or share_of(board)
    found = tried(job, board, numbers, limit)
    if not len(found.cycles):
        smallest = kernel_for(job, 1, 1, numbers, board.port_bits)
        raise TargetError(
            f"no kernel fits the {job.product.value} of {job.layer!r}: even with one element, "
            f"{why_not(smallest, board, limit)}",
            where=board.name,
            hint="run this layer on the CPU (leave it out of the list of layers), or take a board "
            "with more memory",
        )
    best = int(np.lexsort((found.kernel.elements, found.cycles))[0])
    return Tried(found.kernel.at(best), int(found.cycles[best]))


@dataclass
class Group:
    """Convolutions that share a kernel: the kernel, and their indices in the list of jobs."""

    kernel: Kernel
    members: list[int]


class Sharing:
    """Looks for few kernels for many convolutions.

    Args:
        jobs: the convolutions.
        limit: largest relative penalty of a convolution against its own best kernel.
    """

    def __init__(
        self, jobs: Sequence[ConvolutionJob], board: Board, numbers: Numbers, limit: float
    ) -> None:
        self.jobs, self.board, self.numbers, self.limit = list(jobs), board, numbers, limit
        self.share = share_of(board)
        found: dict[ConvolutionJob, Tried] = {}
        for job in self.jobs:
            if job.shape not in found:
                found[job.shape] = best_kernel(job, board, numbers, self.share)
        self.best = [found[job.shape] for job in self.jobs]
        self._penalties: dict[tuple[Kernel, ConvolutionJob], float] = {}

    def penalty(self, kernel: Kernel, index: int) -> float:
        """Relative loss of a convolution on a kernel (5.24), infinite where it does not fit."""
        key = kernel, self.jobs[index].shape
        if key not in self._penalties:
            self._penalties[key] = float(self.penalties(Kernel.together([kernel]), index)[0])
        return self._penalties[key]

    def penalties(self, kernels: Kernel, index: int) -> NDArray[np.float64]:
        """`penalty` of kernels side by side."""
        job, best = self.jobs[index], self.best[index].cycles
        taken = job.groups * cycles(job, kernels).total
        return np.where(fits(kernels, job), (taken - best) / best, np.inf)

    def loss(self, group: Group) -> float:
        """Sum of the penalties of a group."""
        return sum(self.penalty(group.kernel, index) for index in group.members)

    def _merge(self, group: Group, other: Group) -> tuple[Group, list[int]]:
        """Algorithm 2: members of ``other`` that join ``group``, and those that stay."""
        kernel, members, stay = group.kernel, list(group.members), []
        for index in other.members:
            joined = self._joined(kernel, index)
            within = joined is not None and place(joined, self.board, self.share) is not None
            if within and joined and self._within(joined, [*members, index]):
                kernel, members = joined, [*members, index]
            else:
                stay.append(index)
        return Group(kernel, members), stay

    def _joined(self, kernel: Kernel, index: int) -> Kernel | None:
        """A kernel of the group's array whose buffers are large enough for one more."""
        job = self.jobs[index]
        if job.is_weight_gradient != kernel.weight_gradient:
            return None
        own = self.best[index].kernel
        columns, rows = max(kernel.columns, own.columns), max(kernel.rows, own.rows)
        grown = kernel_for(job, columns, rows, self.numbers, self.board.port_bits)
        return kernel.merged(own).merged(grown)

    def _within(self, kernel: Kernel, members: Sequence[int]) -> bool:
        return all(self.penalty(kernel, index) <= self.limit for index in members)

    def greedy(self) -> list[Group]:
        """Algorithm 1 as it is printed, with the corrections of the specification."""
        groups = [Group(one.kernel, [index]) for index, one in enumerate(self.best)]
        groups.sort(key=lambda group: -self.best[group.members[0]].cycles)
        moved = True
        while moved and len(groups) > 1:
            first = groups.pop(0)
            choice: tuple[float, int, Group, list[int]] | None = None
            for place_, group in enumerate(groups):
                merged, stay = self._merge(group, first)
                if len(stay) < len(first.members):
                    change = self.loss(merged) - self.loss(group)
                    if choice is None or change < choice[0]:
                        choice = change, place_, merged, stay
            moved = choice is not None
            if choice is None:
                groups.append(first)
            else:
                _, place_, merged, stay = choice
                groups[place_] = merged
                if stay:
                    groups.append(Group(first.kernel, stay))
            groups.sort(key=lambda group: len(group.members))
        return groups


def kernel_map(jobs: Sequence[ConvolutionJob], groups: Sequence[Group]) -> Mapping[int, int]:
    """For each convolution the number of its kernel."""
    return {index: number for number, group in enumerate(groups) for index in group.members}
