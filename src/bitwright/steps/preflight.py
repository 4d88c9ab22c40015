# SPDX-License-Identifier: Apache-2.0
"""Whatever can go wrong is tried on the untrained network first, before hours of training."""

from __future__ import annotations

from bitwright.run import Run
from bitwright.steps.results import MapResult
from bitwright.steps.workspace import Workspace


def preflight(work: Workspace, run: Run, chosen: list[str]) -> None:
    """Report whatever will stop the chosen steps, before any of them starts.

    Raises:
        BitwrightError: an unknown target, a model that cannot be built, converted or lowered, or a
            design that does not fit.
    """


def dry_run(work: Workspace) -> MapResult:
    """The path from the untrained network to the hardware graph, nothing written."""
    raise NotImplementedError
