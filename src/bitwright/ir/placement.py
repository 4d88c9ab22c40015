# SPDX-License-Identifier: Apache-2.0
"""Places in one piece of memory for tensors of which not all are alive at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def first_fit(sizes: Sequence[int], spans: Sequence[tuple[int, int]]) -> tuple[list[int], int]:
    """Where each tensor lies, and the size of the whole: in their order, each at the first place
    that is free for as long as it lives.

    Args:
        sizes: of the tensors, 1 or more.
        spans: the first and the last moment of each life.
    """
    count = len(sizes)
    # Of what is placed, in the order of places: begin, end, first and last moment.
    begin, end, first, last = np.zeros((4, count), np.int64)
    offsets: list[int] = []
    for index, (size, (born, dies)) in enumerate(zip(sizes, spans, strict=True)):
        living = (last[:index] >= born) & (first[:index] <= dies)
        begins = begin[:index][living]
        ends = np.maximum.accumulate(np.concatenate([[0], end[:index][living]]))
        gaps = np.flatnonzero(begins - ends[:-1] >= size)
        offset = int(ends[gaps[0] if gaps.size else -1])
        place = int(np.searchsorted(begin[:index], offset))
        for table, value in (
            (begin, offset), (end, offset + size), (first, born), (last, dies),
        ):  # fmt: skip
            table[place + 1 : index + 1] = table[place:index]
            table[place] = value
        offsets.append(offset)
    return offsets, int(end.max(initial=0))
