# SPDX-License-Identifier: Apache-2.0
"""A partitioned design, simulated part after part on the same frames."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bitwright.base.errors import GraphError
from bitwright.base.files import parse_json, regular_bytes
from bitwright.sim.beats import Levels
from bitwright.sim.simulator import SimResult, Simulator
from bitwright.sim.stalls import StallPattern


@dataclass(frozen=True)
class PartsResult:
    """What came out of a run of all parts.

    Attributes:
        levels: tensor -> levels (frames, elements of a frame): of the network's outputs and of
            every link.
        parts: the simulation of each part, in order.
    """

    levels: Mapping[str, Levels] = field(repr=False)
    parts: tuple[SimResult, ...]

    @property
    def interval(self) -> int | None:
        """Cycles a frame of the slowest part, in the steady state."""
        intervals = [part.interval for part in self.parts]
        return None if None in intervals else max(i for i in intervals if i is not None)


@dataclass(frozen=True)
class PartsSimulator:
    """The compiled parts of a partition.

    Attributes:
        parts: (simulator, input port -> tensor, output port -> tensor) of each, in order.
    """

    parts: tuple[tuple[Simulator, Mapping[str, str], Mapping[str, str]], ...]

    @staticmethod
    def build(folder: Path, *, workdir: Path | None = None, frames: int = 1) -> PartsSimulator:
        """Compile the parts of a folder with ``partition.json``.

        Args:
            workdir, frames: as `Simulator.build` has them.

        Raises:
            GraphError: a file is missing or malformed.
            ToolError: Verilator or the compiler is missing, or rejects a part.
        """
        path = folder / "partition.json"
        parts = []
        try:
            places = [folder / str(entry["folder"]) for entry in _read(path)["parts"]]
            designs = [_read(place / "design.json") for place in places]
            sides = [
                [{p["name"]: p["tensor"] for p in design[k]} for k in ("inputs", "outputs")]
                for design in designs
            ]
        except (KeyError, TypeError) as error:
            raise GraphError(f"malformed: {error!r}", where=str(path)) from error
        for place, (inputs, outputs) in zip(places, sides, strict=True):
            simulator = Simulator.build(place, workdir=workdir, frames=frames)
            parts.append((simulator, inputs, outputs))
        return PartsSimulator(tuple(parts))

    def run(
        self, levels: Mapping[str, Levels], frames: int, stalls: StallPattern | None = None
    ) -> PartsResult:
        """Send frames through the first part, what it gives through the next, and so on.

        Args:
            levels: network input -> levels (frames, ...).

        Raises:
            GraphError, MismatchError, ToolError: as `Simulator.run`.
        """
        values = {name: value.reshape(frames, -1) for name, value in levels.items()}
        results = []
        for simulator, inputs, outputs in self.parts:
            beats = simulator.pack({port: values[tensor] for port, tensor in inputs.items()})
            result = simulator.run(beats, frames, stalls)
            found = result.levels
            values |= {tensor: found[port] for port, tensor in outputs.items()}
            results.append(result)
        given = {name: value for name, value in values.items() if name not in levels}
        return PartsResult(given, tuple(results))


def _read(path: Path) -> dict[str, Any]:
    try:
        table: dict[str, Any] = parse_json(regular_bytes(path))
    except (OSError, ValueError) as error:
        raise GraphError(f"cannot be read: {error}", where=str(path)) from error
    return table
