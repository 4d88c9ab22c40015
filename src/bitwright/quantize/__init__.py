# SPDX-License-Identifier: Apache-2.0
"""Policies, quantizers, conversion of a plain module through torch.fx, and freezing to integers.

``policy`` needs no torch, so that recipes are checked quickly; everything else is loaded when it is
first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bitwright.quantize.policy import Policy
from bitwright.quantize.spec import Granularity, QuantSpec, Role, ScaleRule

if TYPE_CHECKING:
    from bitwright.quantize.convert import apply, is_converted
    from bitwright.quantize.elementwise import Elementwise
    from bitwright.quantize.explanation import explain, inspect_model
    from bitwright.quantize.integers import IntegerModel, integerize
    from bitwright.quantize.model import QuantizedModel
    from bitwright.quantize.own_layers import register_layer
    from bitwright.quantize.quantizer import Phase

_LAZY = {
    "apply": "convert",
    "is_converted": "convert",
    "Elementwise": "elementwise",
    "explain": "explanation",
    "inspect_model": "explanation",
    "IntegerModel": "integers",
    "QuantizedModel": "model",
    "integerize": "integers",
    "register_layer": "own_layers",
    "Phase": "quantizer",
}

__all__ = [
    "Elementwise",
    "Granularity",
    "IntegerModel",
    "Phase",
    "Policy",
    "QuantSpec",
    "QuantizedModel",
    "Role",
    "ScaleRule",
    "apply",
    "explain",
    "inspect_model",
    "integerize",
    "is_converted",
    "register_layer",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
