# SPDX-License-Identifier: Apache-2.0
"""Packed files of strangers: nothing is unpacked that no real data would be."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import warnings
import zipfile
import zlib
from pathlib import Path

import pytest

from bitwright.base import archives
from bitwright.base.archives import gunzip, most_of, opened_zip, read_member, read_tar
from bitwright.base.errors import DataError, GraphError
from bitwright.base.progress import no_progress
from bitwright.data import cifar
from bitwright.data.listing import list_images, opened
from bitwright.data.mnist import read_idx
from bitwright.ir import INTEGER, load_graph


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb of two megabytes instead of gigabytes."""
    monkeypatch.setattr(archives, "FREE", 1 << 20)


ZEROS = bytes(2 << 20)


def zipped(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in members.items():
            archive.writestr(name.replace("__", "."), body)
    return path


def test_what_is_allowed_grows_with_the_file() -> None:
    assert most_of(10) == 1 << 20
    assert most_of(1 << 20) == 100 << 20


def test_what_is_allowed_never_fills_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "machine_memory", lambda: 80 << 20)
    assert most_of(1 << 20) == 10 << 20
    assert most_of(30 << 20) == 30 << 20  # what is not packed at all may be as large as it is
    with pytest.raises(DataError, match="more than 10485760 bytes"):
        gunzip(gzip.compress(bytes(11 << 20)) + bytes(1 << 20), "x")


def test_a_member_of_zeros_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    path = zipped(tmp_path / "bomb.zip", a=ZEROS, b=b"fine")
    with opened_zip(path) as archive:
        assert read_member(archive, "b", "bomb.zip") == b"fine"
        with pytest.raises(DataError, match="unpacks to 2097152 bytes"):
            read_member(archive, "a", "bomb.zip")
        with pytest.raises(DataError, match="has no member 'c'"):
            read_member(archive, "c", "bomb.zip")
        with pytest.raises(DataError, match="at most 3 are read"):
            read_member(archive, "b", "bomb.zip", 3)


def test_a_member_without_a_name_is_refused(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", one__png=b"a", zero__png=b"b")
    path.write_bytes(path.read_bytes().replace(b"zero.png", b"\0ero.png"))  # Python stops there
    with pytest.raises(DataError, match="without a name"):
        list_images(path)


def directory_of(*members: tuple[bytes, int, bytes, int]) -> bytes:
    """Central directory and end of a zip file: name, place, packed bytes and length of each."""
    entries, end = b"", max(at + 30 + len(n) + len(p) for n, at, p, _ in members)
    for name, at, packed, size in members:
        entries += struct.pack("<IHHHHHHI", 0x02014B50, 20, 20, 0, 8, 0, 0x21, 0)
        entries += struct.pack("<IIHHHHHII", len(packed), size, len(name), 0, 0, 0, 0, 0, at) + name
    count = len(members)
    return entries + struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, len(entries), end, 0)


def header_of(name: bytes, packed: bytes, size: int) -> bytes:
    head = struct.pack("<IHHHHHI", 0x04034B50, 20, 0, 8, 0, 0x21, 0)
    return head + struct.pack("<IIHH", len(packed), size, len(name), 0) + name


@pytest.mark.parametrize("quoted", [True, False])
def test_members_that_share_bytes_are_refused(quoted: bool, tmp_path: Path) -> None:
    """Each is a fair share of what was packed: only together they are more than the file."""
    packing = zlib.compressobj(9, zlib.DEFLATED, -15)
    packed = packing.compress(bytes(50_000)) + packing.flush()
    inner = header_of(b"b", packed, 50_000) + packed
    if quoted:  # the first has the second in it: its header as stored bytes, then what it unpacks
        stored = b"\x00" + struct.pack("<HH", 31, 31 ^ 0xFFFF) + inner
        body = header_of(b"a", stored, 50_031) + stored
        directory = directory_of((b"a", 0, stored, 50_031), (b"b", 36, packed, 50_000))
    else:
        body, directory = inner, directory_of(*[(b"b", 0, packed, 50_000)] * 2)
    path = tmp_path / "x.zip"
    path.write_bytes(body + directory)
    message = "share bytes, 'a' and 'b'" if quoted else "two members of the name 'b'"
    with pytest.raises(DataError, match=message), opened_zip(path):
        pass


