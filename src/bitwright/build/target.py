# SPDX-License-Identifier: Apache-2.0
"""Hardware targets and boards: data in TOML files, one a device.

A target of the user's own is a path to such a file; adding one changes no code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from bitwright.base.described import Strict, read_described
from bitwright.base.errors import TargetError
from bitwright.base.figures import RESOURCE_WORDS, Resources
from bitwright.base.records import Mhz

_TARGETS = Path(__file__).parent / "targets"
_BOARDS = Path(__file__).parent / "boards"

Family = Literal["ecp5", "ice40", "xc7", "xcup", "cyclonev"]
"""Families that the open synthesis flow knows."""

#: A word of the vendor's. It stands unquoted in scripts and pin files that other programs execute,
#: so it has none of the signs that mean something there, and does not begin as an option does.
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9._][A-Za-z0-9._-]*$")]
#: A grade of speed, which may have a sign: ``-1``.
Grade = Annotated[str, Field(pattern=r"^(-[0-9]|[A-Za-z0-9._])[A-Za-z0-9._-]*$")]


class Flow(StrEnum):
    """How far the open tools go on a device."""

    PLACE_AND_ROUTE = "place-and-route"
    SYNTHESIS_ONLY = "synthesis-only"


class Capacity(Strict):
    """What a device has, in the units of :class:`bitwright.base.figures.Resources`."""

    lut: int = Field(gt=0)
    ff: int = Field(gt=0)
    dsp: int = Field(ge=0)
    bram: int = Field(ge=0)
    bram_bits: int = Field(gt=0, description="bits in one block RAM")

    def resources(self) -> Resources:
        return Resources(lut=self.lut, ff=self.ff, dsp=self.dsp, bram=self.bram)


class Power(Strict):
    """Static power assumed for energy estimates."""

    static_watts: float = Field(ge=0, allow_inf_nan=False)
    source: str


class Processor(Strict):
    """The processor beside the logic, and what a project with it needs to know of the board.

    Attributes:
        kind: of the processor, as the writer of the project knows it.
        board: for whom the project is, in words.
        board_files: pattern of the vendor's name of the board, whose settings of memory and pins
            are taken if the tool has them; None: the project brings its own.
        control: physical address of the design's registers.
    """

    kind: Literal["zynq", "zynqmp", "cyclonev-hps"]
    board: Annotated[str, Field(pattern=r"^[ -~]+$", max_length=200)]
    board_files: Annotated[str, Field(pattern=r"^[A-Za-z0-9._*:][A-Za-z0-9._*:-]*$")] | None = None
    control: int = Field(ge=0, lt=1 << 40)


class ClockSpeeds(Strict):
    """Clocks of this kind of design on a device, in MHz.

    Attributes:
        typical_mhz, best_mhz: Fmax that place and route found for designs of ours, the lower end
            and the best; None where open tools do not place.
        limit_mhz: what the global clock network carries, by the data sheet.
        source: of the figures.
    """

    typical_mhz: Mhz | None = None
    best_mhz: Mhz | None = None
    limit_mhz: Mhz
    source: str

    @model_validator(mode="after")
    def _ascend(self) -> ClockSpeeds:
        if (self.typical_mhz is None) != (self.best_mhz is None):
            raise ValueError("give typical_mhz and best_mhz, or neither")
        known = [v for v in (self.typical_mhz, self.best_mhz, self.limit_mhz) if v is not None]
        if known != sorted(known):
            raise ValueError("expected typical_mhz <= best_mhz <= limit_mhz")
        return self


def _name_of_board(name: str) -> str:
    """A target's file may be a stranger's: it names no other file."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
        raise ValueError(
            "is no name of `bitwright list boards`; a board of your own is named by "
            "implement.board=FILE"
        )
    return name


