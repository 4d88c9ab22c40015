# SPDX-License-Identifier: Apache-2.0
"""Whole numbers, or arrays of them: the models' formulas count one kernel, or thousands at once."""

from __future__ import annotations

from functools import reduce
from typing import Any, TypeAlias

import numpy as np

#: An ``int``, or an array of int64 with one entry for each of the kernels that are counted at once.
Count: TypeAlias = Any


def up(value: Count, step: Count) -> Count:
    """``value / step``, rounded up."""
    return -(-value // step)


def align(value: Count, step: Count) -> Count:
    """The smallest multiple of ``step`` that is no smaller."""
    return up(value, step) * step


def largest(*values: Count) -> Count:
    """The largest, entry by entry where one is an array."""
    return max(values) if _plain(values) else reduce(np.maximum, values)


def least(*values: Count) -> Count:
    """The smallest, entry by entry where one is an array."""
    return min(values) if _plain(values) else reduce(np.minimum, values)


def choose(condition: Any, yes: Count, no: Count) -> Count:
    """``yes`` where a condition holds, else ``no``."""
    if isinstance(condition, np.ndarray):
        return np.where(condition, yes, no)
    return yes if condition else no


def _plain(values: tuple[Count, ...]) -> bool:
    return not any(isinstance(value, np.ndarray) for value in values)
