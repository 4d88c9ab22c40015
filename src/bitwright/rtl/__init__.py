# SPDX-License-Identifier: Apache-2.0
"""RTL: the hand-written library ``lib/*.sv`` and the emitter of the generated top level."""

from __future__ import annotations

import re
from functools import cache
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
    files = module_files()
    found: set[str] = set()
    waiting = sorted(roots)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        waiting += _maybe_instances(files[name].read_text(encoding="utf-8")) & files.keys()
    return sorted(found)


def needed_files(roots: set[str]) -> list[Path]:
    """Their files, in that order."""
    files = module_files()
    return [files[name] for name in needed_modules(roots)]


@cache
def _maybe_instances(text: str) -> frozenset[str]:
    """Names that stand where the name of a module does in an instance."""
    body = re.sub(r"//[^\n]*", "", text)
    return frozenset(re.findall(r"\b(\w+)(?=\s*#\s*\(|\s+\w+\s*\()", body))


__all__ = ["LIBRARY", "library_files", "module_files", "needed_files", "needed_modules"]