class Target(Strict):
    """One device and what can be done with it."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    description: str
    family: Family
    part: Word
    package: Word
    speed: Grade
    flow: Flow
    default_clock_mhz: Mhz
    resources: Capacity
    power: Power
    clock: ClockSpeeds | None = Field(default=None, description="None: any clock is taken")
    board: Annotated[str, AfterValidator(_name_of_board)] | None = Field(
        default=None, description="board of `bitwright list boards` that bitstreams are for"
    )
    processor: Processor | None = None

    @property
    def capacity(self) -> Resources:
        return self.resources.resources()

    @property
    def places_and_routes(self) -> bool:
        return self.flow is Flow.PLACE_AND_ROUTE


Port = Literal["clk", "uart_rx", "uart_tx", "button", "led"]
"""Ports of a board's top: clock and serial line; where the board has them a button that resets, and
a lamp that is lit while a host has the design open."""
_NEEDED: tuple[Port, ...] = ("clk", "uart_rx", "uart_tx")
#: Of the chip of 16 bits: how many there are of each.
SDRAM_PINS = {
    "clk": 1, "cke": 1, "cs_n": 1, "ras_n": 1, "cas_n": 1, "we_n": 1, "a": 13, "ba": 2, "dqm": 2,
    "d": 16,
}  # fmt: skip
#: Programs that load bitstreams, and what a board's file, which may be anybody's, may tell them:
#: which board, cable and device it is. Other options write files, or what outlives the power.
_LOADERS = {
    "openFPGALoader": r"--(board|cable|fpga-part|freq|ftdi-serial|ftdi-channel|index-chain|vid|pid)"
    r"=[A-Za-z0-9_.:-]+",
    "fujprog": r"(?!)",
}


class Part(Strict):
    """The device as one board has it, where that is not the target's own."""

    part: Word
    package: Word
    speed: Grade


class Board(Strict):
    """A circuit board: the pins that the serial shell needs.

    Attributes:
        targets: names of the targets that it is made with.
        parts: of those targets, the ones with another package or speed grade on this board.
        clock_mhz: frequency at the pin ``clk``.
        clock_on_pll_pad: the pin ``clk`` is a pad that iCE40 has for a PLL alone.
        pins: sites of the package; ``uart_rx`` is an input of the FPGA, ``uart_tx`` an output.
        io_type: I/O standard of all pins that `io_types` does not name.
        active_low: ports that are 0 when the button is pressed or the lamp is lit.
        pulls: resistors inside the FPGA.
        sdram: sites of its memory's pins, as `SDRAM_PINS` has them, in the order of bits;
            empty: it has none.
        run_here: whether a bitstream of Bitwright has run on this board.
    """

    name: str
    description: str
    targets: tuple[str, ...] = Field(min_length=1)
    parts: Mapping[str, Part] = Field(default_factory=dict)
    clock_mhz: Mhz
    clock_on_pll_pad: bool = False
    pins: dict[Port, Word]
    io_type: Word = "LVCMOS33"
    io_types: dict[Port, Word] = Field(default_factory=dict)
    active_low: tuple[Literal["button", "led"], ...] = ()
    pulls: dict[Port, Literal["UP", "DOWN", "NONE"]] = Field(default_factory=dict)
    uart_baud: int = Field(default=1_000_000, gt=0)
    usb: tuple[Annotated[str, Field(pattern="^[0-9a-f]{4}:[0-9a-f]{4}$")], ...] = Field(
        default=(), description="vendor:product of its serial chip"
    )
    loaders: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="program (openFPGALoader, fujprog) -> options that say which board it is",
    )
    sdram: dict[str, tuple[Word, ...]] = Field(default_factory=dict)
    run_here: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        missing = [port for port in _NEEDED if port not in self.pins]
        if missing:
            raise ValueError(f"pins has no {' and no '.join(missing)}")
        sites = [*self.pins.values(), *(site for places in self.sdram.values() for site in places)]
        twice = sorted({site for site in sites if sites.count(site) > 1})
        if twice:
            raise ValueError(f"pins names {', '.join(twice)} twice")
        for field, names in (
            ("io_types", self.io_types),
            ("pulls", self.pulls),
            ("active_low", self.active_low),
        ):
            unknown = [name for name in names if name not in self.pins]
            if unknown:
                raise ValueError(f"{field} names {', '.join(unknown)}, which has no pin")
        for loader, options in self.loaders.items():
            if loader not in _LOADERS:
                raise ValueError(f"loaders names {loader}; known are {', '.join(_LOADERS)}")
            other = [o for o in options if not re.fullmatch(_LOADERS[loader], o)]
            if other:
                raise ValueError(f"loaders gives {loader} {' '.join(other)}, which is not allowed")
        found = {name: len(places) for name, places in self.sdram.items()}
        if found and found != SDRAM_PINS:
            raise ValueError(f"sdram names {found} pins; expected are {SDRAM_PINS}")
        strange = sorted(set(self.parts) - set(self.targets))
        if strange:
            raise ValueError(f"parts names {', '.join(strange)}, which is none of its targets")
        return self

    def mounted(self, target: Target) -> Target:
        """The target as it is on this board: part, package and speed grade.

        Raises:
            TargetError: this board is not made with it.
        """
        if target.name not in self.targets:
            raise TargetError(
                f"has no {target.name}; it is made with {', '.join(self.targets)}",
                where=f"board {self.name}",
                hint="choose one of them as the target, or another board",
            )
        part = self.parts.get(target.name)
        return target if part is None else target.model_copy(update=part.model_dump())


