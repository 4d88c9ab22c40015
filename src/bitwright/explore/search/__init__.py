# SPDX-License-Identifier: Apache-2.0
"""Which format for which layer: sensitivity tables, mixed precision by layer.

Names are loaded when they are first asked for, so that a command line can know them without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitwright.explore.search.candidates import Candidates, parse_candidates
    from bitwright.explore.search.goals import Goal, parse_budget
    from bitwright.explore.search.metrics import EmbeddingAgreement, Metric, Top1, metric_for
    from bitwright.explore.search.mixed import MixedResult, search_mixed
    from bitwright.explore.search.sensitivity import SensitivityTable, sensitivity_table

_LAZY = {
    "Candidates": "candidates",
    "EmbeddingAgreement": "metrics",
    "Goal": "goals",
    "Metric": "metrics",
    "MixedResult": "mixed",
    "SensitivityTable": "sensitivity",
    "Top1": "metrics",
    "metric_for": "metrics",
    "parse_budget": "goals",
    "parse_candidates": "candidates",
    "search_mixed": "mixed",
    "sensitivity_table": "sensitivity",
}

__all__ = [
    "Candidates",
    "EmbeddingAgreement",
    "Goal",
    "Metric",
    "MixedResult",
    "SensitivityTable",
    "Top1",
    "metric_for",
    "parse_budget",
    "parse_candidates",
    "search_mixed",
    "sensitivity_table",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
