# SPDX-License-Identifier: Apache-2.0
"""An engine on a board: its memory written and read, programs started, results fetched.

What goes over the line are frames of the console (``rtl/lib/engine_console.sv``) and answers, over
the same session as any other design's frames. Every one may be sent again without harm,
so a line may lose what it likes. A new session resets the engine; the memory keeps what it has.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag

import numpy as np

from bitwright.base.errors import ProgramError, ToolError
from bitwright.engine.emulator import Memory
from bitwright.engine.image import EngineImage
from bitwright.host.link import Link
from bitwright.ir import IntArray

_HEAD = struct.Struct("<BBBxI")
_STATE = struct.Struct("<BBBB4xQ")
_WORD = 8
_POLL_S = 0.002
_CYCLES = (1 << 48) - 1


class Operation(IntEnum):
    """What a frame asks for."""

    STATUS = 0
    WRITE = 1
    READ = 2
    START = 3


class Flag(IntFlag):
    """Bits of an answer's state."""

    RUNNING = 1
    DONE = 2
    BUSY = 4
    OUTSIDE = 8
    UNKNOWN = 16
    READY = 32


#: Bits of `State.error`, as ``rtl/lib/engine.sv`` has them.
ERRORS = (
    "an opcode that is none",
    "the memory answered a read with an error",
    "the memory answered a write with an error",
    "a start while a program ran",
)


@dataclass(frozen=True)
class State:
    """What the console says of the engine.

    Attributes:
        flags: running, done, memory ready.
        code, error: of the last run: what HALT says, and the bits of `ERRORS`.
        tag: of the last start.
        cycles: of the last run, so far.
    """

    flags: Flag
    code: int
    error: int
    tag: int
    cycles: int


