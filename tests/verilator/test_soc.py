# SPDX-License-Identifier: Apache-2.0
"""A design with DMA and registers beside a processor, with memory that waits and refuses."""

from __future__ import annotations

import ctypes
import random
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.verilator.test_build_shell import DOTS, dots_reference, runtime  # noqa: F401

from bitwright.base.errors import GraphError
from bitwright.base.tools.finder import find, require, run_tool
from bitwright.base.tools.process import run_process
from bitwright.build.soc import SocDesign, layout, write_soc
from bitwright.build.target import list_targets, load_target
from bitwright.build.vendor_system import write_system_project
from bitwright.sim.beats import StreamSpec, pack, unpack
from bitwright.sim.spec import Port, load_design
from bitwright.sim.toolchain import CHECKS

BENCH = Path(__file__).with_name("soc_bench.cpp")
SOC = Path(write_soc.__code__.co_filename).parent / "soc"
SIM = Path(load_design.__code__.co_filename).parent
STRICT = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-O1"]
MAGIC = int.from_bytes(b"BWS1", "little")
WITH_PROCESSOR = [target.name for target in list_targets() if target.processor]
IN, OUT = 0x1F80, (0x8F80, 0x1_0080)  # bursts end at 4 KiB, and begin there


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory, runtime: list[str]) -> Path:  # noqa: F811
    """A folder with the built simulation of dots_soc."""
    folder = tmp_path_factory.mktemp("soc")
    build_bench(write_soc(DOTS, folder), folder, BENCH, runtime)
    return folder


def build_bench(made: SocDesign, folder: Path, bench: Path, runtime: list[str]) -> None:  # noqa: F811
    """Simulate a design and what `write_soc` put around it: the program ``bench``."""
    verilator = require("verilator")
    arguments = ["--cc", "--no-timing", "--assert", CHECKS, "-Wno-fatal", "--prefix", "Vtop"]
    arguments += ["--Mdir", "made", "--top-module", made.top, *made.files]
    run_tool(verilator, arguments, cwd=folder, log=folder / "verilator.log", timeout=300)
    sources = [*sorted((folder / "made").glob("*.cpp")), bench]
    (folder / "all.cpp").write_text("".join(f'#include "{source}"\n' for source in sources))
    flags = ["-Imade", f"-I{SIM}", "all.cpp", *runtime, "-o", "bench"]
    run_tool(require("c++"), flags, cwd=folder, log=folder / "c++.log", timeout=300)


def run_script(
    folder: Path, script: list[str], arguments: Sequence[str] = ()
) -> tuple[list[int], list[list[int]]]:
    """Registers read and memory dumped, in the script's order."""
    (folder / "script.txt").write_text("\n".join(script) + "\n")
    command = [str(folder / "bench"), *arguments]
    ran = run_process(command, cwd=folder, log=folder / "run.log", timeout=120)
    text = ran.text()
    assert ran.returncode == 0, text
    registers = [int(word) for word in re.findall(r"^register (\d+)$", text, re.M)]
    dumps = [[int(w) for w in line.split()] for line in re.findall(r"^memory (.*)$", text, re.M)]
    return registers, dumps


def _addresses() -> list[str]:
    listed = [f"write {0x18} {IN}", f"write {0x1C} 0"]
    for k, address in enumerate(OUT):
        listed += [f"write {0x20 + 8 * k} {address}", f"write {0x24 + 8 * k} 0"]
    return listed


def _frames(count: int) -> tuple[list[list[int]], list[int]]:
    rng = random.Random(count)
    frames = [[rng.randint(-8, 7) for _ in range(16)] for _ in range(count)]
    source = load_design(DOTS).inputs[0].spec
    sent = [pack(source, np.array([frame])).ravel().tolist() for frame in frames]
    return frames, [byte for frame in sent for byte in frame]  # 8 beats of a byte: a word


def _check(dumps: list[list[int]], frames: list[list[int]]) -> None:
    scores, labels = (np.array(dump, dtype=np.uint8).reshape(len(frames), 8) for dump in dumps)
    for frame, score, label in zip(frames, scores, labels, strict=True):
        sums, best = dots_reference(frame)
        assert score.view("<i2").tolist() == [*sums, 0]
        assert label.tolist() == [best, *[0] * 7]


def test_registers_say_what_is_there(bench: Path) -> None:
    digest = int(re.findall(r"Digest\(32'h(\w+)\)", (bench / "dots_soc.v").read_text())[0], 16)
    script = [f"read {4 * k}" for k in range(6)]
    script += [*_addresses(), f"write 12 {2**32 - 1}", "write 0 5", "read 0", "read 12"]
    script += ["read 24", "read 32", "read 40", "read 200"]
    found, _ = run_script(bench, script)
    assert found == [MAGIC, digest, 0, 0, 0, 2, MAGIC, 2**32 - 1, IN, *OUT, 0]


