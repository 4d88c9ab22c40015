# SPDX-License-Identifier: Apache-2.0
"""Cycles of a program by a max-plus recursion: what the compiler and the report go by.

An instruction begins when its unit is free, the fetcher has dealt it (a queue has
`Constants.queue` places), and its tokens are given. X's durations are exact (``docs/engine.md``);
those of L and S assume a memory that gives `Constants.bytes_per_cycle`, at most a word a cycle, and
serves stores before loads only as far as each takes its own time: an estimate, which the timing
model of the RTL refines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bitwright.engine.config import EngineConfig
from bitwright.engine.emulator import expand
from bitwright.engine.isa import Exec, Input, Instruction, Load, Output, Store, Unit

_UNITS = (Unit.LOAD, Unit.EXECUTE, Unit.STORE)


@dataclass(frozen=True)
class Span:
    """When an instruction ran, in cycles from the start.

    Attributes:
        number: of the instruction in the program.
        ready: when its unit was free for it; begin: when it had its tokens too; end: when the unit
            is free again.
        waited: the unit whose token came last, if it had to wait for one; giver: the instruction
            that gave it.
    """

    number: int
    unit: Unit
    ready: float
    begin: float
    end: float
    waited: Unit | None
    giver: int | None = None


@dataclass(frozen=True)
class Timeline:
    """All spans in the order of the program, and the cycle in which the engine is done."""

    spans: tuple[Span, ...]
    cycles: int


def exec_period(job: Exec, given: Input, finish: Output, config: EngineConfig) -> int:
    """Cycles for which an EXEC keeps unit X; its signal comes `exec_result` cycles later."""
    groups = job.outputs * job.groups_y * job.groups_x
    steps, drain = job.kc * job.kh * job.kw * given.passes, config.drain
    leaves = config.leaves(finish.post, finish.result, bool(finish.lookup))
    # Values of an EXEC follow its first sums to the post lanes: they must not come there while
    # results of the EXEC before it still leave.
    late = drain - 1 if steps < drain else 0
    return groups * max(steps, leaves) + late + config.constants.exec_start


def move_cycles(move: Load | Store, config: EngineConfig) -> float:
    """Cycles of a LOAD or STORE that has the memory for itself."""
    constants = config.constants
    words = move.x * move.y * move.z
    start = constants.load_start if isinstance(move, Load) else constants.store_start
    if move.y * move.z == 1 or move.memory_y == move.x:
        bursts = -(-words // constants.burst_words)
    else:
        bursts = move.y * move.z * -(-move.x // constants.burst_words)
    each = max(1.0, config.word_bytes / constants.bytes_per_cycle)
    return start + words * each + bursts * constants.burst


def timeline(program: Sequence[Instruction], config: EngineConfig) -> Timeline:
    """When each instruction begins and ends.

    Raises:
        ProgramError: the program has no HALT.
        ValueError: a token is taken that nothing in front gives.
    """
    constants = config.constants
    free = {unit: 0.0 for unit in _UNITS}
    begun: dict[Unit, list[float]] = {unit: [] for unit in _UNITS}
    given: dict[tuple[int, int], list[tuple[float, int]]] = {}
    taken: dict[tuple[int, int], int] = {}
    fetched = memory = 0.0
    complete = (0.0, -1)  # the last EXEC
    setting, finish = Input(), Output()
    spans: list[Span] = []
    for number, instruction, _ in expand(program):
        unit, queue = instruction.unit, begun[instruction.unit]
        fetched += constants.fetch
        if len(queue) >= constants.queue:
            fetched = max(fetched, queue[-constants.queue])
        ready = begin = max(free[unit], fetched)
        waited = giver = None
        for other in _UNITS:
            if instruction.wait >> other & 1:
                at, who = complete if other == unit else _take(given, taken, other, unit)
                if at > begin:
                    begin, waited, giver = at, other, who
        end, done, memory = _end(instruction, begin, (setting, finish), memory, config)
        if isinstance(instruction, Input):
            setting = instruction
        if isinstance(instruction, Output):
            finish = instruction
        if unit == Unit.EXECUTE and not isinstance(instruction, Input | Output):
            complete = done, number
        for other in _UNITS:
            if instruction.signal >> other & 1:
                given.setdefault((unit, other), []).append((done, number))
        free[unit] = end
        queue.append(begin)
        spans.append(Span(number, unit, ready, begin, end, waited, giver))
    last = max([*free.values(), complete[0], fetched])
    return Timeline(tuple(spans), round(last))


def _end(
    instruction: Instruction,
    begin: float,
    settings: tuple[Input, Output],
    memory: float,
    config: EngineConfig,
) -> tuple[float, float, float]:
    """When the unit is free, when the instruction is complete, when the memory is free."""
    if isinstance(instruction, Exec):
        end = begin + exec_period(instruction, *settings, config)
        return end, end + config.exec_result, memory
    if isinstance(instruction, Load | Store):
        # Loads and stores share the memory; whoever begins first has it.
        end = max(begin, memory) + move_cycles(instruction, config)
        return end, end, end
    end = begin + config.constants.conf
    return end, end, memory


def _take(
    given: dict[tuple[int, int], list[tuple[float, int]]], taken: dict[tuple[int, int], int],
    giver: int, taker: int,
) -> tuple[float, int]:  # fmt: skip
    number = taken.get((giver, taker), 0)
    taken[giver, taker] = number + 1
    tokens = given.get((giver, taker), [])
    if number >= len(tokens):
        raise ValueError(f"a token of unit {giver} is taken that nothing gives")
    return tokens[number]


@dataclass(frozen=True)
class LayerTime:
    """What a layer took of X's time.

    Attributes:
        busy: cycles of its EXECs; waiting: cycles that X stood still for it, by the unit waited
            for (FETCH: for the next instruction).
    """

    layer: str
    busy: float
    waiting: dict[Unit, float]
    macs: int

    def utilisation(self, config: EngineConfig) -> float:
        """Multiply-accumulates of what the array could do in the layer's time, 0 .. 1."""
        total = self.busy + sum(self.waiting.values())
        return self.macs / (total * config.products) if total else 0.0


def by_layer(
    found: Timeline, layers: Sequence[str], macs: Mapping[str, int]
) -> list[LayerTime]:  # fmt: skip
    """X's time layer by layer, in the order of the program."""
    busy: dict[str, float] = {}
    waiting: dict[str, dict[Unit, float]] = {}
    free = 0.0
    for span in found.spans:
        if span.unit != Unit.EXECUTE:
            continue
        name = layers[span.number]
        busy[name] = busy.get(name, 0.0) + span.end - span.begin
        stood = waiting.setdefault(name, {})
        if span.ready > free:
            stood[Unit.FETCH] = stood.get(Unit.FETCH, 0.0) + span.ready - free
        if span.waited is not None:
            stood[span.waited] = stood.get(span.waited, 0.0) + span.begin - span.ready
        free = span.end
    return [LayerTime(name, busy[name], waiting[name], macs.get(name, 0)) for name in busy]


def utilisation(cycles: float, macs: int, config: EngineConfig) -> float:
    """Multiply-accumulates of the network of what the array could do in so many cycles."""
    return macs / (cycles * config.products)
