# SPDX-License-Identifier: Apache-2.0
"""The serial shell answers a host bit by bit as the design behind it does, also after a break."""

from __future__ import annotations

import importlib.util
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from bitwright.base.tools.finder import require, run_tool
from bitwright.base.tools.process import check_finished, run_process
from bitwright.build.shell import serial_top
from bitwright.build.target import load_target
from bitwright.build.yosys import SynthesisOptions, synthesise
from bitwright.sim import Design, load_design, pack, unpack

DOTS = Path(__file__).parents[1] / "yosys" / "dots"
BENCH = Path(__file__).with_name("shell_bench.cpp")
PACKAGE = Path(__file__).parents[2] / "src" / "bitwright"
BREAK, WAIT = 256, 512


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
    script = (
        f"read_json {made.netlist}\nselect -module dots\nwrite_verilog -noattr -selected gates.v\n"
    )
    (folder / "gates.ys").write_text(script)
    yosys = require("yosys")
    run_tool(yosys, ["-s", "gates.ys"], cwd=folder, log=folder / "gates.log", timeout=120)
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
    folder: Path, design: Design, target: str | None, runtime: list[str], codes: list[int]
) -> bytes:
    """Build and run the bench, with the RTL or its netlist; the bytes that the shell sent."""
    shutil.copytree(DOTS, folder, dirs_exist_ok=True)
    (folder / "dots_serial.sv").write_text(serial_top(design, clocks_per_bit=8))
    (folder / "send.txt").write_text("\n".join(map(str, codes)))
    shell = sorted((PACKAGE / "build" / "shell").glob("*.sv"))
    library = [PACKAGE / "rtl" / "lib" / f"{m}.sv" for m in ("stream_fifo", "mem_ram")]
    library.append(PACKAGE / "rtl" / "lib" / "stream_check.sv")
    dots = list(design.files) if target is None else _gates(folder, target)
    arguments = ["--cc", "--no-timing", "--assert", "-Wno-fatal", "--prefix", "Vtop", "--Mdir"]
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


@pytest.mark.parametrize("target", [None, "ecp5-25k", "xc7z020"])
def test_shell_answers_frames_and_recovers_after_break(
    tmp_path: Path, runtime: list[str], target: str | None
) -> None:
    """With the design as RTL, and as the netlist that synthesis makes of it."""
    design = load_design(DOTS)
    rng = random.Random(3)
    frames = [[rng.randint(-8, 7) for _ in range(16)] for _ in range(4)]
    source = design.inputs[0].spec
    sent = [pack(source, np.array([frame])).ravel().tolist() for frame in frames]
    # Two frames back to back; part of a frame that a break throws away; two more frames.
    codes = [*sent[0], *sent[1], WAIT + 30, *sent[3][:5], BREAK, WAIT + 12, *sent[2], *sent[3]]
    answer = _simulate(tmp_path, design, target, runtime, codes)
    assert len(answer) == 4 * 7
    for k, frame in enumerate(frames):
        part = np.frombuffer(answer[7 * k : 7 * k + 7], dtype=np.uint8)
        scores, label = dots_reference(frame)
        first, second = (port.spec for port in design.outputs)
        assert unpack(first, part[:6].reshape(3, 2)).ravel().tolist() == scores
        assert unpack(second, part[6:].reshape(1, 1)).ravel().tolist() == [label]


def test_shell_is_lint_clean(tmp_path: Path) -> None:
    shell = sorted((PACKAGE / "build" / "shell").glob("*.sv"))
    verilator = require("verilator")
    for source in shell:
        arguments = ["--lint-only", "-Wall", "--assert", str(source)]
        run_tool(verilator, arguments, cwd=tmp_path, log=tmp_path / "lint.log", timeout=60)
