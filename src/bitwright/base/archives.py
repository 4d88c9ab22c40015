# SPDX-License-Identifier: Apache-2.0
"""Packed files of strangers: zip, gzip, tar. What they unpack to is bounded before it is read.

A few kilobytes can unpack to gigabytes. Real data does not shrink that far: what is unpacked may
have `FREE` bytes, and more only if it is less than `RATIO` times as long as what it was packed in,
and does not fill the machine. The members of a zip file share no bytes, so that together they were
packed in no more than the file has.
"""

from __future__ import annotations

import gzip
import io
import os
import re
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from bitwright.base.errors import DataError
from bitwright.base.memory import machine_memory, ran_out, too_little
from bitwright.base.regular import held_bytes, open_regular

FREE = 256 << 20
RATIO = 100
_PART = 8  # of the machine's memory: what is read is copied, and made numbers of
_CHUNK = 1 << 20
_MOST_HEADERS = 10_000  # of a tar; the data sets that come as one have some ten members
_MOST_HEADER = 64 << 10  # bytes of a name or of other facts about a member
_FACTS = (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE)
_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
#: How members of a zip file may be packed. What bzip2 and LZMA make of a block has no length that
#: is known before, and Python unpacks it whole, whatever the member says of itself.
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_OTHERS = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "LZMA"}
#: The end of a zip file; of a large one, what lies before that.
_END = struct.Struct("<4sHHHHIIH")
_LOCATOR = struct.Struct("<4sIQI")
_LARGE_END = struct.Struct("<4sQHHIIQQQQ")
_LOCAL_HEADER = 30  # bytes before the name of a member, at least
_PATH = re.compile(rb"(?:^|\n)\d{1,7} path=([^\n\0]+)\n")
_HINT = "the file is corrupt, cut short, or locked by a password; fetch it again"
#: What the readers of Python raise for files that are not whole: locked ones (RuntimeError), and
#: those packed in a way that they do not know (NotImplementedError) included.
_BROKEN = (
    OSError,
    EOFError,
    RuntimeError,
    ValueError,
    zlib.error,
    zipfile.BadZipFile,
    tarfile.TarError,
    MemoryError,
    OverflowError,
)


