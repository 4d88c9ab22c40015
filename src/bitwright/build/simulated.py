# SPDX-License-Identifier: Apache-2.0
"""A board in simulation: a design in its serial shell, by Verilator, behind a pseudo terminal.

What the board would run from its bitstream runs here from its sources, bit by bit on the serial
line, with few clocks a bit. A host opens the terminal as it does a serial port.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from select import select
from types import TracebackType

from bitwright.base.errors import TargetError, ToolError
from bitwright.base.store import LEFT, Store, content_key
from bitwright.base.tools.finder import require
from bitwright.base.tools.process import output_of
from bitwright.build.sdram import chip_source, simulated_top
from bitwright.build.shell import (
    LineTiming,
    beyond_shell,
    copy_sources,
    describe,
    serial_top,
)
from bitwright.host.description import Description, design_hash
from bitwright.sim.spec import Design, load_design
from bitwright.sim.toolchain import (
    BOARD,
    CHECKS,
    MEMORY,
    TIMEOUT_S,
    compile_program,
    harness_identity,
    optimisation,
)

CLOCKS_PER_BIT = 8  # the fewest of the shell
_STEP = (1 << 16) // CLOCKS_PER_BIT
_PAUSE_BITS = 16  # some eight hundred characters
_PROGRAM = "board"
_SLEEP_CLOCKS = 1 << 17
_START_S, _END_S = 30.0, 10.0


@dataclass(frozen=True)
class Faults:
    """What the line does to bytes, in both directions.

    Attributes:
        lost, flipped, repeated: shares of all bytes.
        seed: of which ones.
    """

    lost: float = 0.0
    flipped: float = 0.0
    repeated: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class LineReport:
    """What a simulated board saw: clocks, and bytes to and from it with what became of them."""

    cycles: int
    to_board: tuple[int, int, int, int]
    from_board: tuple[int, int, int, int]

    @property
    def damaged(self) -> int:
        """Bytes that were lost, flipped or repeated."""
        return sum(self.to_board[1:]) + sum(self.from_board[1:])


@dataclass(frozen=True)
class SimulatedBoard:
    """A compiled board; `start` switches it on.

    Attributes:
        description: what a host must know of it.
        program: the executable.
        folder: of the design, where memory images are.
    """

    description: Description
    program: Path
    folder: Path

    @staticmethod
    def build(design_dir: Path, *, clock_mhz: float, frames: int = 1) -> SimulatedBoard:
        """Put a design into its serial shell and compile it; kept by content.

        Args:
            clock_mhz: that the board would have; it only scales the figures.
            frames: about how many will be sent.

        Raises:
            GraphError: the design folder is not whole.
            TargetError: the serial shell cannot carry the design.
            ToolError: Verilator or the compiler is missing, or rejects the design.
        """
        design = load_design(design_dir)
        reason = beyond_shell(design)
        if reason is not None:
            raise TargetError(reason, where=str(design_dir))
        line = LineTiming(_STEP, clock_mhz * 1e6 / CLOCKS_PER_BIT, _PAUSE_BITS)
        description = describe(design, clock_mhz, line)
        frame = description.input.frame_bytes + description.answer_bytes
        level = optimisation(frames * max(design.interval, 10 * CLOCKS_PER_BIT * frame))
        top = serial_top(design, description, line)
        name = f"{design.top}_serial"
        if design.sdram is not None:
            top += simulated_top(name, design.sdram, clock_mhz) + chip_source()
            name += "_sdram"

        def compiled(work: Path) -> None:
            with tempfile.TemporaryDirectory(dir=work.parent, prefix=LEFT) as scratch:
                _compile(design, name, top, Path(scratch).resolve(), level)
                shutil.copy2(Path(scratch) / _PROGRAM, work / _PROGRAM)

        key = content_key(
            require("verilator").identity, harness_identity(BOARD), design_hash(design), top, level,
            *_shell_sources(design),
        )  # fmt: skip
        entry = Store().made("simulators", key, compiled)
        return SimulatedBoard(description, (entry.folder / _PROGRAM).resolve(), design_dir)

    def start(self, faults: Faults | None = None) -> RunningBoard:
        """Switch it on.

        Raises:
            ToolError: it does not start.
        """
        use = faults or Faults()
        sleep = max(_SLEEP_CLOCKS, 4 * self.description.latency)
        shares = (use.lost, use.flipped, use.repeated)
        argv = [str(self.program), str(CLOCKS_PER_BIT), str(sleep), *map(repr, shares)]
        return RunningBoard([*argv, str(use.seed)], self.folder)


class RunningBoard:
    """A simulated board that runs; a context manager that switches it off.

    Attributes:
        port: name of its terminal.
        report: what it saw, once it is off.
    """

    def __init__(self, argv: list[str], folder: Path) -> None:
        self.report: LineReport | None = None
        try:
            self._process = subprocess.Popen(
                argv,
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,  # Ctrl-C ends the host, which then ends this
            )
        except OSError as error:
            raise ToolError(f"does not start: {error}", where="simulated board") from error
        told = self._process.stdout
        ready, _, _ = select([told], [], [], _START_S) if told else ([], [], [])
        first = told.readline() if told and ready else ""
        self.port = first.strip()
        if not self.port.startswith("/dev/"):
            rest = first + self._stop()
            raise ToolError(f"does not start: {rest.strip()[:500]}", where="simulated board")

    def wait(self) -> None:
        """Until it ends by itself, which it does not unless something is wrong."""
        self._process.wait()

    def __enter__(self) -> RunningBoard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        said = self._stop()
        last = said.strip().splitlines()[-1:] or [""]
        if self._process.returncode == 0 and last[0].startswith("{"):
            table = json.loads(last[0])
            self.report = LineReport(
                table["cycles"], tuple(table["to_board"]), tuple(table["from_board"])
            )
        elif kind is None or issubclass(kind, ToolError):
            raise ToolError(
                f"ended with status {self._process.returncode}: {said.strip()[-500:]}",
                where="simulated board",
                hint="this is a bug in Bitwright; please report it",
            ) from error

    def _stop(self) -> str:
        try:
            return self._process.communicate(timeout=_END_S)[0]
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.communicate()[0]


def _shell_sources(design: Design) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="bitwright-") as folder:
        names = copy_sources(design.folder, design, Path(folder))
        return [(Path(folder) / name).read_text() for name in names if name not in design.files]


def _compile(design: Design, name: str, top: str, scratch: Path, level: str) -> None:
    sources = scratch / "design"
    names = copy_sources(design.folder, design, sources)
    (sources / "serial_top.sv").write_text(top)
    tool = require("verilator")
    argv = [*tool.command, "--Mdir", str(scratch), "--cc", "--prefix", "Vtop", "--assert", CHECKS]
    argv += ["--top-module", name, "-O3", "--x-initial", "unique", "--no-timing"]
    argv += ["-Wno-lint", "-Wno-style", "-Wno-fatal", "--output-split", "40000"]
    argv += [*names, "serial_top.sv"]
    output_of(
        argv, cwd=sources, name="verilator", env=dict(tool.env), timeout=TIMEOUT_S, memory=MEMORY
    )
    made = sorted(scratch.glob("Vtop*.cpp"))
    config = '#include "Vtop.h"\n#define BW_TOP Vtop\n'
    program = scratch / _PROGRAM
    compile_program(scratch, made, config, program, level=level, trace=False, harness=BOARD)