def list_targets() -> list[Target]:
    """The targets that come with Bitwright, sorted by name."""
    return [load_target(path.stem) for path in sorted(_TARGETS.glob("*.toml"))]


def load_target(name: str | Path) -> Target:
    """A target by name, or from a TOML file of the user's own.

    Raises:
        TargetError: unknown name, unreadable file, or a field that is wrong (named, with the
            reason).
    """
    return read_described(name, _TARGETS, Target, "target")


def list_boards() -> list[Board]:
    """The boards that come with Bitwright, sorted by name."""
    return [load_board(path.stem) for path in sorted(_BOARDS.glob("*.toml"))]


def load_board(name: str | Path) -> Board:
    """A board by name, or from a TOML file of the user's own.

    Raises:
        TargetError: as for :func:`load_target`.
    """
    return read_described(name, _BOARDS, Board, "board")


def smallest_fitting(
    used: Resources, family: str, targets: Iterable[Target] | None = None
) -> Target | None:
    """The target of a family with the fewest LUTs that holds these resources, or None."""
    known = list_targets() if targets is None else targets
    fitting = [t for t in known if t.family == family and used.fits(t.capacity)]
    return min(fitting, key=lambda t: (t.resources.lut, t.name), default=None)


def require_fit(used: Resources, target: Target, *, stage: str) -> None:
    """Make sure that a design fits its target.

    Args:
        used: what the design needs.
        target: the chosen device.
        stage: where the figures come from ("synthesis"), for the message.

    Raises:
        TargetError: it does not fit; says what is short, by how much, and the smallest target
            that fits.
    """
    missing = used.shortage(target.capacity)
    if not missing:
        return
    have, need = target.capacity.to_json(), used.to_json()
    parts = [
        f"{RESOURCE_WORDS[key]}: {need[key]:g} needed, {have[key]:g} there, {short:g} short"
        for key, short in missing.items()
    ]
    bigger = smallest_fitting(used, target.family)
    hint = (
        f"the smallest {target.family} target that fits is {bigger.name}"
        if bigger
        else f"no known {target.family} target is large enough"
    )
    raise TargetError(
        f"the design does not fit after {stage}: {'; '.join(parts)}",
        where=f"target {target.name}",
        hint=f"{hint}; or fold more (lower target_fps or smaller budget)",
    )