class EngineBoard:
    """The engine behind an open session.

    Attributes:
        link: the session.
    """

    def __init__(self, link: Link) -> None:
        """Use a session.

        Raises:
            ToolError: the design on the board is no engine.
        """
        about = link.description.engine
        if about is None:
            raise ToolError(
                f"the design {link.description.name} is no engine",
                where="board",
                hint="load the bitstream of an engine, and use the board.json beside it",
            )
        self.link = link
        self._about, self.config = about, about.sizes
        self._words = about.frame_words
        self._tag = random.randrange(256)

    # Frames ------------------------------------------------------------------------------------

    def _frame(self, kind: Operation, tag: int = 0, at: int = 0, words: int = 0,
               data: bytes = b"") -> bytes:  # fmt: skip
        return _HEAD.pack(kind, tag, words, at) + data.ljust(_WORD * self._words, b"\0")

    def _ask(self, frames: Iterable[bytes]) -> Iterator[tuple[State, bytes]]:
        """The answers, in order; all frames are sent, as many at a time as the board takes.

        Raises:
            ToolError: the console refuses one; the board is gone.
        """
        for answer in self.link.run(frames):
            flags, code, error, tag, cycles = _STATE.unpack_from(answer.payload)
            state = State(Flag(flags), code, error, tag, cycles & _CYCLES)
            for flag, (reason, hint) in _REFUSALS.items():
                if flag in state.flags:
                    raise ToolError(reason, where="engine on the board", hint=hint)
            yield state, answer.payload[_STATE.size :]

    def _pieces(self, at: int, words: int) -> Iterator[tuple[int, int]]:
        limit = self._about.memory_words
        if at < 0 or at + words > limit:
            raise ProgramError(
                f"words {at} to {at + words - 1}, and the board's memory has {limit}",
                where="engine on the board",
                hint="compile a smaller network or for smaller images",
            )
        for start in range(at, at + words, self._words):
            yield start, min(self._words, at + words - start)

    # Memory and program -------------------------------------------------------------------------

    def state(self) -> State:
        """How it is."""
        ((state, _),) = self._ask([self._frame(Operation.STATUS)])
        return state

    def write(self, at: int, data: bytes) -> None:
        """Write whole words, from word ``at`` on.

        Raises:
            ProgramError: the memory is not that large.
            ToolError: a program runs; the board is gone.
            ValueError: no whole words.
        """
        if len(data) % _WORD:
            raise ValueError(f"{len(data)} bytes are no whole words of {_WORD}")
        frames = [
            self._frame(Operation.WRITE, 0, start, count,
                        data[_WORD * (start - at) : _WORD * (start - at + count)])
            for start, count in self._pieces(at, len(data) // _WORD)
        ]  # fmt: skip
        for _ in self._ask(frames):
            pass

    def read(self, at: int, words: int) -> bytes:
        """Read words from ``at`` on.

        Raises:
            ProgramError, ToolError: as of `write`.
        """
        pieces = list(self._pieces(at, words))
        frames = [self._frame(Operation.READ, 0, start, count) for start, count in pieces]
        found = [data[: _WORD * count] for (_, count), (_, data)
                 in zip(pieces, self._ask(frames), strict=True)]  # fmt: skip
        return b"".join(found)

    def start(self) -> None:
        """Start the program at the memory's beginning.

        Raises:
            ToolError: a program runs already; the board is gone.
        """
        self._tag = (self._tag + 1) % 256
        for _ in self._ask([self._frame(Operation.START, self._tag)]):
            pass

    def wait(
        self, timeout_s: float = 60.0, *, clock: Callable[[], float] = time.monotonic
    ) -> State:
        """Wait for the end of the program that was started; its state then.

        Raises:
            ToolError: it does not end, or ended with an error.
        """
        give_up = clock() + timeout_s
        while Flag.DONE not in (state := self.state()).flags:
            if clock() > give_up:
                raise ToolError(
                    f"the program has not ended within {timeout_s:g} s ({state.cycles} cycles)",
                    where="engine on the board",
                    hint="open a new session, which resets the engine, and load the program again",
                )
            time.sleep(_POLL_S)
        if state.error:
            said = [text for bit, text in enumerate(ERRORS) if state.error >> bit & 1]
            raise ToolError(
                f"the program ended with: {', '.join(said)}",
                where="engine on the board",
                hint="load the program again; if it stays, the memory is not reliable",
            )
        return state

    # Networks -----------------------------------------------------------------------------------

    def load(self, image: EngineImage, *, verify: bool = False) -> None:
        """Write a compiled network.

        Args:
            verify: read it back and compare.

        Raises:
            ProgramError: it is for another engine, or larger than the memory.
            ToolError: the board is gone, or does not hold what was written.
        """
        if _sizes(image.config) != _sizes(self.config):
            raise ProgramError(
                f"the program is for {image.config}, and the board has {self.config}",
                where=image.name,
                hint="compile it for this engine: the configuration is in its board.json",
            )
        for _ in self._pieces(0, image.words):
            pass
        data = image.data.tobytes()
        self.write(0, data)
        if verify and self.read(0, len(image.data)) != data:
            raise ToolError(
                "the memory does not hold what was written",
                where="engine on the board",
                hint="try a slower clock: the wires to the memory may be too slow",
            )

    def frames_of(self, image: EngineImage) -> int:
        """Frames of the line that `run` takes at least: inputs, start, one look, outputs."""
        regions = (*image.inputs, *image.outputs)
        return 2 + sum(-(-region.words // self._words) for region in regions)

    def run(
        self, image: EngineImage, feeds: Mapping[str, IntArray], timeout_s: float = 60.0
    ) -> tuple[dict[str, IntArray], int]:
        """One frame through a network that is loaded: levels of each input -> those of each edge
        of the output, and the engine's cycles.

        Raises:
            ProgramError: a frame of another shape.
            ToolError: the board is gone, the program ends with an error or not at all.
        """
        lanes = image.config.lanes
        before = Memory.empty(image.words, lanes)
        for region in image.inputs:
            image.feed(before, region, feeds[region.edge])
            words = before.get(region.word, region.words, region.edge)
            self.write(region.word, words.tobytes())
        self.start()
        state = self.wait(timeout_s)
        after = Memory.empty(image.words, lanes)
        for region in image.outputs:
            data = np.frombuffer(self.read(region.word, region.words), np.uint8)
            after.put(region.word, data.reshape(-1, lanes))
        return image.results(after), state.cycles


_REFUSALS = {
    Flag.BUSY: (
        "refused, since a program runs",
        "wait until it has ended, or open a new session, which resets the engine",
    ),
    Flag.OUTSIDE: (
        "refused, since it lies outside of the memory",
        "use the board.json that belongs to this bitstream",
    ),
    Flag.UNKNOWN: (
        "refused an operation that it does not know",
        "use the board.json that belongs to this bitstream",
    ),
}


def _sizes(config: object) -> dict[str, object]:
    """What programs depend on: everything but the cycles that the timing model knows."""
    return {name: value for name, value in vars(config).items() if name != "constants"}
