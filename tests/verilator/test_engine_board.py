# SPDX-License-Identifier: Apache-2.0
"""An engine with its SDRAM in the serial shell, behind a pseudo terminal: the driver loads compiled
networks, starts them and reads results == `Graph.run`, over lines that lose and damage bytes.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.engine_programs import SMALL
from tests.integer_strategies import GraphLimits, integer_graphs

from bitwright.base.errors import ModelError
from bitwright.base.tools.finder import find
from bitwright.build.simulated import Faults, RunningBoard, SimulatedBoard
from bitwright.engine.compiler import compile_graph
from bitwright.engine.image import EngineImage
from bitwright.host import Link, SerialLine
from bitwright.host.engine import EngineBoard, Flag
from bitwright.ir import Graph, random_feeds
from bitwright.rtl.emit_engine import emit_engine_board

pytest.importorskip("serial", reason="pyserial is not installed")
if find("verilator") is None or find("c++") is None:
    pytest.skip("no Verilator or C++ compiler works here", allow_module_level=True)

MHZ = 62.5
BAUD = 3e6  # of a pseudo terminal: any
BAD = Faults(0.004, 0.003, 0.003, seed=1)


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> SimulatedBoard:
    folder = tmp_path_factory.mktemp("engine") / "rtl"
    emit_engine_board(SMALL, folder, dsps=SMALL.lanes // 2)
    return SimulatedBoard.build(folder, clock_mhz=MHZ)


@pytest.fixture(scope="module")
def networks() -> list[tuple[Graph, EngineImage]]:
    """Drawn networks with most work."""
    found: list[tuple[Graph, EngineImage]] = []

    @settings(
        max_examples=30, deadline=None, database=None, derandomize=True,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(integer_graphs(GraphLimits.everything(blocks=3, channels=10, image=9)))
    def draw(graph: Graph) -> None:
        try:
            found.append((graph, compile_graph(graph, SMALL)))
        except ModelError:
            pass

    draw()
    found.sort(key=lambda one: -sum(one[1].macs.values()))
    return found[:3]


def opened(board: SimulatedBoard, running: RunningBoard) -> EngineBoard:
    return EngineBoard(Link.open(SerialLine.open(running.port, BAUD), board.description))


def check(engine: EngineBoard, graph: Graph, image: EngineImage, seed: int = 0) -> int:
    """Two frames; the cycles of one."""
    feeds = random_feeds(graph, 2, np.random.default_rng(seed))
    expected, cycles = graph.run(feeds), set()
    for number in range(2):
        got, took = engine.run(image, {edge: levels[number] for edge, levels in feeds.items()})
        assert set(got) == set(expected)
        for edge, levels in expected.items():
            assert np.array_equal(got[edge], levels[number]), edge
        cycles.add(took)
    assert len(cycles) == 1, "every run takes as many cycles as the next one"
    return cycles.pop()


def test_networks_one_after_the_other(
    board: SimulatedBoard, networks: list[tuple[Graph, EngineImage]]
) -> None:
    """Two networks on one circuit, and the first one again."""
    with board.start() as running:
        engine = opened(board, running)
        assert Flag.DONE not in engine.state().flags
        took = []
        for graph, image in (*networks[:2], networks[0]):
            engine.load(image, verify=True)
            took.append(check(engine, graph, image))
        engine.link.close()
    assert took[0] == took[2]
