# SPDX-License-Identifier: Apache-2.0
"""Where the images of class folders lie: a folder or a zip file, never unpacked to disk."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import zipfile
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from tempfile import SpooledTemporaryFile
from typing import IO, Protocol

from bitwright.base.archives import check_members, opened_zip, unpacking
from bitwright.base.errors import DataError
from bitwright.base.files import held_size, read_most
from bitwright.base.regular import open_regular

EXTENSIONS = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".pgm", ".ppm", ".gif", ".tif", ".tiff", ".webp"}
)
SPLITS = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
    "testing": "test",
}
_DEEPEST = 32  # folders inside folders
_MOST_BYTES = 512 << 20  # of one image file: what the largest picture that is decoded has unpacked
_MOST_BACK = 4  # times that a packed file is gone back in
_IN_MEMORY = 16 << 20  # bytes of a file that is unpacked for one who goes back; else on the disk
_CLASSES = "CLASS/IMAGE, or train/CLASS/IMAGE and test/CLASS/IMAGE"
Parts = tuple[str, ...]


class ReadFile(Protocol):
    """Reads a file of a source: its name, and the bytes that it may have."""

    def __call__(self, name: str, most: int = ...) -> bytes: ...


@dataclass(frozen=True)
class Listing:
    """The image files of a source, sorted by name.

    Attributes:
        path: the folder or zip file.
        names: path of each image inside the source, with forward slashes.
        folders: every folder inside the source, so that empty ones are noticed.
        fingerprint: SHA-256 over names, sizes, checksums (zip), place and times.
        contents: the same without times and places: equal for a copy of a folder.
    """

    path: Path
    names: tuple[str, ...]
    folders: frozenset[Parts]
    fingerprint: str
    contents: str


@dataclass(frozen=True)
class Layout:
    """Which image belongs to which split and class.

    Attributes:
        classes: sorted class names.
        members: for each split (``train``, ``validation``, ``test``, or ``all`` when the source has
            no splits), the positions in ``Listing.names`` and the labels.
    """

    classes: tuple[str, ...]
    members: dict[str, tuple[list[int], list[int]]]


def list_images(path: Path, expected: str = _CLASSES) -> Listing:
    """List a folder or zip file.

    Args:
        expected: what should be there, for the hint of a refusal.

    Raises:
        DataError: it does not exist, is no zip file, holds no image, or has folders inside folders
            without end.
    """
    if path.is_dir():
        listing = _list_folder(path)
    elif path.is_file():
        listing = _list_zip(path)
    else:
        raise DataError(
            "no such folder or file",
            where=str(path),
            hint=f"name a folder, or a zip file of one: {expected}",
        )
    if not listing.names:
        raise DataError(
            f"holds no image ({', '.join(sorted(EXTENSIONS))})",
            where=str(path),
            hint=f"expected {expected}",
        )
    return listing


@contextmanager
def opened(listing: Listing) -> Iterator[ReadFile]:
    """Give a function that reads one file by its name, of so many bytes at most: by default of an
    image.
    """
    with peeked(listing) as peek:

        def read(name: str, most: int = _MOST_BYTES) -> bytes:
            with peek(name) as stream:
                content = read_most(stream, most)
            if len(content) > most:
                place = f"{listing.path}:{name}"
                raise DataError(f"has more than {most} bytes: no real file does", where=place)
            return content

        yield read


class Written:
    """Bytes that the files of a listing that were read so far took: without holes, and not more
    than the zip file that they lie in. What they are unpacked to is counted by its reader.

    Attributes:
        bytes: so many.
    """

    def __init__(self, listing: Listing) -> None:
        self._folder = listing.path if listing.path.is_dir() else None
        self._most = (1 << 62) if self._folder else held_size(listing.path)
        self.bytes = 0

    def add(self, name: str, content: bytes) -> int:
        """One file more; gives the sum."""
        size = len(content)
        if self._folder is not None:
            with suppress(OSError):  # it went since it was read
                size = min(size, held_size(self._folder / name))
        self.bytes = min(self.bytes + size, self._most)
        return self.bytes


@contextmanager
def peeked(listing: Listing) -> Iterator[Callable[[str], AbstractContextManager[IO[bytes]]]]:
    """Give a function that opens one image file, for those who read its beginning alone.

    What it opens raises `DataError` where a file cannot be opened or read.
    """
    if listing.path.is_dir():
        yield partial(_open_file, listing.path)
        return
    with opened_zip(listing.path) as archive:
        yield partial(_open_member, archive, listing.path)


def find_layout(listing: Listing) -> Layout:
    """Tell splits and classes from the folder names.

    Folders that wrap everything are stepped over. A class may have folders inside it.

    Raises:
        DataError: an image lies outside any class folder, a class folder is empty, or the splits
            have different classes.
    """
    parts = [PurePosixPath(name).parts for name in listing.names]
    folders = set(listing.folders)
    while _is_wrapped(parts):
        parts = [entry[1:] for entry in parts]
        folders = {entry[1:] for entry in folders if len(entry) > 1}
    has_splits = all(entry[0].lower() in SPLITS for entry in parts)
    depth = 1 if has_splits else 0
    found: dict[str, dict[str, list[int]]] = {}
    for entry in folders:
        if len(entry) == depth + 1 and (not has_splits or entry[0].lower() in SPLITS):
            found.setdefault(_split_of(entry, has_splits), {}).setdefault(entry[depth], [])
    for position, entry in enumerate(parts):
        if len(entry) < depth + 2:
            raise DataError(
                f"image {listing.names[position]} lies in no class folder",
                where=str(listing.path),
                hint="expected CLASS/IMAGE, or train/CLASS/IMAGE and test/CLASS/IMAGE",
            )
        split = found.setdefault(_split_of(entry, has_splits), {})
        split.setdefault(entry[depth], []).append(position)
    return _check_layout(found, listing.path)


def _check_layout(found: dict[str, dict[str, list[int]]], path: Path) -> Layout:
    classes = sorted(set().union(*found.values()))
    if len(classes) < 2:
        raise DataError(
            f"holds only one class, {classes[0]!r}",
            where=str(path),
            hint="a classifier needs at least two class folders",
        )
    for split, members in found.items():
        for name in classes:
            if not members.get(name):
                place = name if split == "all" else f"{split}/{name}"
                raise DataError(
                    f"class folder {place!r} holds no image",
                    where=str(path),
                    hint="every class needs images in every split; add some or remove the class",
                )
    layout: dict[str, tuple[list[int], list[int]]] = {}
    numbers = {name: number for number, name in enumerate(classes)}
    for split, members in found.items():
        pairs = sorted((at, numbers[name]) for name in members for at in members[name])
        layout[split] = ([at for at, _ in pairs], [label for _, label in pairs])
    return Layout(tuple(classes), layout)


def without(listing: Listing, left_out: Collection[str]) -> Listing:
    """The listing without some of its images."""
    names = tuple(name for name in listing.names if name not in left_out)
    digests = (
        hashlib.sha256(repr((digest, sorted(left_out))).encode()).hexdigest()
        for digest in (listing.fingerprint, listing.contents)
    )
    return Listing(listing.path, names, listing.folders, *digests)


def _split_of(entry: Parts, has_splits: bool) -> str:
    return SPLITS[entry[0].lower()] if has_splits else "all"


def _is_wrapped(parts: list[Parts]) -> bool:
    first = {entry[0] for entry in parts}
    deep = all(len(entry) > 2 for entry in parts)
    return deep and len(first) == 1 and first.pop().lower() not in SPLITS


def _hidden(parts: Parts) -> bool:
    return any(part.startswith((".", "__MACOSX")) for part in parts)


def _check_depth(folder: Parts, path: Path) -> None:
    if len(folder) > _DEEPEST:
        raise DataError(
            f"has {len(folder)} folders inside each other, at most {_DEEPEST} are looked into",
            where=str(path),
            hint=f"expected {_CLASSES}",
        )


def _list_folder(path: Path) -> Listing:
    names: list[str] = []
    folders: set[Parts] = set()
    digest, contents = hashlib.sha256(os.fsencode(path.resolve())), hashlib.sha256()
    for base, subfolders, files in os.walk(path):
        subfolders[:] = sorted(name for name in subfolders if not _hidden((name,)))
        relative = Path(base).relative_to(path)
        _check_depth(relative.parts, path)
        for name in (*subfolders, *files):
            _check_text(name, Path(base))
        folders.update((*relative.parts, name) for name in subfolders)
        for name in files:
            if Path(name).suffix.lower() in EXTENSIONS and not _hidden((name,)):
                names.append((relative / name).as_posix())
    names.sort()
    for name in names:
        status = _status(path / name)
        # What copies and archives set to what it was (mtime) says nothing about the content.
        times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
        digest.update(f"{name}\0{status.st_size}\0{times}\n".encode())
        contents.update(f"{name}\0{status.st_size}\n".encode())
    found = (digest.hexdigest(), contents.hexdigest())
    return Listing(path, tuple(names), frozenset(folders), *found)


def _check_text(name: str, folder: Path) -> None:
    """Names become those of classes and of images, and stand in files of text."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"holds {os.fsencode(name)!r:.200}, which is no name in UTF-8",
            where=str(folder),
            hint="rename it",
        ) from error


