# SPDX-License-Identifier: Apache-2.0
"""The fewest kernels of a pool that run every convolution within the penalty: a set cover.

Better than merging two groups at a time, whose order decides what is still possible. The pool has
every size of array (X, Y) with which at least one convolution is within the penalty, each with
buffers for the convolutions that need least: of the line buffer, or of the filters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csc_array

from bitwright.base.errors import BitwrightError
from bitwright.papers.fpga_training.fpgpt.explore import Group, Sharing, tried
from bitwright.papers.fpga_training.fpgpt.kernel import Kernel, kernel_for
from bitwright.papers.fpga_training.fpgpt.resources import place

#: Orders in which convolutions may join a kernel: by what of its buffers grows.
_ORDERS: tuple[Callable[[Kernel], tuple[int, ...]], ...] = (
    lambda kernel: (kernel.channel, kernel.span),
    lambda kernel: (kernel.kern_words * kernel.kern_groups, kernel.out_blocks),
)


def fewest_kernels(sharing: Sharing, seconds: float = 60.0) -> list[Group]:
    """The fewest kernels of the pool for all convolutions; of equal numbers, of least cycles.

    Args:
        seconds: for the solver; with less than it needs, the best cover that it has found.

    Raises:
        BitwrightError: the solver found none, which a pool with each one's own kernel rules out.
    """
    pool = _without_dominated(list(_pool(sharing)))
    rows, columns = [], []
    for number, (_, members) in enumerate(pool):
        rows += members
        columns += [number] * len(members)
    shape = (len(sharing.jobs), len(pool))
    covers = csc_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    # What a kernel loses, below one kernel in all: it decides between covers of the same size.
    losses = np.array([sum(sharing.penalty(k, i) for i in members) for k, members in pool])
    cost = 1 + 0.5 * losses / max(1.0, float(losses.sum()))
    result = milp(
        cost,
        constraints=LinearConstraint(covers, lb=1),
        integrality=np.ones(len(pool)),
        bounds=Bounds(0, 1),
        options={"time_limit": seconds},
    )
    if result.x is None:
        raise BitwrightError(
            f"no choice of kernels was found in {seconds:g} s: {result.message}",
            hint="allow more time, or merge greedily",
        )
    chosen = [pool[number] for number in np.flatnonzero(result.x > 0.5)]
    groups = [Group(kernel, []) for kernel, _ in chosen]
    for index in range(len(sharing.jobs)):
        home = min(
            (number for number, (_, members) in enumerate(chosen) if index in members),
            key=lambda number: sharing.penalty(chosen[number][0], index),
        )
        groups[home].members.append(index)
    return [group for group in groups if group.members]


def _pool(sharing: Sharing) -> Iterator[tuple[Kernel, tuple[int, ...]]]:
    """Kernels, each with all convolutions that it runs within the penalty."""
    sizes: dict[tuple[int, int, bool], None] = {}
    for index, job in enumerate(sharing.jobs):
        most = sharing.best[index].cycles * (1 + sharing.limit)
        for one in tried(job, sharing.board, sharing.numbers, sharing.share):
            if one.cycles <= most:
                sizes[one.kernel.columns, one.kernel.rows, job.is_weight_gradient] = None
        yield sharing.best[index].kernel, (index,)
    for columns, rows, gradient in sizes:
        own = {
            index: kernel_for(job, columns, rows, sharing.numbers, sharing.board.port_bits)
            for index, job in enumerate(sharing.jobs)
            if job.is_weight_gradient == gradient
        }
        within = [index for index, k in own.items() if sharing.penalty(k, index) <= sharing.limit]
        for order in _ORDERS:
            yield from _prefixes(sharing, own, sorted(within, key=lambda i: order(own[i])))


def _prefixes(
    sharing: Sharing, own: dict[int, Kernel], ordered: Sequence[int]
) -> Iterator[tuple[Kernel, tuple[int, ...]]]:
    kernel: Kernel | None = None
    for place_, index in enumerate(ordered):
        grown = own[index] if kernel is None else kernel.merged(own[index])
        if place(grown, sharing.board, sharing.share) is None:
            continue
        last = place_ + 1 == len(ordered)
        if not last and kernel is not None and grown == kernel:
            continue
        kernel = grown
        members = tuple(i for i in ordered if sharing.penalty(kernel, i) <= sharing.limit)
        if members:
            yield kernel, members


def _without_dominated(
    pool: Sequence[tuple[Kernel, tuple[int, ...]]],
) -> list[tuple[Kernel, tuple[int, ...]]]:
    """Without kernels whose convolutions another one runs, too."""
    kept: list[tuple[Kernel, frozenset[int]]] = []
    seen: set[frozenset[int]] = set()
    for kernel, members in sorted(pool, key=lambda one: -len(one[1])):
        group = frozenset(members)
        if group in seen or any(group < other for _, other in kept):
            continue
        seen.add(group)
        kept.append((kernel, group))
    return [(kernel, tuple(sorted(group))) for kernel, group in kept]
