# SPDX-License-Identifier: Apache-2.0
"""Cycle-accurate simulation of a design folder with Verilator.

``Simulator.build`` compiles the design once (kept by content), ``Simulator.run`` drives its streams
and gives back every output beat with the cycle it was transferred in.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError, MismatchError, ToolError
from bitwright.base.store import LEFT, Store, content_key
from bitwright.base.tools.finder import require
from bitwright.base.tools.process import output_of
from bitwright.sim.beats import Beats, Levels, pack, unpack
from bitwright.sim.spec import Design, Port, load_design
from bitwright.sim.stalls import StallPattern, no_stalls
from bitwright.sim.toolchain import (
    CHECKS,
    MEMORY,
    TIMEOUT_S,
    compile_program,
    harness_identity,
    optimisation,
    parameter_flags,
)

Cycles = NDArray[np.int64]

CODE_BITS = 8
"""Of the status of a program's run: its code, with the errors above it."""
_PROGRAM = "simulator"
_RUN_TIMEOUT_S = 3600.0
_HIGH_WATER = re.compile(r"^fifo_high_water (\S+) (-?\d+) (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class SimResult:
    """What came out of a run.

    Attributes:
        frames: number of frames.
        beats: output -> its beats, (frames * beats of a frame, bytes).
        outputs: the ports that they came out of.
        input_cycles, output_cycles: port -> cycle of every transfer; cycle 0 is the first one
            after reset.
        cycles: from the first cycle to the last output beat.
        latency: from the first input beat to the last output beat of frame 0, both included.
        interval: cycles between the ends of the last two frames: the steady state, when the run was
            long enough and nothing stalled (None for one frame).
        fifo_high_water: path of the FIFO's instance below the top -> most beats it held.
        fifo_depths: the same instances -> what they can hold.
        stalls: the pattern that was run.
        memory_beats: memory port -> beats read, those ahead of need included.
        frame_error: the design's flags at the end: bit i is set if tlast was misplaced on input i.
    """

    frames: int
    beats: Mapping[str, Beats] = field(repr=False)
    outputs: tuple[Port, ...] = field(repr=False)
    input_cycles: Mapping[str, Cycles] = field(repr=False)
    output_cycles: Mapping[str, Cycles] = field(repr=False)
    cycles: int
    latency: int
    interval: int | None
    fifo_high_water: Mapping[str, int]
    fifo_depths: Mapping[str, int]
    stalls: str
    memory_beats: Mapping[str, int] = field(default_factory=dict)
    frame_error: int = 0

    @property
    def levels(self) -> dict[str, Levels]:
        """Output -> its levels, (frames, elements of a frame).

        They are made at each look: in memory a level takes 64 bits, a beat's lane as few as one.

        Raises:
            FormatError: a lane holds a code that is no number.
        """
        return self.levels_of(0, self.frames)

    def levels_of(self, start: int, end: int) -> dict[str, Levels]:
        """As `levels`, of some of the frames."""
        found = {}
        for port in self.outputs:
            part = slice(start * port.spec.beats, end * port.spec.beats)
            found[port.name] = unpack(port.spec, self.beats[port.name][part])
        return found

    def frame_ends(self) -> Cycles:
        """Cycle of the last output beat of each frame, over all outputs."""
        ends = [stamps.reshape(self.frames, -1)[:, -1] for stamps in self.output_cycles.values()]
        return np.asarray(np.max(np.stack(ends), axis=0), dtype=np.int64)


@dataclass(frozen=True)
class RunLimits:
    """When to stop waiting.

    Attributes:
        idle: cycles without any transfer that count as a deadlock; None: `PATIENCE`, or four times
            the predicted latency of a frame where that is more.
        drain: cycles to wait after the last beat, in which nothing more may come out.
        max_cycles: give up after so many; None: never.
    """

    idle: int | None = None
    drain: int = 64
    max_cycles: int | None = None


_LIMITS = RunLimits()
PATIENCE = 200_000
_LATENCIES = 4  # stalls and slow memories take a multiple of what is predicted without them


@dataclass(frozen=True)
class Simulator:
    """A compiled design.

    Attributes:
        design: what was compiled.
        program: the executable; its working folder must be the design's, for the memory images.
        trace: whether it can write waveforms.
    """

    design: Design
    program: Path
    trace: bool

    @staticmethod
    def build(
        design_dir: Path,
        *,
        workdir: Path | None = None,
        assertions: bool = True,
        trace: bool = False,
        frames: int = 1,
        cycles: int | None = None,
    ) -> Simulator:
        """Compile a design folder.

        Args:
            design_dir: folder with ``design.json``, sources and memory images.
            workdir: where compiled simulators are kept; default the user's cache.
            assertions: check the stream rules, overflows and buffer limits while running.
            trace: allow waveforms (slower).
            frames: about how many will be simulated; many pay a longer compilation for a faster
                simulator.
            cycles: about how many will be; None: those of the frames, as the design predicts.

        Raises:
            GraphError: the folder is not whole.
            ToolError: Verilator or the compiler is missing, or rejects the design.
        """
        design = load_design(design_dir)
        level = optimisation(frames * design.interval if cycles is None else cycles)

        def compiled(work: Path) -> None:
            with tempfile.TemporaryDirectory(dir=work.parent, prefix=LEFT) as scratch:
                _compile(design, Path(scratch).resolve(), level, assertions, trace)
                shutil.copy2(Path(scratch) / _PROGRAM, work / _PROGRAM)

        key = _content_key(design, level, assertions, trace)
        entry = Store(workdir).made("simulators", key, compiled)
        return Simulator(design, (entry.folder / _PROGRAM).resolve(), trace)

    def pack(self, levels: Mapping[str, Levels]) -> dict[str, Beats]:
        """Input levels (frames, ...) -> beats."""
        return {port.name: pack(port.spec, levels[port.name]) for port in self.design.inputs}

    def run(
        self,
        inputs: Mapping[str, Beats],
        frames: int,
        stalls: StallPattern | None = None,
        *,
        reset_at: int | None = None,
        throttle: int | None = None,
        trace: Path | None = None,
        limits: RunLimits = _LIMITS,
        lasts: Mapping[str, NDArray[np.bool_]] | None = None,
    ) -> SimResult:
        """Send frames back to back and collect everything that comes out.

        Args:
            inputs: input -> beats, see :func:`bitwright.sim.beats.pack`.
            frames: how many.
            stalls: when valid and ready are held back; default never.
            reset_at: cycle of a second reset; everything before it is thrown away, then all frames
                are sent.
            throttle: offer a frame every so many cycles, its beats spread evenly.
            trace: file for a waveform (VCD); needs ``build(trace=True)``.
            limits: when to stop waiting.
            lasts: input -> tlast of every beat, to send frames that are too short or too long; such
                an input may have any number of beats, and `frames` are those that come out.

        Raises:
            GraphError: the inputs do not fit the ports.
            MismatchError: an assertion failed, tlast is misplaced, surplus beats came out, or the
                design stands still; or it says that an input's tlast is misplaced, without `lasts`.
            ToolError: the simulator itself failed.
        """
        if trace is not None and not self.trace:
            raise GraphError("a waveform needs Simulator.build(..., trace=True)", where=str(trace))
        broken = lasts or {}
        self._check_inputs(inputs, frames, broken)
        pattern = stalls or no_stalls()
        with tempfile.TemporaryDirectory(prefix="bitwright-sim-") as folder:
            scratch = Path(folder)
            for number, port in enumerate(self.design.inputs):
                inputs[port.name].tofile(scratch / f"in{number}.beats")
                if port.name in broken:
                    flags = broken[port.name].astype(np.uint8)
                    (scratch / f"in{number}.lasts").write_bytes(flags.tobytes())
            job = {
                "seed": pattern.seed,
                "frames": frames,
                "max_cycles": limits.max_cycles or 0,
                "idle_limit": limits.idle or max(PATIENCE, _LATENCIES * self.design.latency),
                "drain": limits.drain,
                "throttle": throttle or 0,
                "reset_at": -1 if reset_at is None else reset_at,
                "folder": scratch,
                "trace": "" if trace is None else trace.resolve(),
            }
            lines = [f"{key} {value}" for key, value in job.items()]
            lines += [
                f"stall_in {n} {pattern.input_stop} {pattern.input_go}"
                for n in range(len(self.design.inputs))
            ]
            lines += [
                f"stall_out {n} {pattern.output_stop} {pattern.output_go}"
                for n in range(len(self.design.outputs))
            ]
            ports = enumerate(self.design.memory_ports)
            lines += [pattern.memory.job(number, port) for number, port in ports]
            (scratch / "job").write_text("\n".join(lines) + "\n")
            said = self.execute(scratch / "job", pattern)
            result = self._collect(scratch, said, frames, pattern)
            if result.frame_error and not broken:
                raise MismatchError(self._misplaced(result), where=self._where)
            return result

    def _misplaced(self, result: SimResult) -> str:
        ports = [p.name for i, p in enumerate(self.design.inputs) if result.frame_error >> i & 1]
        return f"the design says that tlast is misplaced on {', '.join(ports)}"

    def _check_inputs(
        self, inputs: Mapping[str, Beats], frames: int, broken: Mapping[str, NDArray[np.bool_]]
    ) -> None:
        for port in self.design.inputs:
            beats = len(broken.get(port.name, range(frames * port.spec.beats)))
            shape = (beats, port.spec.beat_bytes)
            if port.name not in inputs or inputs[port.name].shape != shape:
                got = inputs[port.name].shape if port.name in inputs else "nothing"
                raise GraphError(f"expected beats of shape {shape}, got {got}", where=port.name)

    def execute(self, job: Path, pattern: StallPattern) -> str:
        """Run the simulator on a file of "key value" lines; what it said.

        Raises:
            MismatchError: an assertion of the RTL failed.
            ToolError: the simulator itself failed.
        """
        try:
            done = subprocess.run(
                [str(self.program), str(job)],
                cwd=self.design.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_RUN_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolError(f"the simulator did not finish: {error}", where=self._where) from error
        lines = done.stdout.splitlines()
        problems = [line for line in lines if "%Error" in line or "%Warning" in line]
        failed = [line for line in problems if "Assertion failed" in line]
        if failed:
            raise MismatchError(
                f"an assertion of the RTL failed (stalls: {pattern.name}): {failed[0]}",
                where=self._where,
                hint="run again with trace=True and look at the waveform",
            )
        if done.returncode != 0 or problems:
            text = "\n".join(problems or lines[-5:])
            raise ToolError(
                f"the simulator ended with status {done.returncode}: {text}", where=self._where
            )
        return done.stdout

    @property
    def _where(self) -> str:
        return f"simulation of {self.design.top}"

    def _collect(self, scratch: Path, said: str, frames: int, pattern: StallPattern) -> SimResult:
        table: dict[str, Any] = json.loads((scratch / "result.json").read_text())
        self.check_status(table, pattern)
        design = self.design
        beats: dict[str, Beats] = {}
        cycles_in = {p.name: _stamps(scratch, "in", n) for n, p in enumerate(design.inputs)}
        cycles_out = {p.name: _stamps(scratch, "out", n) for n, p in enumerate(design.outputs)}
        for number, port in enumerate(design.outputs):
            raw = np.fromfile(scratch / f"out{number}.beats", dtype=np.uint8)
            beats[port.name] = raw.reshape(-1, port.spec.beat_bytes)
        above = f"TOP.{design.top}."
        marks = [
            (m[1].removeprefix(above), int(m[2]), int(m[3])) for m in _HIGH_WATER.finditer(said)
        ]
        ends = np.max(
            np.stack([stamps.reshape(frames, -1)[:, -1] for stamps in cycles_out.values()]), axis=0
        )
        return SimResult(
            frames=frames,
            beats=beats,
            outputs=tuple(design.outputs),
            input_cycles=cycles_in,
            output_cycles=cycles_out,
            cycles=int(table["finish"]),
            latency=int(ends[0]) - min(int(stamps[0]) for stamps in cycles_in.values()) + 1,
            interval=int(ends[-1] - ends[-2]) if frames > 1 else None,
            fifo_high_water={name: mark for name, mark, _ in marks},
            fifo_depths={name: depth for name, _, depth in marks},
            stalls=pattern.name,
            frame_error=int(table["frame_error"]),
            memory_beats={
                port.name: int(row["beats"])
                for port, row in zip(design.memory_ports, table["memories"], strict=True)
            },
        )

    def check_status(self, table: dict[str, Any], pattern: StallPattern) -> None:
        """Look at how a run ended.

        Args:
            table: ``result.json`` of the harness.

        Raises:
            MismatchError: a misplaced tlast, surplus beats, or the design stood still.
        """
        status = table["status"]
        for port, row in zip(self.design.outputs, table["outputs"], strict=True):
            if row["bad_last"] >= 0:
                at = divmod(int(row["bad_last"]), port.spec.beats)
                raise MismatchError(
                    f"tlast is wrong on {port.name} at frame {at[0]}, beat {at[1]} of "
                    f"{port.spec.beats} (stalls: {pattern.name})",
                    where=self._where,
                )
        if status == "done":
            return
        if status == "extra":
            raise MismatchError(
                f"beats came out after the last frame was complete (stalls: {pattern.name})",
                where=self._where,
            )
        what = "nothing moves any more" if status == "deadlock" else "max_cycles is over"
        raise MismatchError(
            f"{what} after {table['spent']} cycles (stalls: {pattern.name}); "
            + "; ".join(_progress(self.design, table)),
            where=self._where,
            hint="a FIFO that is too shallow stops a pipeline; "
            "a longer idle limit helps a slow one",
        )


def _progress(design: Design, table: dict[str, Any]) -> list[str]:
    """What every port of a stuck design waits for."""
    lines = []
    for port, row in zip(design.inputs, table["inputs"], strict=True):
        state = "waits for ready" if row["waiting"] else "has nothing to offer"
        lines.append(f"{port.name}: {row['done']} of {row['total']} beats taken, {state}")
    for port, row in zip(design.outputs, table["outputs"], strict=True):
        state = "complete" if row["done"] == row["total"] else "waits for valid"
        lines.append(f"{port.name}: {row['done']} of {row['total']} beats given, {state}")
    return lines


def _stamps(scratch: Path, side: str, number: int) -> Cycles:
    return np.fromfile(scratch / f"{side}{number}.cycles", dtype="<u8").astype(np.int64)


def _config(design: Design) -> str:
    """The header that tells the harness the names and widths of the ports."""
    lines = [
        '#include "Vtop.h"',
        "#define BW_TOP Vtop",
        f"#define BW_CLOCK {design.clock}",
        f"#define BW_RESET {design.reset}",
        f"#define BW_FRAME_ERROR {f'top.{design.frame_error}' if design.frame_error else 0}",
        "#define BW_INPUTS(X) " + " ".join(_entry(p, "= l") for p in design.inputs),
        "#define BW_OUTPUTS(X) " + " ".join(_entry(p, "!= 0") for p in design.outputs),
        "#define BW_MEMORIES(R, W) "
        + " ".join(
            f'{"R" if p.access == "read" else "W"}("{p.name}", {p.name}, {p.base}, {p.width})'
            for p in design.memory_ports
        ),
    ]
    if (control := design.control) is not None:
        lines += [
            f"#define BW_START {control.start}",
            f"#define BW_DONE {control.done}",
            f"#define BW_CODE {control.code}",
            f"#define BW_ERROR {control.error}",
            f"#define BW_CODE_BITS {CODE_BITS}",
            f"#define BW_COUNTED {control.cycles}",
            f"#define BW_EVENTS {control.events}",
        ]
    return "\n".join(lines) + "\n"


def _entry(port: Port, last: str) -> str:
    wires = port.wires
    use, flag = (f"t.{wires.last} {last}", "true") if wires.last else ("false", "false")
    signals = f"{wires.data}, {wires.valid}, {wires.ready}"
    return f'X("{port.name}", {signals}, {use}, {flag}, {port.width}, {port.beats})'


def _content_key(design: Design, level: str, assertions: bool, trace: bool) -> str:
    files = {name: (design.folder / name).read_bytes() for name in design.files}
    made_by = require("verilator").identity, harness_identity()
    how = _options(design, assertions, trace), level, trace
    return content_key(*made_by, _config(design), *how, *files, *files.values())


def _options(design: Design, assertions: bool, trace: bool) -> list[str]:
    """Of Verilator, for a design."""
    argv = ["--cc", "--prefix", "Vtop", CHECKS]
    argv += ["--top-module", design.top, "-O3", "--x-initial", "unique", "--no-timing"]
    argv += ["-Wno-lint", "-Wno-style", "-Wno-fatal", "--output-split", "40000"]
    argv += ["--assert"] if assertions else ["--no-assert"]
    argv += ["--trace-vcd"] if trace else []
    return argv + parameter_flags(design.parameters) + list(design.files)


def _compile(design: Design, scratch: Path, level: str, assertions: bool, trace: bool) -> None:
    tool = require("verilator")
    argv = [*tool.command, "--Mdir", str(scratch), *_options(design, assertions, trace)]
    output_of(
        argv, cwd=design.folder, name="verilator", env=dict(tool.env), timeout=TIMEOUT_S,
        memory=MEMORY,
    )  # fmt: skip
    sources = sorted(scratch.glob("Vtop*.cpp"))
    program = scratch / _PROGRAM
    compile_program(scratch, sources, _config(design), program, level=level, trace=trace)
