# SPDX-License-Identifier: Apache-2.0
"""Files that the settings of a design folder name: a target, a board, an engine, a folding.

In the folder a relative name starts at the folder itself, wherever its user stands, and what lies
inside of it is written so: it can move. A name that its user types starts where he stands.

The settings of a folder that came from elsewhere may name anything that its user can read, of which
messages would tell. So a file outside of the folder is read only where this user has named it
himself, here or in another folder (noted in his cache, as `base.noted`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from bitwright.base.described import is_file_name
from bitwright.base.errors import RunError
from bitwright.base.noted import forgets, is_noted, note
from bitwright.base.store import content_key
from bitwright.pipeline.recipe_hardware import HardwareSection
from bitwright.pipeline.recipe_schema import ImplementSection

_KIND = "named"


def named_files(hardware: HardwareSection, implement: ImplementSection) -> dict[str, Path]:
    """Each file that the settings name, by the setting that does."""
    folding = hardware.folding_config_file
    found = {
        "hardware.folding_config_file": None if folding is None else str(folding),
        "hardware.engine": hardware.engine if _is_engine_file(hardware.engine) else None,
        "hardware.target": hardware.target if is_file_name(hardware.target) else None,
        "implement.board": implement.board if is_file_name(implement.board or "") else None,
    }
    return {setting: Path(name) for setting, name in found.items() if name is not None}


def rename_files(
    hardware: HardwareSection, implement: ImplementSection, change: Callable[[Path], Path]
) -> tuple[HardwareSection, ImplementSection]:
    """The settings with the name of each file changed; what is no file's name stays."""
    found = {setting: change(path) for setting, path in named_files(hardware, implement).items()}
    values = {setting: str(path) for setting, path in found.items()}
    for setting in {"hardware.target", "implement.board"} & values.keys():
        if not is_file_name(values[setting]):  # of no ending, in the folder itself
            values[setting] = f"./{values[setting]}"
    folding = found.get("hardware.folding_config_file")
    fields = {
        "folding_config_file": folding,
        "engine": values.get("hardware.engine", hardware.engine),
        "target": values.get("hardware.target", hardware.target),
    }
    board = values.get("implement.board", implement.board)
    return hardware.model_copy(update=fields), implement.model_copy(update={"board": board})


def absolute(path: Path) -> Path:
    """A path from where the user stands as an absolute one, without ``..`` where they say nothing
    (behind a link they do).
    """
    found, plain = path.absolute(), os.path.abspath(path)
    return Path(plain) if os.path.realpath(plain) == os.path.realpath(found) else found


def from_folder(path: Path, folder: Path) -> Path:
    """How a folder's own settings name a file: from the folder if it lies inside, else absolute."""
    wanted = absolute(path)
    real = Path(os.path.realpath(wanted)), Path(os.path.realpath(folder))
    for place, home in ((wanted, absolute(folder)), real):
        if place.is_relative_to(home) and ".." not in place.relative_to(home).parts:
            return place.relative_to(home)
    return wanted


def _is_engine_file(name: str) -> bool:
    return Path(name).suffix == ".json"


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
        RunError: a file lies outside of the folder, and this user has never named it; or is not
            there.
    """
    home = os.path.realpath(folder)
    for setting, path in files.items():
        if Path(os.path.realpath(path)).is_relative_to(home) or is_noted(_KIND, _key(path)):
            continue
        if not path.is_file():
            raise RunError(
                f"{setting} names {str(path)!r}: there is no such file",
                where=str(folder),
                hint=f"name one: bitwright map {folder} --set {setting}=FILE",
            )
        reason = forgets(_KIND)
        raise RunError(
            f"{setting} names {str(path)!r}, a file outside of this folder",
            where=str(folder),
            hint=f"if you mean it, say so once: bitwright map {folder} --set {setting}=FILE"
            if not reason
            else f"if you mean it, say so for this command: --set {setting}=FILE; {reason}, and so "
            "it is not remembered (BITWRIGHT_CACHE names another folder)",
        )


def _sets(assignment: str, setting: str) -> bool:
    name = assignment.partition("=")[0].strip()
    return setting == name or setting.startswith(f"{name}.")


def _key(path: Path) -> str:
    return content_key(_KIND, os.path.realpath(path))
