# SPDX-License-Identifier: Apache-2.0
"""What the memory is held to behind a run of the engine's RTL: the emulator's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bitwright.engine.emulator import Memory, expand, outside_words
from bitwright.engine.isa import Instruction, Store
from bitwright.sim import ProgramRun


def check_memory(
    program: Sequence[Instruction], before: Memory, after: Memory, run: ProgramRun
) -> None:
    """What the emulator says was written is there, and nothing else has changed."""
    stored = np.zeros(len(before.words), np.bool_)
    for _, instruction, bases in expand(program):
        if isinstance(instruction, Store):
            stored[outside_words(instruction, bases, len(stored), "a store")] = True
    got = run.memory.reshape(before.words.shape)
    undefined = stored[:, np.newaxis] & ~after.written
    wrong = (got != after.words) & ~undefined
    assert not wrong.any(), f"word {int(np.argwhere(wrong)[0][0])} differs"