def _status(file: Path) -> os.stat_result:
    try:
        return file.stat()
    except OSError as error:  # a link that leads nowhere
        hint = "it may be a link whose target is missing; replace or remove it"
        raise DataError(f"cannot be read: {error.strerror}", where=str(file), hint=hint) from error


def _list_zip(path: Path) -> Listing:
    entries: list[tuple[str, int, int]] = []
    folders: set[Parts] = set()
    with opened_zip(path) as archive:
        for entry in archive.infolist():
            inside = PurePosixPath(entry.filename)
            if _hidden(inside.parts):
                continue
            folder = inside.parts if entry.is_dir() else inside.parts[:-1]
            _check_depth(folder, path)
            folders.update(folder[:depth] for depth in range(1, len(folder) + 1))
            if not entry.is_dir() and inside.suffix.lower() in EXTENSIONS:
                entries.append((entry.filename, entry.file_size, entry.CRC))
    entries.sort()
    contents = hashlib.sha256(repr(entries).encode())
    digest, status = contents.copy(), _status(path)
    # Other pictures may have the same checksums, which anybody can set.
    digest.update(os.fsencode(path.resolve()))
    digest.update(f" {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}".encode())
    names = tuple(name for name, _, _ in entries)
    found = (digest.hexdigest(), contents.hexdigest())
    return Listing(path, names, frozenset(folders), *found)


