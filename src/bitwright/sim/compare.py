# SPDX-License-Identifier: Apache-2.0
"""The first place where simulated outputs differ from the graph's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError


@dataclass(frozen=True)
class Difference:
    """Where two runs first disagree.

    Attributes:
        port: the output.
        frame, beat, element: position; ``element`` counts within the frame, ``beat`` is its beat.
        expected, got: the two levels.
        count: number of differing elements of this port, over all frames.
    """

    port: str
    frame: int
    beat: int
    element: int
    expected: int
    got: int
    count: int

    def __str__(self) -> str:
        return (
            f"{self.port}: frame {self.frame}, beat {self.beat}, element {self.element}: "
            f"expected {self.expected}, got {self.got} ({self.count} elements differ)"
        )


def compare(
    expected: Mapping[str, NDArray[np.int64]],
    got: Mapping[str, NDArray[np.int64]],
    lanes: Mapping[str, int] | None = None,
) -> Difference | None:
    """First difference in stream order, or None when all is equal.

    Args:
        expected: port -> levels, first axis frames.
        got: the same from the simulation.
        lanes: port -> elements of a beat (default 1), to name the beat.

    Raises:
        GraphError: ports or sizes do not match, which is no matter of values.
    """
    if set(expected) != set(got):
        raise GraphError(f"outputs {sorted(expected)} cannot be compared with {sorted(got)}")
    first: Difference | None = None
    for port, values in expected.items():
        found = _first(port, values, got[port], (lanes or {}).get(port, 1))
        if found is not None and (first is None or found.frame < first.frame):
            first = found
    return first


def _first(
    port: str, expected: NDArray[np.int64], got: NDArray[np.int64], lanes: int
) -> Difference | None:
    frames = expected.shape[0]
    if got.shape[0] != frames or got.size != expected.size:
        raise GraphError(f"{port}: shapes {expected.shape} and {got.shape} cannot be compared")
    want, have = expected.reshape(frames, -1), got.reshape(frames, -1)
    wrong = np.argwhere(want != have)
    if wrong.size == 0:
        return None
    frame, element = (int(v) for v in wrong[0])
    return Difference(
        port,
        frame,
        element // lanes,
        element,
        int(want[frame, element]),
        int(have[frame, element]),
        len(wrong),
    )
