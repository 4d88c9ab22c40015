# SPDX-License-Identifier: Apache-2.0
"""Levels of precision by name, and ladders of them. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from bitwright.base.errors import FormatError
from bitwright.formats import Format, parse_format

FLOAT32 = "float32"
_FLOAT_BITS = 32
_FEWEST_BITS = 2
#: Other words for a level.
_ALIASES = {
    "bfloat16": "e8m7",
    "bf16": "e8m7",
    "float16": "e5m10",
    "fp16": "e5m10",
    "fp32": FLOAT32,
    "float": FLOAT32,
}
_SHOWN = {"e8m7": "bfloat16", "e5m10": "float16"}
_KINDS = (
    "intN (or N), a float such as e4m3, float16, bfloat16, a block format such as mxfp8, float32"
)


@dataclass(frozen=True)
class Level:
    """One level of a ladder.

    Attributes:
        name: as logs show it.
        format: of every operand; None is float32.
    """

    name: str
    format: Format | None

    @property
    def bits(self) -> int:
        """Of one number."""
        return _FLOAT_BITS if self.format is None else self.format.bits

    @property
    def is_minifloat(self) -> bool:
        return self.format is not None and self.format.is_float


def parse_level(name: str | int) -> Level:
    """A level by name; a number N is ``intN``.

    Raises:
        ValueError: the format is unknown, or training cannot run in it.
    """
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise ValueError(f"a level of precision is a name or a number of bits, found {name!r}")
    text = str(name).strip().lower()
    text = f"int{text}" if text.isdecimal() else _ALIASES.get(text, text)
    if text == FLOAT32:
        return Level(FLOAT32, None)
    try:
        found = parse_format(text)
    except FormatError as error:
        # Most of the formats that the hint lists are no levels.
        unknown = error.message.startswith("unknown format")
        hint = _KINDS if unknown else error.hint or _KINDS
        more = f", or {FLOAT32}" if text == f"int{_FLOAT_BITS}" else ""
        raise ValueError(f"{error.message} ({hint}{more})") from error
    fault = _fault(found)
    if fault is not None:
        raise ValueError(f"{name!r} is no level of precision: {fault}; use {_KINDS}")
    return Level(_SHOWN.get(found.name, found.name), found)


def _fault(found: Format) -> str | None:
    """Why training cannot run in a format."""
    if not (found.is_integer or found.is_float or found.block):
        return "its levels are no integers and no floats"
    if not found.signed:
        return "gradients have signs, it has none"
    if found.is_integer and found != found.with_zero(0):
        return "dynamic fixed point has no zero point"
    if found.bits < _FEWEST_BITS:
        return f"it has fewer than {_FEWEST_BITS} bits"
    return None


def check_rising(names: Sequence[str]) -> None:
    """ValueError unless every level has more bits than the one before."""
    if not names:
        raise ValueError("the ladder has no level: name at least one, such as [int8, float32]")
    for before, after in pairwise(map(parse_level, names)):
        if after.bits <= before.bits:
            raise ValueError(
                f"the ladder must rise, found {', '.join(names)}: {after.name} ({after.bits} bits) "
                f"has not more bits than {before.name} ({before.bits} bits) before it"
            )
