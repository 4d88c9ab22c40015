# SPDX-License-Identifier: Apache-2.0
"""A rate that is asked for is kept at the clock that is reached, which only place and route tells.

The folding is first searched for the clock asked for. Where the placed design falls short, it is
searched again for the clock that was reached: with more hardware, until the rate is kept.
"""

from __future__ import annotations

from bitwright.build.implement import PLL_MARGIN, ImplementResult
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.steps.results_hardware import MapResult

#: How often a folding is searched again: each time costs a whole place and route.
MOST_SEARCHES = 2
_LESS = 0.98  # of what was reached: a larger design is a little slower


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
) -> HardwareSection | None:
    """What to search a folding for after place and route: the same rate at the clock reached.

    Args:
        mapped: the design, of the last search.
        made: what place and route made of it.

    Returns:
        None where no rate is asked for, it is kept, or nothing was placed.
    """
    clock, needed = clock_on_device(mapped, made), needed_clock(mapped)
    if wanted.target_fps is None or clock is None or needed is None or clock >= needed:
        return None
    if made.missed_mhz is not None:  # no bitstream has been tried yet
        clock *= PLL_MARGIN
    return wanted.model_copy(update={"rate_clock_mhz": round(clock * _LESS, 3)})


def searching_words(again: HardwareSection, mapped: MapResult, made: ImplementResult) -> str:
    """What is to be done, and why."""
    clock = clock_on_device(mapped, made) or mapped.clock_mhz
    rate = clock * 1e6 / mapped.interval
    return (
        f"{rate:,.0f} images/s at the {clock:.1f} MHz that place and route reached; "
        f"searching a folding for {again.target_fps:,g} at that clock"
    )
