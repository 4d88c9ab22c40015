# SPDX-License-Identifier: Apache-2.0
"""A programmed engine beside a processor: the whole circuit run through its registers, with memory
above 4 GiB that waits and refuses; the driver, with files for its devices; the projects.
"""

from __future__ import annotations

import mmap
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from tests.engine_programs import SMALL
from tests.hw_networks import densenet
from tests.verilator.test_build_shell import runtime  # noqa: F401
from tests.verilator.test_soc import (
    STRICT,
    WITH_PROCESSOR,
    build_bench,
    check_project,
    check_scripts,
    run_script,
)

from bitwright.base.tools.finder import find, require
from bitwright.build.soc import beyond_soc, write_soc
from bitwright.build.target import load_target
from bitwright.build.vendor_system import write_system_project
from bitwright.engine.compiler import compile_graph
from bitwright.engine.config import ENGINES
from bitwright.engine.emulator import Memory, emulate
from bitwright.engine.image import EngineImage
from bitwright.engine.isa import Halt, encode_program
from bitwright.engine.timing import simulate
from bitwright.host.engine_files import NETWORK_HEADER, network_header
from bitwright.ir import Graph, random_feeds
from bitwright.rtl.emit_engine import emit_engine, emit_engine_board
from bitwright.sim.spec import load_design
from bitwright.sim.stalls import StallPattern, no_stalls, random_stalls

MAGIC = int.from_bytes(b"BWE1", "little")
BASE = 0x7_4000_0000
CONTROL, END, CYCLES, AT = 8, 12, 16, 24
RUNS, DONE, ERROR = 1, 2, 4
PAUSE = 3000  # cycles of the processor before each start; a start is 4 behind its script's line
BENCH = Path(__file__).with_name("soc_engine_bench.cpp")


@dataclass(frozen=True)
class Net:
    graph: Graph
    image: EngineImage

    def feeds(self, frames: int) -> dict[str, np.ndarray]:
        return random_feeds(self.graph, frames, np.random.default_rng(frames))

    def check(self, memory: np.ndarray, expected: dict[str, np.ndarray], frame: int) -> None:
        found = self.image.read(memory)
        assert set(found) == set(expected)
        for edge, levels in expected.items():
            assert np.array_equal(found[edge], levels[frame]), edge


@pytest.fixture(scope="module")
def net() -> Net:
    """A dense block, a concatenation, pools, a dense layer; neighbours share words of its input."""
    graph = densenet(layers=2)
    return Net(graph, compile_graph(graph, SMALL))


@pytest.fixture(scope="module")
def rtl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return emit_engine(SMALL, tmp_path_factory.mktemp("engine") / "rtl", dsps=4).parent


@pytest.fixture(scope="module")
def bench(rtl: Path, tmp_path_factory: pytest.TempPathFactory, runtime: list[str]) -> Path:  # noqa: F811
    """A folder with the built simulation of engine_soc."""
    folder = tmp_path_factory.mktemp("soc")
    build_bench(write_soc(rtl, folder), folder, BENCH, runtime)
    return folder


def arguments(stalls: StallPattern, size: int) -> list[str]:
    """Of the bench: the memory of a pattern."""
    model = stalls.memory
    rates = (model.beats_per_cycle, model.stop, model.go)
    shape = (model.base, model.latency, model.jitter, *rates, int(model.mixed), size)
    return [str(value) for value in (*shape, stalls.seed * 1000 + 900)]


def started(at: int) -> list[str]:
    return [f"at {at - 4}", f"write {CONTROL} 1"]


def loaded(image: EngineImage, frame: dict[str, np.ndarray]) -> list[str]:
    pieces = {0: image.data.tobytes(), **image.writes(frame)}
    return [f"load {at} " + " ".join(map(str, data)) for at, data in pieces.items()]


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_network_through_registers(bench: Path, net: Net, share: float) -> None:
    """As the driver does it. Two frames: outputs == graph, cycles == model, with memory that waits;
    what is written while a program runs changes nothing.
    """
    image, feeds = net.image, net.feeds(2)
    plain = random_stalls(share, seed=3) if share else no_stalls(seed=3)
    stalls = replace(plain, memory=replace(plain.memory, base=BASE))
    size = image.words * image.config.word_bytes
    model = simulate(
        image.program, image.config, stalls.memory, size, seed=stalls.seed, runs=2, pause=PAUSE
    )
    ended = ["wait", f"read {CONTROL}", f"read {END}", f"read {CYCLES}", f"read {CYCLES + 4}"]
    script = [f"read {4 * k}" for k in range(4)]
    script += [f"write {AT} {BASE & 0xFFFFFFFF}", f"write {AT + 4} {BASE >> 32}"]
    for number in range(2):
        frame = {edge: levels[number] for edge, levels in feeds.items()}
        script += [*loaded(image, frame), *started(int(model.start[number]))]
        script += [f"read {CONTROL}", f"write {AT} 4096", f"write {CONTROL} 1"]
        script += [*ended, f"dump 0 {size}"]
    script += [f"read {AT}", f"read {AT + 4}", "read 200"]
    registers, dumps = run_script(bench, script, arguments(stalls, size))
    assert registers[:1] == [MAGIC] and registers[2:4] == [0, 0]
    expected = net.graph.run(feeds)
    for number in range(2):
        state = registers[4 + 5 * number :][:5]
        assert state == [RUNS, DONE, 0, int(model.cycles[number]), 0]
        net.check(np.array(dumps[number], np.uint8), expected, number)
    assert registers[-3:] == [BASE & 0xFFFFFFFF, BASE >> 32, 0]


