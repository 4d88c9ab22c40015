# SPDX-License-Identifier: Apache-2.0
"""Number formats as values: exact encode and decode in numpy, canonical names both ways."""

from __future__ import annotations

from bitwright.formats.base import Format
from bitwright.formats.bipolar import BipolarFormat
from bitwright.formats.fixed import FixedFormat
from bitwright.formats.integer import IntegerFormat
from bitwright.formats.registry import FormatFamily, list_formats, parse_format
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
    "FixedFormat",
    "Format",
    "FormatFamily",
    "IntegerFormat",
    "Overflow",
    "Rounding",
    "TernaryFormat",
    "list_formats",
    "parse_format",
    "parse_overflow",
    "parse_rounding",
    "round_to_int",
]
