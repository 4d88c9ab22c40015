# SPDX-License-Identifier: Apache-2.0
"""The model zoo. Names and specs come without torch; ``build_model`` imports it when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bitwright.models.catalog import ModelInfo, ModelSpec, list_models

if TYPE_CHECKING:
    from bitwright.models.factory import build_model

__all__ = ["ModelInfo", "ModelSpec", "build_model", "list_models"]


def __getattr__(name: str) -> object:
    if name == "build_model":
        from bitwright.models.factory import build_model

        return build_model
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
