# SPDX-License-Identifier: Apache-2.0
"""A folder of RTL with its ``design.json``, as simulation and the flows see it."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError

from bitwright.base.described import Described, validated
from bitwright.base.errors import GraphError
from bitwright.base.files import file_inside, regular_bytes
from bitwright.engine.sdram import SdramChip
from bitwright.formats import parse_format
from bitwright.sim.beats import StreamSpec
from bitwright.sim.memory import NAME, MemoryPort

#: A file below the folder of a design. It becomes a word in scripts of Yosys and of the vendors'
#: tools, which take quotes, tabs and semicolons for commands.
FILE = r"^[A-Za-z0-9_.][A-Za-z0-9_./+ -]*$"
FileName = Annotated[str, Field(pattern=FILE)]

#: Of a design; one of a hundred layers has a thousand.
_MOST_FILES = 10_000


class _Entry(Described):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Signals(_Entry):
    """Names of the signals of a stream; `last` marks the end of a frame, None: there is none."""

    data: str = Field(pattern=NAME)
    valid: str = Field(pattern=NAME)
    ready: str = Field(pattern=NAME)
    last: str | None = Field(default=None, pattern=NAME)


class Port(_Entry):
    """One stream of the top module.

    ``tensor`` is the edge of the graph that it carries, empty in a design of one's own; ``width``
    is the width of the data signal in bits, ``beats`` the number of transfers in a frame, ``codes``
    the format whose codes the lanes carry, if they carry no numbers. ``signals`` are given where
    they are not AXI-Stream names; the generated designs need none.
    """

    name: str = Field(pattern=NAME)
    tensor: str = ""
    width: int = Field(gt=0)
    lane_bits: int = Field(gt=0)
    lanes: int = Field(gt=0)
    beats: int = Field(gt=0)
    signed: bool = False
    bipolar: bool = False
    codes: str | None = None
    signals: Signals | None = None

    @cached_property
    def spec(self) -> StreamSpec:
        """Layout of the beats."""
        codes = parse_format(self.codes) if self.codes else None
        return StreamSpec(
            self.lanes, self.lane_bits, self.beats, self.width, self.signed, self.bipolar, codes
        )

    @property
    def wires(self) -> Signals:
        parts = ("data", "valid", "ready", "last")
        return self.signals or Signals(**{part: f"{self.name}_t{part}" for part in parts})


class Control(_Entry):
    """Signals of a design that runs programs.

    Attributes:
        start: a pulse of it begins a run.
        done: high from the end of a run to the next start.
        code, error: what the run ended with.
        cycles: what it took.
        events: what begins and ends in a cycle, a bit each.
    """

    start: str = Field(pattern=NAME)
    done: str = Field(pattern=NAME)
    code: str = Field(pattern=NAME)
    error: str = Field(pattern=NAME)
    cycles: str = Field(pattern=NAME)
    events: str = Field(pattern=NAME)


#: Text or a sized literal: what cannot end the literal, line or command that it stands in.
_ParameterText = Annotated[str, Field(pattern=r"^[\w.'/-]*$", max_length=256)]


class Design(_Entry):
    """What ``design.json`` says; paths are relative to its folder.

    Attributes:
        top, clock, reset: names; the reset is synchronous and active low.
        files: sources.
        parameters: overrides of the top module's parameters; the generated designs need none.
        kind: a circuit that streams go through, or an engine that runs programs.
        control: how programs are run; None: the design runs none.
        memory_ports: AXI4 ports: weights from outside, or the memory of programs.
        predicted: interval and latency of the timing model.
        frame_error: output with one bit an input, set by a misplaced tlast; None without one.
        engine: sizes of the engine that is in it (`bitwright.engine.config`); None: there is none.
        sdram: the chip that it works with: the top has the controller's pins, two commands a
            cycle, and parameters for the chip's times at a clock.
    """

    folder: Path = Path()
    kind: Literal["dataflow", "engine"] = "dataflow"
    control: Control | None = None
    top: str = Field(pattern=NAME)
    clock: str = Field(pattern=NAME)
    reset: str = Field(pattern=NAME)
    files: tuple[FileName, ...] = Field(min_length=1, max_length=_MOST_FILES)
    memories: tuple[FileName, ...] = Field(default=(), max_length=_MOST_FILES)
    inputs: tuple[Port, ...] = ()
    outputs: tuple[Port, ...] = ()
    parameters: dict[Annotated[str, Field(pattern=NAME)], int | _ParameterText] = Field(
        default_factory=dict
    )
    memory_ports: tuple[MemoryPort, ...] = ()
    predicted: dict[str, int] = Field(default_factory=dict)
    frame_error: str | None = Field(default=None, pattern=NAME)
    engine: dict[str, Any] | None = None
    sdram: SdramChip | None = None

    def parameters_at(self, mhz: float) -> dict[str, int | str]:
        """The top's parameters for a clock.

        Raises:
            TargetError: its memory is not that fast.
        """
        return {**self.parameters, **(self.sdram.cycles(mhz) if self.sdram else {})}

    @property
    def named(self) -> tuple[str, ...]:
        """Every file that it names."""
        images = (port.image for port in self.memory_ports if port.image)
        return tuple(dict.fromkeys((*self.files, *self.memories, *images)))

    @property
    def interval(self) -> int:
        """Cycles between two frames, as predicted; 0 if nobody did."""
        return self.predicted.get("interval", 0)

    @property
    def latency(self) -> int:
        """Cycles that a first frame takes, as predicted; 0 if nobody did."""
        return self.predicted.get("latency", 0)


def load_design(folder: Path) -> Design:
    """Read ``design.json`` and make sure that every file that it names is there.

    Raises:
        GraphError: it is missing, malformed, or names a file that is missing or lies outside the
            folder.
    """
    path = folder / "design.json"
    try:
        design = validated(Design, regular_bytes(path)).model_copy(update={"folder": folder})
        for port in (*design.inputs, *design.outputs):
            _ = port.spec  # which checks it
    except OSError as error:
        raise GraphError(
            f"cannot be read: {error.strerror or error}",
            where=str(path),
            hint="generate the RTL first (step `map`)",
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(file)"
        raise GraphError(f"{field}: {first['msg']}", where=str(path)) from error
    for name in design.named:
        try:
            plain = PurePosixPath(name)
            if ".." in plain.parts or plain.is_absolute():  # in this folder, but not in a copy
                raise ValueError(name)
            file_inside(folder, name)
        except (OSError, ValueError):
            raise GraphError(
                f"names the file {name!r}, which is not in the folder",
                where=str(path),
                hint="generate the RTL again (step `map`)",
            ) from None
    return design
