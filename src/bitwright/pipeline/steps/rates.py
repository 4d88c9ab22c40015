# SPDX-License-Identifier: Apache-2.0
"""Inputs a second of a run, each with its clock and with what limits it.

Until a design is placed its rate is said at a clock that the family reaches; afterwards at the
clock that was reached, which is the one asked for if that was met.
"""

from __future__ import annotations

from bitwright.base.figures import Figure, Source
from bitwright.base.nouns import IMAGES, Noun
from bitwright.pipeline.steps.planning import clock_on_device, rate_words
from bitwright.pipeline.steps.results_hardware import LinkRow, MapResult
from bitwright.pipeline.steps.results_run import Results
from bitwright.report.record import SummaryRow

#: Behind ``core_label``: rates of what feeds the core.
MEMORY, LINK, BOARD = "weight memory", "serial link", "on the board"


def core_label(noun: Noun = IMAGES) -> str:
    """The label of the core's rate, with which the others begin."""
    return f"{noun.many} a second"


def rate_rows(found: Results) -> list[SummaryRow]:
    """The core's rate, those of what feeds it, and the least of them where there are several."""
    noun, label = found.noun, core_label(found.noun)
    clock, mapped = clock_of(found), found.map
    source = Source.MODEL if found.simulate is None else Source.SIMULATION
    if clock is not None and found.engine is not None:
        each = clock * 1e6 / interval_of(found)
        note = f"one {noun.one} at a time, at {clock:g} MHz, {clock_words(found)}"
        if found.engine.wanted_fps is not None:
            note += f"; {rate_words(found.engine.wanted_fps, each)}"
        return [SummaryRow(label=label, figure=_rate(each, source, noun), note=note)]
    if clock is None or mapped is None:
        return [SummaryRow(label=label, figure=None)]
    core = clock * 1e6 / interval_of(found)
    note = f"core at {clock:g} MHz, {clock_words(found)}; {mapped.bottleneck} limits"
    if mapped.wanted_fps is not None:
        placed = found.implement and clock_on_device(mapped, found.implement)
        note += f"; {rate_words(mapped.wanted_fps, (placed or clock) * 1e6 / interval_of(found))}"
    rows = [SummaryRow(label=label, figure=_rate(core, source, noun), note=note)]
    limits = [(core, f"the core ({mapped.bottleneck})")]
    memory = memory_rate(mapped, clock)
    if memory is not None:
        note = "what the memory of the weights gives"
        figure = _rate(memory, Source.MODEL, noun)
        rows.append(SummaryRow(label=f"{label}, {MEMORY}", figure=figure, note=note))
        limits.append((memory, "the weight memory"))
    link = link_of_run(found)
    if link is not None:
        note, figure = link_words(link, noun), _rate(link.images_per_s, Source.MODEL, noun)
        rows.append(SummaryRow(label=f"{label}, {LINK}", figure=figure, note=note))
        limits.append((link.images_per_s, "the serial link"))
        on_board = found.implement.bitstream_clock_mhz if found.implement else None
        if on_board is not None and on_board < clock:
            slower = on_board * 1e6 / interval_of(found)
            limits[0] = (slower, f"the core at {on_board:g} MHz, the clock of the bitstream")
    if len(limits) > 1:
        least, what = min(limits)
        label = f"{label}, {BOARD if link is not None else 'core and memory'}"
        note = f"{what} limits"
        rows.append(SummaryRow(label=label, figure=_rate(least, Source.MODEL, noun), note=note))
    return rows


def memory_rate(mapped: MapResult, clock_mhz: float) -> float | None:
    """Images a second that the memory of external weights gives; None without one.

    Its bandwidth is a share of the port's transfers, so it goes with the clock.
    """
    plan = mapped.weight_memory
    if plan is None or not plan["bytes_per_frame"]:
        return None
    gives = float(plan["available_gbytes_per_s"]) * 1e9 * clock_mhz / mapped.rate_clock_mhz
    return gives / float(plan["bytes_per_frame"])


def link_of_run(found: Results) -> LinkRow | None:
    """The serial link at the baud rate of the bitstream, or at the board's until there is one.

    None where the run has no bitstream although it was implemented.
    """
    link = None if found.map is None else found.map.link
    if link is None or found.implement is None:
        return link
    baud = found.implement.baud
    if baud is None:
        return None
    return link.model_copy(
        update={"baud": baud, "images_per_s": link.images_per_s * baud / link.baud}
    )


def link_words(link: LinkRow, noun: Noun) -> str:
    """Baud rate and bytes."""
    return f"{link.baud:,.0f} baud, {link.bytes_in} bytes in and {link.bytes_out} out {noun.each}"


def interval_of(found: Results) -> int:
    """Cycles between two images: simulated, or else predicted."""
    if found.simulate is not None:
        return found.simulate.interval
    if found.engine is not None:
        return found.engine.cycles
    return 0 if found.map is None else found.map.interval


def clock_of(found: Results) -> float | None:
    """The clock in MHz at which rates are said: the one asked for if it was met, else Fmax; before
    placement, one that the family reaches.
    """
    mapped = found.map or found.engine
    if mapped is None:
        return None
    fmax = None if found.implement is None else found.implement.figures.get("fmax_mhz")
    if fmax is None:
        return mapped.clock_mhz if found.map is None else found.map.rate_clock_mhz
    return min(mapped.clock_mhz, round(float(fmax.value), 2))


def clock_words(found: Results) -> str:
    """What the clock of `clock_of` is."""
    mapped, made = found.map or found.engine, found.implement
    fmax = None if made is None else made.figures.get("fmax_mhz")
    if mapped is None or fmax is None:
        return (found.map and found.map.clock_note) or "asked for"
    if fmax.value >= mapped.clock_mhz:
        return f"asked for and met (Fmax {fmax.value:.1f})"
    return f"reached; {mapped.clock_mhz:g} were asked for"


def _rate(value: float, source: Source, noun: Noun) -> Figure:
    return Figure(round(value) if value >= 100 else round(value, 2), f"{noun.many}/s", source)
