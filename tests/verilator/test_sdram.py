# SPDX-License-Identifier: Apache-2.0
"""The SDRAM controller: on a chip with the rules of its data sheet, == its model in every cycle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bitwright.base.errors import TargetError
from bitwright.base.tools.finder import find, require, run_tool
from bitwright.base.tools.process import check_finished, run_process
from bitwright.engine.sdram import ULX3S
from bitwright.rtl import module_files
from bitwright.sim.toolchain import CHECKS

if find("verilator") is None or find("c++") is None:
    pytest.skip("no Verilator or C++ compiler works here", allow_module_level=True)

MHZ = 62.5
SIM = Path(__import__("bitwright.sim").sim.__file__).parent
PADS = SIM.parent / "build" / "shell" / "prim" / "sdram_pads_ecp5.sv"
MODULES = ("sdram_port", "sdram_banks", "sdram_sequence", "sdram_data", "sdram_asked")
RULES = ("start", "rcd", "rp", "ras", "rc", "rfc", "wr", "mrd", "rrd", "refresh", "state", "cut",
         "bus", "ras_most")  # fmt: skip
#: In the order in which the bench takes them.
TIMES = ("Rcd", "Rp", "Ras", "Rfc", "Rrd", "Mrd", "Close", "Turn", "Refresh", "Delay")


def _parameters(values: dict[str, int], **changes: int) -> str:
    return ", ".join(f".{name}({value})" for name, value in {**values, **changes}.items())


def _built(work: Path, *, pins: bool = False) -> Path:
    """The bench; with ``pins``, pads and a chip pin by pin in the place of all other chips."""
    tool, here = require("verilator"), Path(__file__).parent
    times, rules = ULX3S.cycles(MHZ), ULX3S.clocks(2 * MHZ)
    del rules["RowWidth"]
    of_pins = {name: value for name, value in rules.items() if name != "Delay"}
    texts = {
        "TIMES_WRONG": _parameters(times, Close=1, Turn=2, Rp=1, Ras=1, Rfc=4),
        "TIMES": _parameters(times),
        "RULES_PINS": _parameters(of_pins),
        "RULES": _parameters(rules),
    }
    sources = [str(module_files()[name]) for name in MODULES] + [str(SIM / "sdram_chip.sv")]
    for name in ("sdram_bench.sv", *(["sdram_pins.sv"] if pins else [])):
        text = (here / name).read_text()
        for word, value in texts.items():
            text = text.replace(f"`{word}", value)
        (work / name).write_text(text)
        sources.append(name)
    if pins:
        sources += ["-DPINS", str(PADS)]
    run_tool(
        tool,
        ["--cc", "--no-timing", "--assert", CHECKS, "-O3", "-Wno-fatal", "-Wno-lint", "-Wno-style",
         "--x-initial", "unique", "--prefix", "Vtop", "--top-module", "sdram_bench", "--Mdir",
         "made", *sources],
        cwd=work, log=work / "verilator.log", timeout=120,
    )  # fmt: skip
    include = Path(dict(tool.env)["VERILATOR_ROOT"]) / "include"
    files = [*sorted((work / "made").glob("*.cpp")), here / "sdram_bench.cpp"]
    files += [include / f"{name}.cpp" for name in ("verilated", "verilated_threads")]
    (work / "all.cpp").write_text("".join(f'#include "{source}"\n' for source in files))
    flags = ["-O1", "-w", "-std=gnu++17", "-pthread", f"-I{include}", f"-I{include / 'vltstd'}"]
    run_tool(
        require("c++"), [*flags, "-Imade", f"-I{SIM}", "all.cpp", "-o", "bench"],
        cwd=work, log=work / "c++.log", timeout=300,
    )  # fmt: skip
    return work / "bench"


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _built(tmp_path_factory.mktemp("sdram"))


def _run(bench: Path, cycles: int, seed: int, kind: str) -> dict[str, Any]:
    times = ULX3S.cycles(MHZ)
    argv = [str(bench), str(cycles), str(seed), kind, *(str(times[name]) for name in TIMES)]
    ran = run_process(argv, cwd=bench.parent, log=bench.parent / f"{kind}{seed}.log", timeout=300)
    check_finished(ran, "the SDRAM bench")
    found: dict[str, Any] = json.loads(ran.text().splitlines()[-1])
    return found


def _names(bits: int) -> set[str]:
    return {name for place, name in enumerate(RULES) if bits >> place & 1}


def test_words_and_cycles_under_mixed_traffic(bench: Path) -> None:
    """Streams and jumps of both kinds, resets in the middle, refreshes asked for: every word is
    right, every output is the model's, no rule is broken; every rule is seen by a chip that is
    slower in it, or by a controller that was told other times.
    """
    broken = weak = wrong = 0
    for seed in range(4):
        found = _run(bench, 60_000, seed, "mixed" if seed else "read")
        if seed:
            assert found["read"] > 5000 and found["written"] > 3000
            assert found["resets"] > 5 and found["syncs"] > 5
        broken |= found["broken"]
        weak |= found["weak"]
        wrong |= found["wrong"]
    assert _names(broken) == set()
    assert _names(weak) == {"start", "rcd", "rp", "ras", "rc", "rfc", "wr", "mrd", "rrd",
                            "refresh", "ras_most"}  # fmt: skip
    assert {"rp", "ras", "rfc", "wr", "cut", "bus"} <= _names(wrong)


@pytest.mark.parametrize(
    ("kind", "least"),
    [pytest.param("read", 0.47, marks=pytest.mark.long), ("write", 0.47), ("copy", 0.40)],
)
def test_streams_come_near_the_peak(bench: Path, kind: str, least: float) -> None:
    """Half a word a cycle is the peak: 16 bits at twice the clock."""
    found = _run(bench, 40_000, 1, kind)
    assert (found["read"] + found["written"]) / found["cycles"] > least
    assert kind != "read" or found["latency"] == 12


def test_through_the_pads_of_an_ecp5(tmp_path: Path) -> None:
    """Pads and chip pin by pin, by models of the pads' registers: the controller sees what it sees
    of the chip's model alone, so `Delay` is right, and both sides never drive the wires at once.
    """
    found = _run(_built(tmp_path, pins=True), 60_000, 1, "mixed")
    assert found["read"] > 5000 and found["written"] > 3000 and found["broken"] == 0


def test_a_clock_that_the_chip_does_not_take() -> None:
    with pytest.raises(TargetError, match="at most 133 MHz"):
        ULX3S.cycles(80.0)
