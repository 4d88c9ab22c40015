# SPDX-License-Identifier: Apache-2.0
"""Files with holes: kilobytes of an archive, and of the disk, that seem to be gigabytes. What a
reader may take goes by the bytes that were written.
"""

from __future__ import annotations

import gzip
import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.pure.test_whole_folders import graph

from bitwright.base import archives, bounded
from bitwright.base.archives import check_members, opened_zip, read_member
from bitwright.base.errors import DataError
from bitwright.base.files import held_size, read_bytes
from bitwright.base.regular import held_bytes, open_regular
from bitwright.data.listing import Written, list_images, opened
from bitwright.data.mnist import read_idx
from bitwright.ir import INTEGER, load_graph, save_graph

MIB = 1 << 20


@pytest.fixture(autouse=True)
def holes(tmp_path: Path) -> None:
    file = tmp_path / "hole"
    file.write_bytes(b"")
    os.truncate(file, 64 * MIB)
    if held_size(file) == 64 * MIB:
        pytest.skip("the file system of temporary files knows of no holes")


def dug(path: Path) -> Path:
    """The same file, without its blocks of zeros."""
    body = path.read_bytes()
    with path.open("wb") as file:
        for begin in range(0, len(body), 4096):
            part = body[begin : begin + 4096]
            file.seek(begin)
            if part.strip(b"\0"):
                file.write(part)
        file.truncate(len(body))
    assert path.read_bytes() == body and held_size(path) < len(body) // 10
    return path


def test_what_was_written_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"x" * 8192)
    assert held_size(file) == 8192
    with file.open("r+b") as stream:
        stream.seek(8 * MIB)
        stream.write(b"y" * 4096)
    os.truncate(file, 64 * MIB)
    with open_regular(file) as stream:
        assert stream.read(2) == b"xx"
        assert held_bytes(stream.fileno()) == 12288
        assert stream.read(2) == b"xx"  # the place in it is what it was
    assert held_size(Path("/proc/self/maps")) == 0
    assert read_bytes(file)[8 * MIB] == ord("y")


def test_readers_have_time_and_memory_for_what_was_written(tmp_path: Path) -> None:
    for place in ("a", "sub/b"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(b"x" * 4096)
        os.truncate(tmp_path / place, 1 << 30)
    assert bounded._size(tmp_path / "a") == 4096
    assert bounded._size(tmp_path) == 2 * 4096


def test_members_of_a_zip_file_that_are_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FREE", MIB)
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("zeros", bytes(8 * MIB))
        archive.writestr("some", b"x" * 10_000)
    with opened_zip(path) as archive:
        assert len(read_member(archive, "zeros", "a")) == 8 * MIB
    dug(path)
    monkeypatch.setattr(archives, "RATIO", 2)
    with opened_zip(path) as archive:
        assert read_member(archive, "some", "a") == b"x" * 10_000
        with pytest.raises(DataError, match="so far does no real data shrink"):
            read_member(archive, "zeros", "a")
        with pytest.raises(DataError, match="so far does no real data shrink"):
            check_members(archive, "a")


def test_parameters_of_a_graph_that_are_holes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 kB of the disk took 3.5 GB."""
    path, body = tmp_path / "g.bwg", io.BytesIO()
    save_graph(graph(), path)
    np.save(body, np.zeros(8 * MIB, np.int8))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("0123456789abcdef.npy", body.getvalue(), zipfile.ZIP_STORED)
    dug(path)
    monkeypatch.setattr("bitwright.ir.text._FREE", MIB)
    with pytest.raises(DataError, match="take too much memory"):
        load_graph(path, {"integer": INTEGER})


def test_what_follows_a_packed_file_does_not_let_it_unpack_to_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FREE", MIB)
    header = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2000, 32, 32))
    path = tmp_path / "images.gz"
    path.write_bytes(gzip.compress(header + bytes(2000 * 1024)))
    os.truncate(path, 32 * MIB)
    monkeypatch.setattr(archives, "RATIO", 1)
    with pytest.raises(DataError, match="bytes"):
        read_idx(path)
    plain = tmp_path / "images"
    plain.write_bytes(header)
    os.truncate(plain, 16 + 2000 * 1024)
    with pytest.raises(DataError, match="has more than"):
        read_idx(plain)


def test_pictures_with_holes_bring_what_was_written(tmp_path: Path) -> None:
    """A short picture with gigabytes of nothing behind it let the others be as large."""
    folder = tmp_path / "data"
    for number in range(3):
        (folder / "a").mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), 255).save(folder / "a" / f"{number}.png")
        os.truncate(folder / "a" / f"{number}.png", 8 * MIB)
    listing = list_images(folder)
    written = Written(listing)
    with opened(listing) as read:
        sums = [written.add(name, read(name)) for name in listing.names]
    assert 100 < sums[0] < sums[1] < sums[2] <= 3 * 4096
    with zipfile.ZipFile(tmp_path / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.write(folder / "a" / f"{number}.png", f"a/{number}.png")
    listing = list_images(tmp_path / "data.zip")
    written = Written(listing)
    with opened(listing) as read:
        sums = [written.add(name, read(name)) for name in listing.names]
    assert sums == [(tmp_path / "data.zip").stat().st_size] * 3
