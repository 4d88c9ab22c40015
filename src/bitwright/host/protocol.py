# SPDX-License-Identifier: Apache-2.0
"""Packets on the serial line (docs/board-protocol.md): bytes <-> values, nothing else."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, IntFlag

VERSION = 1
HOST_MAGIC, DEVICE_MAGIC = b"\x62\x57", b"\x42\x77"
DIGEST_BYTES = 8
HELLO_BYTES = 32
NAME_BYTES = 12
MOST_PAYLOAD = 255
ANSWER_CHUNK = 128
"""Bytes of an answer in a packet, at most."""
_HOST = struct.Struct("<BBBBH")
_DEVICE = struct.Struct("<BBBBHHHHBBI")
_HELLO = struct.Struct(f"<{DIGEST_BYTES}sIIIBB{NAME_BYTES - 2}s")
_CRC = struct.Struct("<I")
_MAGIC = 2
DEVICE_OVERHEAD = _MAGIC + _DEVICE.size + _CRC.size
HOST_OVERHEAD = _MAGIC + _HOST.size + _CRC.size


def element_bytes(bits: int) -> int:
    """Of an element of an output on the line: the smallest integer of a computer that holds it."""
    return next((size for size in (1, 2, 4, 8) if 8 * size >= bits), -(-bits // 8))


def line_bytes(frame: int, answer: int) -> tuple[int, int]:
    """Bytes on the line for one of many images, to the device and back, packets included.

    Args:
        frame, answer: bytes of an input frame and of its answer.
    """
    there = frame + -(-frame * HOST_OVERHEAD // MOST_PAYLOAD)  # packets go over ends of frames
    return there, answer + DEVICE_OVERHEAD * -(-answer // min(answer, ANSWER_CHUNK))


class Request(IntEnum):
    """Kinds of packets of the host."""

    HELLO = 1
    OPEN = 2
    DATA = 3


class Reply(IntEnum):
    """Kinds of packets of the device."""

    HELLO = 1
    STATUS = 2
    ANSWER = 3


class Flags(IntFlag):
    """State of the device: a session is open; the last OPEN had another digest; the last DATA was
    of no open session.
    """

    OPEN = 1
    OTHER_DIGEST = 2
    REFUSED = 4


@dataclass(frozen=True)
class Packet:
    """A whole packet of the device; the numbers wrap around at their widths.

    Attributes:
        kind: what it is.
        session: number of the session; 0 before the first.
        sequence: of the last whole packet of the host.
        received, consumed: bytes of the session's input stream that have arrived in order, and
            that have left the buffer, modulo 2^16.
        frame: number of frames answered before this packet's, modulo 2^16.
        chunk: which part of the answer the payload is.
        damaged: packets that were none, modulo 2^8.
        flags: state.
        cycles: clocks of the core for this frame; 0: not timed.
        payload: of an answer or a hello.
    """

    kind: Reply
    session: int
    sequence: int
    received: int
    consumed: int
    frame: int
    chunk: int
    damaged: int
    flags: Flags
    cycles: int
    payload: bytes


@dataclass(frozen=True)
class Hello:
    """What a device says of itself.

    Attributes:
        digest: of the design, 16 hexadecimal digits.
        input_bytes, answer_bytes: of a frame on the line.
        clock_khz: of the design.
        buffer_bytes: input that it can hold.
        chunk: bytes of an answer in a packet, at most.
        name: of the design, its first letters.
    """

    digest: str
    input_bytes: int
    answer_bytes: int
    clock_khz: int
    buffer_bytes: int
    chunk: int
    name: str

    def payload(self) -> bytes:
        """As it stands in the packet."""
        return _HELLO.pack(
            bytes.fromhex(self.digest),
            self.input_bytes,
            self.answer_bytes,
            self.clock_khz,
            self.buffer_bytes.bit_length() - 1,
            self.chunk,
            self.name.encode("ascii", "replace")[: NAME_BYTES - 2],
        )


def read_hello(payload: bytes) -> Hello | None:
    """A device's hello; None if the payload is none."""
    if len(payload) != HELLO_BYTES:
        return None
    digest, taken, given, clock, log2_buffer, chunk, name = _HELLO.unpack(payload)
    text = name.rstrip(b"\0").decode("ascii", "replace")
    return Hello(digest.hex(), taken, given, clock, 1 << log2_buffer, chunk, text)


