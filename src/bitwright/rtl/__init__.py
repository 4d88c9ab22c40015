# SPDX-License-Identifier: Apache-2.0
"""RTL: the hand-written library ``lib/*.sv`` and the emitter of the generated top level."""

from __future__ import annotations

from pathlib import Path

LIBRARY = Path(__file__).resolve().parent / "lib"
"""Folder of the hand-written SystemVerilog modules, one a file, file name = module name."""


def library_files() -> tuple[Path, ...]:
    """All files of the library, sorted by name: stable order for lists, hashes and copies."""
    return tuple(sorted(LIBRARY.glob("*.sv")))


__all__ = ["LIBRARY", "library_files"]
