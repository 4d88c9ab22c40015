# SPDX-License-Identifier: Apache-2.0
"""What a host knows of a design on a board: ``board.json``, written beside the bitstream.

Input goes over the line as the beats of the core (`bitwright.sim.beats`), each in whole bytes.
Of outputs every element has 1, 2, 4 or 8 bytes of its own, two's complement, low byte first, so
that any language reads them as integers; an element that is a code of a format is not extended.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from bitwright.base.described import Strict, validated
from bitwright.base.errors import BitwrightError, GraphError
from bitwright.base.files import read_text
from bitwright.data.preprocessing import Preprocessing
from bitwright.engine.config import EngineConfig
from bitwright.formats import parse_format
from bitwright.host.protocol import Hello, element_bytes
from bitwright.ir.types import MAX_FRAME
from bitwright.sim.beats import pack
from bitwright.sim.spec import Design, Port

FILE = "board.json"
_MOST_BYTES = 1 << 24
#: Of what goes over a line, in numbers and bytes: what a graph's frame may have, 8 bytes each.
_MOST_FRAME = 8 * MAX_FRAME
_MOST_OUTPUTS = 1024
#: Of an engine's frames: what stands in front of a command's words and of an answer's, and a word.
_COMMAND_BYTES, _STATE_BYTES, _WORD_BYTES = 8, 16, 8
#: Of any core's clock, and of any line.
MOST_MHZ, MOST_BAUD = 1e6, 1e9

Extent = Annotated[int, Field(gt=0, le=MAX_FRAME)]
Reals = tuple[Annotated[float, Field(allow_inf_nan=False)], ...]
Clocks = Annotated[int, Field(ge=0, lt=1 << 63)]


class Input(Strict):
    """The stream into the core.

    Attributes:
        port: layout of its beats.
        shape: of a frame, (H, W, C) or (C,); of a design of one's own (elements,).
        format: of the levels; None: integers.
        scale: real value of level 1; empty where nobody said.
    """

    port: Port
    shape: tuple[Extent, ...]
    format: str | None = None
    scale: Reals = ()

    @property
    def frame_bytes(self) -> int:
        return self.port.beats * (self.port.width // 8)

    def pack(self, levels: NDArray[np.int64]) -> list[bytes]:
        """Levels (N, ...) -> the bytes of each frame.

        Raises:
            GraphError: the shape or a level is wrong.
        """
        count = len(levels)
        beats = pack(self.port.spec, levels).reshape(count, self.frame_bytes)
        return [frame.tobytes() for frame in beats]


class Output(Strict):
    """A stream out of the core; attributes as of `Input`."""

    name: str
    port: Port
    shape: tuple[Extent, ...]
    scale: Reals = ()

    @property
    def element_bytes(self) -> int:
        """Of an element on the line."""
        return element_bytes(self.port.lane_bits)

    @property
    def elements(self) -> int:
        return self.port.beats * self.port.lanes

    @property
    def frame_bytes(self) -> int:
        return self.elements * self.element_bytes

    @property
    def signed(self) -> bool:
        """Whether elements are two's complement on the line."""
        return self.port.codes is None and (self.port.signed or self.port.bipolar)

    def unpack(self, answers: bytes, count: int) -> NDArray[np.int64]:
        """Bytes of ``count`` frames -> levels (count, elements).

        Raises:
            FormatError: an element holds a code that is no number.
        """
        kind = f"<{'i' if self.signed else 'u'}{self.element_bytes}"
        found = np.frombuffer(answers, dtype=kind).reshape(count, self.elements).astype(np.int64)
        if self.port.codes is not None:
            codes = parse_format(self.port.codes)
            found = np.asarray(codes.levels(codes.from_bits(found)), dtype=np.int64)
        return found


class EngineHost(Strict):
    """What a host must know of an engine behind the serial shell.

    Attributes:
        config: its sizes, as `bitwright.engine.config` reads them.
        memory_words: of its memory, of ``config.lanes`` bytes.
        frame_words: words of memory in a frame of commands, or of answers.
    """

    config: dict[str, Any]
    memory_words: int = Field(gt=0, le=1 << 40)
    frame_words: int = Field(gt=0, le=255)

    @property
    def sizes(self) -> EngineConfig:
        """The engine's configuration.

        Raises:
            TargetError: it is none.
        """
        return EngineConfig.from_json(json.dumps(self.config))


