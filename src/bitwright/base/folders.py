# SPDX-License-Identifier: Apache-2.0
"""Folders of whatever origin: what lies in them, as deep as ours are; no links on the way to what
is written; who may exchange them; taken away whole.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bitwright.base.errors import RunError

#: Folders inside each other. Ours have some ten; Python's own functions call themselves for each,
#: and end at a thousand, which take 2000 letters of a path.
DEEPEST = 64
#: Names groups, with commas between, whose members may write into folders that one works in.
TRUSTED_GROUPS = "BITWRIGHT_TRUSTED_GROUPS"
_NAME = 40  #: letters of a folder's name in that of the one beside it
#: Links that a path leads over, as Linux follows.
_MOST_LINKS = 40
_IF_TRUSTED = (
    "if you trust him, call Bitwright from a folder that is his; if it is a team's, "
    f"{TRUSTED_GROUPS}=GROUP"
)
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
        folder.mkdir(parents=True, exist_ok=not anew)
    except FileNotFoundError:  # of a folder whose parents are there: as if it were our mistake
        raise OSError(errno.EROFS, "no folder can be made here", str(folder)) from None


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
    check_way(place)
    if place.name in ("", ".."):
        raise RunError(
            "is where somebody may stand; a new folder would take its place",
            where=str(place),
            hint="name a folder in it",
        )
    make_folder(place.parent)
    free = not os.path.lexists(place) or (place.is_dir() and not any(place.iterdir()))
    with tempfile.TemporaryDirectory(prefix="bitwright-") as own:
        made = Path(own, "made")
        made.mkdir()
        yield made
        beside = place.with_name(f".{place.name[:_NAME]}.{secrets.token_hex(6)}")
        make_folder(beside, anew=True)
        old = beside.with_name(beside.name + ".old")
        try:
            _copy_into(_opened(str(beside)), made)
            check_way(place)
            if not free and os.path.lexists(place):  # moved away first and then deleted
                place.rename(old)
            try:
                beside.rename(place)  # an empty folder may be there, nothing else
            except OSError as error:
                if os.path.lexists(old):
                    old.rename(place)
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    said = "is there now, and was not at the beginning: somebody has just made it"
                    raise RunError(said, where=str(place), hint="name another place") from error
                raise
        finally:
            for left in (beside, old):
                clear_place(left)


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


def others_above(folder: Path) -> str:
    """Into which folder, of those that the way to this one leads through, others may put another
    one between a look at it and its use, or which link of theirs it leads over; empty if there is
    none. In a folder that is sticky, as ``/tmp``, everybody can only move what is his own.
    """
    try:
        return _weak_step(folder, _ones_own())
    except RunError as error:
        return error.message
    except OSError as error:
        return f"{error.filename} cannot be looked at ({error.strerror or error})"


def _weak_step(
    folder: Path,
    trusted: Container[int],
    teams: Container[int] = (),
    passed: Container[Path] = (),
    *,
    whole: bool = False,
) -> str:
    """Where on the way to a folder others may put another one, or let a link lead elsewhere, as a
    sentence; empty if nowhere. Each part is looked at once.

    Args:
        trusted: numbers of users.
        teams: groups whose folders are as good, if the group may write into them.
        passed: folders that are not asked.
        whole: ask the folder itself, too.

    Raises:
        RunError, OSError: as `_way`.
    """
    for one, found, last in _way(folder):
        is_link = stat.S_ISLNK(found.st_mode)
        if one in passed or not (is_link or whole or not last):
            continue
        if is_link and found.st_uid not in trusted:
            return f"the link {one} is another user's"
        if not is_link and (reason := _weakness(one, found, trusted, teams)):
            return reason
    return ""


def _weakness(
    place: Path, found: os.stat_result, trusted: Container[int], teams: Container[int] = ()
) -> str:
    """Why others may exchange what lies in a folder, as a sentence; empty if they may not."""
    if not _is_trusted(found, trusted, teams):
        return f"{place} is another user's"
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return f"everybody may write into {place}"
    return ""


def _way(folder: Path) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """The folders and links that the way to a folder leads through, from the top on, with none of
    its links on their own way; what each was when it was looked at, once; and whether the way ends
    there.

    Raises:
        RunError: there are too many links.
        OSError: one cannot be looked at.
    """
    start = folder if folder.is_absolute() else Path.cwd() / folder  # which may be removed
    reached = Path(start.anchor)
    left, links = [*reversed(start.parts[1:])], 0
    if left:
        yield reached, reached.lstat(), False
    ends = False
    while left:
        part = left.pop()
        if part == "..":
            reached = reached.parent
            continue
        one = reached / part
        found = one.lstat()
        is_link = stat.S_ISLNK(found.st_mode)
        ends = not left and not is_link
        yield one, found, ends
        if not is_link:
            reached = one
            continue
        links += 1
        if links > _MOST_LINKS:
            raise RunError(f"{one} is one of more than {_MOST_LINKS} links")
        aim = one.readlink()
        if aim.is_absolute():
            reached = Path(aim.anchor)
        left += reversed(aim.parts[aim.is_absolute() :])
    if not ends:  # by "..", or a link to "." or "/"
        yield reached, reached.lstat(), True


def check_owner(folder: Path) -> None:
    """Refuse to work in another user's folder: he may put another file there between a look at one
    and its use. Root's are as good as one's own; for root, those of who has called ``sudo``, too.
    So are those that a group may write to that one is in and trusts (`TRUSTED_GROUPS` names it: who
    owns a folder may give it to any group that he is in, such as one of all accounts), and those of
    whoever owns the current folder, who could exchange them anyway (root in a container, a mounted
    disk). A link that leads to it is asked likewise: its owner may let it lead elsewhere. Each part
    of the way is looked at once, and judged by that look: what is one's own then, nobody else takes
    away.

    Raises:
        RunError: it is one.
        OSError: it cannot be looked at.
    """
    trusted, teams = _trusted(), _teams()
    for place, found, last in _way(folder):
        is_link = stat.S_ISLNK(found.st_mode)
        if not (is_link or last) or _is_trusted(found, trusted, teams):
            continue
        if is_link:
            raise RunError(
                f"is another user's symbolic link (number {found.st_uid}), who could let it lead "
                "elsewhere",
                where=str(place),
                hint="name the folder that it leads to",
            )
        raise RunError(
            f"is another user's (number {found.st_uid}): what is made and run in it he could "
            "exchange",
            where=str(folder),
            hint=f"copy it into a folder of your own (cp -r); {_IF_TRUSTED}",
        )


def check_way(place: Path) -> None:
    """Refuse to write where another user may exchange a folder on the way while that is done: what
    is made or removed there would be made or removed elsewhere. Whom one trusts, `check_owner`
    says; the way to the current folder is not asked, where one stands already, nor is the place
    itself, which others look at.

    Raises:
        RunError: he may.
    """
    here = set[Path]()
    with suppress(FileNotFoundError):  # the current folder was removed
        here = {Path.cwd(), *Path.cwd().parents}
    start = place
    while not os.path.lexists(start) and start != start.parent:
        start = start.parent
    reason = ""
    with suppress(OSError):  # what cannot be looked at cannot be written either
        reason = _weak_step(start, _trusted(), _teams(), here, whole=start != place)
    if reason:
        raise RunError(
            f"what is written could be made to go elsewhere: {reason}",
            where=str(place),
            hint=f"name a place in a folder of your own; {_IF_TRUSTED}",
        )


def _trusted() -> set[int]:
    """Numbers of the users whose folders are as good as one's own."""
    found = _ones_own()
    with suppress(FileNotFoundError):  # the current folder was removed
        found.add(Path.cwd().stat().st_uid)
    if os.geteuid() == 0 and (caller := os.environ.get("SUDO_UID", "")).isdecimal():
        found.add(int(caller))
    return found


def _is_trusted(found: os.stat_result, trusted: Container[int], teams: Container[int]) -> bool:
    shared = not stat.S_ISLNK(found.st_mode) and found.st_mode & stat.S_IWGRP
    return found.st_uid in trusted or bool(shared and found.st_gid in teams)


def _teams() -> set[int]:
    """The groups that this user is in and has named as trusted."""
    found = set()
    for name in filter(None, os.environ.get(TRUSTED_GROUPS, "").split(",")):
        with suppress(ImportError, KeyError):  # no such table on this system, or no such group
            import grp

            found.add(grp.getgrnam(name.strip()).gr_gid)
    return found & {os.getegid(), *os.getgroups()}


def others_may_write(place: Path) -> str:
    """Why what lies at a place of the cache may be another user's word, as a sentence; empty if it
    is one's own or root's, and nobody else may change it or put another one there.

    Raises:
        OSError: there is nothing.
    """
    return others_above(place) or _weakness(place, place.lstat(), _ones_own())


def _ones_own() -> set[int]:
    return {os.geteuid(), 0}
