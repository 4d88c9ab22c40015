# SPDX-License-Identifier: Apache-2.0
"""Frames to a board and answers back, over a line that may lose, repeat and damage bytes.

The input of a session is one stream of bytes. The board takes a packet only where it continues
that stream, and says in every packet how far it has come; what is lost is sent again from there
(go-back-N). Answers are numbered by frame and come in order, so an answer that was lost shows in
the next packet; its image is sent again, as a new frame. Both ends drop what has a wrong CRC.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from bitwright.base.errors import ToolError
from bitwright.host.description import Description
from bitwright.host.protocol import (
    MOST_PAYLOAD,
    Flags,
    Hello,
    Packet,
    Parser,
    Reply,
    Request,
    read_hello,
    request,
)
from bitwright.host.statistics import Statistics

_LEAST_CHUNK = 16
_MORE_CHUNK = 8
_ROUND = 1 << 16
_HALF = _ROUND >> 1
_MOST_SENT = 200  # packets on their way, of 256 sequence numbers
_LEAST_WINDOW = 64
_FILLER = b"\0"
_MOST_FRAMES = 1 << 12  # frames on the way, of 2^16 numbers
_MOST_TIMES = 1000  # that the answer to a frame may be lost
_STALLED = 30  # times the patience: a board that talks all the time, but neither takes nor answers
_READ_S = 0.02
_LEAST_WAIT_S, _MOST_WAIT_S = 0.03, 1.0


T = TypeVar("T")


class Line(Protocol):
    """A serial line, or what stands for one."""

    def write(self, data: bytes) -> None:
        """Send bytes, all of them."""

    def read(self, timeout: float) -> bytes:
        """Bytes that have come; waits so many seconds at most for the first one."""

    def close(self) -> None:
        """Give it back."""


@dataclass(frozen=True)
class Answer:
    """What the core gave for one frame.

    Attributes:
        number: of the frame, in the order of sending.
        payload: bytes of all outputs.
        cycles: clocks of the core for this frame; 0: not timed, since it met another in the core.
    """

    number: int
    payload: bytes
    cycles: int


@dataclass
class _Pending:
    """A frame whose answer is not whole."""

    number: int
    frame: bytes
    end: int = 0  # of it in the stream
    parts: dict[int, bytes] = field(default_factory=dict)
    cycles: int = 0
    times: int = 0  # that its answer was lost


@dataclass(frozen=True)
class _Sent:
    """A packet on its way: the stream's bytes up to ``end``, and when it was sent."""

    order: int
    size: int
    end: int
    time: float


