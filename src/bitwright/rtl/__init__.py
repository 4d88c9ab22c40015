# SPDX-License-Identifier: Apache-2.0
"""RTL: the hand-written library ``lib/*.sv`` and the emitter of the generated top level."""

from __future__ import annotations

import re
from pathlib import Path

from bitwright.base.errors import GraphError
from bitwright.hw.own import own_sources

LIBRARY = Path(__file__).resolve().parent / "lib"
"""Folder of the hand-written SystemVerilog modules, one a file, file name = module name."""


def library_files() -> tuple[Path, ...]:
    """All files of the library, sorted by name: stable order for lists, hashes and copies."""
    return tuple(sorted(LIBRARY.glob("*.sv")))


def module_files() -> dict[str, Path]:
    """Module name -> file: the library and what the user's own blocks bring.

    Raises:
        GraphError: a module of the user's has the name of one of the library.
    """
    library = {path.stem: path for path in library_files()}
    own = own_sources()
    for name in library.keys() & own.keys():
        raise GraphError(
            f"the library has a module {name!r}", where=str(own[name]), hint="choose another name"
        )
    return library | own


def needed_modules(roots: set[str]) -> list[str]:
    """Modules that these modules need, themselves included, sorted."""
    texts = {name: path.read_text(encoding="utf-8") for name, path in module_files().items()}
    found: set[str] = set()
    waiting = sorted(roots)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        body = re.sub(r"//[^\n]*", "", texts[name])
        waiting += [n for n in texts if re.search(rf"\b{n}\s*(#\s*\(|\w+\s*\()", body)]
    return sorted(found)


__all__ = ["LIBRARY", "library_files", "module_files", "needed_modules"]
