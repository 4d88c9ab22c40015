# SPDX-License-Identifier: Apache-2.0
"""Fmax of a streaming design before it is placed, from how large it is.

The longest path of these designs is mostly way, not logic, and ways grow with the design: the
logarithm of the period is a line through that of the LUTs, the adders between two registers (a
design for a slow clock has more of them) and the levels of its deepest LUT RAM, with a step for the
serial shell and one for each speed grade. A product in a DSP block has no register that open tools
can use at its output (ECP5: `build.dsp_operands`), and the blocks stand in rows across the device,
so that its way grows with their number: the period is at least a line through that. The
coefficients are fitted to placed designs (``benchmarks/fmax.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import exp, log2
from typing import Any

from bitwright.build.target import Target
from bitwright.hw.reads import Reads

#: What a term of a speed grade begins with.
GRADE = "grade "
_TABLE = "fmax.json"
_FIRST_LEVEL = 32  # words: two RAMs of 16 and the multiplexer behind them


@dataclass(frozen=True)
class Prediction:
    """Fmax as the model says it.

    Attributes:
        mhz: predicted.
        error: of placed designs predicted by others, the mean, as a share; None of what is larger
            in some way (LUTs, adders between registers, DSP blocks) than each of them, of a LUT RAM
            deeper than all of theirs, and of a grade that one design alone was placed in: no error
            is known there.
    """

    mhz: float
    error: float | None

    def words(self) -> str:
        if self.error is None:
            return f"predicted {self.mhz:.0f} MHz; none like it was placed, so no error is known"
        return f"predicted {self.mhz:.0f} MHz, within {self.error:.0%} on average"


@cache
def coefficients() -> dict[str, Any]:
    """The committed table: family -> coefficients, errors, and what they come from."""
    text = files("bitwright.build").joinpath(_TABLE).read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


def terms(lut: float, *, adders: int, shell: bool, speed: str, reads: Reads) -> dict[str, float]:
    """What the logarithm of the period (ns) is a line through.

    Args:
        lut: packed LUTs, without those of the shell.
        adders: in a line between registers of units that multiply (`MapOptions.adders`).
        shell: whether it stands in the serial shell of a board.
        speed: grade of the device.
        reads: of its memories.
    """
    return {
        "one": 1.0,
        "doublings": log2(lut),
        "adders": adders - 1.0,
        "levels": log2(max(1.0, reads.words / _FIRST_LEVEL)),
        "shell": float(shell),
        f"{GRADE}{speed}": 1.0,
    }


def period_of(family: Mapping[str, Any], found: Mapping[str, float], dsp: float) -> float:
    """Nanoseconds: the longer one of the ways of a design, and of its products in DSP blocks.

    Args:
        family: coefficients, ``line`` and ``dsp``.
        found: see `terms`.
        dsp: blocks.
    """
    line, products = family["line"], family["dsp"]
    whole = exp(sum(line[name] * value for name, value in found.items()))
    if not dsp:
        return whole
    grade = exp(sum(line[name] for name in found if name.startswith(GRADE)))
    least: float = grade * (products["start"] + products["each"] * dsp)
    return max(whole, least)


def predicted_fmax(
    target: Target,
    lut: float,
    *,
    shell: bool,
    adders: int = 1,
    dsp: float = 0,
    reads: Reads | None = None,
) -> Prediction | None:
    """Fmax of a design that has not been placed; None where no designs of the family, or of the
    speed grade, were.

    Args:
        lut: of the design without its shell, by the cost model; what is smaller than all that were
            placed is as fast as the smallest of them.
        adders: see `terms`.
        dsp: its DSP blocks.
        reads: see `terms`; none of a design without deep memories.
    """
    family = coefficients().get(target.family)
    if family is None:
        return None
    line, lut = family["line"], max(lut, family["smallest_lut"])
    found = terms(lut, adders=adders, shell=shell, speed=target.speed, reads=reads or Reads())
    if any(name not in line for name in found):
        return None
    asked = {"lut": lut, "adders": adders, "dsp": dsp}
    known = target.speed in family["grades"] and (reads or Reads()).words <= family["words"]
    within = known and any(
        shell == one["shell"] and all(asked[name] <= one[name] for name in asked)
        for one in family["placed"]
    )
    mhz = 1000.0 / period_of(family, found, dsp)
    return Prediction(mhz, family["since"] if within else None)
