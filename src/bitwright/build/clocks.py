# SPDX-License-Identifier: Apache-2.0
"""Which clocks a target can be asked for, and at which one a rate may be said before it is placed.

The limits are data of the target (`[clock]` in its TOML file): what designs of this kind have
reached there, and what its clock network carries. What one design reaches is predicted from its
size (`build.fmax`).
"""

from __future__ import annotations

import logging
from functools import cache

from bitwright.base.errors import TargetError
from bitwright.build.fmax import Prediction
from bitwright.build.target import Target

_log = logging.getLogger(__name__)


def check_clock(target: Target, mhz: float) -> None:
    """Refuse a clock that the device cannot have; warn of one that designs there do not reach.

    Args:
        mhz: asked for.

    Raises:
        TargetError: it is beyond what the clock network carries.
    """
    known = target.clock
    if known is None:
        return
    if mhz > known.limit_mhz:
        raise TargetError(
            f"clock_mhz: {mhz:g} MHz is more than the clock network of {target.part} carries, "
            f"{known.limit_mhz:g} MHz",
            where=f"target {target.name}",
            hint=_reached(target) or "ask for less; there is no Fmax without the vendor's tools",
        )
    if known.typical_mhz is not None and mhz > known.typical_mhz:
        _warn_once(f"target {target.name}: clock_mhz is {mhz:g}; {_reached(target)}")


def reachable_clock(target: Target, mhz: float, predicted: Prediction | None = None) -> float:
    """The clock in MHz at which rates are said of a design that has not been placed.

    The one asked for, but not more than what is predicted of the design; of one that is not known
    yet, or of which nothing can be predicted, than the best that was ever measured in the family.
    """
    if predicted is not None:
        return min(mhz, predicted.mhz)
    best = None if target.clock is None else target.clock.best_mhz
    return mhz if best is None else min(mhz, best)


def clock_note(target: Target, mhz: float, predicted: Prediction | None = None) -> str:
    """What a reader must know of a rate at a clock that nothing has been placed for."""
    known = target.clock
    if predicted is not None:
        asked = "asked for" if predicted.mhz >= mhz else f"asked for {mhz:g}"
        return f"{asked}, not placed; {predicted.words()}"
    if known is None or known.typical_mhz is None:
        return "asked for, not placed"
    if mhz > known.typical_mhz:
        return f"asked for {mhz:g}; {_reached(target)}"
    return "asked for, not placed"


def _reached(target: Target) -> str:
    known = target.clock
    if known is None or known.typical_mhz is None or known.best_mhz is None:
        return ""
    return (
        f"designs of this kind reach {known.typical_mhz:g} to {known.best_mhz:g} MHz on "
        f"{target.family}"
    )


@cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)
