# SPDX-License-Identifier: Apache-2.0
"""The CP-SAT solver as searches use it."""

from __future__ import annotations

from typing import Any


def deterministic_solver() -> Any:
    """An `ortools.sat.python.cp_model.CpSolver` that gives the same answer every time and leaves
    Ctrl-C alone: with its own handler, none would be left behind it.
    """
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = 0
    solver.parameters.catch_sigint_signal = False
    return solver
