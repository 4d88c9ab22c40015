# SPDX-License-Identifier: Apache-2.0
"""The protocol of boards: packets, and a session with a board on a bad line, without hardware."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.base.errors import ToolError
from bitwright.data.preprocessing import Preprocessing
from bitwright.host.description import Description, Input, Output
from bitwright.host.images import to_levels
from bitwright.host.link import Link
from bitwright.host.protocol import (
    HOST_MAGIC,
    MOST_PAYLOAD,
    Flags,
    Packet,
    Parser,
    Reply,
    Request,
    read_hello,
    reply,
    request,
)
from bitwright.sim.spec import Port

ROOT = Path(__file__).resolve().parents[2]


def _port(name: str, beats: int, bits: int, *, signed: bool = False) -> Port:
    return Port(name=name, width=-(-bits // 8) * 8, lane_bits=bits, lanes=1, beats=beats,
                signed=signed)  # fmt: skip


def describe(frame: int = 40, scores: int = 10, *, buffer: int = 2048) -> Description:
    """Of a design that takes bytes and gives 12-bit scores."""
    return Description(
        protocol=1, name="toy", digest="0123456789abcdef", clock_mhz=100, baud=3e6,
        buffer_bytes=buffer, chunk=min(128, 2 * scores),
        input=Input(port=_port("x", frame, 8), shape=(frame,)),
        outputs=(Output(name="scores", port=_port("y", scores, 12, signed=True), shape=(scores,)),),
    )  # fmt: skip


def toy(frame: bytes, scores: int) -> bytes:
    """What the toy design computes, as its answer's bytes."""
    rng = random.Random(frame)
    return struct.pack(f"<{scores}h", *(rng.randint(-2048, 2047) for _ in range(scores)))


class ToyBoard:
    """A device in Python, by the protocol's page, behind a line that loses, flips and repeats."""

    def __init__(self, description: Description, share: float = 0.0, seed: int = 0) -> None:
        self.description, self.share, self.random = description, share, random.Random(seed)
        self.coming, self.going = bytearray(), bytearray()
        self.computed: list[bytes] = []
        self.time = 0.0
        self.dead = False
        self.session = self.sequence = self.damaged = self.answered = 0
        self.flags = Flags(0)
        self.stream = bytearray()
        self.received = 0

    # the line
    def write(self, data: bytes) -> None:
        if not self.dead:
            self.coming += self._spoilt(data)

    def read(self, timeout: float) -> bytes:
        self._work()
        if not self.going:
            self.time += timeout
            if self.coming:  # a pause: the packet that has begun is none
                self.coming.clear()
                self._damaged()
        found, self.going = self._spoilt(bytes(self.going)), bytearray()
        self.time += len(found) * 1e-5
        return bytes(found)

    def close(self) -> None:
        self.dead = True

    def clock(self) -> float:
        return self.time

    def _spoilt(self, data: bytes) -> bytearray:
        out = bytearray()
        for byte in data:
            draw = self.random.random() / self.share if self.share else 9.0
            if draw < 1 / 3:
                continue
            out.append(byte ^ self.random.randint(1, 255) if draw < 2 / 3 else byte)
            if 2 / 3 <= draw < 1:
                out.append(byte)
        return out

    # the device
    def _work(self) -> None:
        while (at := self.coming.find(HOST_MAGIC)) >= 0:
            head = self.coming[at : at + 8]
            size = 12 + (head[5] if len(head) == 8 else 0)
            if len(self.coming) < at + size or len(head) < 8:
                del self.coming[:at]
                return
            packet = bytes(self.coming[at : at + size])
            del self.coming[: at + size]
            body, crc = packet[2:-4], int.from_bytes(packet[-4:], "little")
            if zlib.crc32(body) != crc or body[0] >> 4 != 1:
                self._damaged()
            else:
                self._take(body)

    def _damaged(self) -> None:
        self.damaged = (self.damaged + 1) % 256
        self._say(Reply.STATUS)

    def _take(self, body: bytes) -> None:
        kind, session, sequence, _, offset = struct.unpack_from("<BBBBH", body)
        payload, self.sequence = body[6:], sequence
        match Request(kind & 15):
            case Request.HELLO:
                self._say(Reply.HELLO, self.description.hello().payload())
                return
            case Request.OPEN if payload.hex() == self.description.digest:
                self.session, self.flags = session, Flags.OPEN
                self.stream.clear()
                self.received = self.answered = 0
                self.going.clear()
            case Request.OPEN:
                self.flags |= Flags.OTHER_DIGEST
            case Request.DATA:
                if session == self.session and Flags.OPEN in self.flags:
                    if offset == self.received % 65536:
                        self.received += len(payload)
                        self.stream += payload
        self._say(Reply.STATUS)
        self._compute()

    def _compute(self) -> None:
        size, scores = self.description.input.frame_bytes, self.description.outputs[0].elements
        while len(self.stream) >= size:
            frame = bytes(self.stream[:size])
            del self.stream[:size]
            self.computed.append(frame)
            answer, chunk = toy(frame, scores), self.description.chunk
            for part, start in enumerate(range(0, len(answer), chunk)):
                self._say(Reply.ANSWER, answer[start : start + chunk], part)
            self.answered += 1

    def _say(self, kind: Reply, payload: bytes = b"", chunk: int = 0) -> None:
        received = self.received % 65536
        packet = Packet(
            kind, self.session, self.sequence, received, received, self.answered % 65536, chunk,
            self.damaged, self.flags, 100, payload,
        )  # fmt: skip
        self.going += reply(packet)