@pytest.mark.parametrize("count", [1, 2, 17, 200])
def test_frames_through_memory(bench: Path, count: int) -> None:
    """Short bursts, whole ones, many; one run after another; the driver's way of starting."""
    frames, sent = _frames(count)
    later, more = _frames(3)
    script = [f"load {IN} " + " ".join(map(str, sent)), *_addresses(), f"write 12 {count}"]
    script += ["read 8", "write 8 1", "write 8 1", "wait", "read 8", "read 16"]
    script += [f"dump {address} {8 * count}" for address in OUT]
    script += [f"load {IN} " + " ".join(map(str, more)), "write 12 3", "write 8 1", "wait"]
    script += [f"dump {address} {8 * 3}" for address in OUT]
    script += ["write 12 0", "write 8 1", "read 8"]
    registers, dumps = run_script(bench, script)
    assert registers[:2] == [0, 2]
    assert 8 * count < registers[2] < 200 * count + 200
    assert registers[3] == 2  # no run of no frames
    _check(dumps[:2], frames)
    _check(dumps[2:], later)


@pytest.mark.parametrize("address", [IN, OUT[0], OUT[1]])
def test_memory_that_refuses_is_an_error(bench: Path, address: int) -> None:
    """Told in the status, and forgotten by the next start."""
    frames, sent = _frames(4)
    script = [f"load {IN} " + " ".join(map(str, sent)), *_addresses(), "write 12 4"]
    script += [f"refuse {address}", "write 8 1", "wait", "read 8"]
    assert run_script(bench, script)[0] == [6]
    script += [f"refuse {1 << 40}", "write 8 1", "wait", "read 8"]
    registers, dumps = run_script(bench, [*script, *(f"dump {out} 32" for out in OUT)])
    assert registers[0] == 6
    assert registers[1] == 2
    _check(dumps, frames)


@pytest.mark.parametrize("width", [1, 8, 12, 32, 40, 64, 96, 200])
def test_words_to_beats_and_back(tmp_path: Path, width: int) -> None:
    """Lint of every slot: what is narrower, as wide as, and wider than a word."""
    port = Port(name="s", width=width, lane_bits=1, lanes=width, beats=5)
    place = layout(port)
    assert place.slot * 8 >= width
    assert place.slot in (1, 2, 4) or place.slot % 8 == 0
    assert place.frame_bytes >= 5 * place.slot > place.frame_bytes - 8
    flags = [f"-GWidth={width}", f"-GSlot={place.slot}", "-GBeats=5"]
    verilator = require("verilator")
    for name in ("soc_beats_in", "soc_beats_out"):
        arguments = ["--lint-only", "-Wall", "--assert", CHECKS, *flags, str(SOC / f"{name}.sv")]
        run_tool(verilator, arguments, cwd=tmp_path, log=tmp_path / "lint.log", timeout=60)


@pytest.mark.parametrize("name", WITH_PROCESSOR)
def test_projects_are_whole_and_clean(tmp_path: Path, name: str) -> None:
    """Every file that a script names is there; scripts parse; the RTL is lint clean."""
    folder = tmp_path / "a system"
    write_system_project(DOTS, load_target(name), folder, clock_mhz=80)
    assert {path.name for path in (folder / "driver").iterdir()} == {
        "bitwright_device.c",
        "bitwright_device.h",
        "bitwright_soc.c",
        "bitwright_soc.h",
        "design.h",
        "example.c",
    }
    check_project(folder, name, "dots_soc")
    check_scripts(folder)


def check_project(folder: Path, target: str, top: str, *, lint: bool = True) -> None:
    """A project for 80 MHz is whole, says that nobody ran it, and its RTL is lint clean."""
    texts = {path.name: path.read_text() for path in folder.glob("*.tcl")}
    assert "build.tcl" in texts
    named = set(re.findall(r"design/[\w./]+\.(?:s?v|mem)", "\n".join(texts.values())))
    there = {path.relative_to(folder).as_posix() for path in (folder / "design").rglob("*.*")}
    assert named == there
    readme = (folder / "README.txt").read_text()
    assert "NOT RUN" in readme
    assert f"{load_target(target).processor.control:#x}" in readme  # type: ignore[union-attr]
    for file in re.findall(r"\b\w+\.[ch]\b", readme):  # of the driver; one comes with a network
        assert (folder / "driver" / file).is_file() or file == "bitwright_network.h"
    assert re.search(r"\b80\b", "".join(texts.values()))
    if not lint:
        return
    files = [n.removeprefix("design/") for n in sorted(named, key=lambda n: n.endswith("soc.v"))]
    sources = [file for file in files if not file.endswith(".mem")]
    # Ports that the processor drives and the design does not need: protections, strobes, rlast.
    waived = ["-Wno-UNUSEDSIGNAL", "-Wno-PINCONNECTEMPTY", "-Wno-DECLFILENAME"]
    arguments = ["--lint-only", "-Wall", *waived, "--top-module", top, *sources]
    verilator, log = require("verilator"), folder / "lint.log"
    run_tool(verilator, arguments, cwd=folder / "design", log=log, timeout=120)


