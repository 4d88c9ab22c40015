# SPDX-License-Identifier: Apache-2.0
"""Ristretto (Gysel 2016): its search for bit widths, its layers, its files.

Names are loaded when they are first asked for, so that a command line can know them without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bitwright.base.plugins import Plugin

if TYPE_CHECKING:
    from bitwright.papers.ristretto.behaviour import Behaviour, Parity
    from bitwright.papers.ristretto.run import RistrettoResult, search_ristretto
    from bitwright.papers.ristretto.search import Outcome, Setting, TrimmingMode

PLUGIN = Plugin(commands={"ristretto": f"{__name__}.cli:add_commands"})
_LAZY = {
    "Behaviour": "behaviour",
    "Outcome": "search",
    "Parity": "behaviour",
    "RistrettoResult": "run",
    "Setting": "search",
    "TrimmingMode": "search",
    "search_ristretto": "run",
}

__all__ = [
    "Behaviour",
    "Outcome",
    "Parity",
    "RistrettoResult",
    "Setting",
    "TrimmingMode",
    "search_ristretto",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
