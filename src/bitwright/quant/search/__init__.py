# SPDX-License-Identifier: Apache-2.0
"""Which format for which layer: Ristretto's search, sensitivity tables, mixed precision by layer.

Names are loaded when they are first asked for, so that a command line can know them without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bitwright.quant.search.behaviour import Behaviour, Parity
    from bitwright.quant.search.candidates import Candidates, parse_candidates
    from bitwright.quant.search.goals import Goal, parse_budget
    from bitwright.quant.search.metrics import EmbeddingAgreement, Metric, Top1, Verification
    from bitwright.quant.search.mixed import MixedResult, search_mixed
    from bitwright.quant.search.quantization_param import QuantizationParam
    from bitwright.quant.search.ristretto import Outcome, Setting, TrimmingMode
    from bitwright.quant.search.ristretto_run import RistrettoResult, search_ristretto
    from bitwright.quant.search.sensitivity import SensitivityTable, sensitivity_table

_LAZY = {
    "Behaviour": "behaviour",
    "Parity": "behaviour",
    "Candidates": "candidates",
    "parse_candidates": "candidates",
    "Goal": "goals",
    "parse_budget": "goals",
    "EmbeddingAgreement": "metrics",
    "Metric": "metrics",
    "Top1": "metrics",
    "Verification": "metrics",
    "MixedResult": "mixed",
    "search_mixed": "mixed",
    "QuantizationParam": "quantization_param",
    "Outcome": "ristretto",
    "Setting": "ristretto",
    "TrimmingMode": "ristretto",
    "RistrettoResult": "ristretto_run",
    "search_ristretto": "ristretto_run",
    "SensitivityTable": "sensitivity",
    "sensitivity_table": "sensitivity",
}

__all__ = [
    "Behaviour",
    "Candidates",
    "EmbeddingAgreement",
    "Goal",
    "Metric",
    "MixedResult",
    "Outcome",
    "Parity",
    "QuantizationParam",
    "RistrettoResult",
    "SensitivityTable",
    "Setting",
    "Top1",
    "TrimmingMode",
    "Verification",
    "parse_budget",
    "parse_candidates",
    "search_mixed",
    "search_ristretto",
    "sensitivity_table",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
