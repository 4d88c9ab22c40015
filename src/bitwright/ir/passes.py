# SPDX-License-Identifier: Apache-2.0
"""Passes: pure functions Graph -> Graph, verified after each, compared by execution if asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from bitwright.base.errors import MismatchError
from bitwright.ir.footprint import checked_frames
from bitwright.ir.graph import Graph, random_feeds, verify

Pass = Callable[[Graph], Graph]


def pipeline(
    graph: Graph,
    passes: Iterable[Pass],
    *,
    check: int = 0,
    seed: int = 0,
    dump: Callable[[str, Graph], None] | None = None,
) -> Graph:
    """Run passes in order.

    Args:
        check: number of random frames on which every pass must preserve all outputs (0: none);
            fewer of frames that are large (`footprint.checked_frames`).
        dump: called with (pass name, graph) after each pass.

    Raises:
        GraphError: a pass broke a rule of the dialect.
        MismatchError: a pass changed an output.
    """
    for step in passes:
        after = step(graph)
        verify(after)
        if check and after is not graph:
            compare_graphs(graph, after, check, np.random.default_rng(seed), step.__name__)
        if dump is not None:
            dump(step.__name__, after)
        graph = after
    return graph


def compare_graphs(
    before: Graph, after: Graph, count: int, rng: np.random.Generator, what: str
) -> None:
    """Run two graphs on the same random frames.

    Raises:
        MismatchError: an output differs; says which, where, and both values.
    """
    feeds = random_feeds(before, checked_frames(before, count), rng)
    expected, got = before.run(feeds), after.run(feeds)
    for edge_before, edge_after in zip(before.outputs, after.outputs, strict=True):
        differing = np.argwhere(expected[edge_before] != got[edge_after])
        if len(differing):
            at = tuple(int(i) for i in differing[0])
            raise MismatchError(
                f"{len(differing)} values differ, first at {at}: {expected[edge_before][at]} "
                f"became {got[edge_after][at]}",
                where=f"{what}, output {edge_before}",
            )
