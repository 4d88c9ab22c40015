# SPDX-License-Identifier: Apache-2.0
"""Labelled figures: a number is never reported without its unit and where it came from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from bitwright.base.nouns import IMAGES, Noun, noun_of


class Source(StrEnum):
    """Where a figure came from, in order of trust.

    given: from a paper or a file, as it stands there.
    """

    GIVEN = "given"
    MODEL = "model"
    SIMULATION = "simulation"
    SYNTHESIS = "synthesis"
    PLACE_AND_ROUTE = "place-and-route"
    MEASUREMENT = "measurement"


@dataclass(frozen=True)
class Figure:
    """One reported number with its unit and source.

    Attributes:
        error: its standard error in the same unit; None where there is none.
        count: inputs that it was measured on; None where it is not of inputs.
        counted: what they are called, in the plural (`base.nouns`).
    """

    value: float | int
    unit: str
    source: Source
    error: float | None = None
    count: int | None = None
    counted: str = IMAGES.many

    def of(self, noun: Noun) -> Figure:
        """The same, measured on things of this name."""
        return replace(self, counted=noun.many)

    def __str__(self) -> str:
        return show(self)

    def to_json(self) -> dict[str, float | int | str]:
        found: dict[str, float | int | str] = {
            "value": self.value,
            "unit": self.unit,
            "source": str(self.source),
        }
        more: dict[str, float | int | str | None] = {"error": self.error, "count": self.count}
        if self.count is not None and self.counted != IMAGES.many:
            more["counted"] = self.counted
        return found | {name: value for name, value in more.items() if value is not None}


@dataclass(frozen=True)
class Measured:
    """A measured number.

    Attributes:
        value: the number, in the column's unit.
        error: its standard error in the same unit; None where there is none.
    """

    value: float
    error: float | None = None

    def to_json(self) -> dict[str, float | None]:
        return {"value": self.value, "error": self.error}


@dataclass(frozen=True)
class Resources:
    """Device resources; additive. ``bram`` counts the family's native block RAMs.

    ECP5: ``lut`` = LUT4 (carry cells count as two), ``bram`` = DP16KD, ``dsp`` = MULT18X18D.
    7-series / UltraScale+: LUT6, RAMB18 equivalents, DSP48. Cyclone V: ALUTs, M10K, DSP.
    """

    lut: float = 0
    ff: float = 0
    dsp: float = 0
    bram: float = 0

    def __add__(self, other: Resources) -> Resources:
        return Resources(
            self.lut + other.lut, self.ff + other.ff, self.dsp + other.dsp, self.bram + other.bram
        )

    def __sub__(self, other: Resources) -> Resources:
        return self + other * -1

    def __mul__(self, times: float) -> Resources:
        return Resources(self.lut * times, self.ff * times, self.dsp * times, self.bram * times)

    def most(self, other: Resources) -> Resources:
        """The larger of each kind."""
        return Resources(*map(max, self.to_json().values(), other.to_json().values()))

    def shortage(self, limit: Resources) -> dict[str, float]:
        """What is missing where only `limit` is there: kind -> amount; empty if all fits."""
        have, need = limit.to_json(), self.to_json()
        return {kind: need[kind] - have[kind] for kind in need if need[kind] > have[kind]}

    def fits(self, limit: Resources) -> bool:
        return (
            self.lut <= limit.lut
            and self.ff <= limit.ff
            and self.dsp <= limit.dsp
            and self.bram <= limit.bram
        )

    def to_json(self) -> dict[str, float]:
        return {"lut": self.lut, "ff": self.ff, "dsp": self.dsp, "bram": self.bram}


RESOURCE_WORDS = {"lut": "LUTs", "ff": "flip-flops", "dsp": "DSP blocks", "bram": "block RAMs"}
"""The kinds of `Resources`, in order, as messages call them."""


def show(figure: Figure | None) -> str:
    """A figure as people write it: 98.05 %, 1 234, 12.3 MHz; a dash where there is none. With its
    error and the number of inputs where they are known: 95.0 \u00b1 2.5 %, 80 images.
    """
    if figure is None:
        return "-"
    if figure.error is not None:
        text = _with_error(figure)
    elif figure.unit == "share":
        text = f"{100 * figure.value:.2f} %"
    else:
        text = number(figure.value) + _unit(figure)
    if figure.count is None:
        return text
    noun = noun_of(figure.counted)
    return f"{text}, {number(figure.count)} {noun.one if figure.count == 1 else noun.many}"


def _unit(figure: Figure) -> str:
    return "" if figure.unit in ("", "count") else f" {figure.unit}"


def _with_error(figure: Figure) -> str:
    """Value and error to the error's second digit."""
    assert figure.error is not None
    is_share = figure.unit == "share"
    times, unit = (100, " %") if is_share else (1, _unit(figure))
    value, error = times * figure.value, times * figure.error
    if not (math.isfinite(value) and math.isfinite(error)):
        return f"{value} \u00b1 {error}{unit}"
    digits = 2 if error == 0 else min(12, max(0, 1 - math.floor(math.log10(error))))
    return f"{value:.{digits}f} \u00b1 {error:.{digits}f}{unit}"


def number(value: float | int | None) -> str:
    """A number with thin groups of thousands and no more digits than it carries."""
    if value is None:
        return "-"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}".replace(",", "\u202f")
    if 0 < abs(value) < 1e-3:
        return f"{value:.2g}"
    digits = 1 if abs(value) >= 100 else 2 if abs(value) >= 1 else 4
    return f"{value:,.{digits}f}".replace(",", "\u202f")