class Description(Strict):
    """A design behind the serial shell.

    Attributes:
        protocol: version that the shell speaks.
        name: of the design.
        digest: of its sources and memories, 16 hexadecimal digits; the board has it too.
        graph: digest of the integer graph; empty for a design of one's own.
        clock_mhz: of the core.
        baud: of the serial line.
        buffer_bytes: input that the board can hold.
        chunk: bytes of an answer in a packet, at most.
        interval, latency: clocks between frames and of one frame, by the timing model; 0: unknown.
        input, outputs: the streams, in the order of the line.
        preprocessing: of image files; None: the host must give levels.
        classes: names of the labels.
        engine: of a design that runs programs; its frames are commands (`bitwright.host.engine`).
    """

    protocol: int
    name: str
    digest: str = Field(pattern=r"^[0-9a-f]{16}$")
    graph: str = ""
    clock_mhz: float = Field(gt=0, le=MOST_MHZ)
    baud: float = Field(gt=0, le=MOST_BAUD)
    buffer_bytes: int = Field(gt=0, lt=1 << 16)  # its positions have 16 bits
    chunk: int = Field(gt=0, le=255)
    interval: Clocks = 0
    latency: Clocks = 0
    input: Input
    outputs: tuple[Output, ...] = Field(min_length=1, max_length=_MOST_OUTPUTS)
    preprocessing: Preprocessing | None = None
    classes: tuple[str, ...] = ()
    engine: EngineHost | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        streams: list[Input | Output] = [self.input, *self.outputs]
        for stream in streams:
            what = stream.name if isinstance(stream, Output) else "input"
            port, elements = stream.port, prod(stream.shape)
            _check_port(what, port)
            if elements != port.beats * port.lanes:
                raise ValueError(
                    f"{what}: the shape {stream.shape} is not the {port.beats} beats of "
                    f"{port.lanes} lanes that the port has"
                )
        if self.engine is not None:
            words = _WORD_BYTES * self.engine.frame_words
            wanted = _COMMAND_BYTES + words, _STATE_BYTES + words
            if (self.input.frame_bytes, self.answer_bytes) != wanted:
                raise ValueError(
                    f"commands of {self.input.frame_bytes} bytes and answers of "
                    f"{self.answer_bytes}: with {self.engine.frame_words} words they have "
                    f"{wanted[0]} and {wanted[1]}"
                )
        if self.answer_bytes > _MOST_FRAME:
            raise ValueError(f"an answer has {self.answer_bytes} bytes; at most {_MOST_FRAME}")
        how = self.preprocessing
        said = () if how is None else (*how.size, how.channels)
        if said and prod(said) != prod(self.input.shape):
            raise ValueError(f"preprocessing makes {said}, the input takes {self.input.shape}")
        return self

    @property
    def answer_bytes(self) -> int:
        return sum(output.frame_bytes for output in self.outputs)

    def hello(self) -> Hello:
        """What the board says of itself."""
        return Hello(
            self.digest,
            self.input.frame_bytes,
            self.answer_bytes,
            round(self.clock_mhz * 1000),
            self.buffer_bytes,
            self.chunk,
            self.name,
        )

    def unpack(self, answers: list[bytes]) -> dict[str, NDArray[np.int64]]:
        """Answers -> output -> levels (N, elements).

        Raises:
            FormatError: an element holds a code that is no number.
        """
        found, start = {}, 0
        for output in self.outputs:
            end = start + output.frame_bytes
            joined = b"".join(answer[start:end] for answer in answers)
            found[output.name] = output.unpack(joined, len(answers))
            start = end
        return found

    def to_json(self) -> str:
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"


def _check_port(what: str, port: Port) -> None:
    """Refuse a stream that the shell cannot carry.

    Raises:
        ValueError: it is not of whole bytes, or its numbers contradict each other.
    """
    if port.width % 8 or port.beats * port.width > 8 * _MOST_FRAME:
        raise ValueError(f"{what}: {port.beats} beats of {port.width} bits, expected whole bytes")
    try:
        _ = port.spec  # which checks it
    except BitwrightError as error:
        raise ValueError(f"{what}: {error.message}") from error


def read_description(path: Path) -> Description:
    """Read a ``board.json``.

    Raises:
        GraphError: it is missing or malformed.
    """
    try:
        return validated(Description, read_text(path, most=_MOST_BYTES))
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "(file)"
        raise GraphError(f"{field}: {first['msg']}", where=str(path)) from error


def describe_streams(design: Design) -> tuple[Input, tuple[Output, ...]]:
    """The streams of a design, as far as its folder knows them: its outputs in the order in which
    an answer has them, the largest first, since the others wait for it (`build.shell`).
    """
    (source,) = design.inputs
    outputs = tuple(
        Output(name=port.tensor or port.name, port=port, shape=(port.beats * port.lanes,))
        for port in sorted(design.outputs, key=lambda port: -port.beats * port.width)
    )
    return Input(port=source, shape=(source.beats * source.lanes,)), outputs


def describe_engine(design: Design) -> EngineHost | None:
    """What a host must know of the engine in a design; None: there is none."""
    words, frame = (design.parameters.get(name) for name in ("MemoryWords", "Burst"))
    if design.engine is None or not isinstance(words, int) or not isinstance(frame, int):
        return None
    return EngineHost(config=design.engine, memory_words=words, frame_words=frame)


def design_digest(design: Design) -> str:
    """The beginning of `design_hash` that a board has in a register of 64 bits: it tells apart what
    is loaded by mistake, not what somebody has made to be alike.
    """
    return design_hash(design)[:16]


def design_hash(design: Design) -> str:
    """Hash of all that makes a design what it computes: sources, memories, parameters, streams."""
    digest = hashlib.sha256()
    ports = [port.model_dump(mode="json") for port in (*design.inputs, *design.outputs)]
    parts: list[object] = [design.top, design.parameters, ports]
    if design.sdram is not None:
        parts.append(asdict(design.sdram))
    digest.update(json.dumps(parts, sort_keys=True).encode())
    for name in (*design.files, *design.memories):
        content = (design.folder / name).read_bytes()
        digest.update(json.dumps([name, len(content)]).encode() + content)
    return digest.hexdigest()
