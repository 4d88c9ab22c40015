# SPDX-License-Identifier: Apache-2.0
"""Folders of whatever origin: what lies in them, as deep as ours are; no links on the way to what
is written; made, put in place and taken away whole. Whose they are, `base.ownership` asks.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bitwright.base.errors import RunError
from bitwright.base.ownership import check_way

#: Folders inside each other. Ours have some ten; Python's own functions call themselves for each,
#: and end at a thousand, which take 2000 letters of a path.
DEEPEST = 64
_NAME = 40  #: letters of a folder's name in that of the one beside it
#: Of a folder that is made: not everybody's, even if that is what the user's other files are.
_MODE = 0o775
_LINK = "is a symbolic link, by which something would be written elsewhere"
_LINK_HINT = "remove it, or put a folder or file of its own in its place"


def make_folder(folder: Path, *, anew: bool = False) -> None:
    """A folder with those on the way to it, where it is not there yet.

    Args:
        anew: nothing may be in its place.

    Raises:
        FileExistsError: something is.
        OSError: it cannot be made; `EROFS` too, where a file system takes no folders (`/proc`).
    """
    try:
        for step in reversed(folder.parents):
            if not os.path.lexists(step):
                step.mkdir(_MODE, exist_ok=True)
        folder.mkdir(_MODE, parents=True, exist_ok=not anew)
    except FileNotFoundError:  # of a folder whose parents are there: as if it were our mistake
        raise OSError(errno.EROFS, "no folder can be made here", str(folder)) from None


def make_way(place: Path) -> None:
    """Make the folders that lead to what will be written, before it is computed: where others may
    make some, as in ``/tmp``, they could put one of theirs, or a link, there meanwhile.

    Raises:
        RunError: as `check_way`.
        OSError: one cannot be made.
    """
    check_way(place)
    if not place.parent.is_dir():
        make_folder(place.parent)
    check_way(place)  # somebody was quicker


@contextmanager
def kept_way(place: Path) -> Iterator[None]:
    """As `make_way`; those that were not there go again if nothing was written into them.

    Raises:
        RunError, OSError: as `make_way`.
    """
    made = [step for step in place.parents if not os.path.lexists(step)]
    try:
        make_way(place)
        yield
    finally:
        with suppress(OSError):  # something is in it
            for step in made:
                step.rmdir()


@contextmanager
def whole_folder(place: Path) -> Iterator[Path]:
    """A folder to write into that takes the place of another, if all goes well, at once. Nobody
    else can reach it meanwhile, whoever may write where it goes: what lies in it may be run, and
    what is written by name goes nowhere else.

    Raises:
        RunError: the place has no name, as the current folder; as `check_way`; something was put
            there, where nothing was at the beginning.
        OSError: it cannot be written.
    """
    if place.name in ("", ".."):
        raise RunError(
            "is where somebody may stand; a new folder would take its place",
            where=str(place),
            hint="name a folder in it",
        )
    make_way(place)
    free = not os.path.lexists(place) or (place.is_dir() and not any(place.iterdir()))
    with tempfile.TemporaryDirectory(prefix="bitwright-") as own:
        made = Path(own, "made")
        made.mkdir()
        yield made
        beside = place.with_name(f".{place.name[:_NAME]}.{secrets.token_hex(6)}")
        make_folder(beside, anew=True)
        old, is_there = beside.with_name(beside.name + ".old"), False
        try:
            _copy_into(_opened(str(beside)), made)
            check_way(place)
            if not free and os.path.lexists(place):  # moved away first and then deleted
                place.rename(old)
            try:
                beside.rename(place)  # an empty folder may be there, nothing else
                is_there = True
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    said = "is there now, and was not at the beginning: somebody has just made it"
                    kept = f"; what was there is in {old}" if os.path.lexists(old) else ""
                    hint = f"name another place{kept}"
                    raise RunError(said, where=str(place), hint=hint) from error
                raise
        finally:
            clear_place(beside)
            if is_there:
                clear_place(old)
            elif os.path.lexists(old):
                with suppress(OSError):  # it stays beside what somebody has put in its place
                    old.rename(place)


def _copy_into(handle: int, source: Path) -> None:
    """Copy what lies in a folder into one that is open, which is closed; by that, not by its name,
    under which there may be a link by now.
    """
    try:
        for entry in source.iterdir():
            if entry.is_dir():
                os.mkdir(entry.name, dir_fd=handle)
                _copy_into(_opened(entry.name, handle), entry)
                continue
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with (
                open(entry, "rb") as file,
                open(os.open(entry.name, flags, 0o666, dir_fd=handle), "wb") as copy,
            ):
                shutil.copyfileobj(file, copy)
    finally:
        os.close(handle)


def _opened(name: str, folder: int | None = None) -> int:
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)


def entries_below(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Everything in a folder and in those inside it, a folder before what it holds; links are not
    followed. Nothing where there is no such folder.

    Raises:
        RunError: more than `DEEPEST` folders lie inside each other.
        OSError: a folder may not be read.
    """
    waiting = [(str(folder), 1)]
    while waiting:
        place, level = waiting.pop()
        if level > DEEPEST:
            raise _too_deep(folder)
        try:
            with os.scandir(place) as found:
                entries = list(found)
        except FileNotFoundError:  # it goes just now
            continue
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                waiting.append((entry.path, level + 1))


def files_below(folder: Path) -> list[Path]:
    """All files in a folder and in those inside it, in order; links to files are among them.

    Raises:
        RunError, OSError: as `entries_below`.
    """
    paths = (Path(entry.path) for entry in entries_below(folder))
    return sorted(path for path in paths if path.is_file())


def check_no_links(*places: Path, below: bool = False) -> None:
    """Refuse to write where a link leads: whoever made a folder may be a stranger.

    Args:
        below: look at everything inside of the last place, too.

    Raises:
        RunError: one is a link; or as `entries_below`.
    """
    for place in places:
        if place.is_symlink():
            raise RunError(_LINK, where=str(place), hint=_LINK_HINT)
    for entry in entries_below(places[-1]) if below else ():
        if entry.is_symlink():
            raise RunError(_LINK, where=entry.path, hint=_LINK_HINT)


def own_file(folder: Path, name: str) -> Path:
    """A file in a folder of whatever origin, of which something is made that may be given away:
    links lead to nothing else than what lies in the folder.

    Raises:
        RunError: one leads out of it.
    """
    path = folder / name
    try:
        inside = path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # links that lead to each other
        inside = False
    if not inside:
        raise RunError(
            "is a link that leads out of its folder",
            where=str(path),
            hint="put the file itself there if you mean it",
        )
    return path


def clear_place(place: Path) -> None:
    """Make room for a folder; a link goes, not what it leads to.

    Raises:
        RunError: as `remove_folder`.
    """
    if place.is_symlink() or place.is_file():
        place.unlink()
    remove_folder(place)


def remove_folder(folder: Path) -> None:
    """Take a folder away, if there is one, as far as that is possible.

    Raises:
        RunError: it holds too many folders inside each other.
    """
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        raise _too_deep(folder) from None


def _too_deep(folder: Path) -> RunError:
    return RunError(
        f"holds more than {DEEPEST} folders inside each other",
        where=str(folder),
        hint="it is none of ours; remove it, or name another folder",
    )
