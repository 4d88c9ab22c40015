# SPDX-License-Identifier: Apache-2.0
"""Packed files of strangers: nothing is unpacked that no real data would be."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from bitwright.base import archives
from bitwright.base.archives import gunzip, most_of, opened_zip, read_member, read_tar
from bitwright.base.errors import DataError, GraphError
from bitwright.base.progress import no_progress
from bitwright.data import cifar
from bitwright.data.listing import list_images
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


@pytest.mark.parametrize("flag", [0x1, 0x8000])
def test_locked_members_and_unknown_packings_are_errors_of_the_file(
    flag: int, tmp_path: Path
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
    with opened_zip(path) as archive, pytest.raises(DataError, match="is no whole member"):
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
