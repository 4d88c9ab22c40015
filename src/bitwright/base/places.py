# SPDX-License-Identifier: Apache-2.0
"""Places for results that nobody names, such as ``runs/digits``: in the current folder, and the
user's own.

Who stands in the folder of a stranger and says ``bitwright build digits`` does not say that he
trusts the ``runs/digits`` that lies there, nor that he wants to write where it leads. So such a
place has no link and no other user's folder on the way to it (but for who owns the current folder,
see `check_owner`), and what is in it counts only if this user has made it there: its mark, a number
that was drawn when it was made, is noted in the user's cache (`base.noted`) together with where it
lies. Whoever has moved a folder, got it from somebody else, or emptied the cache, names it.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bitwright.base.claims import claimed
from bitwright.base.errors import DataError, RunError
from bitwright.base.files import atomic_write, regular_bytes
from bitwright.base.folders import kept_way, make_folder
from bitwright.base.noted import is_noted, note
from bitwright.base.ownership import check_owner
from bitwright.base.store import content_key

_MARK = ".owner"
_KIND = "places"
_LETTERS = 32  # of a mark
_TRIES = 20  # to make a folder that others make or remove at the same time
#: Folders that this process has made by claiming them.
_MADE: list[Path] = []
#: Places that nobody named, and the option that names another.
_UNNAMED: dict[Path, str] = {}


def default_place(place: Path, option: str) -> Path:
    """A place below the current folder that nobody has named.

    Args:
        option: that names another place.

    Raises:
        RunError: there is a link on the way to it, another user's folder, or something that this
            user has not made there.
    """
    _UNNAMED[place] = option
    _check_way(place, option)
    if place.is_dir() and any(place.iterdir()) and not is_claimed(place):
        raise RunError(
            "you have not made it, or not here",
            where=str(place),
            hint=f"what lies in it may run code: if you trust it, name it ({place} or {option} "
            f"{place}); else go to another folder, or name another place with {option}",
        )
    return place


def _check_way(place: Path, option: str) -> None:
    """No link and no other user's folder leads to a place that nobody named."""
    for step in (*reversed(place.parents), place):
        if step.is_symlink():
            raise RunError(
                f"is a symbolic link, by which {place} would lie elsewhere",
                where=str(step),
                hint=f"name where it leads with {option} if you mean it: what nobody names lies in "
                "the current folder",
            )
        if step.name and step.is_dir():  # not the current folder itself
            check_owner(step)


def claim(place: Path) -> None:
    """Note that a place is this user's: he made it, or has named it to go on with it.

    Raises:
        RunError: nobody has named it, and another user has made a folder on the way to it since
            `default_place` looked.
        OSError: it cannot be written.
    """
    if is_claimed(place):
        return
    option = _UNNAMED.get(place)
    if option is not None:
        _check_way(place, option)
    if not place.is_dir():
        _MADE.append(place.absolute())
    make_folder(place)
    if option is not None:  # now that all of it is there nobody else can put a folder there
        _check_way(place, option)
    mark = secrets.token_hex(_LETTERS // 2)
    note(_KIND, _address(place, mark))
    atomic_write(place / _MARK, mark)  # last: what is not noted has no mark


@contextmanager
def kept_place(place: Path) -> Iterator[Path]:
    """A folder for results that are written by name when they have been computed, there and one's
    own from the beginning: else another user could put a link there in the meantime. It goes again
    if nothing was written. A file in the way is for whoever writes to name.

    Raises:
        RunError: it is another user's, a link that leads to no folder (yet), or cannot be made.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(kept_way(place))
        except FileExistsError as error:
            raise _cannot_be_made(place, f"{error.filename} is no folder") from error
        except OSError as error:
            raise _cannot_be_made(place, error.strerror or str(error)) from error
        is_new = not os.path.lexists(place)
        try:
            _make(place)
            yield place
        finally:
            if is_new:
                with suppress(OSError):  # something is in it
                    place.rmdir()


@contextmanager
def held(place: Path | None, *, force: bool = True) -> Iterator[None]:
    """A folder for results, as `kept_place`, and this command's until it ends: of two that compute
    into one folder the second is refused, where it would have replaced the first one's results.

    Args:
        place: none, where nobody has named one and nothing will be written.
        force: replace what is there.

    Raises:
        RunError: another command holds it; something is there; or as `kept_place`.
    """
    if place is None:
        yield
        return
    with kept_place(place), claimed(place, force=force):
        yield


def _make(place: Path) -> None:
    """A folder of one's own, if nothing is in its place; else what lies there is looked at. What
    passes is a folder in the end: who may write beside it could put a link where nothing is, or a
    file that he can take away.
    """
    why = "somebody makes and removes it all the time"
    for _ in range(_TRIES):
        try:
            make_folder(place, anew=True)
        except FileExistsError:
            if place.is_symlink() and not place.is_dir():
                raise RunError(
                    "is a symbolic link that leads to no folder",
                    where=str(place),
                    hint="remove it, or name the folder itself",
                ) from None
            if place.exists() and not place.is_dir():
                raise DataError(
                    "is a file; results go to a folder",
                    where=str(place),
                    hint="remove it, or name another place",
                ) from None
        except OSError as error:
            raise _cannot_be_made(place, error.strerror or str(error)) from error
        try:
            check_owner(place)
            if place.is_dir():
                return
        except FileNotFoundError:  # it went just now
            continue
        except OSError as error:  # it became something else just now, or cannot be looked at
            why = error.strerror or str(error)
    raise _cannot_be_made(place, why)


def _cannot_be_made(place: Path, why: str) -> RunError:
    return RunError(
        f"the folder for results cannot be made: {why}",
        where=str(place),
        hint="name another place",
    )


def drop_empty() -> None:
    """Take away the folders that this process has claimed and put nothing into."""
    while _MADE:
        place = _MADE.pop()
        with suppress(OSError):
            if [entry.name for entry in place.iterdir()] == [_MARK]:
                (place / _MARK).unlink()
                place.rmdir()


def is_claimed(place: Path) -> bool:
    """Whether this user has claimed a place, and it lies where it lay then."""
    mark = ""
    with suppress(OSError, ValueError):
        mark = regular_bytes(place / _MARK, _LETTERS).decode()
    return bool(mark) and is_noted(_KIND, _address(place, mark))


def _address(place: Path, mark: str) -> str:
    return content_key(str(place.resolve()), mark)