def test_the_driver_knows_the_digest(bench: Path, rtl: Path, tmp_path: Path) -> None:
    made = write_soc(rtl, tmp_path)
    stalls = no_stalls()
    found, _ = run_script(bench, ["read 4"], arguments(stalls, 4096))
    assert found == [made.digest]
    assert (
        f"BITWRIGHT_DIGEST UINT32_C({made.digest:#010x})"
        in (tmp_path / "driver" / "design.h").read_text()
    )


@pytest.mark.long
def test_memory_that_refuses_and_programs_that_are_none(bench: Path, net: Net) -> None:
    """Told by the registers, and forgotten by the next start."""
    image, feeds = net.image, net.feeds(1)
    frame = {edge: levels[0] for edge, levels in feeds.items()}
    size = image.words * image.config.word_bytes
    base = [f"write {AT} {0x1000_0000}", f"write {AT + 4} 0"]
    read = ["wait", f"read {CONTROL}", f"read {END}"]
    go = [f"write {CONTROL} 1", *read]
    bad = bytearray(encode_program((Halt(code=3),)))
    bad[0] = 13
    script = [*base, f"load 0 {' '.join(map(str, bad))}", *go]
    output = image.outputs[0].word * image.config.word_bytes
    script += [*loaded(image, frame), f"refuse {output}", *go, f"refuse {2**64 - 1}", *go]
    registers, dumps = run_script(bench, [*script, f"dump 0 {size}"], arguments(no_stalls(), size))
    assert registers[0] == DONE | ERROR and registers[1] >> 8 == 1
    assert registers[2] == DONE | ERROR and registers[3] >> 8 & 4
    assert registers[4:] == [DONE, 0]
    net.check(np.array(dumps[0], np.uint8), net.graph.run(feeds), 0)