def session(board: ToyBoard, description: Description | None = None) -> Link:
    link = Link(board, description or board.description, clock=board.clock)
    link.begin()
    return link


def _frames(count: int, size: int) -> list[bytes]:
    rng = random.Random(count)
    return [rng.randbytes(size) for _ in range(count)]


@pytest.mark.parametrize(
    ("share", "count", "frame", "scores"),
    [
        (0.0, 300, 40, 10),
        (0.01, 120, 40, 10),
        (0.05, 5, 40, 10),
        (0.01, 2, 3000, 5),
        (0.01, 100, 1, 1),
        (0.01, 30, 17, 200),
    ],
)
def test_every_answer_is_right_whatever_the_line_does(
    share: float, count: int, frame: int, scores: int
) -> None:
    board = ToyBoard(describe(frame, scores), share, seed=count)
    frames = _frames(count, frame)
    with session(board) as link:
        answers = list(link.run(frames))
    assert [answer.number for answer in answers] == list(range(count))
    assert [answer.payload for answer in answers] == [toy(f, scores) for f in frames]
    assert set(board.computed) <= set(frames), "computed with a damaged frame"
    if share == 0.0:
        assert link.statistics.repeated_frames == link.statistics.repeated_bytes == 0
        assert link.statistics.damaged == link.statistics.skipped_bytes == 0


def test_stream_and_frame_numbers_wrap() -> None:
    """2^16 bytes of input are passed often, and 2^16 answers once."""
    board = ToyBoard(describe(1, 1), 0.0)
    frames = [bytes([k % 251]) for k in range(70_000)]
    with session(board) as link:
        answers = list(link.run(frames))
    expected = {frame: toy(frame, 1) for frame in set(frames)}
    assert all(a.payload == expected[f] for a, f in zip(answers, frames, strict=True))


def test_a_host_that_stops_leaves_nothing_behind() -> None:
    """Its successor gets its own answers, though half a frame and old answers are still there."""
    board = ToyBoard(describe())
    frames = _frames(60, 40)
    first = session(board)
    for answer, _ in zip(first.run(frames), range(5), strict=False):
        assert answer.payload == toy(frames[answer.number], 10)
    board.write(request(Request.DATA, first.session, 99, board.received, frames[0])[:11])
    others = _frames(9, 40)
    with session(board) as second:
        assert [a.payload for a in second.run(others)] == [toy(f, 10) for f in others]


def test_a_run_that_was_not_heard_to_its_end_does_not_mix_with_the_next() -> None:
    board = ToyBoard(describe())
    frames, others = _frames(60, 40), _frames(7, 40)
    with session(board) as link:
        next(link.run(frames))
        assert [a.payload for a in link.run(others)] == [toy(f, 10) for f in others]


def test_another_design_is_refused() -> None:
    board = ToyBoard(describe())
    other = describe().model_copy(update={"digest": "f" * 16, "name": "other"})
    with pytest.raises(ToolError, match=r"design toy \(0123456789abcdef\), and expected is other"):
        session(board, other)
    changed = describe(frame=41)
    with pytest.raises(ToolError, match="says of itself"):
        session(board, changed)


def test_silence_is_an_error_that_says_what_to_do() -> None:
    board = ToyBoard(describe())
    board.dead = True
    with pytest.raises(ToolError, match="nothing that speaks") as caught:
        session(board)
    assert "bitwright board load" in str(caught.value.hint)
    board = ToyBoard(describe())
    link = session(board)
    board.dead = True
    with pytest.raises(ToolError, match="silent for 10 s, 0 of"):
        list(link.run(_frames(3, 40)))


def test_a_board_that_starts_again_is_noticed() -> None:
    board = ToyBoard(describe())
    link = session(board)
    board.flags, board.session, board.received = Flags(0), 0, 0
    with pytest.raises(ToolError, match="started again"):
        list(link.run(_frames(3, 40)))


class Liar(ToyBoard):
    """Takes nothing, and is done with one frame more each time that it is asked."""

    def _take(self, body: bytes) -> None:
        if Request(body[0] & 15) is not Request.DATA:
            super()._take(body)
            return
        self.answered += 1
        self._say(Reply.STATUS)


