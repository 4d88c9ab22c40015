# SPDX-License-Identifier: Apache-2.0
"""Calling a native plan with as little Python as possible: a small network takes microseconds."""

from __future__ import annotations

import ctypes
from collections import deque

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError
from bitwright.ir.executor.builder import NativePlan
from bitwright.ir.executor.compiler import Library
from bitwright.ir.executor.layout import CFeed
from bitwright.ir.footprint import work
from bitwright.ir.graph import Graph
from bitwright.ir.levels import check_levels
from bitwright.ir.node import IntArray

Array = NDArray[np.generic]

# Array types that the kernels read, by numpy's name with byte order; the numbers are bw_feed.kind.
_ORDER = np.dtype(np.int64).str[0]
FEED_KINDS = {"|u1": -1, "|i1": 1, **{f"{_ORDER}i{size}": size for size in (2, 4, 8)}}
#: Operations on elements of one call of C, if more than one frame takes so many: a second or two,
#: in which Ctrl-C is not noticed.
_MOST_OF_A_CALL = 2_000_000_000


class _Seat:
    """What one call needs for itself: the plan's memory, and where inputs and outputs lie."""

    def __init__(self, graph: Graph, arena_bytes: int) -> None:
        arena = np.zeros(arena_bytes + 64, dtype=np.uint8)
        self._arena = arena[-arena.ctypes.data % 64 :]
        self.address = int(self._arena.ctypes.data)
        self.feeds = (CFeed * len(graph.inputs))()
        self.targets = (ctypes.c_void_p * len(graph.outputs))()


class NativeRunner:
    """A plan that any number of threads run at the same time, each with memory of its own.

    There are as many pieces of memory as there have been calls at a time; they are kept for the
    next calls.

    Args:
        graph: what the plan computes.
        plan: from `make_plan`.
        library: the kernels that the plan was made for.
        threads: of each call, at most so many.
    """

    def __init__(self, graph: Graph, plan: NativePlan, library: Library, threads: int) -> None:
        self.graph, self.plan, self.threads = graph, plan, threads
        self._run = library.handle.bw_run
        self._arena_bytes = plan.arena_bytes * threads
        self._plan = ctypes.byref(plan.plan)
        self._outputs = [
            (edge, graph.types[edge].shape, graph.types[edge].size) for edge in graph.outputs
        ]
        self._total = sum(size for _, _, size in self._outputs)
        # Threads share a call, so it takes as long with as many more frames.
        self._frames = threads * max(1, _MOST_OF_A_CALL // max(1, work(graph)))
        # Both ends of a deque are safe from any thread; the first memory is taken at once, so that
        # a network that is too large fails here.
        self._seats = deque([_Seat(graph, self._arena_bytes)])

    def __call__(self, arrays: list[Array]) -> dict[str, IntArray]:
        """Execute on contiguous arrays of types in `FEED_KINDS`, one per input of the graph.

        Raises:
            GraphError: an input leaves its interval.
        """
        try:
            seat = self._seats.pop()
        except IndexError:
            seat = _Seat(self.graph, self._arena_bytes)
        try:
            return self._execute(seat, arrays)
        finally:
            self._seats.append(seat)

    def _execute(self, seat: _Seat, arrays: list[Array]) -> dict[str, IntArray]:
        count = arrays[0].shape[0]
        memory = np.empty(count * self._total, dtype=np.int64)
        address, targets, start = int(memory.ctypes.data), [], 0
        results: dict[str, IntArray] = {}
        for edge, shape, size in self._outputs:
            end = start + count * size
            results[edge] = memory[start:end].reshape(count, *shape)
            targets.append((address + 8 * start, 8 * size))
            start = end
        sources = []
        for feed, array in zip(seat.feeds, arrays, strict=True):
            feed.kind = FEED_KINDS[array.dtype.str]
            sources.append((array.ctypes.data, array.nbytes // max(1, count)))
        for first in range(0, count, self._frames):
            for feed, (place, step) in zip(seat.feeds, sources, strict=True):
                feed.data = place + first * step
            for port, (place, step) in enumerate(targets):
                seat.targets[port] = place + first * step
            some = min(self._frames, count - first)
            # The call lets other threads of Python go on.
            bad = self._run(self._plan, seat.feeds, seat.targets, some, seat.address, self.threads)
            if bad:
                edge = self.graph.inputs[bad - 1]
                check_levels(edge, self.graph.types[edge], arrays[bad - 1].astype(np.int64))
                raise GraphError("levels leave the interval of their type", where=edge)
        return results
