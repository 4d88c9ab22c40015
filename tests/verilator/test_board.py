# SPDX-License-Identifier: Apache-2.0
"""The board's serial top in simulation, behind a pseudo terminal: the hosts in Python and in C
talk to it as to a board.
"""

from __future__ import annotations

import importlib.util
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.pure.test_board_protocol import describe

from bitwright.base.errors import ToolError
from bitwright.base.tools.finder import find
from bitwright.build.simulated import Faults, SimulatedBoard
from bitwright.data.preprocessing import Preprocessing
from bitwright.formats import parse_format
from bitwright.host import Link, SerialLine
from bitwright.host.board_files import export_host
from bitwright.host.protocol import Flags, Packet, Reply, Request, reply, request
from bitwright.hw import Folding, map_graph
from bitwright.ir import INTEGER, GraphBuilder, TensorType, random_feeds
from bitwright.rtl.emit import emit
from bitwright.sim.toolchain import CHECKS

pytest.importorskip("serial", reason="pyserial is not installed")
if find("verilator") is None or find("c++") is None:
    pytest.skip("no Verilator or C++ compiler works here", allow_module_level=True)

DOTS = Path(__file__).parents[1] / "yosys" / "dots"
MHZ = 12.0  # 3 Mbaud at four clocks a bit
BAD = Faults(0.004, 0.003, 0.003, seed=1)


def dots_reference(levels: np.ndarray) -> np.ndarray:
    """The sample design: (N, 16) levels -> (N, 4): three dot products, and the first largest."""
    words = [int(line, 16) for line in (DOTS / "mem" / "weights.mem").read_text().split()]
    nibbles = np.array([[w >> (8 * k + 4 * lane) & 15 for w in words for lane in range(2)]
                        for k in range(3)])  # fmt: skip
    weights = np.where(nibbles > 7, nibbles - 16, nibbles)
    sums = levels @ weights.T
    return np.column_stack([sums, sums.argmax(axis=1)])


@pytest.fixture(scope="module")
def board() -> SimulatedBoard:
    return SimulatedBoard.build(DOTS, clock_mhz=MHZ)


@pytest.fixture(scope="module")
def levels() -> np.ndarray:
    return np.random.default_rng(5).integers(-8, 8, (60, 16))


def _answers(link: Link, levels: np.ndarray) -> np.ndarray:
    description = link.description
    payloads = [a.payload for a in link.run(description.input.pack(levels))]
    found = description.unpack(payloads)
    return np.column_stack([found["scores"], found["label"]])


@pytest.mark.parametrize("faults", [None, BAD], ids=["good line", "bad line"])
def test_host_and_board_agree(
    board: SimulatedBoard, levels: np.ndarray, faults: Faults | None
) -> None:
    expected = dots_reference(levels)
    running = board.start(faults)
    with running, Link.open(SerialLine.open(running.port, 3e6), board.description) as link:
        assert link.hello == board.description.hello()
        assert np.array_equal(_answers(link, levels), expected)
        assert (expected[:, :3] < 0).any(), "signs are worth a look"
    assert running.report is not None
    assert (running.report.damaged > 0) == (faults is not None)
    assert (link.statistics.repeated_bytes > 0) == (faults is not None)


def test_hosts_come_and_go(board: SimulatedBoard, levels: np.ndarray) -> None:
    """One stops in the middle of a packet in the middle of a frame; another finds a clean board."""
    expected = dots_reference(levels)
    with board.start() as running:
        first = Link.open(SerialLine.open(running.port, 3e6), board.description)
        next(first.run(board.description.input.pack(levels)))
        first.close()
        descriptor = os.open(running.port, os.O_WRONLY | os.O_NOCTTY)
        os.write(descriptor, request(Request.DATA, first.session, 9, 0, bytes(200))[:90])
        os.close(descriptor)
        with Link.open(SerialLine.open(running.port, 3e6), board.description) as link:
            assert np.array_equal(_answers(link, levels[::-1]), expected[::-1])
            assert np.array_equal(_answers(link, levels[:3]), expected[:3])


def test_another_bitstream_is_noticed(board: SimulatedBoard) -> None:
    other = board.description.model_copy(update={"digest": "0" * 16})
    with board.start() as running:
        with pytest.raises(ToolError, match="the board has the design dots"):
            Link.open(SerialLine.open(running.port, 3e6), other)


