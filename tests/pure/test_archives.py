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