# --- the driver ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver(rtl: Path, net: Net, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example with the driver, compiled without one warning, with files for its devices."""
    if find("cc") is None:
        pytest.skip("no C compiler works here")
    made = tmp_path_factory.mktemp("made")
    write_soc(rtl, made)
    folder = made / "driver"
    (folder / NETWORK_HEADER).write_text(network_header(net.image))
    (folder / "program.bwe").write_bytes(net.image.to_bytes())
    places = {"MEMORY_DEVICE": "mem", "BUFFER_DEVICE": "%s", "BUFFER_NUMBERS": "%s.%s"}
    defined = [f'-DBW_{key}="{folder / name}"' for key, name in places.items()]
    sources = sorted(path.name for path in folder.glob("*.c"))
    command = [*require("cc").command, *STRICT]
    plain = subprocess.run(
        [*command, *sources, "-o", "plain"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert plain.returncode == 0, plain.stderr
    argv = [*command, *defined, *sources, "-o", "engine"]
    built = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def digest_of(folder: Path) -> int:
    text = (folder / "design.h").read_text()
    return int(text.split("UINT32_C(")[1].split(")")[0], 16)


@contextmanager
def fake_devices(
    folder: Path, image: EngineImage, *, physical: int = BASE, bytes_: int = 0, alive: bool = True,
    magic: int = MAGIC, cycles: int = 0x1_2345_6789,
) -> Iterator[None]:  # fmt: skip
    """Files for registers and buffer; the emulator runs what is started, in the buffer."""
    size = bytes_ or image.words * image.config.word_bytes
    (folder / "udmabuf0.phys_addr").write_text(f"{physical:#x}\n")
    (folder / "udmabuf0.size").write_text(f"{size}\n")
    (folder / "udmabuf0").write_bytes(bytes(size))
    registers = np.zeros(1024, "<u4")
    registers[:2] = magic, digest_of(folder)
    (folder / "mem").write_bytes(registers.tobytes())
    stop = threading.Event()
    with open(folder / "mem", "r+b") as one, open(folder / "udmabuf0", "r+b") as two:
        held = np.frombuffer(mmap.mmap(one.fileno(), 0), "<u4").view()
        memory = np.frombuffer(mmap.mmap(two.fileno(), 0), np.uint8).view()

        def play() -> None:
            while not stop.wait(0.001):
                if held[2] != RUNS or not alive:
                    continue
                assert int(held[6]) + (int(held[7]) << 32) == physical
                words = memory.reshape(-1, image.config.lanes)
                after = Memory(words.copy(), np.ones(words.shape, np.bool_))
                emulate(image.program, after, image.config)
                words[:] = after.words
                held[3:6] = 0, cycles & 0xFFFFFFFF, cycles >> 32
                held[2] = DONE

        thread = threading.Thread(target=play, daemon=True)
        thread.start()
        yield
        stop.set()
        thread.join()


def use(folder: Path, text: str, *names: str) -> subprocess.CompletedProcess[str]:
    given = names or ("0", "udmabuf0", str(folder / "program.bwe"))
    return subprocess.run(
        [str(folder / "engine"), *given],
        input=text, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def levels_of(net: Net, feeds: dict[str, np.ndarray], frames: int) -> str:
    edges = [region.edge for region in net.image.inputs]
    rows = [feeds[edge][n].reshape(-1) for n in range(frames) for edge in edges]
    return " ".join(str(value) for row in rows for value in row.tolist())


def test_the_driver_runs_a_network(driver: Path, net: Net) -> None:
    """Two frames through files that behave like registers and buffer: outputs == graph; all 48 bits
    of the counter.
    """
    feeds = net.feeds(2)
    with fake_devices(driver, net.image):
        done = use(driver, levels_of(net, feeds, 2))
        short = use(driver, levels_of(net, feeds, 1) + " 1")
    assert done.returncode == 0, done.stderr
    expected, lines = net.graph.run(feeds), done.stdout.splitlines()
    assert len(lines) == 2
    for number, line in enumerate(lines):
        *found, cycles = map(int, line.split())
        raw = [expected[region.edge][number].reshape(-1) for region in net.image.outputs]
        assert found == np.concatenate(raw).tolist()
        assert cycles == 0x1_2345_6789
    assert short.returncode == 1 and "ends within a frame" in short.stderr


def test_what_the_driver_refuses(driver: Path, net: Net) -> None:
    image, size = net.image, net.image.words * net.image.config.word_bytes
    assert use(driver, "", "0").returncode == 2
    with fake_devices(driver, image, magic=7):
        assert "no Bitwright design answers" in use(driver, "").stderr
    with fake_devices(driver, image, physical=BASE + 128):
        assert "lies badly" in use(driver, "").stderr
    with fake_devices(driver, image, physical=2**32 - 4096):
        assert "lies badly" in use(driver, "").stderr
    with fake_devices(driver, image, bytes_=size - 4096):
        assert "does not hold" in use(driver, "").stderr
    with fake_devices(driver, image):
        other = ("0", "udmabuf0", str(driver / "engine"))
        assert "the file is no program" in use(driver, "", *other).stderr
        assert "u-dma-buf is not there" in use(driver, "", "0", "other", "x").stderr


# --- projects ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WITH_PROCESSOR)
def test_projects_are_whole_and_clean(rtl: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "a system"
    write_system_project(rtl, load_target(name), folder, clock_mhz=80)
    check_project(folder, name, "engine_soc", lint=name == WITH_PROCESSOR[0])
    check_scripts(folder)


@pytest.mark.parametrize(
    ("name", "engine", "said"),
    [
        ("xc7z020", "e128", "CONFIG.PCW_S_AXI_HP0_DATA_WIDTH 64 "),
        ("xc7z020", "e2048", "CONFIG.PCW_S_AXI_HP0_DATA_WIDTH 64 "),
        ("xczu9eg", "e256", "CONFIG.PSU__SAXIGP2__DATA_WIDTH 64 "),
        ("xczu9eg", "e2048", "CONFIG.PSU__SAXIGP2__DATA_WIDTH 128 "),
        ("cyclonev-5csema4", "e2048", "hps F2S_Width {3}"),
    ],
)
def test_the_memory_port_is_as_wide(tmp_path: Path, name: str, engine: str, said: str) -> None:
    made = emit_engine(ENGINES[engine], tmp_path / "rtl").parent
    write_system_project(made, load_target(name), tmp_path / "system", clock_mhz=100)
    texts = [path.read_text() for path in (tmp_path / "system").glob("*.tcl")]
    assert any(said in text for text in texts)
    bits = 8 * ENGINES[engine].lanes
    top = (tmp_path / "system" / "design" / "engine_soc.v").read_text()
    assert f"input  wire [{bits - 1}:0] m_axi_0_rdata" in top
    assert f"output wire [{bits // 8 - 1}:0] m_axi_0_wstrb" in top


def test_an_engine_with_a_chip_of_its_own_is_for_a_board(tmp_path: Path) -> None:
    reason = beyond_soc(load_design(emit_engine_board(SMALL, tmp_path / "rtl").parent))
    assert reason is not None and "an SDRAM of its own" in reason
