# SPDX-License-Identifier: Apache-2.0
"""Whose folders are, and who else may exchange what lies in them: where one works, where results
go, what the cache is believed for.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path

from bitwright.base.errors import RunError

#: Names groups, with commas between, whose members may write into folders that one works in.
TRUSTED_GROUPS = "BITWRIGHT_TRUSTED_GROUPS"
#: Links that a path leads over, as Linux follows.
_MOST_LINKS = 40
#: Names or numbers of users, with commas between, whose folders are as good as one's own.
TRUSTED_USERS = "BITWRIGHT_TRUSTED_USERS"
_IF_TRUSTED = (
    f"if you trust him, call Bitwright from a folder that is his, or {TRUSTED_USERS}=USER; if it "
    f"is a team's, {TRUSTED_GROUPS}=GROUP"
)
_OPEN = "everybody may write into"
_IF_OPEN = "take that right from it (chmod o-w), or stand in it and call Bitwright there"


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
    opened: bool = False,
) -> str:
    """Where on the way to a folder others may put another one, or let a link lead elsewhere, as a
    sentence; empty if nowhere. Each part is looked at once.

    Args:
        trusted: numbers of users.
        teams: groups whose folders are as good, if the group may write into them.
        passed: folders that are not asked.
        whole: ask the folder itself, too.
        opened: folders may be open to everybody.

    Raises:
        RunError, OSError: as `_way`.
    """
    for one, found, last in _way(folder):
        is_link = stat.S_ISLNK(found.st_mode)
        if one in passed or not (is_link or whole or not last):
            continue
        if is_link and found.st_uid not in trusted:
            return f"the link {one} is another user's"
        reason = "" if is_link else _weakness(one, found, trusted, teams)
        if reason and not (opened and reason.startswith(_OPEN)):
            return reason
    return ""


def _weakness(
    place: Path, found: os.stat_result, trusted: Container[int], teams: Container[int] = ()
) -> str:
    """Why others may exchange what lies in a folder, as a sentence; empty if they may not."""
    if not _is_trusted(found, trusted, teams):
        return f"{place} is another user's"
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        return f"{_OPEN} {place}"
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
    itself, which others look at. Who stands in a folder that is open to everybody (a mounted disk
    without owners, a runner of tests) is asked for no other one that is.

    Raises:
        RunError: he may.
    """
    here = set[Path]()
    with suppress(FileNotFoundError):  # the current folder was removed
        here = {Path.cwd(), *Path.cwd().parents}
    start = place
    while not os.path.lexists(start) and start != start.parent:
        if start.name == "..":
            raise RunError(
                'there is no such folder, so ".." behind it leads nowhere',
                where=str(start.parent),
                hint='name the place without ".."',
            )
        start = start.parent
    asked = start != place  # and so is the last folder that is there
    mode, trusted, reason = os.stat(".").st_mode, _trusted(), ""
    opened = bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
    with suppress(OSError):  # what cannot be looked at cannot be written either
        reason = _weak_step(start, trusted, _teams(), here, whole=asked, opened=opened)
    if reason:
        mine = f"name a place in a folder of your own; {_IF_TRUSTED}"
        raise RunError(
            f"what is written could be made to go elsewhere: {reason}",
            where=str(place),
            hint=_IF_OPEN if reason.startswith(_OPEN) else mine,
        )


def _trusted() -> set[int]:
    """Numbers of the users whose folders are as good as one's own."""
    found = _ones_own() | {os.stat(".").st_uid}  # also of one that was removed, or is hidden
    for name in filter(None, os.environ.get(TRUSTED_USERS, "").split(",")):
        with suppress(ImportError, KeyError):  # no such table on this system, or no such user
            import pwd

            named = name.strip()
            found.add(int(named) if named.isdecimal() else pwd.getpwnam(named).pw_uid)
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


def is_trusted(path: Path) -> bool:
    """Whether a file is of somebody whose folders one works in; a link, and what it leads to.

    Raises:
        OSError: there is nothing.
    """
    trusted, teams = _trusted(), _teams()
    return all(_is_trusted(found, trusted, teams) for found in (path.lstat(), path.stat()))


def others_may_write(place: Path) -> str:
    """Why what lies at a place of the cache may be another user's word, as a sentence; empty if it
    is one's own or root's, and nobody else may change it or put another one there.

    Raises:
        OSError: there is nothing.
    """
    return others_above(place) or _weakness(place, place.lstat(), _ones_own())


def _ones_own() -> set[int]:
    """Root's number and one's own. In a space of users that has no root (a container that an
    ordinary user starts), the machine's root has the number of all who are none of its users.
    """
    found = {os.geteuid(), 0}
    with suppress(OSError, ValueError):  # not Linux
        spans = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
        if not any(int(span.split()[0]) == 0 for span in spans):
            found.add(int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii")))
    return found
