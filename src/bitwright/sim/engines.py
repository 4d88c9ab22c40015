# SPDX-License-Identifier: Apache-2.0
"""Whether an engine's instructions began and ended in the cycles that its timing model says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bitwright.base.errors import MismatchError
from bitwright.engine.isa import Exec, Instruction, Load, Store
from bitwright.engine.timing import Timing
from bitwright.rtl.emit_engine import EVENTS
from bitwright.sim.programs import ProgramRun

_KINDS = (("load", Load), ("execute", Exec), ("store", Store))


def check_cycles(
    program: Sequence[Instruction], run: ProgramRun, timing: Timing, number: int
) -> int:  # fmt: skip
    """Compare a simulated run with run ``number`` of the model, on the same memory and seed.

    Returns:
        how many instructions were compared, each with begin and end.

    Raises:
        MismatchError: one, or the whole run, differs.
    """
    compared = 0
    for name, kind in _KINDS:
        rows = [n for n, one in enumerate(program) if isinstance(one, kind)]
        compared += len(rows)
        for what, cycles in (("begins", timing.begin), ("ends", timing.end)):
            got = run.when(EVENTS.index(f"{name} {what}")) + run.start
            wanted = cycles[number, rows]
            if np.array_equal(got, wanted):
                continue
            size = min(len(got), len(wanted))
            late = np.flatnonzero(got[:size] != wanted[:size])
            at = int(late[0]) if len(late) else size
            raise MismatchError(
                f"run {number}: {name} {at} of {len(rows)} (instruction "
                f"{rows[at] if at < len(rows) else '-'}) {what} in cycle "
                f"{got[at] if at < len(got) else 'never'}, predicted "
                f"{wanted[at] if at < len(wanted) else 'never'}",
                where="the engine's timing",
            )
    whole = (timing.start[number], timing.done[number], timing.cycles[number])
    if (run.start, run.end, run.cycles) != whole:
        raise MismatchError(
            f"run {number}: start, end and cycles {run.start}, {run.end}, {run.cycles}; predicted "
            f"{', '.join(str(int(cycle)) for cycle in whole)}",
            where="the engine's timing",
        )
    return compared
