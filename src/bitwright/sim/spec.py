# SPDX-License-Identifier: Apache-2.0
"""What the simulator needs to know of a design folder: ``design.json`` as values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwright.base.errors import GraphError
from bitwright.formats import parse_format
from bitwright.sim.beats import StreamSpec
from bitwright.sim.memory import MemoryPort, memory_port


@dataclass(frozen=True)
class Port:
    """One stream of the top module.

    Attributes:
        name: key of this stream in inputs and results.
        spec: lanes, widths and beats of a frame.
        data, valid, ready: names of the signals.
        last: name of the end-of-frame signal, or None.
    """

    name: str
    spec: StreamSpec
    data: str
    valid: str
    ready: str
    last: str | None


@dataclass(frozen=True)
class SimDesign:
    """A design folder as the simulator sees it.

    Attributes:
        top, clock, reset: names; the reset is synchronous and active low.
        files: sources, relative to the folder.
        inputs, outputs: the streams.
        parameters: overrides of the top module's parameters.
        fifo_depths: instance -> depth, of the FIFOs whose high-water marks are wanted.
        memory_ports: AXI4 read ports, for weights from outside.
        interval, latency: cycles between two frames, and of a first one, as predicted; 0 if nobody
            did.
        frame_error: output with one bit an input, set by a misplaced tlast; None without one.
    """

    folder: Path
    top: str
    clock: str
    reset: str
    files: tuple[str, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    parameters: tuple[tuple[str, int | str], ...] = ()
    fifo_depths: tuple[tuple[str, int], ...] = ()
    memory_ports: tuple[MemoryPort, ...] = ()
    interval: int = 0
    latency: int = 0
    frame_error: str | None = None


def load_sim_design(folder: Path) -> SimDesign:
    """Read ``design.json``.

    A port may carry ``signals`` (data, valid, ready, last) when they are not AXI-Stream names, and
    the design ``parameters`` of its top module; the generated designs need neither.

    Raises:
        GraphError: the file is missing or malformed, or a source or memory image is not there.
    """
    path = folder / "design.json"
    try:
        table = json.loads(path.read_text())
        design = _parse(folder, table)
        needed = [*design.files, *table.get("memories", [])]
        needed += [port.image for port in design.memory_ports]
    except OSError as error:
        raise GraphError(
            f"cannot be read: {error.strerror or error}",
            where=str(path),
            hint="generate the RTL first (step `map`)",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise GraphError(f"malformed: {error!r}", where=str(path)) from error
    for name in needed:
        if not (folder / name).is_file():
            raise GraphError(
                f"names the file {name!r}, which is not there",
                where=str(path),
                hint="generate the RTL again (step `map`)",
            )
    return design


def _parse(folder: Path, table: dict[str, Any]) -> SimDesign:
    return SimDesign(
        folder=folder,
        top=str(table["top"]),
        clock=str(table["clock"]),
        reset=str(table["reset"]),
        files=tuple(str(name) for name in table["files"]),
        inputs=tuple(_port(entry) for entry in table["inputs"]),
        outputs=tuple(_port(entry) for entry in table["outputs"]),
        parameters=tuple(table.get("parameters", {}).items()),
        fifo_depths=tuple((str(f["instance"]), int(f["depth"])) for f in table.get("fifos", [])),
        memory_ports=tuple(memory_port(entry) for entry in table.get("memory_ports", [])),
        interval=int(table.get("predicted", {}).get("interval", 0)),
        latency=int(table.get("predicted", {}).get("latency", 0)),
        frame_error=table.get("frame_error"),
    )


def _port(entry: dict[str, Any]) -> Port:
    name = str(entry["name"])
    axi = {key: f"{name}_t{key}" for key in ("data", "valid", "ready", "last")}
    signals = entry.get("signals", axi)
    return Port(
        name=name,
        spec=StreamSpec(
            lanes=int(entry["lanes"]),
            lane_bits=int(entry["lane_bits"]),
            beats=int(entry["beats"]),
            width=int(entry["width"]),
            signed=bool(entry.get("signed", False)),
            bipolar=bool(entry.get("bipolar", False)),
            codes=parse_format(str(entry["codes"])) if entry.get("codes") else None,
        ),
        data=str(signals["data"]),
        valid=str(signals["valid"]),
        ready=str(signals["ready"]),
        last=signals.get("last"),
    )