def test_the_shell_times_a_frame_in_the_core(board: SimulatedBoard, levels: np.ndarray) -> None:
    """Every frame that is alone takes the same number of clocks, and about what the model says."""
    with board.start() as running:
        with Link.open(SerialLine.open(running.port, 3e6), board.description) as link:
            frames = board.description.input.pack(levels[:4])
            cycles = {next(iter(link.run([frame]))).cycles for frame in frames}
    assert len(cycles) == 1
    assert 8 < cycles.pop() < 100  # eight beats in, a few stages behind them


@pytest.mark.parametrize("faults", [None, BAD], ids=["good line", "bad line"])
def test_the_host_in_c_agrees(
    board: SimulatedBoard, levels: np.ndarray, tmp_path: Path, faults: Faults | None
) -> None:
    if find("cc") is None:
        pytest.skip("no C compiler works here")
    files = export_host(board.description, tmp_path)
    assert all((tmp_path / name).is_file() for name in files.values())
    program = _compiled(tmp_path)
    (tmp_path / "x.frames").write_bytes(b"".join(board.description.input.pack(levels)))
    with board.start(faults) as running:
        done = subprocess.run(
            [str(program), running.port, "x.frames"],
            cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = np.array([[int(word) for word in line.split()] for line in done.stdout.splitlines()])
    assert np.array_equal(found, dots_reference(levels))


@pytest.mark.slow
def test_the_host_in_c_ends_where_nothing_but_other_packets_comes(tmp_path: Path) -> None:
    """Ten seconds of them; it waited on for as long as they came."""
    if find("cc") is None:
        pytest.skip("no C compiler works here")
    description = describe()
    export_host(description, tmp_path)
    program = _compiled(tmp_path)
    (tmp_path / "x.frames").write_bytes(bytes(description.input.frame_bytes))
    ours, theirs = os.openpty()
    said = reply(Packet(Reply.STATUS, 0, 0, 0, 0, 0, 0, 0, Flags(0), 100, b""))
    with subprocess.Popen(
        [str(program), os.ttyname(theirs), "x.frames"],
        cwd=tmp_path, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        try:
            for _ in range(1000):  # 40 s of them
                if running.poll() is not None:
                    break
                os.write(ours, said)
                time.sleep(0.04)
            assert running.poll() not in (None, 0)
            assert running.stderr is not None
            assert "nothing that speaks Bitwright's protocol" in running.stderr.read()
        finally:
            running.kill()
            os.close(ours)
            os.close(theirs)


def _compiled(folder: Path) -> Path:
    tool = find("cc")
    assert tool is not None
    flags = ["-std=c99", "-O1", "-Wall", "-Wextra", "-pedantic", "-Werror", "-Wconversion"]
    argv = [*tool.command, *flags, "bitwright_board.c", "bitwright_main.c", "-o", "board"]
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "board"


def test_c_and_python_turn_pixels_into_the_same_frames(
    board: SimulatedBoard, tmp_path: Path
) -> None:
    if find("cc") is None:
        pytest.skip("no C compiler works here")
    table = tuple((k >> 4) - 8 for k in range(256))
    how = Preprocessing(size=(4, 4), channels=1, levels=(table,))
    export_host(board.description.model_copy(update={"preprocessing": how}), tmp_path)
    pixels = random.Random(1).randbytes(16)
    (tmp_path / "image.pgm").write_bytes(b"P5\n4 4\n255\n" + pixels)
    program = _compiled(tmp_path)
    with board.start() as running:
        done = subprocess.run(
            [str(program), running.port, "image.pgm"],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    levels = np.array([[table[pixel] for pixel in pixels]])
    assert done.stdout.split() == [str(v) for v in dots_reference(levels)[0]], done.stderr


def test_the_shells_crc_is_that_of_zlib(tmp_path: Path) -> None:
    """The step of a CRC is linear in state and byte, so the 40 unit vectors and zero decide it for
    every state and byte; a few long messages besides.
    """
    from bitwright.base.tools.finder import require, run_tool
    from bitwright.base.tools.process import check_finished, run_process

    shell = Path(importlib.util.find_spec("bitwright.build").origin).parent / "shell"  # type: ignore[union-attr,arg-type]
    include = Path(dict(require("verilator").env)["VERILATOR_ROOT"]) / "include"
    run_tool(
        require("verilator"),
        ["--cc", "--no-timing", "--assert", CHECKS, "--public-flat-rw", "--prefix", "Vtop",
         "--Mdir", "made", str(shell / "shell_crc.sv")],
        cwd=tmp_path, log=tmp_path / "verilator.log", timeout=120,
    )  # fmt: skip
    (tmp_path / "main.cpp").write_text(_CRC_BENCH)
    sources = [*sorted((tmp_path / "made").glob("*.cpp")), tmp_path / "main.cpp"]
    sources += [include / f"{name}.cpp" for name in ("verilated", "verilated_threads")]
    (tmp_path / "all.cpp").write_text("".join(f'#include "{source}"\n' for source in sources))
    flags = ["-O0", "-w", "-std=gnu++17", "-pthread", f"-I{include}", f"-I{include / 'vltstd'}"]
    run_tool(
        require("c++"), [*flags, "-Imade", "all.cpp", "-o", "bench"],
        cwd=tmp_path, log=tmp_path / "c++.log", timeout=300,
    )  # fmt: skip
    ran = run_process([str(tmp_path / "bench")], cwd=tmp_path, log=tmp_path / "log", timeout=60)
    check_finished(ran, "the CRC bench")
    assert "41 steps, 3 messages" in ran.text()


_CRC_BENCH = """
#include <cstdio>
#include "Vtop.h"
#include "Vtop___024root.h"
static uint32_t step(uint32_t crc, uint8_t byte) {  // the textbook's, bit by bit
  for (int i = 0; i < 8; i++, byte >>= 1)
    crc = crc >> 1 ^ ((crc ^ byte) & 1 ? 0xEDB88320u : 0);
  return crc;
}
static void clock(Vtop& top) { top.clk_i = 0; top.eval(); top.clk_i = 1; top.eval(); }
static void feed(Vtop& top, uint8_t byte) {
  top.valid_i = 1; top.data_i = byte; clock(top); top.valid_i = 0;
  for (int i = 0; i < 8; i++) clock(top);
}
int main() {
  Vtop top;
  top.clear_i = 1; clock(top); top.clear_i = 0;
  for (int bit = -1; bit < 40; bit++) {
    const uint64_t vector = bit < 0 ? 0 : 1ull << bit;
    top.rootp->shell_crc__DOT__crc_q = static_cast<uint32_t>(vector);
    feed(top, static_cast<uint8_t>(vector >> 32));
    if (top.busy_o || ~top.crc_o != step(static_cast<uint32_t>(vector), vector >> 32)) return 1;
  }
  const struct { const char* text; uint32_t crc; } known[] = {  // of zlib.crc32
    {"123456789", 0xCBF43926u}, {"", 0u},
    {"The quick brown fox jumps over the lazy dog", 0x414FA339u}};
  for (const auto& each : known) {
    top.clear_i = 1; clock(top); top.clear_i = 0;
    for (const char* at = each.text; *at; at++) feed(top, *at);
    if (top.crc_o != each.crc) return 2;
  }
  std::puts("41 steps, 3 messages");
}
"""


def test_board_run_from_the_command_line(tmp_path: Path, levels: np.ndarray) -> None:
    """A design folder of one's own, levels from a file: no graph, so nothing to compare with."""
    np.save(tmp_path / "levels.npy", levels)
    argv = [sys.executable, "-m", "bitwright", "board", str(DOTS), str(tmp_path / "levels.npy"),
            "--simulated", "--json", "--count", "5"]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    import json

    table = json.loads(done.stdout)
    rows = [[*i["outputs"]["scores"], *i["outputs"]["label"]] for i in table["images"]]
    assert rows == dots_reference(levels[:5]).tolist()
    assert table["compared"] == 0 and table["simulated"] is True
    np.save(tmp_path / "levels.npy", levels[:0])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode != 0 and "levels.npy: holds no frames" in done.stderr


_RUNNING = """
`default_nettype none
module running #(localparam int Every = 16, localparam int Beats = 5008) (
  input  logic ap_clk, input logic ap_rst_n,
  input  logic [7:0] s_axis_0_tdata, input logic s_axis_0_tvalid, input logic s_axis_0_tlast,
  output logic s_axis_0_tready,
  output logic [15:0] m_axis_0_tdata, output logic m_axis_0_tvalid, output logic m_axis_0_tlast,
  input  logic m_axis_0_tready
);
  logic [11:0] sum_q;
  logic [12:0] beat_q;
  logic        fire;
  assign s_axis_0_tready = !m_axis_0_tvalid || m_axis_0_tready;
  assign fire = s_axis_0_tvalid && s_axis_0_tready;
  assign m_axis_0_tlast = 1'b0;
  always_ff @(posedge ap_clk) begin
    if (!ap_rst_n) begin
      sum_q <= '0;
      beat_q <= '0;
      m_axis_0_tvalid <= 1'b0;
    end else begin
      if (m_axis_0_tready) m_axis_0_tvalid <= 1'b0;
      if (fire) begin
        sum_q <= s_axis_0_tlast ? '0 : sum_q + 12'(s_axis_0_tdata) * 12'd5 + 12'd3;
        beat_q <= beat_q == 13'(Beats - 1) ? '0 : beat_q + 1'b1;
        m_axis_0_tvalid <= beat_q[3:0] == 4'd15;
        m_axis_0_tdata <= {4'd0, sum_q + 12'(s_axis_0_tdata) * 12'd5 + 12'd3};
      end
    end
  end
endmodule
`default_nettype wire
"""
_PORT = {"lanes": 1, "signed": False, "bipolar": False}


@pytest.mark.parametrize("faults", [None, Faults(0.0006, 0.0007, 0.0007)], ids=["good", "bad"])
def test_frames_larger_than_the_store_and_answers_of_many_packets(
    tmp_path: Path, faults: Faults | None
) -> None:
    """5 008 bytes a frame, 626 an answer whose first part comes when the frame is still on its
    way; the host in C as well.
    """
    import json

    ports = {
        "inputs": [{"name": "s_axis_0", "width": 8, "lane_bits": 8, "beats": 5008, **_PORT}],
        "outputs": [
            {
                "name": "m_axis_0",
                "width": 16,
                "lane_bits": 12,
                "beats": 313,
                **_PORT,
                "signed": True,
            }
        ],
    }
    table = {"top": "running", "clock": "ap_clk", "reset": "ap_rst_n", "files": ["running.sv"]}
    (tmp_path / "design.json").write_text(json.dumps({**table, **ports}))
    (tmp_path / "running.sv").write_text(_RUNNING)
    large = SimulatedBoard.build(tmp_path, clock_mhz=MHZ)
    description = large.description
    assert description.buffer_bytes < description.input.frame_bytes
    levels = np.random.default_rng(7).integers(0, 256, (3, 5008))
    sums = np.cumsum(levels * 5 + 3, axis=1)[:, 15::16] & 0xFFF
    expected = np.where(sums > 2047, sums - 4096, sums)
    with large.start(faults) as running:
        with Link.open(SerialLine.open(running.port, 3e6), description) as link:
            answers = [a.payload for a in link.run(description.input.pack(levels))]
        assert np.array_equal(description.unpack(answers)["m_axis_0"], expected)
        assert (link.statistics.damaged > 0) == (faults is not None)
        export_host(description, tmp_path)
        (tmp_path / "x.frames").write_bytes(b"".join(description.input.pack(levels)))
        argv = [str(_compiled(tmp_path)), running.port, "x.frames"]
        done = subprocess.run(
            argv, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )
    assert done.returncode == 0, done.stderr
    found = [[int(word) for word in line.split()] for line in done.stdout.splitlines()]
    assert np.array_equal(np.array(found), expected)


@pytest.mark.parametrize(("channels", "first"), [((2, 3), 0), ((1, 6), 1)])
def test_outputs_that_branch_from_each_other_are_all_sent(
    tmp_path: Path, channels: tuple[int, int], first: int
) -> None:
    """The line sends the larger output's frame whole, while the other comes before it or after."""
    rng, kind = np.random.default_rng(2), parse_format("uint4")
    b = GraphBuilder("two", INTEGER)
    x = b.input("x", TensorType((12, 12, 1), kind, (1.0,), 0, 15))

    def conv(edge: str, channels: int) -> str:
        weight = rng.integers(-7, 8, (channels, 3, 3, b.types[edge].channels))
        return b.add("conv", (edge,), attrs={"weight_format": "int4"}, params={"weight": weight})

    early = conv(x, channels[0])
    late = conv(early, channels[1])
    graph = b.finish(late, early)
    emit(map_graph(graph, Folding({})), tmp_path)
    two = SimulatedBoard.build(tmp_path, clock_mhz=MHZ)
    assert two.description.outputs[0].name == (early, late)[first]
    feeds = random_feeds(graph, 3, rng)
    with two.start() as running:
        with Link.open(SerialLine.open(running.port, 3e6), two.description) as link:
            frames = two.description.input.pack(feeds["x"].reshape(3, -1))
            found = two.description.unpack([a.payload for a in link.run(frames)])
    for edge, levels in graph.run(feeds).items():
        assert np.array_equal(found[edge], levels.reshape(3, -1))
