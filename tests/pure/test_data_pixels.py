# SPDX-License-Identifier: Apache-2.0
"""What pictures of every kind become: bit depth, range and channels as the file has them, or a
refusal with words. The table is docs/images.md.
"""

from __future__ import annotations

import io
import logging
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bitwright.base.errors import DataError, RecipeError
from bitwright.data import load_dataset
from bitwright.data.decoding import Decoding, Framing, decode_image, frame_image, read_header
from bitwright.data.pixels import warn_of_lost

NATURAL = Decoding(bits=None)
RAMP = (np.arange(64).reshape(8, 8) * 1040).astype(np.uint16)  # 0 .. 65520
#: Integers of one data set that 8 bits of the file hold, as its rounding gives them.
EIGHT = np.rint(RAMP / 257).astype(np.uint8)


def packed(picture: Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def png(colour_type: int, depth: int, rows: bytes, side: int) -> bytes:
    """A PNG that Pillow does not write: 16 bits in each of several channels."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    head = struct.pack(">IIBBBBB", side, side, depth, colour_type, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def deep_colour() -> bytes:
    rows = np.stack([RAMP, RAMP[::-1], RAMP.T], axis=2).astype(">u2")
    return png(2, 16, b"".join(b"\0" + row.tobytes() for row in rows), 8)


def tiff(values: np.ndarray) -> bytes:
    return packed(Image.fromarray(values), "TIFF")


GREY_16 = [
    packed(Image.fromarray(RAMP), "PNG"),
    tiff(RAMP),
    packed(Image.fromarray(RAMP), "TIFF", compression="tiff_lzw"),
    packed(Image.fromarray(RAMP), "PPM"),
    b"P5 8 8 65535\n" + RAMP.astype(">u2").tobytes(),
    tiff((RAMP / 65535).astype(np.float32)),
]


@pytest.mark.parametrize("content", GREY_16)
def test_sixteen_bits_of_grey_are_what_the_file_has(content: bytes) -> None:
    found = decode_image(content, NATURAL, "x")
    assert found.dtype == np.uint16 and found.shape == (8, 8, 1)
    assert np.array_equal(found[..., 0], RAMP)
    assert np.array_equal(decode_image(content, Decoding(), "x")[..., 0], EIGHT)
    colour = decode_image(content, Decoding(grey=False, bits=None), "x")
    assert np.array_equal(colour, np.repeat(found, 3, axis=2))
    header = read_header(io.BytesIO(content), "x")
    assert (header.grey, header.bits) == (True, 16)


def test_a_picture_of_8_bits_becomes_one_of_16_exactly_and_back() -> None:
    grey = Image.fromarray(EIGHT)
    deep = decode_image(packed(grey, "PNG"), Decoding(bits=16), "x")
    assert deep.dtype == np.uint16 and np.array_equal(deep[..., 0], EIGHT.astype(int) * 257)
    again = decode_image(packed(Image.fromarray(deep[..., 0]), "PNG"), Decoding(), "x")
    assert np.array_equal(again[..., 0], EIGHT)


def test_sixteen_bits_are_resized_as_such() -> None:
    content = packed(Image.fromarray(np.full((8, 8), 1000, np.uint16)), "PNG")
    assert (decode_image(content, Decoding((3, 5), bits=None), "x") == 1000).all()
    assert (frame_image(content, Framing((4, 4), 6, True, 16), "x") == 1000).all()
    framed = frame_image(content, Framing((4, 4), 6, False), "x")
    assert framed.dtype == np.uint8 and framed.shape == (4, 4, 3) and (framed == 4).all()


@pytest.mark.parametrize(
    "content", [deep_colour(), b"P6 8 8 65535\n" + np.repeat(RAMP, 3).astype(">u2").tobytes()]
)
def test_sixteen_bits_of_colour_are_read_with_eight_or_refused(content: bytes) -> None:
    with pytest.raises(DataError, match="16 bits in each of its channels"):
        decode_image(content, NATURAL, "x")
    found = decode_image(content, Decoding(), "x")
    assert found.shape == (8, 8, 3)
    assert np.abs(found[..., 0].astype(int) - EIGHT).max() <= 1
    assert read_header(io.BytesIO(content), "x").bits == 16


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.full((4, 4), np.nan, np.float32), "16 pixels that are NaN"),
        (np.full((4, 4), np.inf, np.float32), "infinite"),
        (np.full((4, 4), 255, np.float32), "floats from 255 to 255"),
        (np.full((4, 4), -0.5, np.float32), "floats from -0.5"),
        (np.full((4, 4), 70_000, np.int32), "integers of 32 bits"),
        (np.full((4, 4), 3, np.int32), "what white is"),
    ],
)
def test_numbers_of_unknown_range_are_refused(values: np.ndarray, words: str) -> None:
    with pytest.raises(DataError, match=words):
        decode_image(tiff(values), NATURAL, "x")


def test_see_through_pixels_are_refused_and_an_alpha_channel_without_any_is_dropped() -> None:
    colour = np.dstack([EIGHT, EIGHT.T, EIGHT[::-1]])
    for alpha, refused in ((255, False), (254, True)):
        plane = np.full((8, 8), 255, np.uint8)
        plane[2, 3] = alpha
        pictures = [
            (Image.fromarray(np.dstack([colour, plane])), colour),
            (Image.fromarray(np.dstack([EIGHT, plane]), "LA"), EIGHT[..., None]),
        ]
        for picture, expected in pictures:
            content = packed(picture, "PNG")
            if refused:
                with pytest.raises(DataError, match="transparent"):
                    decode_image(content, NATURAL, "x")
            else:
                assert np.array_equal(decode_image(content, NATURAL, "x"), expected)
    content = packed(Image.fromarray(EIGHT), "PNG", transparency=int(EIGHT[1, 1]))
    with pytest.raises(DataError, match="transparent"):
        decode_image(content, NATURAL, "x")
    content = packed(Image.fromarray(RAMP), "PNG", transparency=1)  # no pixel has this grey
    assert np.array_equal(decode_image(content, NATURAL, "x")[..., 0], RAMP)


def test_palettes_one_bit_and_cmyk() -> None:
    colour = Image.fromarray(np.dstack([EIGHT, EIGHT // 2, EIGHT // 4]))
    found = decode_image(packed(colour.quantize(64), "PNG"), NATURAL, "x")
    assert np.array_equal(found, np.asarray(colour.quantize(64).convert("RGB")))
    grey = decode_image(packed(Image.fromarray(EIGHT), "GIF"), NATURAL, "x")  # a palette of greys
    assert grey.shape == (8, 8, 1) and np.array_equal(grey[..., 0], EIGHT)
    bits = Image.fromarray((EIGHT > 100).astype(np.uint8) * 255).convert("1")
    for kind, options in (("PNG", {}), ("TIFF", {"compression": "group4"}), ("PPM", {})):
        found = decode_image(packed(bits, kind, **options), NATURAL, "x")
        assert np.array_equal(found[..., 0], (EIGHT > 100) * 255)
    ink = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    for kind in ("TIFF", "JPEG"):
        found = decode_image(packed(ink, kind), NATURAL, "x")
        assert found.shape == (8, 8, 3) and np.abs(found.astype(int) - (255, 0, 0)).max() <= 3


@pytest.mark.parametrize("kind", ["JPEG", "TIFF", "PNG"])
def test_a_camera_held_sideways_is_turned(kind: str) -> None:
    wide = np.zeros((8, 16), np.uint8)
    wide[:, :8] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    content = packed(Image.fromarray(wide), kind, exif=exif)
    found = decode_image(content, NATURAL, "x")[..., 0]
    assert found.shape == (16, 8) and found[:7].min() > 200 and found[9:].max() < 50


def write(folder: Path, contents: dict[str, bytes]) -> Path:
    for name, content in contents.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return folder


def folder_of(tmp_path: Path, ending: str = "png", **kind: object) -> Path:
    random = np.random.default_rng(0)
    contents = {}
    for number in range(16):
        values = random.integers(0, 65536, (8, 8)).astype(np.uint16)
        contents[f"{'ab'[number % 2]}/{number}.{ending}"] = packed(
            Image.fromarray(values), str(kind.get("kind", "PNG"))
        )
    return write(tmp_path, contents)


def test_a_folder_of_16_bit_pngs_keeps_them(tmp_path: Path) -> None:
    splits = load_dataset({"name": "folder", "path": folder_of(tmp_path)})
    assert splits.train.images.dtype == np.uint16 and splits.image_shape == (8, 8, 1)
    assert splits.scale == 1 / 65535 and splits.input_format == "uint16"
    pixels = splits.train.pixels
    assert len(np.unique(pixels)) > 500  # all were 255 once
    assert np.array_equal(
        splits.train.reals()[:, 0], pixels[..., 0].astype(np.float32) * np.float32(1 / 65535)
    )
    eight = load_dataset({"name": "folder", "path": tmp_path, "bits": 8})
    assert eight.train.images.dtype == np.uint8 and eight.input_format is None
    assert np.array_equal(eight.train.pixels, np.rint(pixels / 257))
    assert eight.digest() != splits.digest()


def test_a_streamed_folder_of_16_bit_tiffs_keeps_them(tmp_path: Path) -> None:
    folder_of(tmp_path, "tiff", kind="TIFF")
    given = {"name": "folder", "path": tmp_path, "image_size": [8, 8]}
    whole = load_dataset(given)
    splits = load_dataset(given | {"stream": {"short_side": 8}})
    assert splits.train.images.dtype == np.uint16
    assert np.array_equal(splits.train.pixels, whole.train.pixels)


def test_images_of_8_and_16_bits_are_not_mixed(tmp_path: Path) -> None:
    write(folder_of(tmp_path), {"b/99.png": packed(Image.fromarray(EIGHT), "PNG")})
    with pytest.raises(DataError, match=r"(?s)b/99\.png.*8 bits.*data\.bits"):
        load_dataset({"name": "folder", "path": tmp_path})
    load_dataset({"name": "folder", "path": tmp_path, "bits": 16})


def test_bits_are_of_folders() -> None:
    with pytest.raises(RecipeError, match="8 or 16"):
        load_dataset({"name": "digits", "bits": 8})
    with pytest.raises(RecipeError, match="8 or 16"):
        load_dataset({"name": "folder", "path": ".", "bits": 12})


def test_a_data_set_that_holds_nothing_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    random = np.random.default_rng(0)
    full = np.full((20, 8, 8, 1), 255, np.uint8)
    full.reshape(-1)[::200] = 0
    each = np.broadcast_to(np.arange(20, dtype=np.uint8)[:, None, None, None], (20, 8, 8, 1))
    ink = (random.random((20, 8, 8, 1)) < 0.1).astype(np.uint8) * 255
    for levels, words in ((full, "saturated"), (each, "one level each"), (ink, None)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            warn_of_lost(levels, 255, "images", "here")
        assert (words in caplog.text) if words else not caplog.records
