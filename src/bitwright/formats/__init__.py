# SPDX-License-Identifier: Apache-2.0
"""Number formats as values: exact encode and decode in numpy, canonical names both ways."""

from __future__ import annotations

from bitwright.formats.base import Format
from bitwright.formats.bipolar import BipolarFormat
from bitwright.formats.block import BlockFormat
from bitwright.formats.codebook import CodebookFormat
from bitwright.formats.fixed import FixedFormat
from bitwright.formats.grid import GridFormat
from bitwright.formats.integer import IntegerFormat
from bitwright.formats.minifloat import MinifloatFormat, Specials, ristretto_minifloat
from bitwright.formats.power_of_two import PowerOfTwoFormat
from bitwright.formats.registry import (
    FormatFamily,
    list_formats,
    load_format,
    parse_format,
    register_family,
)
from bitwright.formats.rounding import (
    Overflow,
    Rounding,
    parse_overflow,
    parse_rounding,
    round_to_int,
)
from bitwright.formats.ternary import TernaryFormat

__all__ = [
    "BipolarFormat",
    "BlockFormat",
    "CodebookFormat",
    "FixedFormat",
    "Format",
    "FormatFamily",
    "GridFormat",
    "IntegerFormat",
    "MinifloatFormat",
    "Overflow",
    "PowerOfTwoFormat",
    "Rounding",
    "Specials",
    "TernaryFormat",
    "list_formats",
    "load_format",
    "parse_format",
    "parse_overflow",
    "parse_rounding",
    "register_family",
    "ristretto_minifloat",
    "round_to_int",
]
