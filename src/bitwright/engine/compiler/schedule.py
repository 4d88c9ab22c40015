# SPDX-License-Identifier: Apache-2.0
"""Steps -> program: loads drawn forward, settings where they change, tokens where units meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bitwright.engine.compiler.steps import Action, Placed, Space, Step
from bitwright.engine.config import EngineConfig
from bitwright.engine.isa import Exec, Halt, Input, Output, Unit

#: Loads that may stand in front of the EXECs of the steps before theirs: the load unit runs ahead,
#: but its queue must never be full while X has nothing to do.
AHEAD = 14

_UNITS = (Unit.LOAD, Unit.EXECUTE, Unit.STORE)


def ordered(steps: Sequence[Step], ahead: int = AHEAD) -> Iterator[Action]:
    """All actions in the order of the program.

    A load is drawn in front of the EXECs of earlier steps as long as it meets nothing that those
    steps still have to do: every token then points backwards.
    """
    queue = [(number, load) for number, step in enumerate(steps) for load in step.loads]
    taken = due = 0
    for number, step in enumerate(steps):
        while taken < len(queue) and queue[taken][0] <= number:
            yield queue[taken][1]
            taken += 1
        due += len(step.loads)
        while taken < min(due + ahead, len(queue)):
            owner, load = queue[taken]
            between = steps[number:owner]
            if any(load.meets(other) for s in between for other in (*s.execs, *s.stores)):
                break
            yield load
            taken += 1
        yield from step.execs
        yield from step.stores


class _Tracker:
    """Who touched which word last: one number of an instruction for each unit and word."""

    def __init__(self, words: dict[Space, int]) -> None:
        self.last: dict[tuple[Space, bool], NDArray[np.int64]] = {
            (space, write): np.full((len(_UNITS), size), -1, np.int64)
            for space, size in words.items()
            for write in (False, True)
        }

    def before(self, action: Action) -> NDArray[np.int64]:
        """Of each unit, the last instruction that must be complete."""
        found = np.full(len(_UNITS), -1, np.int64)
        for access in action.accesses:
            for write in (False, True) if access.write else (True,):
                table = self.last[access.space, write][:, access.low : access.high]
                if table.shape[1]:
                    found = np.maximum(found, table.max(axis=1))
        return found

    def note(self, action: Action, unit: Unit, number: int) -> None:
        for access in action.accesses:
            self.last[access.space, access.write][unit, access.low : access.high] = number


def program_of(
    steps: Sequence[Step], config: EngineConfig, memory_words: int, ahead: int = AHEAD
) -> list[Placed]:
    """The program of the steps, with HALT, settings and tokens.

    A unit waits for another only for what it does not know to be complete: what it waited for
    before, and what the givers of those tokens knew. So every token that is given is taken once, in
    order.
    """
    tracker = _Tracker(
        {
            Space.FEATURES: config.feature_words,
            Space.WEIGHTS: config.weight_rows,
            Space.PARAMETERS: config.parameter_rows,
            Space.TABLES: config.table_words,
            Space.MEMORY: memory_words,
        }
    )
    program: list[Placed] = []
    seen = np.full((len(_UNITS), len(_UNITS)), -1, np.int64)  # known to be complete: [who][whose]
    known: dict[int, NDArray[np.int64]] = {}  # of each instruction, with its token
    settings: tuple[Input, Output] | None = None
    for action in ordered(steps, ahead):
        unit = action.instruction.unit
        if action.settings is not None and action.settings != settings:
            old = settings or (None, None)
            for now, before in zip(action.settings, old, strict=True):
                if now != before:
                    program.append(Placed(now, action.layer))
            settings = action.settings
        number, wait = len(program), 0
        needed = tracker.before(action)
        for other in _UNITS:
            if other == unit or needed[other] <= seen[unit, other]:
                continue
            wait |= 1 << other
            seen[unit] = np.maximum(seen[unit], known[int(needed[other])])
            giver = program[needed[other]]
            signalled = replace(
                giver.instruction, signal=giver.instruction.signal | 1 << unit
            )  # fmt: skip
            program[needed[other]] = replace(giver, instruction=signalled)
        if isinstance(action.instruction, Exec) and _rereads(tracker, action, seen):
            wait |= 1 << unit
            seen[unit, unit] = number - 1
        tracker.note(action, unit, number)
        known[number] = seen[unit].copy()
        known[number][unit] = number
        program.append(Placed(replace(action.instruction, wait=wait), action.layer))
    program.append(Placed(Halt(), ""))
    return program


def _rereads(tracker: _Tracker, action: Action, seen: NDArray[np.int64]) -> bool:
    """Whether an EXEC reads what an EXEC wrote that may not be complete."""
    unit = Unit.EXECUTE
    for access in action.accesses:
        if access.space == Space.FEATURES and not access.write:
            table = tracker.last[Space.FEATURES, True][unit, access.low : access.high]
            if table.size and table.max() > seen[unit, unit]:
                return True
    return False
