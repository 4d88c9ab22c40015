# SPDX-License-Identifier: Apache-2.0
"""Where the cycles of a timed program go: when each unit worked, and for whom X stood still."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bitwright.engine.config import EngineConfig
from bitwright.engine.estimate import Span, Timeline, exec_period
from bitwright.engine.isa import Buffer, Exec, Input, Instruction, Load, Output, Store, Unit
from bitwright.engine.timing import Timing

_UNITS = (Unit.LOAD, Unit.EXECUTE, Unit.STORE)
_LOADED = {
    Buffer.FEATURES: "maps",
    Buffer.WEIGHTS: "weights",
    Buffer.PARAMETERS: "parameters",
    Buffer.TABLES: "tables",
}


@dataclass(frozen=True)
class Wait:
    """Cycles that X stood still in a layer.

    Attributes:
        what: that it waited for: ``weights``, ``maps``, ``results``, ``room`` (a store had not yet
            read what is to be written over), ``instructions``.
        of: the layer whose weights, maps, ... these were; empty for instructions.
    """

    layer: str
    what: str
    of: str
    cycles: int


def exact_timeline(
    program: Sequence[Instruction], config: EngineConfig, timing: Timing, run: int = 0
) -> Timeline:
    """The spans of one run of `engine.timing.simulate`, in cycles from its start.

    INPUT and OUTPUT cost X nothing and have no span. What X waits for is the token that came last,
    or, where none came later than X was free, the fetcher.
    """
    start = int(timing.start[run]) + 1
    begins, ends = timing.begin[run] - start, timing.end[run] - start
    free = {unit: 0 for unit in _UNITS}
    given: dict[tuple[int, int], list[int]] = {}
    taken: dict[tuple[int, int], int] = {}
    last_exec: int | None = None
    setting, finish, spans = Input(), Output(), []
    for number, instruction in enumerate(program):
        if isinstance(instruction, Input):
            setting = instruction
        if isinstance(instruction, Output):
            finish = instruction
        if not isinstance(instruction, Load | Exec | Store):
            continue
        unit, begin = instruction.unit, int(begins[number])
        came: list[tuple[int, int]] = []
        for other in _UNITS:
            if not instruction.wait >> other & 1:
                continue
            if other == unit:
                came += [] if last_exec is None else [(int(ends[last_exec]) + 1, last_exec)]
                continue
            place = taken.get((other, unit), 0)
            taken[other, unit] = place + 1
            giver = given[other, unit][place]
            came.append((int(ends[giver]) + 1, giver))
        latest, giver = max(came, default=(0, -1))
        late = latest > free[unit]
        if isinstance(instruction, Exec):
            end, last_exec = begin + exec_period(instruction, setting, finish, config), number
        else:
            end = int(ends[number])
        spans.append(
            Span(
                number, unit, free[unit] if late else begin, begin, end,
                Unit(program[giver].unit) if late else None, giver if late else None,
            )
        )  # fmt: skip
        free[unit] = end if unit != Unit.LOAD else begin
        for other in _UNITS:
            if instruction.signal >> other & 1:
                given.setdefault((unit, other), []).append(number)
    return Timeline(tuple(spans), int(timing.cycles[run]))


def waits(
    found: Timeline, program: Sequence[Instruction], layers: Sequence[str]
) -> tuple[Wait, ...]:  # fmt: skip
    """Every reason for which X stood still, the longest first.

    Args:
        found: of `exact_timeline`, or of `estimate.timeline`.
        layers: of each instruction, its layer.
    """
    cycles: dict[tuple[str, str, str], float] = {}
    free = 0.0
    for span in found.spans:
        if span.unit != Unit.EXECUTE:
            continue
        layer = layers[span.number]
        if span.ready > free:
            key = (layer, "instructions", "")
            cycles[key] = cycles.get(key, 0) + span.ready - free
        if span.giver is not None:
            key = (layer, _what(program[span.giver]), layers[span.giver])
            cycles[key] = cycles.get(key, 0) + span.begin - span.ready
        free = span.end
    rows = [Wait(*key, round(count)) for key, count in cycles.items() if round(count)]
    return tuple(sorted(rows, key=lambda row: -row.cycles))


def _what(giver: Instruction) -> str:
    if isinstance(giver, Load):
        return _LOADED[giver.buffer]
    return "room" if isinstance(giver, Store) else "results"