def test_a_member_lies_before_the_directory(tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", a=b"fine")
    body = bytearray(path.read_bytes())
    entry = body.index(b"PK\x01\x02")
    body[entry + 20 : entry + 24] = struct.pack("<I", 1000)
    path.write_bytes(body)
    with pytest.raises(DataError, match="beyond the others' end, 'a'"), opened_zip(path):
        pass


def test_zip_files_may_have_folders_twice_and_something_before_them(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")
        for name in ("d/", "d/", "d/a"):
            archive.writestr(name, b"fine" if name == "d/a" else b"")
    path.write_bytes(b"#!/bin/sh\n" + path.read_bytes())
    with opened_zip(path) as archive:
        assert read_member(archive, "d/a", "x.zip") == b"fine"


def large(body: bytes) -> bytes:
    """The file with the records of one of more than 4 GB."""
    count, size, start = struct.unpack("<HII", body[-12:-2])
    at = len(body) - 22
    record = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, size, start)
    return body[:at] + record + struct.pack("<4sIQI", b"PK\6\7", 0, at, 1) + body[at:]


@pytest.mark.parametrize("wide", [False, True])
def test_other_libraries_find_the_same_members(wide: bool, tmp_path: Path) -> None:
    path = zipped(tmp_path / "x.zip", a=b"fine")
    body = large(path.read_bytes()) if wide else path.read_bytes()
    path.write_bytes(body)
    with opened_zip(path, exact=True) as archive:
        assert read_member(archive, "a", "x.zip") == b"fine"
    start = body.index(b"PK\x01\x02")
    changed = [b"before" + body, body[:-2] + b"\1\0c", body[:-22] + bytes(30) + body[-22:]]
    if wide:  # the place of the record, which Python takes to be right before
        changed.append(body[:-34] + struct.pack("<Q", 0) + body[-26:])
    for other in changed:
        path.write_bytes(other)
        with pytest.raises(DataError), opened_zip(path, exact=True):
            pass
    # Another list of as many bytes, which lies before the one that Python finds.
    twice = body[:start] + body[start:-22].split(b"PK\6\6")[0] + body[start:]
    path.write_bytes(twice)
    with opened_zip(path):
        pass
    with pytest.raises(DataError, match="lies elsewhere than its last bytes say"):
        with opened_zip(path, exact=True):
            pass


@pytest.mark.parametrize("packing", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_packings_without_a_bound_are_not_unpacked(packing: int, tmp_path: Path) -> None:
    """Python unpacks them whole, however few bytes are announced."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("a/x.png", b"fine")
    message = "'a/x.png' is packed with (bzip2|LZMA), expected not at all or with Deflate"
    with opened_zip(path) as archive, pytest.raises(DataError, match=message):
        read_member(archive, "a/x.png", str(path))
    with opened(list_images(path)) as read, pytest.raises(DataError, match=message):
        read("a/x.png")


def test_gzip_stops_where_it_becomes_too_much(tmp_path: Path) -> None:
    assert gunzip(gzip.compress(b"fine"), "x") == b"fine"
    with pytest.raises(DataError, match="more than 1048576 bytes"):
        gunzip(gzip.compress(ZEROS), "x")
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(ZEROS))
    with pytest.raises(DataError, match="more than 1048576 bytes"):
        read_idx(path)


def tarred(path: Path, *members: tuple[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, body in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(body)
            archive.addfile(entry, io.BytesIO(body))
    return path


def test_tar_counts_what_is_passed_over_too(tmp_path: Path) -> None:
    path = tarred(tmp_path / "x.tar.gz", ("junk", ZEROS), ("d/want", b"fine"))
    with pytest.raises(DataError, match="more than 1048576 bytes"):
        list(read_tar(path, {"want": 10}))
    path = tarred(tmp_path / "y.tar.gz", ("junk", b"x"), ("d/want", b"fine"))
    assert list(read_tar(path, {"want": 10})) == [("want", b"fine")]
    with pytest.raises(DataError, match="has 4 bytes, at most 3"):
        list(read_tar(path, {"want": 3}))


def test_readers_of_data_sets_and_graphs_are_bounded(tmp_path: Path) -> None:
    path = tarred(tmp_path / "cifar.tar.gz", ("data_batch_1.bin", ZEROS))
    with pytest.raises(DataError, match="more than 1048576 bytes"):
        cifar.load(path, name="cifar10", validation=0.1, seed=0, progress=no_progress)
    path = zipped(tmp_path / "net.bwg", graph__txt=b"graph x integer", p__npy=ZEROS)
    with pytest.raises((DataError, GraphError), match="unpacks to"):
        load_graph(path, {"integer": INTEGER})


@pytest.mark.parametrize(
    ("flag", "message"),
    [(0x1, "is no whole member"), (0x8000, "packed with way 99, expected not at all or with")],
)
def test_locked_members_and_unknown_packings_are_errors_of_the_file(
    flag: int, message: str, tmp_path: Path
) -> None:
    path = zipped(tmp_path / "x.zip", a=b"fine" * 9)
    body = bytearray(path.read_bytes())
    if flag == 1:
        body[6] |= 1  # locked, in both headers
        body[body.index(b"PK\x01\x02") + 8] |= 1
    else:
        body[8] = 99  # a packing of the future
        body[body.index(b"PK\x01\x02") + 10] = 99
    path.write_bytes(body)
    with opened_zip(path) as archive, pytest.raises(DataError, match=message):
        read_member(archive, "a", str(path))


def raw_tar(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> Path:
    """Members as they are, whatever they say of themselves."""
    body = b"".join(
        entry.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)
        for entry, content in members
    )
    path.write_bytes(gzip.compress(body + bytes(1024)))
    return path


def entry_of(kind: bytes, size: int, name: str = "d/want") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size = kind, size
    return entry


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        (tarfile.XHDTYPE, 100_000, "a header of 100000 bytes, at most 65536"),
        (tarfile.XGLTYPE, 100_000, "a header of 100000 bytes"),
        (tarfile.GNUTYPE_LONGNAME, 100_000, "a header of 100000 bytes"),
        (tarfile.GNUTYPE_SPARSE, 4, "with holes"),
        (tarfile.REGTYPE, -512, "a member of -512 bytes"),
        (tarfile.XHDTYPE, -512, "a member of -512 bytes"),
    ],
)
def test_headers_of_a_tar_are_looked_at_first(
    kind: bytes, size: int, message: str, tmp_path: Path
) -> None:
    path = raw_tar(tmp_path / "x.tar.gz", (entry_of(kind, size), b"9" * max(size, 0)))
    with pytest.raises(DataError, match=message):
        list(read_tar(path, {"want": 10}))


@pytest.mark.timeout(20)
def test_digits_of_a_tar_are_not_gone_through_again_and_again(tmp_path: Path) -> None:
    facts = b"9" * 60_000 + b" a=b\n"
    wanted = (entry_of(tarfile.REGTYPE, 4), b"fine")
    path = raw_tar(
        tmp_path / "x.tar.gz", (entry_of(tarfile.XHDTYPE, len(facts), "x"), facts), wanted
    )
    assert list(read_tar(path, {"want": 10})) == [("want", b"fine")]


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_members_of_a_tar_may_have_long_names(form: int, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    with tarfile.open(path, "w:gz", format=form, pax_headers={"comment": "ours"}) as archive:
        for name in ("\u00fc" * 120 + "/want", "e/other"):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = 4, 1.5
            archive.addfile(entry, io.BytesIO(b"fine"))
    found = list(read_tar(path, {"want": 10, "other": 10}))
    assert found == [("want", b"fine"), ("other", b"fine")]


def test_members_of_a_tar_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_MOST_HEADERS", 5)
    path = tarred(tmp_path / "x.tar.gz", *[("junk", b"")] * 5)
    assert list(read_tar(path, {"want": 10})) == []
    path = tarred(tmp_path / "x.tar.gz", *[("junk", b"")] * 6)
    with pytest.raises(DataError, match="more than 5 members"):
        list(read_tar(path, {"want": 10}))
