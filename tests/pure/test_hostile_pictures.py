# SPDX-License-Identifier: Apache-2.0
"""Pictures, annotations and folders of strangers that were made to do harm."""

from __future__ import annotations

import gzip
import io
import os
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.hostile_pictures import far_facts, many_scans, many_strips, wide_tile
from tests.pace import within

from bitwright.base import archives, memory
from bitwright.base.errors import DataError
from bitwright.data import annotated, decoding, detection, folders, mnist
from bitwright.data.annotated import load as load_annotated
from bitwright.data.decoding import Decoding, Framing, decode_image, frame_image, read_header
from bitwright.data.image_files import ImageFiles, Source
from bitwright.data.labels import BoxLabels, MapLabels
from bitwright.data.listing import find_layout, list_images, peeked

_SIDES = ("xmin", "ymin", "xmax", "ymax")


def _png(width: int, height: int) -> bytes:
    """A black picture of one bit a pixel, row after row."""
    packing = zlib.compressobj(9)
    row = bytes(1 + (width + 7) // 8)
    body = b"".join(packing.compress(row) for _ in range(height)) + packing.flush()

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def test_a_picture_of_too_many_pixels_is_refused_by_its_header() -> None:
    decoding._pillow.cache_clear()  # what it turned off, pytest has turned on again
    start = _png(13300, 8)
    height = start.index(b"IHDR") + 8
    start = start[:height] + struct.pack(">I", 13300) + start[height + 4 :]
    check = start.index(b"IHDR") + 17
    start = start[:check] + struct.pack(">I", zlib.crc32(start[12:check])) + start[check + 4 :]
    for decode in (
        lambda: decode_image(start, Decoding((8, 8)), "x.png"),
        lambda: frame_image(start, Framing((8, 8), 8), "x.png"),
        lambda: read_header(io.BytesIO(start), "x.png"),
    ):
        with pytest.raises(DataError, match=r"13300 x 13300 pixels.*at most 67108864"):
            decode()


def _as(kind: str, mode: str = "RGB", **options: object) -> bytes:
    body = io.BytesIO()
    Image.new(mode, (64, 64)).save(body, kind, **options)
    return body.getvalue()


def test_scans_of_a_jpeg_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_LEAST_SCANNED", 1)
    monkeypatch.setattr(decoding, "_MOST_SCANNED", 20 * 64 * 64)
    assert decode_image(many_scans(64, 20), Decoding(), "x.jpg").shape == (64, 64, 1)
    with pytest.raises(DataError, match="has 21 scans of 64 x 64 pixels, at most 20"):
        decode_image(many_scans(64, 21), Decoding(), "x.jpg")
    with pytest.raises(DataError, match="has 50 scans"):
        frame_image(many_scans(64, 50), Framing((8, 8), 8), "x.jpg")
    words = b"\xff\xda" * 300  # which are scans neither in a comment nor behind the end
    for progressive in (False, True):
        body = _as("JPEG", progressive=progressive, comment=words) + words
        assert decode_image(body, Decoding(), "x.jpg").shape == (64, 64, 3)
    monkeypatch.setattr(decoding, "_MOST_SEGMENTS", 3)
    with pytest.raises(DataError, match=r"has 6\d\d scans"):
        decode_image(body, Decoding(), "x.jpg")


@pytest.mark.parametrize(
    "body",
    [
        b"P3 64 64 255\n" + b"0 " * 64 * 64 * 3,
        b"P2 64 64 255\n" + b"0 " * 64 * 64,
        b"P1 64 64\n" + b"0" * 64 * 64,
        b"P5 64 64 100\n" + bytes(64 * 64),
        b"P6 64 64 254\n" + bytes(64 * 64 * 3),
        _as("BMP", "L")[:30] + b"\1" + _as("BMP", "L")[31:1078] + b"\x40\0\0\0" * 64 + b"\0\1",
    ],
    ids=["P3", "P2", "P1", "P5", "P6", "BMP"],
)
def test_what_is_decoded_slowly_is_small(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert decode_image(body, Decoding(), "x").shape[:2] == (64, 64)
    monkeypatch.setattr(decoding, "_MOST_SLOW", 4000)
    with pytest.raises(DataError, match=r"numbers in .* decoded slowly, at most 4000 in"):
        decode_image(body, Decoding(), "x")
    monkeypatch.setattr(decoding, "_MOST_SLOW", 1 << 20)
    monkeypatch.setattr(decoding, "_MOST_SLOW_BYTES", 100)
    with pytest.raises(DataError, match="in 100 are"):
        decode_image(body, Decoding(), "x")
    assert decode_image(_as("PPM"), Decoding(), "x").shape == (64, 64, 3)


def test_tiles_are_hardly_larger_than_the_picture() -> None:
    with pytest.raises(DataError, match="has tiles of 46000 x 46000 pixels, at most 16777216"):
        decode_image(wide_tile(46_000), Decoding(), "x.tif")


def test_strips_draw_a_picture_once() -> None:
    """A megabyte of strips that each draw all but a row took minutes."""
    assert decode_image(many_strips(64, 3), Decoding(), "x.tif").shape == (64, 64, 1)
    with pytest.raises(DataError, match="has parts of 2048000 pixels together"):
        decode_image(many_strips(64, 1000), Decoding(), "x.tif")


@pytest.mark.parametrize(
    ("kind", "piece", "count", "said"),
    [
        ("JPEG", b"\xff\xe5\0\2", 101_000, "in too many pieces"),
        ("JPEG", b"\xff\xe1\xff\xffExif\0\0" + bytes(65_527), 70, "in front of its pixels"),
        (
            "PNG",
            b"\0\0\0\0abCd" + struct.pack(">I", zlib.crc32(b"abCd")),
            101_000,
            "in too many pieces",
        ),
        ("PNG after", b"\0\0\0\0abCd" + struct.pack(">I", zlib.crc32(b"abCd")), 101_000, "pieces"),
    ],
    ids=["segments", "exif", "chunks", "chunks behind"],
)
def test_a_picture_is_in_few_pieces(kind: str, piece: bytes, count: int, said: str) -> None:
    """Each is kept: a packed file of 260 kB, 67 million of them, took 9 GB."""
    name, _, behind = kind.partition(" ")
    body = _as(name, "L")
    at = {"JPEG": 2, "PNG": len(body) - 12 if behind else 33}[name]
    with pytest.raises(DataError, match=said):
        decode_image(body[:at] + count * piece + body[at:], Decoding(), "x")
    small = body[:at] + 60 * piece + body[at:]
    assert decode_image(small, Decoding(), "x").shape == (64, 64, 1)


def test_large_pictures_are_decoded_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads, up to 32, took 1.3 GB each for a picture of 8192 x 8192 floats in 400 kB."""
    monkeypatch.setattr(decoding, "_TURNS", memory.Turns(2 * 64 * 64))
    now, most, read = [0], [0], decoding.readable

    def readable(*arguments: Any) -> Any:
        now[0] += 1
        most[0] = max(most[0], now[0])
        time.sleep(0.02)
        now[0] -= 1
        return read(*arguments)

    monkeypatch.setattr(decoding, "readable", readable)
    for number in range(12):
        (tmp_path / f"{number}.png").write_bytes(_as("PNG"))
    listing = list_images(tmp_path)
    every = ImageFiles(Source(listing), Framing((8, 8), 8), np.arange(12), threads=6)
    assert np.asarray(every).shape == (12, 8, 8, 3)
    assert most[0] == 2
    monkeypatch.setattr(decoding, "_TURNS", memory.Turns(10))
    assert every[0].shape == (8, 8, 3)


def test_a_packed_picture_is_not_unpacked_for_each_of_its_facts(tmp_path: Path) -> None:
    """65 000 facts at the end of 256 MB, which pack into 400 kB, took 18 hours."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/0.tif", far_facts(500, 1 << 23))
    with within(3):
        with peeked(list_images(path)) as peek, peek("a/0.tif") as stream:
            assert read_header(stream, "0.tif").numbers == 64


def test_images_of_one_name_have_one_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand folders with an image of 70 bytes each had a mask of 500 kB decoded for each."""
    path, seen = tmp_path / "x.zip", []
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("masks/x.png", _as("PNG", "L"))
        for number in range(20):
            archive.writestr(f"{number}/x.png", _png(8, 8))
    decode = annotated.decode_map
    monkeypatch.setattr(annotated, "decode_map", lambda *a: seen.append(a) or decode(*a))
    load_annotated(path, Decoding(), MapLabels(), name="x", validation=0.2, test=0.2, seed=0)
    assert len(seen) == 1


def test_images_of_a_pixel_are_as_many_as_real_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two packed files of 260 kB held 268 million of them, whose labels alone took 2 GB."""
    monkeypatch.setattr(archives, "FREE", 1 << 20)
    for part, count in (("train", 20_000), ("t10k", 100)):
        for kind, shape in (("images-idx3", (count, 1, 1)), ("labels-idx1", (count,))):
            head = b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
            body = gzip.compress(head + bytes(n % 10 for n in range(count)))
            (tmp_path / f"{part}-{kind}-ubyte.gz").write_bytes(body)
    with pytest.raises(DataError, match=r"20000 images of \(1, 1\) are more than so short a file"):
        mnist.load(tmp_path, name="mnist", validation=0.1, seed=0)
    monkeypatch.setattr(archives, "FREE", 2 << 20)
    assert len(mnist.load(tmp_path, name="mnist", validation=0.1, seed=0).train) == 18_000


def test_an_annotation_has_a_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images/0.png", _png(8, 8))
        archive.writestr("annotations/0.xml", f"<annotation>{'<a/>' * 1000}</annotation>")
    assert detection.load_voc(path)[0].boxes.shape == (0, 4)
    monkeypatch.setattr(detection, "_MOST_BYTES", 4000)
    with pytest.raises(DataError, match=r"annotations/0\.xml: has more than 4000 bytes"):
        detection.load_voc(path)


@pytest.mark.parametrize("bound", ["_FREE_ELEMENTS", "most_of"])
def test_annotations_have_a_length_together(
    bound: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand of the largest ones pack into a megabyte."""
    path = tmp_path / "x.zip"
    sides = "".join(f"<{side}>{at}</{side}>" for side, at in zip(_SIDES, (1, 1, 4, 4), strict=True))
    box = f"<object><name>cat</name><bndbox>{sides}</bndbox></object>"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(4):
            text = f"<a>{box}{'<a/>' * 1000}{' ' * 9000}</a>"
            archive.writestr(f"images/{number}.png", _png(8, 8))
            archive.writestr(f"annotations/{number}.xml", text)
    kind = BoxLabels()
    read: tuple[Callable[[], object], ...] = (
        lambda: detection.load_voc(path),
        lambda: load_annotated(path, Decoding(), kind, name="x", validation=0.2, test=0.2, seed=0),
    )
    for each in read:
        each()
    monkeypatch.setattr(detection, bound, (lambda _: 30_000) if bound == "most_of" else 3500)
    said = "too long, with those before it" if bound == "most_of" else "more elements than the file"
    for each in read:
        with pytest.raises(DataError, match=said):
            each()


def test_pictures_with_boxes_grow_no_further_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FREE", 3 << 20)
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(4):
            archive.writestr(f"images/{number}.png", _png(1000, 1000))
            archive.writestr(f"annotations/{number}.xml", "<annotation/>")
    with pytest.raises(DataError, match=r"2 images come from .* no real image shrink"):
        detection.load_voc(path)


def test_a_broken_picture_says_nothing_to_the_terminal(tmp_path: Path) -> None:
    body = io.BytesIO()
    Image.new("RGB", (4, 4)).save(body, "TIFF")
    samples = struct.pack("<HHL", 0x115, 3, 1)  # of a pixel: the entry's tag, type and count
    at = body.getvalue().index(samples) + len(samples)
    broken = body.getvalue()[:at] + struct.pack("<H", 2048) + body.getvalue()[at + 2 :]
    (tmp_path / "x.tif").write_bytes(broken)
    script = """import sys, pathlib
from bitwright.data.decoding import Decoding, decode_image
try:
    decode_image(pathlib.Path(sys.argv[1]).read_bytes(), Decoding(), "x.tif")
except Exception as error:
    print(error.message)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "x.tif")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.startswith("cannot be decoded") and not done.stderr


def _zip(path: Path, names: list[str], body: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, body)
    return path


def _load(path: Path, size: tuple[int, int] | None) -> object:
    return folders.load(path, Decoding(size), name="x", validation=0.1, test=0.2, seed=0)


def test_images_that_grow_beyond_what_files_hold_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "FREE", 3 << 20)
    names = [f"{'ab'[n % 2]}/{n}.png" for n in range(40)]
    path = _zip(tmp_path / "x.zip", names, _png(1000, 1000))  # 40 MB from 8 kB
    with pytest.raises(DataError, match=r"4 images of .1000, 1000, 1. come from .* no real image"):
        _load(path, None)
    monkeypatch.setattr(memory, "machine_memory", lambda: 1 << 20)
    with pytest.raises(DataError, match=r"40 images of \(1000, 1000, 1\) do not fit into memory"):
        _load(path, None)
    with pytest.raises(DataError, match=r"40 images of \(200, 200, 1\) do not fit into memory"):
        _load(path, (200, 200))


