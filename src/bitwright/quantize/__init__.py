# SPDX-License-Identifier: Apache-2.0
"""Policies, quantizers, conversion of a plain module through torch.fx, and freezing to integers.

``policy`` needs no torch, so that recipes are checked quickly; everything else is loaded when it is
first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bitwright.quantize.policy import Granularity, Policy, QuantSpec, Role, ScaleRule

if TYPE_CHECKING:
    from bitwright.quantize.activation_quantizer import Phase
    from bitwright.quantize.convert import apply, is_converted
    from bitwright.quantize.explanation import examine, explain, inspect_model
    from bitwright.quantize.frozen import FrozenModel

_LAZY = {
    "apply": "convert",
    "is_converted": "convert",
    "examine": "explanation",
    "explain": "explanation",
    "inspect_model": "explanation",
    "FrozenModel": "frozen",
    "Phase": "weight_quantizer",
}

__all__ = [
    "FrozenModel",
    "Granularity",
    "Phase",
    "Policy",
    "QuantSpec",
    "Role",
    "ScaleRule",
    "apply",
    "examine",
    "explain",
    "inspect_model",
    "is_converted",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
