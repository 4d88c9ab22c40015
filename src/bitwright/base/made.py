# SPDX-License-Identifier: Apache-2.0
"""Which folders of results this user has made: noted in the user's cache, by their content.

A folder that came from elsewhere can say anything of itself, a hash of all that it depends on
included. What it cannot do is lie in the cache: an entry there is the user's own (`base.noted`).
Who gets a folder from somebody else, or has emptied the cache, makes the results again.
"""

from __future__ import annotations

from pathlib import Path

from bitwright.base.errors import RunError
from bitwright.base.files import sha256_file
from bitwright.base.folders import entries_below
from bitwright.base.noted import is_noted, note
from bitwright.base.store import content_key

_KIND = "made"
_MOST_FILES = 100_000
Sizes = dict[str, int]


def remember(folder: Path, key: str) -> None:
    """Note that this user has made a folder, as it is now.

    Args:
        key: hash of what it depends on.
    """
    sizes = _sizes(folder)
    if sizes is not None:
        hashes = _hashes(folder, sizes)
        # Made twice, a folder may differ in the times that it tells: each is the user's own.
        for place in (content_key(key, sizes), content_key(key, hashes)):
            note(_KIND, place)


def is_own(folder: Path, key: str) -> bool:
    """Whether this user has made a folder for a key, just as it is now.

    Files are read only where there is one of the same names and sizes.
    """
    sizes = _sizes(folder)
    if sizes is None:
        return False
    try:
        return is_noted(_KIND, content_key(key, sizes)) and is_noted(
            _KIND, content_key(key, _hashes(folder, sizes))
        )
    except OSError:
        return False


def _sizes(folder: Path) -> Sizes | None:
    """Every file by its name in the folder; None: there is none, or something else than files."""
    found: Sizes = {}
    if folder.is_symlink() or not folder.is_dir():
        return None
    try:
        for entry in entries_below(folder):
            if entry.is_file(follow_symlinks=False):
                size = entry.stat(follow_symlinks=False).st_size
                found[Path(entry.path).relative_to(folder).as_posix()] = size
            elif not entry.is_dir(follow_symlinks=False) or len(found) > _MOST_FILES:
                return None
    except (RunError, OSError):  # deeper than any of ours, or it goes just now
        return None
    return None if len(found) > _MOST_FILES else found


def _hashes(folder: Path, sizes: Sizes) -> dict[str, str]:
    return {name: sha256_file(folder / name) for name in sorted(sizes)}
