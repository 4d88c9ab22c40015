# SPDX-License-Identifier: Apache-2.0
"""The budget of a search, as a user writes it. No torch.

==================  ===========================================================================
``size=60kB``       stored parameters: bytes, B, kB, MB, KiB, MiB, or a share of float: ``12%``
``memory=200kB``    parameters and the features of one image
``bops=1.5G``       bit operations of one image (k, M, G, T), or a share of those in float
``accuracy=97.5%``  the smallest network whose metric is at least this; also ``0.975``
``drop=1``          the same, relative to float: at most 1 point (hundredth) lost
==================  ===========================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from bitwright.base.errors import RecipeError


class Cost(StrEnum):
    """What is counted."""

    SIZE = "size"
    MEMORY = "memory"
    BOPS = "bops"


class Kind(StrEnum):
    """What is bounded: a cost from above, or the metric from below."""

    SIZE = "size"
    MEMORY = "memory"
    BOPS = "bops"
    ACCURACY = "accuracy"
    DROP = "drop"


_EXAMPLES = "size=60kB, memory=12%, bops=1.5G, accuracy=97.5%, drop=1"
_AMOUNT = re.compile(r"(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*(?P<unit>[A-Za-z%]*)")
_BYTES = {
    "": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3,
}  # fmt: skip
_COUNTS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_BITS_PER_BYTE = 8


@dataclass(frozen=True)
class Goal:
    """A bound.

    Attributes:
        kind: what is bounded.
        value: bits, bit operations, a metric in 0 .. 1, or a drop in 0 .. 1; a share if
            ``relative``.
        relative: ``value`` is a share of what the float network has.
        text: as it was written.
    """

    kind: Kind
    value: float
    relative: bool = False
    text: str = ""

    @property
    def cost(self) -> Cost | None:
        """The cost that is bounded; None if the metric is."""
        return None if self.is_accuracy else Cost(self.kind.value)

    @property
    def is_accuracy(self) -> bool:
        return self.kind in (Kind.ACCURACY, Kind.DROP)

    def limit(self, floating: float) -> float:
        """The bound in bits or operations, given the float network's."""
        return self.value * floating if self.relative else self.value

    def least(self, baseline: float) -> float:
        """The least metric, given the float network's."""
        return baseline - self.value if self.kind is Kind.DROP else self.value

    def __str__(self) -> str:
        return self.text or f"{self.kind.value}={self.value:g}"


def parse_cost(name: str) -> Cost:
    """What is to be made small.

    Raises:
        RecipeError: no such cost.
    """
    if name not in list(Cost):
        known = ", ".join(Cost)
        raise RecipeError(f"cannot minimise {name!r}", where="--minimise", hint=f"one of {known}")
    return Cost(name)


def parse_budget(text: str | Goal) -> Goal:
    """A budget from its text; see the module.

    Raises:
        RecipeError: an unknown kind or unit, or a number that makes no sense.
    """
    if isinstance(text, Goal):
        return text
    name, separator, amount = text.partition("=")
    name = name.strip().lower()
    if not separator or name not in list(Kind):
        raise RecipeError(f"{text!r} is no budget", where="--budget", hint=f"such as {_EXAMPLES}")
    kind = Kind(name)
    match = _AMOUNT.fullmatch(amount.strip())
    if match is None:
        raise RecipeError(
            f"{amount!r} is no amount", where=f"--budget {kind.value}", hint=f"such as {_EXAMPLES}"
        )
    number, unit = float(match["number"]), match["unit"].lower()
    if kind in (Kind.ACCURACY, Kind.DROP):
        return Goal(kind, _share(kind, number, unit), text=text)
    if unit == "%":
        if not 0 < number <= 100:
            raise RecipeError(
                f"{number:g} % of the float network",
                where=f"--budget {kind.value}",
                hint="above 0 and up to 100 %",
            )
        return Goal(kind, number / 100, relative=True, text=text)
    units = _COUNTS if kind is Kind.BOPS else _BYTES
    if unit not in units:
        known = ", ".join(filter(None, units))
        raise RecipeError(
            f"unknown unit {match['unit']!r}", where=f"--budget {kind.value}", hint=f"{known}, %"
        )
    value = number * units[unit] * (1 if kind is Kind.BOPS else _BITS_PER_BYTE)
    if value <= 0:
        raise RecipeError(
            f"{text!r} is not above 0", where=f"--budget {kind.value}", hint="such as size=60kB"
        )
    return Goal(kind, value, text=text)


def _share(kind: Kind, number: float, unit: str) -> float:
    where = f"--budget {kind.value}"
    if unit not in ("", "%"):
        raise RecipeError(f"unknown unit {unit!r}", where=where, hint="% or none")
    if kind is Kind.DROP:
        value = number / 100
    else:
        value = number / 100 if unit == "%" else number
        if unit == "" and number > 1:
            raise RecipeError(
                f"an accuracy of {number:g}",
                where=where,
                hint=f"0 to 1, or with a sign: accuracy={number:g}%",
            )
    if not 0 <= value <= 1:
        raise RecipeError(f"{number:g}{unit} makes no sense", where=where, hint="0 to 100 %")
    return value
