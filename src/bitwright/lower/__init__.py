# SPDX-License-Identifier: Apache-2.0
"""Frozen model -> integer graph, range analysis, overflow certificate, passes, QONNX export.

`bitwright.lower.from_torch` (`lower`) and `bitwright.lower.compare_torch` read the frozen torch
model; they are not re-exported, so that everything else here works without torch.
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
