# SPDX-License-Identifier: Apache-2.0
"""The store: results of slow work, kept under the hash of everything that they depend on.

::

    ROOT/KIND/KEY/entry.json   what the entry holds, with the hash of each file; written last
    ROOT/KIND/KEY/...          its files
    ROOT/KIND/.locks/KEY       held by the process that makes the entry

An entry appears whole, by a rename, and is checked when it is read: one that was damaged is dropped
and made again; one that is another user's, or that everybody may write, is not taken, since some
hold programs. What any run can use (results of tools, compiled programs, decoded images) lies in
the user's cache folder; what belongs to an experiment, such as the rows of a table, in the folder
of that experiment. Keys are made of `bitwright.base.source.code_key` and of the inputs.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import math
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bitwright.base.errors import DataError, RunError
from bitwright.base.files import (
    cache_root,
    file_inside,
    flush,
    flush_entries,
    parse_json,
    read_bytes,
    sha256_file,
)
from bitwright.base.folders import check_no_links, entries_below, make_folder, remove_folder
from bitwright.base.locks import exclusive
from bitwright.base.ownership import others_above
from bitwright.base.records import is_of
from bitwright.base.regular import open_unlinked

_log = logging.getLogger(__name__)

LIMIT = 4 << 30
"""Bytes that the entries of one kind may take before those used longest ago are dropped."""
#: All entries are looked at for one that is more than the limit by this, else now and then.
_SMALL, _SELDOM = 1 << 16, 64
#: Seconds after which a folder that is being filled belongs to no process any more.
_LEFT_S = 24 * 3600
#: How often a place is looked at again that another process has changed meanwhile.
_LOOKS = 5
_INDEX, _LOCKS, _NEW = "entry.json", ".locks", ".new-"
#: Of folders beside the entries of a kind that are dropped a day after their process was killed.
LEFT = f"{_NEW}work-"
_MOST_INDEX = 16 << 20
#: Files that this process has read: what tells whether they have changed since, and their hash.
_READ: dict[Path, tuple[tuple[int, ...], str]] = {}


def content_key(*parts: Any) -> str:
    """SHA-256 over JSON values and bytes, one after the other; the same on every machine."""
    digest = hashlib.sha256()
    for part in parts:
        body, kind = part, b"b"
        if not isinstance(part, bytes):
            text = json.dumps(part, sort_keys=True, separators=(",", ":"), default=str)
            body, kind = text.encode(), b"j"
        digest.update(kind + len(body).to_bytes(8, "little"))
        digest.update(body)
    return digest.hexdigest()


@dataclass(frozen=True)
class Entry:
    """What is kept under a key.

    Attributes:
        folder: where its files lie; they must not be changed.
        files: their names, relative to the folder.
        value: JSON value that was kept with them.
    """

    folder: Path
    files: tuple[str, ...]
    value: Any

    def bring(self, target: Path, *, link: bool = False) -> None:
        """Put the files into another folder. What has such a name there is replaced; a link, not
        what it leads to.

        Args:
            link: as hard links, where the file system has them: no copy that takes room.

        Raises:
            OSError: they cannot be written.
            ValueError: a name leads out of the entry.
        """
        make_folder(target)
        for name in self.files:
            source = _source(self.folder, name)
            (target / name).unlink(missing_ok=True)
            _copy(source, target / name, link)


class Store:
    """Entries below one folder.

    Args:
        root: default the user's cache folder (``BITWRIGHT_CACHE`` names another).
        limit: bytes of one kind.
    """

    def __init__(self, root: Path | None = None, limit: int = LIMIT) -> None:
        self._root, self.limit = root, limit

    def folder(self, kind: str, key: str) -> Path:
        """Where an entry lies, if there is one."""
        return (cache_root() if self._root is None else self._root) / kind / key

    def find(self, kind: str, key: str, of: TypeAdapter[Any] | None = None) -> Entry | None:
        """A whole entry; None if there is none. A damaged one is dropped.

        Args:
            of: what its value must be (`bitwright.base.records.is_of`); another one is damaged.

        Raises:
            RunError: it lies behind a link (see `_check_links`).
        """
        self._check_links(kind)
        folder = self.folder(kind, key)
        for _ in range(_LOOKS):  # what is not whole may have been put there, or dropped, just now
            seen = _identity(folder)
            if seen is None or not self._is_trusted(folder):
                return None
            if (entry := _whole(folder)) is not None and is_of(of, entry.value):
                with suppress(OSError):  # another user's
                    os.utime(folder / _INDEX)  # the least recently used go first
                return entry
            if seen == _identity(folder):
                self.drop(kind, key, seen)
                return None
        return None

    def keep(
        self,
        kind: str,
        key: str,
        value: Any = None,
        files: Mapping[str, Path] | None = None,
        *,
        link: bool = False,
    ) -> Entry:
        """Keep a JSON value and files under a key; a whole entry that is there already stays.

        Args:
            files: name in the entry -> where it lies now.
            link: take the files as hard links, where the file system has them.

        Raises:
            OSError: the store cannot be written.
            RunError: it would be written behind a link (see `_check_links`).
        """
        folder = self._make(kind) / key
        new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=_NEW))
        try:
            hashes = {}
            for name, source in (files or {}).items():
                _copy(source, new / name, link)
                hashes[name] = sha256_file(new / name)
            content = json.loads(json.dumps({"files": hashes, "value": value}))
            fields = {"sha256": content_key(content), "content": content}
            (new / _INDEX).write_text(json.dumps(fields, indent=1) + "\n", encoding="utf-8")
            for path in new.rglob("*") if self._root is None else ():
                mode = path.stat().st_mode
                if mode & stat.S_IWOTH:  # whatever umask says
                    path.chmod(mode & ~stat.S_IWOTH)
            flush(new)
            new.chmod(0o755)
            self._place(new, folder)
            flush_entries(folder.parent)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        if _size(folder) * _SMALL > self.limit or secrets.randbelow(_SELDOM) == 0:
            self._prune(folder)
        return Entry(folder, tuple(hashes), content["value"])

    def offer(
        self,
        kind: str,
        key: str,
        value: Any = None,
        files: Mapping[str, Path] | None = None,
        *,
        link: bool = False,
    ) -> bool:
        """As `keep`, but a store that cannot be written is no error: whether it is kept now."""
        try:
            self.keep(kind, key, value, files, link=link)
        except OSError as error:
            _log.debug("%s is not kept: %s", self.folder(kind, key), error)
            return False
        return True

    def unwritable(self, kind: str) -> str:
        """Why nothing of a kind can be kept; empty if it can."""
        folder = self.folder(kind, "")
        return _why_not(folder) or ("" if self._root is not None else others_above(folder))

    def made(
        self,
        kind: str,
        key: str,
        make: Callable[[Path], Any],
        waiting: Callable[[str], None] | None = None,
    ) -> Entry:
        """The entry of a key; if there is none it is made, by one process while others wait.

        Args:
            make: writes files into an empty folder and gives a JSON value.
            waiting: as `lock`.

        Where the user's cache folder cannot be written, the entry lasts as long as this process.

        Raises:
            OSError: the store cannot be written.
        """
        if (found := self.find(kind, key)) is not None:
            return found
        if self._root is None and (reason := self.unwritable(kind)):
            return _of_this_process(reason).made(kind, key, make, waiting)
        with self.lock(kind, key, waiting):
            if (found := self.find(kind, key)) is not None:
                return found
            place = self.folder(kind, key).parent
            with tempfile.TemporaryDirectory(dir=place, prefix=_NEW) as work:
                value = make(Path(work))
                paths = sorted(path for path in Path(work).rglob("*") if path.is_file())
                files = {path.relative_to(work).as_posix(): path for path in paths}
                return self.keep(kind, key, value, files, link=True)

    @contextmanager
    def lock(
        self, kind: str, key: str, waiting: Callable[[str], None] | None = None
    ) -> Iterator[None]:
        """Be the only process at work on a key; the lock ends with the process that holds it.

        Args:
            waiting: called several times a second with the process that is at work.

        Raises:
            OSError: the lock file cannot be made.
            RunError: it would lie behind a link.
        """
        self._make(kind)
        locks = self._make(f"{kind}/{_LOCKS}")
        with exclusive(locks / key, wait_s=math.inf, waiting=waiting, remove=True):
            yield

    def drop(self, kind: str, key: str, seen: tuple[int, int, int] | None = None) -> None:
        """Forget an entry; one that is being read keeps its open files.

        Args:
            seen: only the folder of this identity, not one that was put there since.
        """
        _remove(self.folder(kind, key), seen)

    def _make(self, kind: str) -> Path:
        """The folder of a kind, made if need be.

        Raises:
            RunError: as `_check_links`.
        """
        self._check_links(kind)
        place = self.folder(kind, "")
        _make(place)
        return place

    def _check_links(self, kind: str) -> None:
        """In an experiment's folder, which may be a stranger's, no part of a kind's name is a link:
        what lies where it leads is not the store's to write, or to drop. In the user's own cache
        folder it may be one.

        Raises:
            RunError: it is.
        """
        if self._root is not None:
            names = Path(kind).parts
            check_no_links(*(self._root.joinpath(*names[: n + 1]) for n in range(len(names))))

    def _is_trusted(self, folder: Path) -> bool:
        """Whether an entry may be read: what lies in an experiment's folder, a colleague's perhaps,
        is trusted as the experiment is.
        """
        return self._root is not None or (_is_ours(folder) and not others_above(folder.parent))

    def _place(self, new: Path, folder: Path) -> None:
        """Give a whole entry its name, unless another process was first."""
        for _ in range(_LOOKS):
            if folder.exists() and not self._is_trusted(folder):
                raise PermissionError(
                    errno.EPERM, "others can write here; BITWRIGHT_CACHE names another", str(folder)
                )
            if (folder / _INDEX).is_file():
                return
            try:
                new.rename(folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                if not (folder / _INDEX).is_file():
                    _remove(folder)
            else:
                return
        raise OSError(errno.EBUSY, "others write the same entry", str(folder))

    def _prune(self, newest: Path) -> None:
        """Drop the entries used longest ago until the rest is below the limit."""
        entries = []
        before = time.time() - _LEFT_S
        for folder in newest.parent.iterdir():
            with suppress(OSError, RunError):  # it goes just now, or is none of ours
                if folder.name.startswith(_NEW):
                    if folder.stat().st_mtime < before:
                        remove_folder(folder)  # of a process that was killed
                    continue
                used = (folder / _INDEX).stat().st_mtime
                entries.append((folder == newest, used, _size(folder), folder))
        total = sum(size for _, _, size, _ in entries)
        for is_newest, _, size, folder in sorted(entries):
            if total <= self.limit or is_newest:
                return
            _remove(folder)
            total -= size


def _size(folder: Path) -> int:
    return sum(e.stat(follow_symlinks=False).st_size for e in entries_below(folder))


def _why_not(folder: Path) -> str:
    """Why nothing can be written into the folder of a kind; empty if it can."""
    try:
        _make(folder)
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"{folder.parent} cannot be written ({error.strerror or error})"


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="bitwright-cache-")


@cache
def _of_this_process(reason: str) -> Store:
    """A store that is gone when this process ends."""
    _log.warning("%s: nothing is kept for later; BITWRIGHT_CACHE names another folder", reason)
    return Store(Path(_scratch().name))


def _identity(folder: Path) -> tuple[int, int, int] | None:
    """Of the folder that has this name now, with its time, since the number of a deleted one is
    given to the next; None: there is none.
    """
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _whole(folder: Path) -> Entry | None:
    """The entry in a folder, if its index and all files are what was kept."""
    try:
        fields = parse_json(read_bytes(_source(folder, _INDEX), most=_MOST_INDEX))
        content = fields["content"]
        files: dict[str, str] = dict(content["files"])
        whole = fields["sha256"] == content_key(content)
        if whole and all(_sha256_of(_source(folder, name)) == h for name, h in files.items()):
            return Entry(folder, tuple(files), content["value"])
    except (DataError, OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _source(folder: Path, name: str) -> Path:
    """A file of an entry, which anybody may have made: where entries are kept for an experiment, it
    comes with the experiment. Names become those of files that we write.

    Raises:
        ValueError: the name leads elsewhere: by its parts, or by a link on the way.
        OSError: there is no such file.
    """
    place = folder.resolve() / name
    if folder.is_symlink() or file_inside(folder, name) != place:
        raise ValueError(f"{name!r:.80} is no file of the entry {folder}")
    if place.relative_to(folder.resolve()).as_posix() != name:
        raise ValueError(f"{name!r:.80} is no plain name")
    return place


def _make(folder: Path) -> None:
    """Make the folder of a kind, whatever umask says: others must not write into it."""
    folder.mkdir(mode=0o755, parents=True, exist_ok=True)


def _sha256_of(path: Path) -> str:
    """Of a file's content, which this process reads again only when the file has changed: what all
    simulators share has 70 MB.
    """
    found = path.stat()
    seen = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
    if path not in _READ or _READ[path][0] != seen:
        _READ[path] = seen, sha256_file(path)
    return _READ[path][1]


def _is_ours(folder: Path) -> bool:
    """Whether an entry, all that lies in it, and the folder of its kind are ours or root's, and not
    everybody may write there.
    """
    try:
        found = [folder.parent.stat(), folder.lstat(), *(p.lstat() for p in folder.rglob("*"))]
    except OSError:
        return False
    return not any(
        each.st_uid not in (os.geteuid(), 0)
        or stat.S_ISLNK(each.st_mode)
        or each.st_mode & stat.S_IWOTH
        for each in found
    )


def _remove(folder: Path, seen: tuple[int, int, int] | None = None) -> None:
    """Take a folder away at once, so that nobody finds half of it or loses what comes after it."""
    aside = folder.with_name(f"{_NEW}{folder.name}-{secrets.token_hex(4)}")
    try:
        folder.rename(aside)
        if seen is not None and _identity(aside) != seen:
            aside.rename(folder)  # it was put there just now
    except OSError:
        pass
    remove_folder(aside)


def _copy(source: Path, target: Path, link: bool) -> None:
    """A regular file, not one that a link leads to, to where there is none. Of another user's file
    the content comes, whether it can be run, and nothing else: neither he himself, who could change
    it later, nor the rights that he gave it.
    """
    make_folder(target.parent)
    with open_unlinked(source) as content:
        found = os.fstat(content.fileno())
        own = found.st_uid == os.geteuid()
        if own and link and _linked(source, target, found):
            return
        with target.open("xb") as copy:
            shutil.copyfileobj(content, copy)
            given = stat.S_IMODE(os.fstat(copy.fileno()).st_mode)
            runs = (given & 0o444) >> 2 if found.st_mode & stat.S_IXUSR else 0
            os.fchmod(copy.fileno(), found.st_mode & 0o777 if own else given | runs)
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _linked(source: Path, target: Path, found: os.stat_result) -> bool:
    """Whether the target is one file with the source now, and not with what came in its place."""
    try:
        os.link(source, target, follow_symlinks=False)
    except (FileNotFoundError, FileExistsError):
        raise
    except OSError:  # another disk, or a file system without links
        return False
    if os.path.samestat(target.lstat(), found):
        return True
    target.unlink()
    return False
