# SPDX-License-Identifier: Apache-2.0
"""SIMD against pipeline, cycle by cycle: the document's teaching figures (spec 2.20), simulated."""

from __future__ import annotations

from collections.abc import Sequence


def simd(paths: Sequence[Sequence[str]], width: int) -> int:
    """Cycles of items that run in lockstep, ``width`` at a time: a cycle executes one instruction
    in all lanes whose next one it is, the others idle.

    Args:
        paths: the instructions of each item, by name.
        width: lanes.
    """
    cycles = 0
    for first in range(0, len(paths), width):
        left = [list(path) for path in paths[first : first + width]]
        while any(left):
            step = next(path[0] for path in left if path)
            for path in left:
                if path and path[0] == step:
                    path.pop(0)
            cycles += 1
    return cycles


def pipeline(stages: int, items: int, interval: int = 1) -> int:
    """Cycles until the last of ``items`` has left a pipeline that one enters every ``interval``."""
    slots: list[int | None] = [None] * stages
    entered = finished = cycles = 0
    while finished < items:
        coming = entered if entered < items and cycles % interval == 0 else None
        entered += coming is not None
        slots = [coming, *slots[:-1]]
        finished += slots[-1] is not None
        cycles += 1
    return cycles


def host_round_trips(items: int, steps: int = 4) -> int:
    """Time steps of items that load, launch, run and read back one after the other."""
    return items * steps


def host_pipeline(items: int, setup: int = 2, launch: int = 1) -> int:
    """Time steps if the kernel is set up and launched once and then takes an item a step."""
    return setup + launch + items


def carried_sum_serial(iterations: int, instructions: int = 2) -> int:
    """Cycles of a loop whose sum waits for every instruction."""
    return iterations * instructions


def carried_sum_pipeline(iterations: int, instructions: int = 2) -> int:
    """Cycles of the same loop in a pipeline in which only the last stage carries the sum."""
    return pipeline(instructions, iterations)


def toy_cases() -> tuple[tuple[str, int, int], ...]:
    """The four cases: name, SIMD cycles, pipeline cycles (printed: 10/10, 10/6, 12/6, 8/5)."""
    straight = [[f"i{n}" for n in range(5)]] * 6
    branches = [["common", *(f"{branch}{n}" for n in range(3))] for branch in "abc"]
    return (
        ("5 instructions, 6 items, 3 lanes", simd(straight, 3), pipeline(5, 6)),
        ("1 + 3 instructions on 3 paths", simd(branches, 3), pipeline(4, 3)),
        ("3 items through the host", host_round_trips(3), host_pipeline(3)),
        ("carried sum, 4 iterations", carried_sum_serial(4), carried_sum_pipeline(4)),
    )