def most_of(packed: int) -> int:
    """Bytes that so many packed ones may become: not more of the machine than a part, unless they
    are as many before.
    """
    return max(FREE, packed, min(RATIO * packed, machine_memory() // _PART))


@contextmanager
def unpacking(what: str, where: str, hint: str = _HINT) -> Iterator[None]:
    """Turn whatever a reader raises for a broken file into a `DataError`.

    Args:
        what: the file should be, such as ``zip file``.
    """
    try:
        yield
    except _BROKEN as error:
        if ran_out(error):
            raise too_little(where) from error
        reason = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
        raise DataError(f"is no whole {what}: {reason}", where=where, hint=hint) from error


@contextmanager
def opened_zip(
    path: Path, what: str = "zip file", hint: str = _HINT, *, exact: bool = False
) -> Iterator[zipfile.ZipFile]:
    """A zip file, whose members `read_member` reads.

    Args:
        exact: another library reads the file, too: it must find the same list of members as Python,
            which also looks for it where other bytes stand before a zip file or behind it.

    Raises:
        DataError: it is none, is damaged, or two of its members have one name or share bytes.
    """
    with ExitStack() as stack:
        with unpacking(what, str(path), hint):
            file = stack.enter_context(open_regular(path))
            archive = _Zip(file)
            archive.held = held_bytes(file.fileno())
        stack.enter_context(archive)
        wrong = _wrong_entries(archive)
        if wrong is None and exact and _directory_by_the_end(file) != archive.start_dir:
            wrong = "has a list of members that lies elsewhere than its last bytes say"
        if wrong is not None:
            raise DataError(wrong, where=str(path), hint=hint)
        yield archive


class _Zip(zipfile.ZipFile):
    """A zip file that knows how many bytes of it were written."""

    held = 0


def _directory_by_the_end(file: IO[bytes]) -> int | None:
    """Where the list of members begins, by the last bytes of a zip file alone; None: they do not
    say, or behind them is a comment.
    """
    end = file.seek(0, os.SEEK_END) - _END.size
    if end < 0:
        return None
    file.seek(end)
    sign, _, _, _, _, _, start, comment = _END.unpack(file.read(_END.size))
    if sign != b"PK\5\6" or comment:
        return None
    record = end - _LOCATOR.size - _LARGE_END.size
    if record >= 0:  # of large files there may be a record with wider fields before it
        file.seek(record)
        large = _LARGE_END.unpack(file.read(_LARGE_END.size))
        sign, _, place, _ = _LOCATOR.unpack(file.read(_LOCATOR.size))
        if sign == b"PK\6\7":
            return int(large[-1]) if large[0] == b"PK\6\6" and place == record else None
    return int(start)


def _wrong_entries(archive: zipfile.ZipFile) -> str | None:
    """What is wrong with the list of members; Python itself takes it as it is."""
    entries = archive.infolist()
    if not all(entry.filename for entry in entries):  # ``is_dir`` looks at the last letter
        return "has a member without a name"
    seen: set[str] = set()
    for entry in entries:
        if entry.filename in seen and not entry.is_dir():
            return f"has two members of the name {entry.filename!r:.80}"
        seen.add(entry.filename)
    end, last = 0, ""
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            return f"has members that share bytes, {last!r:.80} and {entry.filename!r:.80}"
        end, last = entry.header_offset + _LOCAL_HEADER + entry.compress_size, entry.filename
    if end > archive.start_dir:
        return f"has a member that goes beyond the others' end, {last!r:.80}"
    return None


def check_members(archive: zipfile.ZipFile, where: str, names: list[str] | None = None) -> None:
    """Refuse an archive that would unpack to too much.

    Args:
        names: of the members that will be read; default all.

    Raises:
        DataError: it would, or has no such member, or one that is packed in another way.
    """
    entries = archive.infolist() if names is None else [_entry(archive, n, where) for n in names]
    for entry in entries:
        _check_packing(entry, where)
    packed = sum(entry.compress_size for entry in entries)
    _check(archive, sum(entry.file_size for entry in entries), packed, where)


def read_member(archive: zipfile.ZipFile, name: str, where: str, most: int | None = None) -> bytes:
    """One member of a zip file.

    Args:
        most: bytes that it may have; default `most_of`.

    Raises:
        DataError: there is none of this name, it is damaged, too long or packed in another way.
    """
    entry = _entry(archive, name, where)
    place = f"{where}:{name}"
    _check_packing(entry, place)
    if most is not None and entry.file_size > most:
        raise DataError(f"unpacks to {entry.file_size} bytes, at most {most} are read", where=place)
    _check(archive, entry.file_size, entry.compress_size, place)
    with unpacking("member of a zip file", place):
        return archive.read(entry)  # which reads no more than was announced


def gunzip(packed: bytes, where: str, held: int | None = None) -> bytes:
    """Unpack gzip data.

    Args:
        held: how many of its bytes were written, of a file that may have holes.

    Raises:
        DataError: it is corrupt, ends too early, or is too long.
    """
    with unpacking("gzip file", where), gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
        most = most_of(len(packed) if held is None else held)
        bounded, unpacked = Bounded(stream, most, where), io.BytesIO()
        while chunk := bounded.read(_CHUNK):
            unpacked.write(chunk)
        return unpacked.getvalue()  # parts that are joined take their place twice


def read_tar(path: Path, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    """Members of a ``.tar.gz`` by the last part of their names, as they come.

    Args:
        wanted: name -> bytes that the member may have.

    Raises:
        DataError: it is damaged, or unpacks to too much.
    """
    members = _wanted_of(path, wanted)
    while True:
        with unpacking(".tar.gz archive", str(path)):  # not around what the caller does with them
            found = next(members, None)
        if found is None:
            return
        yield found


def _wanted_of(path: Path, wanted: Mapping[str, int]) -> Iterator[tuple[str, bytes]]:
    with open_regular(path) as packed, gzip.GzipFile(fileobj=packed) as stream:
        bounded = Bounded(stream, most_of(held_bytes(packed.fileno())), str(path))
        with _Tar.open(fileobj=bounded, mode="r|") as archive:
            for member in archive:
                name = PurePosixPath(member.name).name
                if name not in wanted or not member.isreg():
                    continue
                if member.size > wanted[name]:
                    raise DataError(
                        f"has {member.size} bytes, at most {wanted[name]} are read",
                        where=f"{path}:{name}",
                    )
                content = archive.extractfile(member)
                assert content is not None
                yield name, content.read()


class _Member(tarfile.TarInfo):
    """A member of a tar, whose header is looked at before `tarfile` follows it: the standard
    library may take hours for facts that were made for that (CVE-2024-6232).
    """

    def _proc_member(self, archive: _Tar) -> tarfile.TarInfo:  # as `tarfile` calls it
        archive.headers += 1
        if archive.headers > _MOST_HEADERS:
            raise tarfile.ReadError(f"more than {_MOST_HEADERS} members")
        if self.size < 0:
            raise tarfile.ReadError(f"a member of {self.size} bytes")
        if self.type in (*_FACTS, *_NAMES) and self.size > _MOST_HEADER:
            raise tarfile.ReadError(
                f"a header of {self.size} bytes, at most {_MOST_HEADER} are read"
            )
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("a file with holes, which is not read")
        if self.type in _FACTS:
            return self._described(archive)
        found: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return found

    def _described(self, archive: _Tar) -> tarfile.TarInfo:
        """The member after a list of facts, of which only the path matters here."""
        assert archive.fileobj is not None
        whole = -(-self.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        facts = archive.fileobj.read(whole)[: self.size]
        member = self.fromtarfile(archive)
        path = _PATH.search(facts) if self.type != tarfile.XGLTYPE else None
        if path is not None:
            member.name = path[1].decode(errors="replace")
        return member


class _Tar(tarfile.TarFile):
    """A tar that counts its headers."""

    tarinfo = _Member
    headers = 0


class Bounded(io.RawIOBase):
    """A stream that is refused once it has given too much.

    Args:
        most: bytes.
        where: the file, for the message.
    """

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, most: int, where: str) -> None:
        self._stream, self._left, self._most, self._where = stream, most, most, where

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        """So many bytes, or all.

        Raises:
            DataError: more than may come.
        """
        parts = []
        while size:
            chunk = self._stream.read(_CHUNK if size < 0 else min(size, _CHUNK))
            if not chunk:
                break
            self._left -= len(chunk)
            if self._left < 0:
                raise _too_long(f"more than {self._most}", self._where)
            parts.append(chunk)
            size = size - len(chunk) if size > 0 else size
        return b"".join(parts)


def _entry(archive: zipfile.ZipFile, name: str, where: str) -> zipfile.ZipInfo:
    try:
        return archive.getinfo(name)
    except KeyError:
        raise DataError(f"has no member {name!r}", where=where, hint=_HINT) from None


def _check_packing(entry: zipfile.ZipInfo, where: str) -> None:
    if entry.compress_type not in _PACKINGS:
        found = _OTHERS.get(entry.compress_type, f"way {entry.compress_type}")
        raise DataError(
            f"{entry.filename!r:.80} is packed with {found}, expected not at all or with Deflate",
            where=where,
            hint="pack it again as an ordinary zip file",
        )


def _check(archive: zipfile.ZipFile, size: int, packed: int, where: str) -> None:
    if size > most_of(min(packed, archive.held) if isinstance(archive, _Zip) else packed):
        raise _too_long(str(size), where)


def _too_long(size: str, where: str) -> DataError:
    return DataError(
        f"unpacks to {size} bytes: so far does no real data shrink",
        where=where,
        hint="if it is what you want, unpack it yourself",
    )
