# SPDX-License-Identifier: Apache-2.0
"""The fewest kernels of a pool that run every convolution within the penalty: a set cover.

Better than merging two groups at a time, whose order decides what is still possible. The pool has
every size of array (X, Y) with which at least one convolution is within the penalty, each with
buffers for as many convolutions as fit the board, by bounds on each of its three memories.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csc_array

from bitwright.base.errors import BitwrightError
from bitwright.papers.fpga_training.fpgpt.explore import Group, Sharing, tried
from bitwright.papers.fpga_training.fpgpt.kernel import SIZES, Kernel, kernel_for
from bitwright.papers.fpga_training.fpgpt.resources import placeable


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
    for index, best in enumerate(sharing.best):
        yield best.kernel, (index,)
    for gradient in (False, True):
        jobs = [i for i, job in enumerate(sharing.jobs) if job.is_weight_gradient == gradient]
        grown = list(_grown(sharing, jobs))
        if grown:
            together = Kernel.together(grown)
            within = np.array([sharing.penalties(together, i) <= sharing.limit for i in jobs])
            _, firsts = np.unique(np.packbits(within, axis=0), axis=1, return_index=True)
            for which in firsts:
                members = tuple(jobs[i] for i in np.flatnonzero(within[:, which]))
                if members:
                    yield together.at(int(which)), members


def _grown(sharing: Sharing, jobs: Sequence[int]) -> Iterator[Kernel]:
    """Kernels of every size of array on which a convolution is within the penalty, with buffers for
    as many convolutions as the board holds; those of a size side by side."""
    sizes: set[tuple[int, int]] = set()
    for index in jobs:
        found = tried(sharing.jobs[index], sharing.board, sharing.numbers, sharing.share)
        good = found.kernel.at(found.cycles <= sharing.best[index].cycles * (1 + sharing.limit))
        sizes |= set(zip(good.columns.tolist(), good.rows.tolist(), strict=True))
    if not sizes:
        return
    columns, rows = (np.array(side) for side in zip(*sorted(sizes), strict=True))
    port = sharing.board.port_bits
    shapes = {sharing.jobs[index].shape: index for index in jobs}
    own, within = [], []
    for index in shapes.values():
        own.append(kernel_for(sharing.jobs[index], columns, rows, sharing.numbers, port))
        within.append(sharing.penalties(own[-1], index) <= sharing.limit)
    for number in range(len(columns)):
        members = [k.at(number) for k, good in zip(own, within, strict=True) if good[number]]
        if members:
            yield _common(sharing, Kernel.together(list(dict.fromkeys(members))))


def _common(sharing: Sharing, members: Kernel) -> Kernel:
    """Of kernels of one size: what those have in common that need no more than some bound of each
    memory and of the bursts, where the board holds it."""
    masks = np.ones((1, len(members.channel)), bool)
    filters = members.kern_words * members.kern_groups
    for size in (members.channel, members.kern_burst, filters, members.out_blocks):
        needs = np.broadcast_to(size, masks.shape[1])
        below = needs[None] <= np.unique(needs)[:, None]
        masks = (masks[:, None] & below[None]).reshape(-1, masks.shape[1])
        masks = masks[np.unique(np.packbits(masks, axis=1), axis=0, return_index=True)[1]]
    masks = masks[masks.any(axis=1)]
    sizes = {n: (masks * np.broadcast_to(getattr(members, n), masks.shape)).max(1) for n in SIZES}
    kernels = replace(members, **sizes)
    return kernels.at(placeable(kernels, sharing.board, sharing.share))


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
