# SPDX-License-Identifier: Apache-2.0
"""The model zoo. Names, specs and entries come without torch; building imports it when needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitwright.models.catalog import ModelInfo, ModelSpec, list_models
from bitwright.models.pretrained import Pretrained, list_pretrained

if TYPE_CHECKING:
    from bitwright.models.factory import build_model, load_pretrained

__all__ = [
    "ModelInfo",
    "ModelSpec",
    "Pretrained",
    "build_model",
    "list_models",
    "list_pretrained",
    "load_pretrained",
]


def __getattr__(name: str) -> object:
    if name in ("build_model", "load_pretrained"):
        from bitwright.models import factory

        return getattr(factory, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
