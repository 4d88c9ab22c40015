# SPDX-License-Identifier: Apache-2.0
"""Passes on integer graphs, range analysis, overflow certificate, comparison.

The graph comes from `bitwright.quantize.integers`. `from_torch` and `compare_torch` keep the
names that README of version 0.1.0 has for `IntegerModel.graph` and `IntegerModel.edges`.
"""

from __future__ import annotations

from bitwright.lower.certificate import AccumulatorClaim, Certificate, Witness, certify, check
from bitwright.lower.passes import PASSES, optimise
from bitwright.lower.ranges import DotRange, analyse, dot_range

__all__ = [
    "PASSES",
    "AccumulatorClaim",
    "Certificate",
    "DotRange",
    "Witness",
    "analyse",
    "certify",
    "check",
    "dot_range",
    "optimise",
]
