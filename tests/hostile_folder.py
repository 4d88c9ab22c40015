# SPDX-License-Identifier: Apache-2.0
"""A folder to stand in that holds modules of strangers, named as those that everybody imports."""

from __future__ import annotations

from pathlib import Path

NAMES = ("queue", "numpy", "torch", "json", "fileinput", "multiprocessing", "no_package_at_all")


def hostile_folder(folder: Path) -> Path:
    """Fill a folder; gives the file that each of its modules writes its name into."""
    folder.mkdir(parents=True, exist_ok=True)
    harmed = folder / "HARMED"
    for name in NAMES:
        text = f"with open({str(harmed)!r}, 'a') as file:\n    file.write({name!r} + '\\n')\n"
        (folder / f"{name}.py").write_text(text)
    return harmed