def request(
    kind: Request, session: int, sequence: int, offset: int = 0, payload: bytes = b""
) -> bytes:
    """A packet of the host; session, sequence and offset are taken modulo their widths."""
    if len(payload) > MOST_PAYLOAD:
        raise ValueError(f"a packet carries {MOST_PAYLOAD} bytes, not {len(payload)}")
    head = VERSION << 4 | kind, session & 0xFF, sequence & 0xFF, len(payload), offset & 0xFFFF
    body = _HOST.pack(*head) + payload
    return HOST_MAGIC + body + _CRC.pack(zlib.crc32(body))


def reply(packet: Packet) -> bytes:
    """A packet of the device, as the shell makes it: for tests and emulators."""
    body = _DEVICE.pack(
        VERSION << 4 | packet.kind,
        packet.session,
        packet.sequence,
        len(packet.payload),
        packet.received,
        packet.consumed,
        packet.frame,
        packet.chunk,
        packet.damaged,
        packet.flags,
        packet.cycles,
    )
    body += packet.payload
    return DEVICE_MAGIC + body + _CRC.pack(zlib.crc32(body))


class Parser:
    """Packets of the device out of bytes; what is none is skipped and counted.

    Args:
        chunk: bytes of an answer in a packet, at most.

    Attributes:
        skipped: bytes that belonged to no whole packet.
    """

    def __init__(self, chunk: int = MOST_PAYLOAD) -> None:
        self._bytes = bytearray()
        self._most = {Reply.HELLO: HELLO_BYTES, Reply.STATUS: 0, Reply.ANSWER: chunk}
        self.skipped = 0

    def feed(self, data: bytes) -> Iterator[Packet]:
        """The packets that are whole now, in order.

        After a packet that is damaged the search goes on behind its first byte: what follows it is
        never lost with it.
        """
        self._bytes += data
        while True:
            at = self._bytes.find(DEVICE_MAGIC)
            if at < 0:  # the last byte may be the first one of the magic
                keep = self._bytes[-1:] == DEVICE_MAGIC[:1]
                self._skip(len(self._bytes) - keep)
                return
            self._skip(at)
            if len(self._bytes) < DEVICE_OVERHEAD:
                return
            packet, size = None, self._size()
            if size:
                if len(self._bytes) < size:
                    return
                packet = _read(bytes(self._bytes[_MAGIC:size]))
            if packet is None:
                self._skip(1)
                continue
            del self._bytes[:size]
            yield packet

    def hurry(self) -> Iterator[Packet]:
        """The line is silent: what waits for more is no packet, but one may lie within it."""
        while self._bytes:
            self._skip(1)
            yield from self.feed(b"")

    def _size(self) -> int:
        """Of the packet that begins here; 0: none does."""
        kind, length = self._bytes[_MAGIC], self._bytes[_MAGIC + 3]
        if kind >> 4 != VERSION or kind & 15 not in set(Reply):
            return 0
        return DEVICE_OVERHEAD + length if length <= self._most[Reply(kind & 15)] else 0

    def _skip(self, count: int) -> None:
        self.skipped += count
        del self._bytes[:count]


def _read(body: bytes) -> Packet | None:
    end = len(body) - _CRC.size
    (crc,) = _CRC.unpack_from(body, end)
    if zlib.crc32(body[:end]) != crc:
        return None
    kind, session, sequence, _, *rest = _DEVICE.unpack_from(body)
    received, consumed, frame, chunk, damaged, flags, cycles = rest
    return Packet(
        Reply(kind & 15), session, sequence, received, consumed, frame, chunk, damaged,
        Flags(flags), cycles, body[_DEVICE.size : end],
    )  # fmt: skip
