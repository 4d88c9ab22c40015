# SPDX-License-Identifier: Apache-2.0
"""The serial shell answers a host bit by bit as the design behind it does, also after a break."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from bitwright.build.design import Design, load_design
from bitwright.build.process import check_finished, run_process
from bitwright.build.shell import frame_bytes, frame_levels, serial_top
from bitwright.build.tools import require, run_tool

DOTS = Path(__file__).parents[1] / "yosys" / "dots"
BENCH = Path(__file__).with_name("shell_bench.sv")
PACKAGE = Path(__file__).parents[2] / "src" / "bitwright"
BREAK, WAIT = 0x100, 0x200


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


def _simulate(folder: Path, design: Design, codes: list[int], expected: int) -> bytes:
    """Build and run the bench; the bytes that the shell sent."""
    shutil.copytree(DOTS, folder, dirs_exist_ok=True)
    (folder / "dots_serial.sv").write_text(serial_top(design, clocks_per_bit=8))
    (folder / "send.hex").write_text("".join(f"{code:03x}\n" for code in codes))
    shell = sorted((PACKAGE / "build" / "shell").glob("*.sv"))
    library = [PACKAGE / "rtl" / "lib" / f"{m}.sv" for m in ("stream_fifo", "mem_ram")]
    library.append(PACKAGE / "rtl" / "lib" / "stream_check.sv")
    sources = [*shell, *library, *map(Path, design.files), Path("dots_serial.sv"), BENCH]
    arguments = ["--binary", "--timing", "--assert", "-Wno-fatal", "-j", "2", "--top-module"]
    arguments += ["shell_bench", f"-DCODES={len(codes)}", f"-DEXPECTED={expected}"]
    arguments += ["-CFLAGS", "-O0 -std=c++20 -fcoroutines", *map(str, sources)]
    verilator = require("verilator")
    run_tool(verilator, arguments, cwd=folder, log=folder / "verilator.log", timeout=300)
    binary = folder / "obj_dir" / "Vshell_bench"
    ran = run_process([str(binary)], cwd=folder, log=folder / "run.log", timeout=120)
    check_finished(ran, "the shell bench")
    lines = [line.split() for line in ran.text().splitlines() if line.startswith("byte ")]
    return bytes(int(line[1]) for line in lines)


def test_shell_answers_frames_and_recovers_after_break(tmp_path: Path) -> None:
    design = load_design(DOTS)
    rng = random.Random(3)
    frames = [[rng.randint(-8, 7) for _ in range(16)] for _ in range(4)]
    sent = [list(frame_bytes(design.inputs[0], frame)) for frame in frames]
    # Two frames back to back; part of a frame that a break throws away; two more frames.
    codes = [*sent[0], *sent[1], WAIT + 30, *sent[3][:5], BREAK, WAIT + 12, *sent[2], *sent[3]]
    answer = _simulate(tmp_path, design, codes, expected=4 * 7)
    for k, frame in enumerate(frames):
        part = answer[7 * k : 7 * k + 7]
        scores, label = dots_reference(frame)
        assert frame_levels(design.outputs[0], part[:6]) == scores
        assert frame_levels(design.outputs[1], part[6:]) == [label]


def test_shell_is_lint_clean(tmp_path: Path) -> None:
    shell = sorted((PACKAGE / "build" / "shell").glob("*.sv"))
    verilator = require("verilator")
    for source in shell:
        arguments = ["--lint-only", "-Wall", "--assert", str(source)]
        run_tool(verilator, arguments, cwd=tmp_path, log=tmp_path / "lint.log", timeout=60)


@pytest.mark.parametrize("bipolar", [False, True])
def test_frames_round_trip_through_bytes(bipolar: bool) -> None:
    design = load_design(DOTS)
    port = design.inputs[0].model_copy(
        update={"bipolar": bipolar, "lane_bits": 1 if bipolar else 4}
    )
    rng = random.Random(5)
    levels = [rng.choice([-1, 1]) if bipolar else rng.randint(-8, 7) for _ in range(16)]
    assert frame_levels(port, frame_bytes(port, levels)) == levels
