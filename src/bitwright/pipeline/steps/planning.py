# SPDX-License-Identifier: Apache-2.0
"""A rate that is asked for is kept at the clock that is reached, which only place and route tells.

The folding is first searched for the clock asked for. Where the placed design falls short, it is
searched again for the clock that was reached: with more hardware, until the rate is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from bitwright.base.errors import TargetError
from bitwright.build.implement import ImplementResult
from bitwright.build.plls import PLL_MARGIN
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.steps.results_hardware import MapResult

#: How often a folding is searched again: each time costs a whole place and route.
MOST_SEARCHES = 2
_LESS = 0.98  # of what was reached: a larger design is a little slower

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def needed_clock(mapped: MapResult) -> float | None:
    """The clock in MHz that gives the rate that is asked for; None: none is."""
    return None if mapped.wanted_fps is None else mapped.wanted_fps * mapped.interval / 1e6


def clock_on_device(mapped: MapResult, made: ImplementResult) -> float | None:
    """The clock in MHz that the core runs at: of the bitstream, where there is one, or else the one
    asked for if Fmax reaches it, or else Fmax. None: nothing was placed.
    """
    fmax = made.figures.get("fmax_mhz")
    if fmax is None:
        return None
    reached = min(mapped.clock_mhz, float(fmax.value))
    return min(reached, made.bitstream_clock_mhz or reached)


def rate_words(wanted: float, rate: float) -> str:
    """Whether a rate in images/s is what was asked for."""
    if rate >= wanted:
        return f"{wanted:,g} asked for and kept"
    return f"{wanted:,g} asked for, missed by {1 - rate / wanted:.0%}"


def searched_again(
    wanted: HardwareSection, mapped: MapResult, made: ImplementResult
) -> list[HardwareSection]:
    """What to search a folding for after place and route: the same rate at the clock reached.

    Args:
        mapped: the design, of the last search.
        made: what place and route made of it.

    Returns:
        The surest first, with a margin for what a larger design and a bitstream lose; the next
        ones, with less of it, are for networks that cannot be folded as fast. Empty where no rate
        is asked for, it is kept, or nothing was placed.
    """
    clock, needed = clock_on_device(mapped, made), needed_clock(mapped)
    if wanted.target_fps is None or clock is None or needed is None or clock >= needed:
        return []
    shares = [_LESS, 1.0]
    if made.missed_mhz is not None:  # no bitstream has been tried yet
        shares.insert(0, PLL_MARGIN * _LESS)
    return [
        wanted.model_copy(update={"rate_clock_mhz": round(clock * share, 3)}) for share in shares
    ]


def first_that_is_kept(
    plans: Sequence[HardwareSection], attempt: Callable[[HardwareSection], _T]
) -> _T | None:
    """The design of the first plan for which there is a folding; None, and a warning, without one.

    Args:
        attempt: maps a plan; raises TargetError where no folding keeps it.
    """
    for number, plan in enumerate(plans, 1):
        try:
            return attempt(plan)
        except TargetError as error:
            if number == len(plans):
                _log.warning("target_fps is missed, and no folding keeps it: %s", error)
    return None


def searching_words(again: HardwareSection, mapped: MapResult, made: ImplementResult) -> str:
    """What is to be done, and why."""
    clock = clock_on_device(mapped, made) or mapped.clock_mhz
    rate = clock * 1e6 / mapped.interval
    return (
        f"{rate:,.0f} a second at the {clock:.1f} MHz that place and route reached; "
        f"searching a folding for {again.target_fps:,g} at that clock"
    )
