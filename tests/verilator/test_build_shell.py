# SPDX-License-Identifier: Apache-2.0
"""The serial shell answers a host bit by bit as the design behind it does, also after a break; its
parts keep their promises on bytes of any kind.
"""

from __future__ import annotations

import importlib.util
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.netlists import write_gates

from bitwright.base.tools.finder import require, run_tool
from bitwright.base.tools.process import check_finished, run_process
from bitwright.build.shell import LineTiming, describe, serial_top
from bitwright.build.target import load_target
from bitwright.build.yosys import SynthesisOptions, synthesise
from bitwright.host import Description
from bitwright.host.protocol import Flags, Packet, Parser, Reply, Request, read_hello, request
from bitwright.rtl import needed_files
from bitwright.sim import Design, load_design
from bitwright.sim.toolchain import CHECKS

DOTS = Path(__file__).parents[1] / "yosys" / "dots"
BENCH = Path(__file__).with_name("shell_bench.cpp")
PACKAGE = Path(__file__).parents[2] / "src" / "bitwright"
BREAK, WAIT = 256, 512
LINE = LineTiming(step=(1 << 16) // 8, baud=3e6, pause_bits=12)


def _signed(code: int) -> int:
    return code - 16 if code >= 8 else code


def dots_reference(levels: list[int]) -> tuple[list[int], int]:
    """The sample design in Python: three dot products and the first largest."""
    words = [int(line, 16) for line in (DOTS / "mem" / "weights.mem").read_text().split()]
    sums = [0, 0, 0]
    for beat, word in enumerate(words):
        for k in range(3):
            for lane in range(2):
                weight = _signed(word >> (8 * k + 4 * lane) & 15)
                sums[k] += weight * levels[2 * beat + lane]
    return sums, sums.index(max(sums))


def _gates(folder: Path, name: str) -> list[str]:
    """The design synthesised for a target, as Verilog, and the models of the target's cells."""
    spec = importlib.util.find_spec("pyosys")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the cell models of the package pyosys are not there")
    share = Path(next(iter(spec.submodule_search_locations)), "share")
    models = {"ecp5": "lattice/cells_sim_ecp5.v", "xc7": "xilinx/cells_sim.v"}
    target = load_target(name)
    # Without DSP blocks: their models are empty.
    options = SynthesisOptions(dsp=False)
    made = synthesise(DOTS, target, folder / "synthesis", options=options)
    write_gates(made.netlist, "dots", folder)
    cells = share / models[target.family]
    return [
        f"-I{cells.parent}",
        "-Wno-lint",
        "-Wno-style",
        "-Wno-SPECIFYIGN",
        "gates.v",
        str(cells),
    ]


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Flags and objects that every simulation is linked with."""
    folder = tmp_path_factory.mktemp("runtime")
    include = Path(dict(require("verilator").env)["VERILATOR_ROOT"]) / "include"
    flags = ["-O0", "-w", "-std=gnu++17", "-pthread", f"-I{include}", f"-I{include / 'vltstd'}"]
    names = ("verilated", "verilated_threads")
    sources = [str(include / f"{name}.cpp") for name in names]
    run_tool(require("c++"), [*flags, "-c", *sources], cwd=folder, log=folder / "log", timeout=300)
    return [*flags, *(str(folder / f"{name}.o") for name in names)]


def _simulate(
    folder: Path,
    design: Design,
    description: Description,
    target: str | None,
    runtime: list[str],
    codes: list[int],
) -> bytes:
    """Build and run the bench, with the RTL or its netlist; the bytes that the shell sent."""
    shutil.copytree(DOTS, folder, dirs_exist_ok=True)
    (folder / "dots_serial.sv").write_text(serial_top(design, description, LINE))
    (folder / "send.txt").write_text("\n".join(map(str, codes)))
    shell = sorted((PACKAGE / "build" / "shell").glob("*.sv"))
    library = needed_files({"stream_fifo"})
    dots = list(design.files) if target is None else _gates(folder, target)
    arguments = [
        "--cc",
        "--no-timing",
        "--assert",
        CHECKS,
        "-Wno-fatal",
        "--prefix",
        "Vtop",
        "--Mdir",
    ]
    arguments += ["made", "--top-module", "dots_serial"]
    arguments += [str(source) for source in (*shell, *library, *dots, "dots_serial.sv")]
    verilator = require("verilator")
    run_tool(verilator, arguments, cwd=folder, log=folder / "verilator.log", timeout=300)
    # One unit: reading Verilator's headers costs more than these sources.
    sources = [*sorted((folder / "made").glob("*.cpp")), BENCH]
    (folder / "all.cpp").write_text("".join(f'#include "{source}"\n' for source in sources))
    arguments = ["-Imade", "all.cpp", *runtime, "-o", "bench"]
    run_tool(require("c++"), arguments, cwd=folder, log=folder / "c++.log", timeout=300)
    ran = run_process([str(folder / "bench")], cwd=folder, log=folder / "run.log", timeout=120)
    check_finished(ran, "the shell bench")
    lines = [line.split() for line in ran.text().splitlines() if line.startswith("byte ")]
    return bytes(int(line[1]) for line in lines)


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(None, marks=pytest.mark.long),
        "ecp5-25k",
        pytest.param("xc7z020", marks=pytest.mark.long),
    ],
)
def test_shell_answers_frames_and_recovers_after_break(
    tmp_path: Path, runtime: list[str], target: str | None
) -> None:
    """With the design as RTL, and as the netlist that synthesis makes of it."""
    design = load_design(DOTS)
    description = describe(design, 24.0, LINE)
    rng = random.Random(3)
    levels = [[rng.randint(-8, 7) for _ in range(16)] for _ in range(6)]
    frames = description.input.pack(np.array(levels))
    digest = bytes.fromhex(description.digest)
    size = len(frames[0])
    damaged = bytearray(request(Request.DATA, 7, 5, 2 * size, frames[2]))
    damaged[10] ^= 4
    codes = [
        *request(Request.HELLO, 0, 1),
        WAIT + 60,
        *request(Request.DATA, 0, 2, 0, frames[0]),  # no session yet: refused
        WAIT + 60,
        *request(Request.OPEN, 7, 3, 0, digest[::-1]),  # another design: refused
        WAIT + 60,
        *request(Request.OPEN, 7, 3, 0, digest),
        *request(Request.DATA, 7, 4, 0, frames[0] + frames[1]),
        *damaged,
        *request(Request.DATA, 7, 6, 3 * size, frames[3]),  # does not continue the stream
        *request(Request.DATA, 7, 7, 0, frames[0]),  # repeated
        *request(Request.DATA, 8, 8, 2 * size, frames[4]),  # of another session
        *request(Request.DATA, 7, 9, 2 * size, frames[2]),
        WAIT + 250,
        *request(Request.DATA, 7, 10, 3 * size, frames[3])[:9],  # the host stops: a pause ends it
        WAIT + 500,
        *request(Request.DATA, 7, 11, 3 * size, frames[3]),
        WAIT + 100,
        *request(Request.DATA, 7, 12, 4 * size, frames[4][:3]),  # part of a frame,
        BREAK,  # which a break throws away
        WAIT + 12,
        *request(Request.DATA, 7, 13, 0, frames[5]),
        WAIT + 60,
        *request(Request.OPEN, 7, 14, 0, digest),
        *request(Request.DATA, 7, 15, 0, frames[4] + frames[5]),
        WAIT + 400,
    ]
    said = _simulate(tmp_path, design, description, target, runtime, codes)
    parser = Parser(description.chunk)
    packets = list(parser.feed(said))
    assert not parser.skipped or parser.skipped < 60  # a packet that the break cut short
    hello = next(p for p in packets if p.kind is Reply.HELLO)
    assert read_hello(hello.payload) == description.hello()
    answers = [p for p in packets if p.kind is Reply.ANSWER]
    assert [p.frame for p in answers] == [0, 1, 2, 3, 0, 1]
    found = description.unpack([p.payload for p in answers])
    expected = [dots_reference(frame) for frame in levels]
    assert found["scores"].tolist() == [scores for scores, _ in expected]
    assert found["label"].ravel().tolist() == [label for _, label in expected]
    assert any(p.cycles for p in answers)
    _check_replies(packets)


def _check_replies(packets: list[Packet]) -> None:
    """What the shell said to what it refused."""
    refused = [p.sequence for p in packets if Flags.REFUSED in p.flags]
    assert 2 in refused and 8 in refused and 13 in refused
    assert any(Flags.OTHER_DIGEST in p.flags and Flags.OPEN not in p.flags for p in packets)
    assert max(p.damaged for p in packets) == 2  # the damaged one, and the one that was never ended


def test_shell_is_lint_clean(tmp_path: Path) -> None:
    shell = sorted((PACKAGE / "build" / "shell").glob("*.sv"))
    library = needed_files({"stream_fifo"})
    verilator = require("verilator")
    for source in shell:
        arguments = ["--lint-only", "-Wall", "--assert", CHECKS, "--top-module", source.stem]
        arguments += [str(source), *(str(other) for other in (*shell, *library) if other != source)]
        run_tool(verilator, arguments, cwd=tmp_path, log=tmp_path / "lint.log", timeout=60)
