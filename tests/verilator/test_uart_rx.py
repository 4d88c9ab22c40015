# SPDX-License-Identifier: Apache-2.0
"""The serial receiver hears bytes of senders that are too fast, too slow and disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.verilator.test_build_shell import runtime  # noqa: F401  # a fixture

from bitwright.base.tools.finder import require, run_tool
from bitwright.base.tools.process import check_finished, run_process
from bitwright.sim.toolchain import CHECKS

SHELL = Path(__file__).parents[2] / "src" / "bitwright" / "build" / "shell"
BENCH = Path(__file__).with_name("uart_bench.cpp")
FEWEST = 8192  # Step of eight clocks a bit


def _receiver(folder: Path, step: int, flags: list[str]) -> str:
    arguments = ["--cc", "--no-timing", "--assert", CHECKS, "--prefix", "Vtop", "--Mdir", "made"]
    arguments += ["--top-module", "shell_uart_rx", f"-GStep={step}"]
    arguments += [str(SHELL / f"{name}.sv") for name in ("shell_uart_rx", "shell_sync")]
    run_tool(require("verilator"), arguments, cwd=folder, log=folder / "verilator.log", timeout=120)
    sources = [*sorted((folder / "made").glob("*.cpp")), BENCH]
    (folder / "all.cpp").write_text("".join(f'#include "{source}"\n' for source in sources))
    arguments = ["-Imade", "all.cpp", *flags, "-o", "bench"]
    run_tool(require("c++"), arguments, cwd=folder, log=folder / "c++.log", timeout=300)
    return str(folder / "bench")


def _hears(program: str, step: int, off: float, disturbed: bool, seed: int) -> bool:
    argv = [program, repr((1 << 16) / step), repr(off), str(int(disturbed)), str(seed)]
    folder = Path(program).parent
    ran = run_process(argv, cwd=folder, log=folder / "run.log", timeout=60)
    check_finished(ran, "the bench of the receiver")
    heard, sent = ran.text().split("sent\n")
    return heard.split() == [*sent.split(), "break", str(0x5A)]


@pytest.mark.parametrize(
    "step",
    [FEWEST, 7000, pytest.param(655, marks=pytest.mark.long)],
    ids=lambda step: f"{65536 / step:.2f}",
)
def test_receiver_hears_every_byte(tmp_path: Path, runtime: list[str], step: int) -> None:  # noqa: F811
    """All bytes without a pause, then a break; senders up to 3.7 % off, and, at the right rate,
    with one clock of every start and data bit turned over.
    """
    program = _receiver(tmp_path, step, runtime)
    for seed in range(8):
        for off in (-0.037, 0.0, 0.037):
            assert _hears(program, step, off, False, seed), (off, seed)
        assert _hears(program, step, 0.0, True, seed), seed
    assert not _hears(program, step, 0.07, False, 0)  # the bench can fail
