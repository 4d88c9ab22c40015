# SPDX-License-Identifier: Apache-2.0
"""Hardware targets and boards: data in TOML files, one a device.

A target of the user's own is a path to such a file; adding one changes no code.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from bitwright.base.described import Strict, read_described
from bitwright.base.errors import TargetError
from bitwright.base.figures import RESOURCE_WORDS, Resources

_TARGETS = Path(__file__).parent / "targets"
_BOARDS = Path(__file__).parent / "boards"

Family = Literal["ecp5", "xc7", "xcup", "cyclonev"]
"""Families that the open synthesis flow knows."""

#: A word of the vendor's. It stands unquoted in scripts and pin files that other programs execute,
#: so it has none of the signs that mean something there.
Word = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")]


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

    static_watts: float = Field(ge=0)
    source: str


class ClockSpeeds(Strict):
    """Clocks of this kind of design on a device, in MHz.

    Attributes:
        typical_mhz, best_mhz: Fmax that place and route found for designs of ours, the lower end
            and the best; None where open tools do not place.
        limit_mhz: what the global clock network carries, by the data sheet.
        source: of the figures.
    """

    typical_mhz: float | None = Field(default=None, gt=0)
    best_mhz: float | None = Field(default=None, gt=0)
    limit_mhz: float = Field(gt=0)
    source: str

    @model_validator(mode="after")
    def _ascend(self) -> ClockSpeeds:
        if (self.typical_mhz is None) != (self.best_mhz is None):
            raise ValueError("give typical_mhz and best_mhz, or neither")
        known = [v for v in (self.typical_mhz, self.best_mhz, self.limit_mhz) if v is not None]
        if known != sorted(known):
            raise ValueError("expected typical_mhz <= best_mhz <= limit_mhz")
        return self


class Target(Strict):
    """One device and what can be done with it."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    description: str
    family: Family
    part: Word
    package: Word
    speed: Word
    flow: Flow
    default_clock_mhz: float = Field(gt=0)
    resources: Capacity
    power: Power
    clock: ClockSpeeds | None = Field(default=None, description="None: any clock is taken")
    board: str | None = Field(default=None, description="board used for bitstreams")

    @property
    def capacity(self) -> Resources:
        return self.resources.resources()

    @property
    def places_and_routes(self) -> bool:
        return self.flow is Flow.PLACE_AND_ROUTE


class Board(Strict):
    """A circuit board: the pins that the serial shell needs."""

    name: str
    description: str
    targets: tuple[str, ...]
    clock_mhz: float = Field(gt=0)
    pins: dict[Literal["clk", "uart_rx", "uart_tx", "button", "led"], Word]
    io_type: Word = "LVCMOS33"
    pulls: dict[str, Literal["UP", "DOWN", "NONE"]] = Field(default_factory=dict)
    uart_baud: int = Field(default=1_000_000, gt=0)
    usb: tuple[Annotated[str, Field(pattern="^[0-9a-f]{4}:[0-9a-f]{4}$")], ...] = Field(
        default=(), description="vendor:product of its serial chip"
    )
    loaders: dict[str, tuple[str, ...]] = Field(
        default_factory=dict, description="program -> arguments before the bitstream"
    )


def list_boards() -> list[Board]:
    """The boards that come with Bitwright, sorted by name."""
    return [load_board(path.stem) for path in sorted(_BOARDS.glob("*.toml"))]


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
