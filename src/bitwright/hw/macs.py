# SPDX-License-Identifier: Apache-2.0
"""Measured cost of one multiply-accumulate of two formats: looked up, never interpolated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from bitwright.base.figures import Figure, Resources, Source
from bitwright.formats import Format, PowerOfTwoFormat, parse_format
from bitwright.ir import bits_for_interval

_TABLE = "macs.json"
FAMILY = "ecp5"  # the family that was measured


@dataclass(frozen=True)
class MacCost:
    """One multiply-accumulate of our hardware: decoding, product, accumulator with registers.

    Attributes:
        weight, activation: the measured pair, under the names of `mac_format`.
        accumulator_bits: width of the accumulator.
        logic: with the product in look-up tables.
        multiplier: with the product in a hardware multiplier; None where that was not measured, as
            for products that are shifts, signs or XNORs.
        family, tool: device family, and the synthesis that counted.
    """

    weight: str
    activation: str
    accumulator_bits: int
    logic: Resources
    multiplier: Resources | None
    family: str
    tool: str

    @property
    def luts(self) -> Figure:
        return Figure(self.logic.lut, "LUT", Source.SYNTHESIS)

    def to_json(self) -> dict[str, object]:
        return {
            "weight": self.weight,
            "activation": self.activation,
            "accumulator_bits": self.accumulator_bits,
            "logic": self.logic.to_json(),
            "multiplier": None if self.multiplier is None else self.multiplier.to_json(),
            "family": self.family,
            "tool": self.tool,
            "source": str(Source.SYNTHESIS),
        }


def mac_format(kind: Format | str, *, weight: bool = False) -> str:
    """The name under which a format's multiply-accumulate is measured.

    Formats with the same hardware share it: evenly spaced levels are an integer of their bits
    (weights always a signed one), blocks their element, codebooks any table of their size, powers
    of two any rounding.

    Args:
        weight: the format of weights.
    """
    found = parse_format(kind) if isinstance(kind, str) else kind
    if found.block:
        return mac_format(found.stored, weight=weight)
    if found.is_codebook:
        return found.name.partition("{")[0]
    if found.is_exponent:
        return PowerOfTwoFormat(found.bits, found.zero_is_representable).name
    if not found.uniform or found.name == "bipolar":
        return found.name
    low = min(-1, found.min_level) if weight else found.min_level
    bits = bits_for_interval(low, found.max_level)
    return f"int{bits}" if low < 0 else f"uint{bits}"


@cache
def mac_table() -> Mapping[str, Any]:
    """The committed measurements, made by ``benchmarks/format_macs.py``."""
    table: dict[str, Any] = json.loads(
        files("bitwright.hw").joinpath(_TABLE).read_text(encoding="utf-8")
    )
    return table


def mac_cost(weight_format: Format | str, activation_format: Format | str) -> MacCost | None:
    """What synthesis counted for one multiply-accumulate; None if this pair was not measured.

    Raises:
        FormatError: a name is no format.
    """
    table = mac_table()
    weight, activation = mac_format(weight_format, weight=True), mac_format(activation_format)
    entry = table["pairs"].get(f"{weight} {activation}")
    if entry is None:
        return None
    multiplier = entry.get("multiplier")
    return MacCost(
        weight=weight,
        activation=activation,
        accumulator_bits=int(entry["accumulator_bits"]),
        logic=Resources(**entry["logic"]),
        multiplier=None if multiplier is None else Resources(**multiplier),
        family=str(table["family"]),
        tool=str(table["tool"]),
    )
