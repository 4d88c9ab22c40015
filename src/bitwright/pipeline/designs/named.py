# SPDX-License-Identifier: Apache-2.0
"""Files that the settings of a design folder name: a target, a board, an engine, a folding.

The settings of a folder that came from elsewhere may name anything that its user can read, of which
messages would tell. So a file outside of the folder is read only where this user has named it
himself, here or in another folder (noted in his cache, as `base.noted`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from bitwright.base.errors import RunError
from bitwright.base.noted import is_noted, note
from bitwright.base.store import content_key
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.recipe_schema import ImplementSection

_KIND = "named"


def named_files(hardware: HardwareSection, implement: ImplementSection) -> dict[str, Path]:
    """Each file that the settings name, by the setting that does."""
    folding, engine = hardware.folding_config_file, hardware.engine
    found = {
        "hardware.folding_config_file": None if folding is None else str(folding),
        "hardware.engine": engine if Path(engine).suffix == ".json" else None,
        "hardware.target": _described(hardware.target),
        "implement.board": _described(implement.board or ""),
    }
    return {setting: Path(name) for setting, name in found.items() if name is not None}


def _described(name: str) -> str | None:
    """A name as `base.described` takes it, if it is one of a file."""
    return name if name.endswith(".toml") or "/" in name else None


def remember_named(files: dict[str, Path], assignments: Sequence[str] | None = None) -> None:
    """Note files that this user names.

    Args:
        files: of `named_files`.
        assignments: only those of them that one of these ``SECTION.KEY=VALUE`` sets; None: all.
    """
    for setting, path in files.items():
        if assignments is None or any(_sets(given, setting) for given in assignments):
            note(_KIND, _key(path))


def check_named(folder: Path, files: dict[str, Path]) -> None:
    """Make sure that a folder's settings name nothing that its user has not.

    Raises:
        RunError: a file lies outside of the folder, and this user has never named it.
    """
    home = os.path.realpath(folder)
    for setting, path in files.items():
        inside = Path(os.path.realpath(path)).is_relative_to(home)
        if not inside and not is_noted(_KIND, _key(path)):
            raise RunError(
                f"{setting} names {str(path)!r}, a file outside of this folder",
                where=str(folder),
                hint=f"if you mean it, say so once: --set {setting}=FILE",
            )


def _sets(assignment: str, setting: str) -> bool:
    name = assignment.partition("=")[0].strip()
    return setting == name or setting.startswith(f"{name}.")


def _key(path: Path) -> str:
    return content_key(_KIND, os.path.realpath(path))
