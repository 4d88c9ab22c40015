# SPDX-License-Identifier: Apache-2.0
"""Looking at the streams inside a design: a copy with a tap on each, simulated for one frame.

The design itself is simulated as it lies in its folder, memory images included; a tap is one more
module that records transfers and drives nothing.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError, MismatchError
from bitwright.base.folders import make_folder
from bitwright.sim.beats import Levels, StreamSpec, pack, unpack
from bitwright.sim.simulator import RunLimits, Simulator
from bitwright.sim.spec import load_design

_MODULE = "stream_tap"
_FOLDER = "taps"
_END = re.compile(rb"^end ([01])([01])\n\Z", re.MULTILINE)
_DIGIT_VALUES = np.zeros(256, dtype=np.uint8)
for _value, _digit in enumerate(b"0123456789abcdef"):
    _DIGIT_VALUES[_digit] = _value


@dataclass(frozen=True)
class Tap:
    """One stream to look at.

    Attributes:
        name: what it is called in the result.
        prefix: of its signals ``<prefix>_valid``, ``_ready``, ``_data`` in the top module.
        spec: its layout; ``width`` is that of the data signal.
    """

    name: str
    prefix: str
    spec: StreamSpec


@dataclass(frozen=True)
class Tapped:
    """What went over one stream.

    Attributes:
        levels: the elements of all whole beats, in stream order: those of one frame if nothing is
            missing.
        beats: transfers.
        valid, ready: the signals at the end of the simulation.
    """

    levels: Levels
    beats: int
    valid: bool
    ready: bool


@dataclass(frozen=True)
class TapRun:
    """A simulation with taps.

    Attributes:
        streams: name of a tap -> what went over it.
        problem: why the run did not end well (it stood still, surplus beats), or "".
        cycles: of the whole run; 0 where it did not end well.
    """

    streams: Mapping[str, Tapped]
    problem: str
    cycles: int


def run_tapped(
    design_dir: Path,
    taps: Sequence[Tap],
    inputs: Mapping[str, Levels],
    *,
    limits: RunLimits | None = None,
) -> TapRun:
    """Simulate one frame and give what went over every tapped stream.

    Assertions are off, so that a design with a fault shows what it does and not only that it fails.

    Args:
        design_dir: folder with ``design.json``; it is copied, not changed.
        inputs: input port -> levels of one frame ``(1, ...)``.
        limits: when to stop waiting.

    Raises:
        GraphError: a stream is not in the design, or the inputs do not fit it.
        ToolError: Verilator or the compiler is missing or rejects the design.
    """
    design = load_design(design_dir)  # whole, before anything is done with it
    with tempfile.TemporaryDirectory(prefix="bitwright-taps-") as scratch:
        folder = Path(scratch) / "design"
        for name in ("design.json", *design.named):  # whatever else a folder holds
            make_folder((folder / name).parent)
            shutil.copyfile(design_dir / name, folder / name)
        _insert(folder, taps)
        simulator = Simulator.build(folder, assertions=False)
        problem, cycles = "", 0
        try:
            beats = {p.name: pack(p.spec, inputs[p.name]) for p in simulator.design.inputs}
            cycles = simulator.run(beats, 1, limits=limits or RunLimits()).cycles
        except MismatchError as error:
            problem = error.message
        streams = {tap.name: _read(folder, number, tap) for number, tap in enumerate(taps)}
    return TapRun(streams, problem, cycles)


def _insert(folder: Path, taps: Sequence[Tap]) -> None:
    """Put the taps into the top module of a design folder."""
    path = folder / "design.json"
    table = json.loads(path.read_text(encoding="utf-8"))
    source = folder / table["files"][0]
    text = source.read_text(encoding="utf-8", errors="replace")
    lines = []
    for number, tap in enumerate(taps):
        found = re.search(rf"^\s*logic \[(\d+):0\] {re.escape(tap.prefix)}_data;", text, re.M)
        if found is None or int(found[1]) + 1 != tap.spec.width:
            raise GraphError(
                f"{source.name} has no stream {tap.prefix} of {tap.spec.width} bits",
                where=str(source),
                hint="the RTL and the hardware graph are of different runs: run the step map again",
            )
        lines.append(
            f'  {_MODULE} #(.Width({tap.spec.width}), .File("{_FOLDER}/{number}")) i_tap_{number} '
            f"(.clk_i({table['clock']}), .rst_ni({table['reset']}), "
            f".valid_i({tap.prefix}_valid), .ready_i({tap.prefix}_ready), "
            f".data_i({tap.prefix}_data));"
        )
    head, end, tail = text.rpartition("endmodule")
    source.write_text(head + "\n".join(lines) + "\n" + end + tail, encoding="utf-8")
    module = resources.files("bitwright.sim").joinpath(f"{_MODULE}.sv").read_bytes()
    (folder / f"{_MODULE}.sv").write_bytes(module)
    (folder / _FOLDER).mkdir()
    table["files"].append(f"{_MODULE}.sv")
    path.write_text(json.dumps(table), encoding="utf-8")


def _read(folder: Path, number: int, tap: Tap) -> Tapped:
    text = (folder / _FOLDER / str(number)).read_bytes()
    end = _END.search(text)
    body = text if end is None else text[: end.start()]
    beats = _beats(body, tap.spec)
    levels = unpack(_any_frame(tap.spec, len(beats)), beats) if len(beats) else np.zeros((1, 0))
    valid, ready = (False, False) if end is None else (end[1] == b"1", end[2] == b"1")
    return Tapped(levels.astype(np.int64).reshape(-1), len(beats), valid, ready)


def _any_frame(spec: StreamSpec, beats: int) -> StreamSpec:
    """The same layout with as many beats a frame as there are."""
    return replace(spec, beats=max(1, beats))


def _beats(text: bytes, spec: StreamSpec) -> NDArray[np.uint8]:
    """Lines of hexadecimal digits -> little-endian bytes."""
    digits = (spec.width + 3) // 4
    count = len(text) // (digits + 1)
    raw = np.frombuffer(text[: count * (digits + 1)], dtype=np.uint8).reshape(count, digits + 1)
    values = _DIGIT_VALUES[raw[:, digits - 1 :: -1]]
    values = np.pad(values, ((0, 0), (0, 2 * spec.beat_bytes - digits)))
    return np.ascontiguousarray(values[:, 0::2] | values[:, 1::2] << 4)