class Link:
    """A session with a board. Use `Link.open`; it is a context manager.

    Attributes:
        description: of the design that the board must have.
        hello: what the board said of itself.
        session: its number.
        statistics: since it was opened.
    """

    def __init__(
        self,
        line: Line,
        description: Description,
        *,
        patience_s: float = 10.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.description = description
        self.statistics = Statistics()
        self.hello: Hello | None = None
        self._line, self._clock, self._patience = line, clock, patience_s
        self._parser = Parser(description.chunk)
        self.session = 0
        self._order = 0  # of the next packet
        self._wait = 0.2  # until silence means loss
        self._round_trip = 0.0
        self._chunk = MOST_PAYLOAD
        self._parts = -(-description.answer_bytes // description.chunk)
        self._damaged: int | None = None  # as the board last counted
        self._reset_stream()

    def _reset_stream(self) -> None:
        self._stream = bytearray()  # bytes from `_base` on
        self._base = 0  # received by the board, as are all before
        self._next = 0  # to be sent next
        self._consumed = 0
        self._furthest = 0  # sent at least once
        self._sent: deque[_Sent] = deque()  # on their way, oldest first
        self._rewound = 0  # order of the first packet after going back
        self._window = self.description.buffer_bytes  # bytes on their way, at most
        self._pending: deque[_Pending] = deque()  # in the order of the stream
        self._first = 0  # number in the session of the first one of them

    @staticmethod
    def open(line: Line, description: Description, *, patience_s: float = 10.0) -> Link:
        """Greet a board, make sure that it has the design, and begin a session.

        Args:
            patience_s: silence after which the board counts as gone.

        Raises:
            ToolError: no board answers; it speaks another version, or has another design.
        """
        link = Link(line, description, patience_s=patience_s)
        try:
            link.begin()
        except BaseException:
            link.close()
            raise
        return link

    def begin(self) -> None:
        """Greet the board, make sure that it has the design, and begin a session.

        Raises:
            ToolError: as of `open`.
        """
        self.hello = self._greet()
        wanted = self.description.hello()
        if self.hello.digest != wanted.digest:
            raise ToolError(
                f"the board has the design {self.hello.name} ({self.hello.digest}), and expected "
                f"is {wanted.name} ({wanted.digest})",
                where="board",
                hint="load the bitstream that belongs to this design: `bitwright board load`",
            )
        if _layout(self.hello) != _layout(wanted):
            raise ToolError(
                f"the board says of itself {self.hello}, and expected is {wanted}",
                where="board",
                hint="use the board.json that lies beside the bitstream",
            )
        self._begin()

    def close(self) -> None:
        """End the session; the board waits for another."""
        self._line.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- beginning -----------------------------------------------------------------------------

    def _greet(self) -> Hello:
        said = self._ask(
            lambda: self._send(Request.HELLO),
            lambda packet: read_hello(packet.payload) if packet.kind is Reply.HELLO else None,
        )
        if said is None:
            raise ToolError(
                f"nothing that speaks Bitwright's protocol answers ({self.statistics.got_bytes} "
                "bytes came)",
                where="board",
                hint="is the bitstream loaded (`bitwright board load`), the port right "
                "(`bitwright board list`), and no other program on it?",
            )
        self.session = said[1].session
        return said[0]

    def _begin(self) -> None:
        """Open a session of another number than the board's last: that throws away what it has."""
        digest = bytes.fromhex(self.description.digest)
        self.session += random.randrange(128)

        def open_another() -> None:  # a late reply to an earlier try is not mistaken for this one's
            self.session = (self.session + 1) % 256
            self._send(Request.OPEN, payload=digest)

        def opened(packet: Packet) -> bool | None:
            fresh = packet.session == self.session and not packet.received and not packet.frame
            return True if fresh and Flags.OPEN in packet.flags else None

        if self._ask(open_another, opened) is None:
            raise ToolError("the board opens no session", where="board", hint="reset the board")
        self._reset_stream()

    def _ask(
        self, send: Callable[[], None], wanted: Callable[[Packet], T | None]
    ) -> tuple[T, Packet] | None:
        """Send until a packet comes that is wanted; None: none came."""
        give_up = self._clock() + self._patience
        while self._clock() < give_up:
            send()
            began = self._clock()
            while self._clock() < began + self._wait:
                for packet in self._receive():
                    found = wanted(packet)
                    if found is not None:
                        self._round_trip = self._clock() - began
                        return found, packet
            deque(self._parser.hurry(), maxlen=0)
        return None

    # --- frames ----------------------------------------------------------------------------------

    def run(self, frames: Iterable[bytes]) -> Iterator[Answer]:
        """Send frames, as many at a time as the board has room for; the answers, in order.

        Args:
            frames: of ``description.input.frame_bytes`` each.

        Raises:
            ToolError: the board is silent for long, or another program has taken it.
            ValueError: a frame of another length.
        """
        if self._pending:  # an earlier call was not heard to its end
            self._begin()
        coming, count = iter(frames), 0
        done: dict[int, Answer] = {}
        given, more = 0, True
        began = heard = self._clock()
        base = self.statistics.seconds
        silence, most, advanced = self._wait, self._progress, began
        while True:
            while more and len(self._pending) < _MOST_FRAMES and self._room() > 0:
                frame = next(coming, None)
                if frame is None:
                    more = False
                    break
                self._add(_Pending(count, self._checked(frame)))
                count += 1
            if not self._pending and not more:
                break
            self._push()
            moved = False
            for packet in self._receive():
                heard, silence, moved = self._clock(), self._timeout(), True
                done |= {answer.number: answer for answer in self._take(packet)}
            if self._progress > most:
                most, advanced = self._progress, self._clock()
            elif self._clock() - advanced > _STALLED * self._patience:
                raise self._gone(given, count, _STALLED * self._patience, "got no further")
            self.statistics.seconds = base + self._clock() - began
            while given in done:
                yield done.pop(given)
                given += 1
            if not moved and self._clock() - heard > silence:
                if self._clock() - heard > self._patience:
                    raise self._gone(given, count, self._patience, "been silent")
                silence = min(_MOST_WAIT_S, 2 * silence)
                done |= {answer.number: answer for answer in self._break_silence()}
        while given in done:
            yield done.pop(given)
            given += 1

    @property
    def _progress(self) -> tuple[int, int, int]:
        """What grows as long as the board does anything of use."""
        return self._base, self._consumed, self.statistics.answers

    @staticmethod
    def _gone(given: int, count: int, seconds: float, what: str) -> ToolError:
        return ToolError(
            f"the board has {what} for {seconds:g} s, {given} of {count} frames are answered",
            where="board",
            hint="is it still connected? load the bitstream again",
        )

    def _break_silence(self) -> list[Answer]:
        """Ask the board where it is: its reply says what became of all that was sent before."""
        self.statistics.timeouts += 1
        late = [answer for packet in self._parser.hurry() for answer in self._take(packet)]
        self._post(self._base, b"")
        return late

    def _checked(self, frame: bytes) -> bytes:
        if len(frame) != self.description.input.frame_bytes:
            raise ValueError(
                f"a frame has {self.description.input.frame_bytes} bytes, not {len(frame)}"
            )
        return frame

    def _add(self, pending: _Pending) -> None:
        self._pending.append(pending)
        self._stream += pending.frame
        pending.end = self._base + len(self._stream)

    def _room(self) -> int:
        """Bytes of the stream that may still be asked for: enough to keep the line busy."""
        return 2 * self.description.buffer_bytes - len(self._stream)

    def _push(self) -> None:
        """Send what the board has room for."""
        end = self._base + len(self._stream)
        limit = min(end, self._consumed + self.description.buffer_bytes)
        flying = sum(sent.size for sent in self._sent)
        first = self._order
        while self._next < limit and flying < self._window and len(self._sent) < _MOST_SENT:
            size = min(self._chunk, limit - self._next)
            start = self._next - self._base
            self._post(self._next, bytes(self._stream[start : start + size]))
            flying += size
            again = min(self._furthest, self._next + size) - self._next
            self.statistics.repeated_bytes += max(0, again)
            self._next += size
            self._furthest = max(self._furthest, self._next)
        if self._order > first and self._noisy:  # asks at once what became of them
            self._post(self._next, b"")

    @property
    def _noisy(self) -> bool:
        return self._chunk < MOST_PAYLOAD

    def _post(self, offset: int, payload: bytes) -> None:
        sent = _Sent(self._order, len(payload), offset + len(payload), self._clock())
        self._sent.append(sent)
        self._send(Request.DATA, offset, payload)

    def _rewind(self) -> None:
        """Send from where the board is; what is on its way behind that is in vain."""
        self._next, self._rewound = self._base, self._order
        self._chunk = max(_LEAST_CHUNK, self._chunk // 2)
        self._window = max(_LEAST_WINDOW, self._window // 2)

    def _timeout(self) -> float:
        line_s = 10 * (self.description.buffer_bytes + 512) / self.description.baud
        return min(_MOST_WAIT_S, max(_LEAST_WAIT_S, 3 * self._round_trip + line_s))

    # --- packets ---------------------------------------------------------------------------------

    def _send(self, kind: Request, offset: int = 0, payload: bytes = b"") -> None:
        data = request(kind, self.session, self._order, offset, payload)
        if self._noisy:  # a packet that lost a byte takes this one, not the next's
            data += _FILLER
        self._line.write(data)
        self._order += 1
        self.statistics.sent_bytes += len(data)

    def _receive(self) -> list[Packet]:
        data = self._line.read(_READ_S)
        self.statistics.got_bytes += len(data)
        packets = list(self._parser.feed(data))
        self.statistics.skipped_bytes = self._parser.skipped
        return packets

    def _take(self, packet: Packet) -> Iterator[Answer]:
        """Learn from a packet; the frames that are whole by it."""
        if packet.session != self.session or Flags.OPEN not in packet.flags:
            raise ToolError(
                "the board was started again or serves another program",
                where="board",
                hint="close other programs that use the port, and run again",
            )
        self._learn(packet)
        behind = (packet.frame - self._first) % _ROUND
        if behind >= _HALF:
            return  # of a frame that is done: cannot be, since packets come in order
        for _ in range(min(behind, len(self._pending))):
            self._lost()
        if packet.kind is not Reply.ANSWER or not self._pending:
            return
        pending = self._pending[0]
        if len(packet.payload) != self._part_bytes(packet.chunk):
            raise ToolError(
                f"the board sent {len(packet.payload)} bytes as part {packet.chunk} of an answer, "
                f"expected are {self._part_bytes(packet.chunk)}",
                where="board",
                hint="load the bitstream that belongs to this design: `bitwright board load`",
            )
        pending.parts[packet.chunk] = packet.payload
        pending.cycles = packet.cycles or pending.cycles
        if packet.chunk == self._parts - 1:
            if len(pending.parts) < self._parts:
                self._lost()
                return
            self._pending.popleft()
            self._first += 1
            self.statistics.answers += 1
            payload = b"".join(pending.parts[part] for part in range(self._parts))
            yield Answer(pending.number, payload, pending.cycles)

    def _part_bytes(self, chunk: int) -> int:
        """Of a part of an answer; 0: it has no such part."""
        size = self.description.chunk
        return max(0, min(size, self.description.answer_bytes - chunk * size))

    def _lost(self) -> None:
        """The first frame's answer is gone, or a part of it: the image goes again, at the end.

        Raises:
            ToolError: for the thousandth time; or the board has not taken the image itself, so that
                more and more of them would wait.
        """
        pending = self._pending.popleft()
        if pending.end > self._base:
            raise ToolError(
                f"the board is done with frame {pending.number}, of which it has not taken "
                f"{pending.end - self._base} bytes",
                where="board",
                hint="reset the board",
            )
        pending.times += 1
        if pending.times > _MOST_TIMES:
            raise ToolError(
                f"the answer to frame {pending.number} was lost {pending.times} times",
                where="board",
                hint="use a shorter cable or a lower baud rate, or reset the board",
            )
        self._first += 1
        self.statistics.repeated_frames += 1
        self._add(pending)

    def _learn(self, packet: Packet) -> None:
        """How far the board has come, and whether something on the way to it was lost."""
        ahead = (packet.received - self._base) % _ROUND
        if ahead > self._furthest - self._base:
            raise ToolError(
                f"the board has {ahead} bytes more than were sent", where="board", hint="reset it"
            )
        if ahead:
            self._chunk = min(MOST_PAYLOAD, self._chunk + _MORE_CHUNK)
            self._window = min(self.description.buffer_bytes, self._window + ahead)
        del self._stream[:ahead]
        self._base += ahead
        self._next = max(self._next, self._base)
        self._consumed = self._base - (packet.received - packet.consumed) % _ROUND
        order = self._order - 1 - (self._order - 1 - packet.sequence) % 256
        lost = False
        while self._sent and self._sent[0].order <= order:  # the line keeps the order
            sent = self._sent.popleft()
            lost = lost or (sent.order >= self._rewound and sent.end > self._base)
            self._round_trip = self._clock() - sent.time
        damaged = 0 if self._damaged is None else (packet.damaged - self._damaged) % 256
        self.statistics.damaged += damaged
        self._damaged = packet.damaged
        if damaged and self._sent and self._sent[0].order >= self._rewound:
            lost = lost or self._sent.popleft().end > self._base  # most likely it was this one
        if lost:
            self._rewind()


def _layout(hello: Hello) -> tuple[int, ...]:
    """What must agree besides the digest."""
    return hello.input_bytes, hello.answer_bytes, hello.buffer_bytes, hello.chunk
