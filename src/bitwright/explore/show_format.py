# SPDX-License-Identifier: Apache-2.0
"""`bitwright formats show`: what a format is in exact numbers, code by code. No torch here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal, localcontext
from itertools import pairwise
from typing import Any

from bitwright.base.errors import FormatError
from bitwright.explore.variants import format_of, is_dynamic
from bitwright.formats import Format
from bitwright.report.table import Column, Kind, Table

#: Bits up to which all codes are listed without being asked for.
SHORT = 8
_MOST = 16
_DIGITS = 500
_DYNAMIC = "{} with one power-of-two scale a tensor, here 1"
_COLUMNS = (
    Column("code", "code", Kind.NUMBER),
    Column("bits", "bits"),
    Column("level", "level", Kind.NUMBER),
    Column("value", "value"),
)


@dataclass(frozen=True)
class FormatFacts:
    """A format in numbers.

    Attributes:
        facts: name, bits, range and more, in words.
        codes: every code with its level and its exact value; None for too many of them.
    """

    facts: dict[str, Any]
    codes: Table | None

    def to_json(self) -> dict[str, Any]:
        rows = None if self.codes is None else [dict(row) for row in self.codes.rows]
        return {**self.facts, "codes": rows}


def describe_format(name: str, *, everything: bool = False) -> FormatFacts:
    """Range, smallest and largest magnitude and, for few bits, the value of every code.

    Values are exact: ``lsb * level`` at scale 1, written out in full.

    Args:
        everything: list the codes of formats of up to 16 bits, not only of up to 8.

    Raises:
        FormatError: there is no such format.
    """
    found = format_of(name)
    facts: dict[str, Any] = {
        "format": found.name,
        "bits": found.bits,
        "levels": "evenly spaced" if found.uniform else "not evenly spaced",
        "execution": "exact integers"
        if found.exact_levels
        else "simulated only: levels of more than 62 bits",
    }
    if is_dynamic(name):
        facts = {"format": name.strip().lower(), "stands for": _DYNAMIC.format(found), **facts}
        facts["format"] = name.strip().lower()
    if found.block:
        facts["block"] = f"{found.block} values share a power-of-two scale of 8 bits"
    if found.needs_table:
        facts["table"] = (
            f"{found.entries} centroids in {found.number.name}, fitted to the weights of a layer"
        )
        return FormatFacts(facts, None)
    facts |= _range(found)
    listed = found.bits <= (_MOST if everything else SHORT) and found.exact_levels
    return FormatFacts(facts, _codes(found) if listed else None)


def _range(found: Format) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "lowest": exact(found.min_level, found.lsb),
        "highest": exact(found.max_level, found.lsb),
        "zero": "yes" if found.zero_is_representable else "no",
    }
    if not found.exact_levels or found.bits > _MOST:
        return facts
    levels = [int(level) for level in found.grid()]
    positive = [level for level in levels if level > 0]
    facts["different values"] = len(levels)
    facts["smallest above zero"] = exact(min(positive), found.lsb) if positive else "none"
    steps = [b - a for a, b in pairwise(levels)]
    if steps:
        facts["smallest step"] = exact(min(steps), found.lsb)
        facts["largest step"] = exact(max(steps), found.lsb)
    return facts


def exact(level: int, lsb: float) -> str:
    """``level * lsb`` in decimal, every digit of it; long numbers also as a power of two."""
    mantissa, exponent = math.frexp(lsb)
    power = exponent - 1  # lsb is an exact power of two: its mantissa is a half
    if mantissa != 0.5:
        raise FormatError(f"the unit {lsb!r} is no power of two")
    if abs(power) > 200 or abs(level) > 1 << 80:
        return _as_power(level, power)
    with localcontext(prec=_DIGITS):
        value = Decimal(level) * Decimal(2) ** power  # as many digits as the product needs
        text = format(value.normalize(), "f")
    return text if len(text) <= 14 else f"{text} = {_as_power(level, power)}"


def _as_power(level: int, power: int) -> str:
    if level == 0:
        return "0"
    zeros = (level & -level).bit_length() - 1
    odd, total = level >> zeros, power + zeros
    return f"2^{total}" if odd == 1 else f"-2^{total}" if odd == -1 else f"{odd} * 2^{total}"


def _codes(found: Format) -> Table:
    rows = []
    for pattern in range(1 << found.bits):
        row: dict[str, Any] = {"code": pattern, "bits": f"{pattern:0{found.bits}b}"}
        try:
            code = int(found.from_bits(pattern))
            level = int(found.levels(code))
        except FormatError:
            rows.append({**row, "value": found.special(pattern)})
            continue
        if found.is_float and level == 0 and pattern:
            rows.append({**row, "level": 0, "value": "-0"})
            continue
        rows.append({**row, "code": code, "level": level, "value": exact(level, found.lsb)})
    return Table(found.name, _COLUMNS, tuple(rows))
