# SPDX-License-Identifier: Apache-2.0
"""Devices to train on, described by a few public figures: TOML files, one a device.

A device of the user's own is a path to such a file. Every figure in it names its source.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from bitwright.base.described import Strict, read_described
from bitwright.base.errors import TargetError
from bitwright.base.plugins import load_attribute, plugged
from bitwright.base.records import Rating, RatingOrZero
from bitwright.formats import Format, MinifloatFormat
from bitwright.low_precision.costs.model import Accelerator
from bitwright.low_precision.ladder import Level, parse_level

_DEVICES = Path(__file__).parent / "devices"
_FLOAT32 = MinifloatFormat(8, 23)


class Unit(Strict):
    """What multiplies numbers of one format.

    Attributes:
        format: widest numbers that it takes: ``int8``, ``float16``, ``float32``, ..
        macs_per_second: at its best, of the whole device; or
        macs_per_cycle: of one core, with the device's ``cores`` and ``clock_ghz``.
        efficiency: share of that which training reaches; 1 makes every time a lower bound.
        pj_per_mac: energy of one multiply-accumulate, operands in registers.
    """

    format: str
    macs_per_second: Rating | None = None
    macs_per_cycle: Rating | None = None
    efficiency: Annotated[float, Field(ge=1e-9, le=1)] = 1.0
    pj_per_mac: RatingOrZero
    source: Annotated[str, Field(min_length=1)]

    @field_validator("format")
    @classmethod
    def _is_a_level(cls, value: str) -> str:
        return parse_level(value).name

    @model_validator(mode="after")
    def _one_rate(self) -> Unit:
        if (self.macs_per_second is None) == (self.macs_per_cycle is None):
            raise ValueError("give either macs_per_second or macs_per_cycle")
        return self


class Memory(Strict):
    """Where tensors lie between operations."""

    bytes_per_second: Rating
    pj_per_byte: RatingOrZero
    source: Annotated[str, Field(min_length=1)]


class Power(Strict):
    """Attributes:
    idle_watts: drawn all the time.
    full_watts: never more than this.
    """

    idle_watts: RatingOrZero
    full_watts: Rating
    source: Annotated[str, Field(min_length=1)]

    @model_validator(mode="after")
    def _full_is_more(self) -> Power:
        if self.full_watts < self.idle_watts:
            raise ValueError("full_watts must not be less than idle_watts")
        return self


class Overhead(Strict):
    """Attributes:
    launch_seconds: every operation takes at least this, however small.
    """

    launch_seconds: RatingOrZero = 0.0
    source: Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class Choice:
    """How a device computes products at a level.

    Attributes:
        unit: that it runs on.
        pieces: products of the unit that make one of the level: 9 to 16 bits are four of 8 bits.
        rate: multiply-accumulates of the level a second.
        joules: of one of them.
    """

    unit: str
    pieces: int
    rate: float
    joules: float

    @property
    def text(self) -> str:
        return self.unit if self.pieces == 1 else f"{self.pieces} x {self.unit}"


class Device(Strict):
    """One device to train on."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    description: str
    kind: Literal["cpu", "gpu", "fpga", "other"]
    cores: Annotated[int, Field(ge=1, lt=1 << 31)] | None = None
    clock_ghz: Rating | None = None
    unit: Annotated[tuple[Unit, ...], Field(min_length=1)]
    memory: Memory
    power: Power
    overhead: Overhead = Overhead(source="none assumed")

    @model_validator(mode="after")
    def _cycles_are_known(self) -> Device:
        per_cycle = any(unit.macs_per_cycle is not None for unit in self.unit)
        if per_cycle and (self.cores is None or self.clock_ghz is None):
            raise ValueError("macs_per_cycle needs cores and clock_ghz")
        return self

    def choice(self, level: Level) -> Choice:
        """The fastest way to compute exact operands of a level.

        Integers go to integer units of as many bits, in pieces to narrower ones, or to floats whose
        significand holds them.

        Raises:
            TargetError: no unit can.
        """
        found = [
            self._on(unit, pieces)
            for unit in self.unit
            if (pieces := _pieces(level, parse_level(unit.format)))
        ]
        if not found:
            raise TargetError(
                f"no unit of {self.name} computes in {level.name}",
                where=f"device {self.name}",
                hint="its units: " + ", ".join(unit.format for unit in self.unit),
            )
        return max(found, key=lambda choice: choice.rate)

    def _on(self, unit: Unit, pieces: int) -> Choice:
        rate = unit.macs_per_second
        if rate is None:
            assert unit.macs_per_cycle and self.cores and self.clock_ghz
            rate = unit.macs_per_cycle * self.cores * self.clock_ghz * 1e9
        joules = unit.pj_per_mac * 1e-12
        return Choice(unit.format, pieces, rate * unit.efficiency / pieces, joules * pieces)


def _pieces(level: Level, unit: Level) -> int:
    """How many products of a unit make one of the level; 0: it cannot."""
    wanted, offered = _element(level.format), _element(unit.format)
    if not offered.exponent_bits:
        if wanted.exponent_bits:
            return 0
        return ceil(wanted.bits / offered.bits) ** 2
    if not wanted.exponent_bits:
        # a sign and bits - 1 bits of magnitude; its most negative value is a power of two
        return int(offered.significand_bits >= wanted.bits - 1)
    fits = wanted.exponent_bits <= offered.exponent_bits
    fits = fits and wanted.significand_bits <= offered.significand_bits
    return int(fits)


def _element(found: Format | None) -> Format:
    """What is multiplied; blocks multiply their elements."""
    return _FLOAT32 if found is None else found.stored


def list_devices() -> list[Device]:
    """The devices that come with Bitwright, sorted by name."""
    found = [load_device(path.stem) for path in sorted(_DEVICES.glob("*.toml"))]
    return [each for each in found if isinstance(each, Device)]


def load_device(name: str | Path, where: str = "--device") -> Device | Accelerator:
    """A device by name, or from a TOML file of the user's own; an accelerator of a plug-in by its
    name.

    Args:
        where: the name was given, for the message.

    Raises:
        TargetError: unknown name, unreadable file, or a field that is wrong (named, with the
            reason).
    """
    if place := plugged("devices").get(str(name)):
        found: Accelerator = load_attribute(place)()
        return found
    hint = "compare with the devices of the package; every figure needs its source"
    return read_described(name, _DEVICES, Device, "device", where=where, hint=hint)