def check_scripts(folder: Path) -> None:
    """Scripts of a project parse, command by command, without running one of the vendor's."""
    tclsh = shutil.which("tclsh")
    if tclsh is None:
        pytest.skip("no tclsh here")
    check = folder / "check"
    check.write_text(
        "set body {}\nforeach line [split [read [open [lindex $argv 0]]] \\n] {\n"
        "  append body $line \\n\n  if {[info complete $body]} {\n"
        "    if {[catch {proc p {} $body} why]} { puts $why; exit 1 }\n    set body {}\n  }\n}\n"
        "if {[string trim $body] ne {}} { puts incomplete; exit 1 }\nputs parsed\n"
    )
    for text in folder.glob("*.tcl"):
        ran = run_process(
            [tclsh, str(check), text.name], cwd=folder, log=folder / "tcl.log", timeout=60
        )
        assert ran.returncode == 0 and "parsed" in ran.text(), ran.text()


def test_a_target_without_a_processor_has_no_system(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ecp5-25k has no processor"):
        write_system_project(DOTS, load_target("ecp5-25k"), tmp_path / "a", clock_mhz=80)
    with pytest.raises(GraphError, match="generate the RTL first"):
        write_system_project(tmp_path, load_target("xc7z020"), tmp_path / "b", clock_mhz=80)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The driver, compiled without one warning, as a program and as a library."""
    if find("cc") is None:
        pytest.skip("no C compiler works here")
    folder = tmp_path_factory.mktemp("driver")
    write_soc(DOTS, folder)
    folder /= "driver"
    files = ["bitwright_device.c", "bitwright_soc.c"]
    compiler, log = require("cc"), folder / "log"
    example = [*STRICT, *files, "example.c", "-o", "example"]
    run_tool(compiler, example, cwd=folder, log=log, timeout=120)
    shared = ["-shared", "-fPIC", *files, "-o", "driver.so"]
    run_tool(compiler, [*STRICT, *shared], cwd=folder, log=log, timeout=120)
    ran = run_process([str(folder / "example")], cwd=folder, log=log, timeout=60)
    assert ran.returncode == 2 and "usage" in ran.text()
    return ctypes.CDLL(str(folder / "driver.so"))


class _Stream(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        *((name, ctypes.c_uint32) for name in ("slot", "frame_bytes", "beats", "lanes")),
        *((name, ctypes.c_uint32) for name in ("lane_bits", "is_signed", "bipolar")),
    ]


@pytest.mark.parametrize(
    ("lanes", "bits", "signed", "bipolar"),
    [
        (2, 4, True, False),
        (1, 16, True, False),
        (3, 5, False, False),
        (9, 1, False, True),
        (5, 12, True, False),
        (4, 63, True, False),
        (1, 1, True, False),
        (33, 7, False, False),
    ],
)
def test_the_driver_packs_as_the_simulation_does(
    driver: ctypes.CDLL, lanes: int, bits: int, signed: bool, bipolar: bool
) -> None:
    """And signs are extended: what comes back is what went in."""
    beats, width = 5, lanes * bits
    spec = StreamSpec(lanes, bits, beats, width, signed, bipolar)
    port = Port(name="s", width=width, lane_bits=bits, lanes=lanes, beats=beats)
    place = layout(port)
    stream = _Stream(b"s", place.slot, place.frame_bytes, beats, lanes, bits, signed, bipolar)
    low, high = spec.interval
    rng = np.random.default_rng(bits)
    levels = (
        rng.choice([-1, 1], (beats, lanes))
        if bipolar
        else rng.integers(low, high, (beats, lanes), endpoint=True)
    )
    levels = np.ascontiguousarray(levels, dtype=np.int64)
    levels.flat[0], levels.flat[-1] = low, high
    memory = np.full(place.frame_bytes, 255, dtype=np.uint8)
    driver.bw_pack_frame(
        ctypes.byref(stream),
        ctypes.c_void_p(levels.ctypes.data),
        ctypes.c_void_p(memory.ctypes.data),
    )
    slots = memory[: beats * place.slot].reshape(beats, place.slot)
    assert np.array_equal(slots[:, : spec.beat_bytes], pack(spec, levels.reshape(1, -1)))
    assert not slots[:, spec.beat_bytes :].any()
    assert not memory[beats * place.slot :].any()
    back = np.zeros_like(levels)
    driver.bw_unpack_frame(
        ctypes.byref(stream), ctypes.c_void_p(memory.ctypes.data), ctypes.c_void_p(back.ctypes.data)
    )
    assert np.array_equal(back, levels)
    assert np.array_equal(unpack(spec, slots[:, : spec.beat_bytes]).reshape(beats, lanes), levels)
