# SPDX-License-Identifier: Apache-2.0
"""Few-bit CNNs, from a PyTorch model to working silicon, with nothing but ``pip``.

The public names are those of `bitwright.pipeline.api`; they are looked up when first used, so that
``import bitwright`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from bitwright.base.version import __version__

if TYPE_CHECKING:
    from bitwright.pipeline.api import BuiltModel, Pipeline, build_model, build_recipe, load_recipe

__all__ = [
    "BuiltModel",
    "Pipeline",
    "__version__",
    "build_model",
    "build_recipe",
    "load_recipe",
]


#: Rooms under the names that they had before.
_FORMER = {"quant": "quantize"}


def __getattr__(name: str) -> object:
    if name in _FORMER:
        return import_module(f"{__name__}.{_FORMER[name]}")
    if name in __all__:
        from bitwright.pipeline import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