@pytest.mark.parametrize("packed", [True, False])
def test_folders_inside_folders_have_an_end(packed: bool, tmp_path: Path) -> None:
    inside = "/".join("a" * (1000 if packed else 40)) + "/x.png"
    path = tmp_path / "x"
    if packed:
        _zip(path, [inside], b"")
    else:
        (path / inside).parent.mkdir(parents=True)
        (path / inside).touch()
    with pytest.raises(DataError, match="folders inside each other, at most 32"):
        list_images(path)


@pytest.mark.parametrize("target", ["nowhere", "z.png"])
def test_links_that_lead_nowhere_are_named(target: str, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(_png(4, 4))
    (tmp_path / "a" / "z.png").symlink_to(target)
    with pytest.raises(DataError, match=r"a/z\.png: cannot be read: .*\n.*a link"):
        list_images(tmp_path)


@pytest.mark.parametrize("name", [b"c\xff/x.png", b"c/\xff.png"])
def test_names_of_classes_are_text(name: bytes, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.path.join(os.fsencode(tmp_path), name)))
    try:
        path.parent.mkdir()
        path.write_bytes(_png(4, 4))
    except OSError:
        pytest.skip("this file system has names in UTF-8 alone")
    with pytest.raises(DataError, match=r"holds b'.*\\xff.*', which is no name in UTF-8"):
        list_images(tmp_path)


@pytest.mark.timeout(20)
def test_many_classes_of_one_image_are_listed_soon(tmp_path: Path) -> None:
    names = [f"c{number:05}/x.png" for number in range(3000)]
    layout = find_layout(list_images(_zip(tmp_path / "x.zip", names, b"")))
    assert layout.members["all"] == (list(range(3000)), list(range(3000)))


def test_damaged_tiff_says_nothing_on_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """libtiff writes to standard error by itself."""
    stream = io.BytesIO()
    Image.new("RGB", (40, 40)).save(stream, "TIFF", compression="tiff_lzw")
    body = bytearray(stream.getvalue())
    place = body.index(b"\x80\x00")  # where the packed pixels begin
    body[place : place + 40] = b"\xff" * 40
    with pytest.raises(DataError):
        decode_image(bytes(body), Decoding(size=(8, 8)), "x.tif")
    assert capfd.readouterr() == ("", "")