@contextmanager
def _open_file(folder: Path, name: str) -> Iterator[IO[bytes]]:
    try:
        with open_regular(folder / name) as stream:
            yield stream
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=str(folder / name)) from error


@contextmanager
def _open_member(archive: zipfile.ZipFile, path: Path, name: str) -> Iterator[IO[bytes]]:
    place = f"{path}:{name}"
    archive.getinfo(name)  # KeyError: a caller may look for a file that need not be there
    check_members(archive, place, [name])
    with ExitStack() as stack:
        with unpacking("member of a zip file", place):
            stream = stack.enter_context(archive.open(name))
        yield _Guarded(stream, place, stack)


class _Guarded(io.RawIOBase):
    """A member's stream whose reads tell what is wrong with it; not what its reader does with them.

    Pillow may go back in it, once for each fact of a TIFF file. To go back is to unpack from the
    beginning: whoever does so again and again gets a copy that is unpacked.

    Args:
        stack: closes the copy.
    """

    def __init__(self, stream: IO[bytes], where: str, stack: ExitStack) -> None:
        self._stream, self._where, self._stack = stream, where, stack
        self._back = _MOST_BACK

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._stream.seekable()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        with unpacking("member of a zip file", self._where):
            if whence == os.SEEK_CUR:
                offset, whence = offset + self._stream.tell(), os.SEEK_SET
            if whence == os.SEEK_SET and offset < self._stream.tell():
                self._back -= 1
                if not self._back:
                    self._stream = self._copy()
            return self._stream.seek(offset, whence)

    def _copy(self) -> IO[bytes]:
        copy: IO[bytes] = self._stack.enter_context(SpooledTemporaryFile(_IN_MEMORY))
        self._stream.seek(0)
        shutil.copyfileobj(self._stream, copy)
        return copy

    def tell(self) -> int:
        return self._stream.tell()

    def read(self, size: int = -1) -> bytes:
        with unpacking("member of a zip file", self._where):
            return self._stream.read(size)