class Wavering(ToyBoard):
    """Takes half of a frame, and says of what it has consumed now one number, now another."""

    def _take(self, body: bytes) -> None:
        if Request(body[0] & 15) is not Request.DATA:
            super()._take(body)
            return
        self.received = 20
        self._say(Reply.STATUS)

    def _say(self, kind: Reply, payload: bytes = b"", chunk: int = 0) -> None:
        packet = Packet(
            kind, self.session, self.sequence, self.received, self.received and self.sequence % 2,
            0, chunk, self.damaged, self.flags, 100, payload,
        )  # fmt: skip
        self.going += reply(packet)

    def read(self, timeout: float) -> bytes:
        if self.received:
            self.sequence = (self.sequence + 1) % 256 if self.sequence % 2 else self.sequence - 1
            self._say(Reply.STATUS)
        return super().read(timeout)


def test_a_board_that_wavers_gets_no_further() -> None:
    board = Wavering(describe())
    link = Link(board, board.description, patience_s=0.5, clock=board.clock)
    link.begin()
    with pytest.raises(ToolError, match="got no further for 15 s"):
        list(link.run([bytes(40)] * 2))


def test_a_board_that_takes_nothing_is_never_done_with_a_frame() -> None:
    """Each time the frame would be sent again, and would wait once more."""
    link = session(Liar(describe()))
    with pytest.raises(ToolError, match="done with frame 0, of which it has not taken 40 bytes"):
        list(link.run([bytes(40)] * 8))


@given(
    st.sampled_from(Reply), st.binary(max_size=MOST_PAYLOAD), st.integers(0, 2**32 - 1),
    st.binary(max_size=30),
)  # fmt: skip
def test_packets_of_the_device_round_trip(
    kind: Reply, payload: bytes, cycles: int, noise: bytes
) -> None:
    if kind is Reply.STATUS:
        payload = b""
    if kind is Reply.HELLO:
        payload = payload[:32]
    packet = Packet(kind, 3, 4, 65535, 5, 6, 7, 255, Flags.OPEN, cycles, payload)
    parser = Parser()
    found = [
        p for byte in noise + reply(packet) + reply(packet) for p in parser.feed(bytes([byte]))
    ]
    found += parser.hurry()
    assert found == [packet, packet]
    assert parser.skipped == len(noise)


@settings(max_examples=60)
@given(st.integers(0, 44), st.integers(1, 255), st.integers(0, 2**16))
def test_no_packet_survives_a_changed_byte(at: int, change: int, cycles: int) -> None:
    good = Packet(Reply.ANSWER, 3, 4, 5, 5, 6, 0, 0, Flags.OPEN, cycles, bytes(range(21)))
    data = bytearray(reply(good))
    data[at] ^= change
    parser = Parser()
    found = [*parser.feed(bytes(data)), *parser.feed(reply(good)), *parser.hurry()]
    assert found == [good]


def test_hello_says_what_the_description_does() -> None:
    hello = describe().hello()
    assert read_hello(hello.payload()) == hello
    assert len(hello.payload()) == 32
    assert read_hello(b"short") is None


def test_elements_have_their_sign() -> None:
    """The wire of before gave -82, in 12 bits, as 4014."""
    output = describe().outputs[0]
    found = output.unpack(struct.pack("<10h", -82, 0, 2047, -2048, *range(6)), 1)
    assert found.tolist() == [[-82, 0, 2047, -2048, 0, 1, 2, 3, 4, 5]]


def test_pixels_become_levels_by_channel() -> None:
    tables = tuple(tuple((k + c) // 16 for k in range(256)) for c in range(3))
    how = Preprocessing(size=(1, 2), channels=3, levels=tables)
    pixels = np.array([[[0, 15, 254], [255, 255, 17]]], dtype=np.uint8)
    assert to_levels(pixels, how).tolist() == [[[0, 1, 16], [15, 16, 1]]]
    alone = Preprocessing(size=(1, 2), channels=3, levels=tables[:1])
    assert to_levels(pixels, alone).tolist() == [[[0, 0, 15], [15, 15, 1]]]


def test_the_host_needs_neither_torch_nor_pyserial_to_be_imported() -> None:
    script = (
        "import sys, bitwright.host\n"
        "assert not {'torch', 'serial', 'PIL', 'sklearn', 'scipy'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_frames_of_an_engine_are_those_of_its_console() -> None:
    """40 bytes are a command with 4 words, 48 an answer; another number of words is refused."""
    host = {"config": {}, "memory_words": 1024}
    whole = describe(40, 24).model_dump()
    for words in (3, 4, 5):
        fields = whole | {"engine": host | {"frame_words": words}}
        if words == 4:
            assert Description.model_validate(fields).engine is not None
            continue
        with pytest.raises(ValueError, match=f"of 40 bytes and answers of 48: with {words}"):
            Description.model_validate(fields)
