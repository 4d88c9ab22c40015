# SPDX-License-Identifier: Apache-2.0
"""Simulation of a design that runs programs: a memory in, what it holds after every run out."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError
from bitwright.sim.simulator import CODE_BITS, PATIENCE, RunLimits, Simulator
from bitwright.sim.stalls import StallPattern, no_stalls


@dataclass(frozen=True)
class ProgramRun:
    """One run of the program.

    Attributes:
        start, end: cycles (0 is the first one after reset) of the pulse of start, and the first one
            in which the design is done.
        code, error: what the design says at the end.
        cycles: what it counted.
        events: (cycle, bits), one row for each cycle in which anything began or ended.
        memory: bytes at the end of the run.
        defined: which of them the image, the host or the design has written.
    """

    start: int
    end: int
    code: int
    error: int
    cycles: int
    events: NDArray[np.int64] = field(repr=False)
    memory: NDArray[np.uint8] = field(repr=False)
    defined: NDArray[np.bool_] = field(repr=False)

    def when(self, bit: int) -> NDArray[np.int64]:
        """The cycles, counted from the start, in which an event happened."""
        rows = self.events[self.events[:, 1] >> bit & 1 == 1]
        return np.asarray(rows[:, 0] - self.start, dtype=np.int64)


@dataclass(frozen=True)
class ProgramJob:
    """What is run.

    Attributes:
        image: contents of the memory, from the program on.
        size: bytes of the memory, undefined behind the image; 0: those of the image.
        writes: one element a run: what the host writes before it, byte address -> bytes.
        pause: cycles before every start.
        again: cycles behind every start of a second one, which finds the design running; None:
            there is none.
        faults: run -> bytes, from the first to the end, that the memory answers with an error: what
            is read there is noise, what is written is lost.
        reset_at: cycle of a second reset; everything before it is thrown away but for what the
            memory holds, and all runs are done.
    """

    image: bytes = field(repr=False)
    size: int = 0
    writes: Sequence[Mapping[int, bytes]] = field(default=({},), repr=False)
    pause: int = 0
    again: int | None = None
    faults: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    reset_at: int | None = None


_LIMITS = RunLimits(drain=0)


def run_program(
    simulator: Simulator,
    job: ProgramJob,
    stalls: StallPattern | None = None,
    *,
    limits: RunLimits = _LIMITS,
    trace: Path | None = None,
) -> tuple[ProgramRun, ...]:
    """Run the program of a memory image, once or several times, one after the other.

    Args:
        simulator: of a design with ``control`` and one memory port.
        stalls: how the memory behaves.
        limits: when to stop waiting.
        trace: file for a waveform (VCD); needs ``build(trace=True)``.

    Raises:
        GraphError: the design runs no programs, or the image is empty.
        MismatchError: an assertion of the RTL failed, or the design stands still.
        ToolError: the simulator itself failed, or the memory was misused.
    """
    design, pattern = simulator.design, stalls or no_stalls()
    if design.control is None or len(design.memory_ports) != 1:
        raise GraphError("runs no programs from a memory", where=f"simulation of {design.top}")
    if not job.image:
        raise GraphError("the memory image is empty", where=f"simulation of {design.top}")
    with tempfile.TemporaryDirectory(prefix="bitwright-sim-") as folder:
        scratch = Path(folder)
        (scratch / "image").write_bytes(job.image)
        settings = {
            "seed": pattern.seed,
            "frames": len(job.writes),
            "max_cycles": limits.max_cycles or 0,
            "idle_limit": limits.idle or PATIENCE,
            "drain": limits.drain,
            "reset_at": -1 if job.reset_at is None else job.reset_at,
            "pause": job.pause,
            "again": -1 if job.again is None else job.again,
            "folder": scratch,
            "trace": "" if trace is None else trace.resolve(),
        }
        lines = [f"{key} {value}" for key, value in settings.items()]
        port = design.memory_ports[0]
        lines.append(pattern.memory.job(0, port, str(scratch / "image"), job.size))
        lines += [f"fault {run} 0 {low} {high}" for run, (low, high) in job.faults.items()]
        for run, patches in enumerate(job.writes):
            for number, (address, data) in enumerate(patches.items()):
                name = f"patch{run}.{number}"
                (scratch / name).write_bytes(data)
                lines.append(f"patch {run} 0 {address} {name}")
        (scratch / "job").write_text("\n".join(lines) + "\n")
        simulator.execute(scratch / "job", pattern)
        table: dict[str, Any] = json.loads((scratch / "result.json").read_text())
        simulator.check_status(table, pattern)
        return _runs(scratch, table)


def _runs(scratch: Path, table: dict[str, Any]) -> tuple[ProgramRun, ...]:
    events = np.fromfile(scratch / "events", dtype="<u8").astype(np.int64).reshape(-1, 2)
    runs, first = [], 0
    for number, row in enumerate(table["runs"]):
        memory = scratch / f"memory0.{number}"
        runs.append(
            ProgramRun(
                start=row["start"],
                end=row["end"],
                code=row["status"] & ((1 << CODE_BITS) - 1),
                error=row["status"] >> CODE_BITS,
                cycles=row["counted"],
                events=events[first : row["events"]],
                memory=np.fromfile(memory.with_suffix(f".{number}.bytes"), dtype=np.uint8),
                defined=np.fromfile(memory.with_suffix(f".{number}.defined"), dtype=np.bool_),
            )
        )
        first = row["events"]
    return tuple(runs)
