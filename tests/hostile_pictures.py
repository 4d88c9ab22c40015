# SPDX-License-Identifier: Apache-2.0
"""Small pictures that take long, or much memory, to decode."""

from __future__ import annotations

import struct
import zlib


def many_scans(side: int, count: int) -> bytes:
    """A progressive JPEG, whose scans say that there is nothing in any block.

    Args:
        side: pixels, a multiple of 8.
        count: of scans.
    """

    def segment(kind: int, body: bytes) -> bytes:
        return bytes([0xFF, kind]) + struct.pack(">H", len(body) + 2) + body

    def scan(first: int, last: int, bits: int, said: str) -> bytes:
        said += "1" * (-len(said) % 8)
        body = bytes(int(said[at : at + 8], 2) for at in range(0, len(said), 8))
        head = segment(0xDA, bytes([1, 1, 0, first, last, bits]))
        return head + body.replace(b"\xff", b"\xff\0")

    blocks = (side // 8) ** 2
    runs, left = "", blocks  # of blocks whose ends are reached at once
    while left > 0:
        size = min(left, 32767).bit_length() - 1
        run = min(left, 32767)
        runs += format(size, "04b") + format(run - (1 << size), f"0{size}b" if size else "")
        left -= run
    tables = segment(0xDB, b"\0" + bytes([1] * 64))
    tables += segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + bytes([1, 0x11, 0]))
    tables += segment(0xC4, b"\0" + bytes([1] + [0] * 15) + b"\0")
    ends = bytes(size << 4 for size in range(15))  # words of four bits: a run of 2^size or more
    tables += segment(0xC4, b"\x10" + bytes([0, 0, 0, 15] + [0] * 12) + ends)
    again = scan(1, 63, 0x10, runs) * (count - 2)
    return (
        b"\xff\xd8"
        + tables
        + scan(0, 0, 0, "0" * blocks)
        + scan(1, 63, 1, runs)
        + again
        + b"\xff\xd9"
    )


def wide_tile(side: int) -> bytes:
    """A TIFF of 10 x 10 pixels, in one tile of a larger side."""
    body, long, short = zlib.compress(bytes(10)), 4, 3
    fields = [
        (256, long, 10), (257, long, 10), (258, short, 8), (259, short, 8), (262, short, 1),
        (277, short, 1), (322, long, side), (323, long, side), (324, long, 200),
        (325, long, len(body)),
    ]  # fmt: skip
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in fields)
    head = b"II*\0" + struct.pack("<IH", 8, len(fields)) + entries + bytes(4)
    return head.ljust(200, b"\0") + body


def _tiff(data: bytes, fields: list[tuple[int, ...]], size: int = 0) -> bytes:
    """A TIFF of data (at byte 8) and fields (tag, kind, count, value), filled up to a size."""
    entries = b"".join(struct.pack("<HHII", *each) for each in fields)
    head = b"II*\0" + struct.pack("<I", 8 + len(data))
    body = head + data + struct.pack("<H", len(fields)) + entries + bytes(4)
    return body.ljust(size, b"\0")


def _grey(side: int, bits: int, rows: int, strips: tuple[int, int]) -> list[tuple[int, ...]]:
    """Fields of a grey picture, not packed, whose strips are listed as (count, place)."""
    return [
        (256, 3, 1, side), (257, 3, 1, side), (258, 3, 1, bits), (259, 3, 1, 1), (262, 3, 1, 1),
        (273, 3, *strips), (277, 3, 1, 1), (278, 3, 1, rows), (279, 4, 1, side * side * bits // 8),
    ]  # fmt: skip


def many_strips(side: int, count: int) -> bytes:
    """A TIFF of one bit a pixel whose strips all draw the picture but for its last row."""
    pixels = bytes(side * side // 8)
    places = struct.pack("<H", 8) * count
    return _tiff(pixels + places, _grey(side, 1, side - 1, (count, 8 + len(pixels))))


def far_facts(count: int, size: int) -> bytes:
    """A TIFF of 8 x 8 pixels with so many facts, each of which lies at the end of its bytes."""
    facts = [(30_000 + n, 1, 5, size - 16) for n in range(count)]
    return _tiff(bytes(64), [*_grey(8, 8, 8, (1, 8)), *facts], size)
