# SPDX-License-Identifier: Apache-2.0
"""Whole networks in Icarus: RTL == integer graph, with all that has no value unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.conftest import require as need
from tests.hw_networks import digits_like, mixed, random_folding
from tests.icarus import Icarus, Pattern
from tests.icarus import missing as no_icarus

from bitwright.hw import analyse, map_graph
from bitwright.ir import Graph, random_feeds
from bitwright.rtl.emit import emit

FRAMES = 3


@pytest.mark.parametrize(
    ("network", "seed"), [pytest.param(digits_like, 3, marks=pytest.mark.long), (mixed, 7)]
)
def test_network_in_a_second_simulator(
    network: Callable[[], Graph], seed: int, tmp_path: Path
) -> None:
    need(no_icarus())
    graph = network()
    hardware = map_graph(graph, random_folding(graph, np.random.default_rng(seed)))
    emit(hardware, tmp_path / "rtl")
    feeds = random_feeds(graph, FRAMES, np.random.default_rng(2))
    expected = graph.run(feeds)
    simulator = Icarus(tmp_path / "rtl", tmp_path / "work", FRAMES)
    named = {f"s_axis_{i}": feeds[edge] for i, edge in enumerate(graph.inputs)}
    interval = analyse(hardware).interval
    for pattern in (
        Pattern(),
        Pattern(offer=150, take=190, reset_at=interval + interval // 2, seed=8),
    ):
        found = simulator.run(named, pattern)
        for number, edge in enumerate(graph.outputs):
            got = found.levels[f"m_axis_{number}"].reshape(expected[edge].shape)
            np.testing.assert_array_equal(got, expected[edge])
        if pattern == Pattern():
            ends = np.max([c.reshape(FRAMES, -1)[:, -1] for c in found.cycles.values()], axis=0)
            assert interval in np.diff(ends)
