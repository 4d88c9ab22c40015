# SPDX-License-Identifier: Apache-2.0
"""One file for the memory outside: program, constants, and where inputs and outputs lie.

Words are counted from the first byte of the image. Program and constants come first and are the
bytes of the file; behind them the host leaves room for inputs, outputs and what does not stay on
the chip.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from bitwright.base.bounded import bounded_reader
from bitwright.base.errors import FormatError, GraphError, ProgramError
from bitwright.base.files import parse_json, read_bytes
from bitwright.base.memory import room_for
from bitwright.engine.config import EngineConfig
from bitwright.engine.emulator import Memory, emulate
from bitwright.engine.footprint import check_running
from bitwright.engine.image_table import ImageTable, RegionTable
from bitwright.engine.isa import Instruction, decode_program, encode_program
from bitwright.ir import INTEGER, IntArray, Node, TensorType

Bytes = NDArray[np.uint8]
_MAGIC = b"BWENGINE"
_VERSION = 1


@dataclass(frozen=True)
class Columns:
    """An image's rows as words that hold several neighbours each: in column x, block t of the
    lanes is the pixel ``x + t * step - left`` of the row, or 0 where there is none.

    Attributes:
        image: pixels of the image's row; width: words of it.
        taps: blocks of a word, each of all channels.
    """

    image: int
    width: int
    taps: int
    step: int
    left: int

    def spread(self, levels: Bytes) -> Bytes:
        """(rows, columns, channels) -> (rows, width, taps * channels)."""
        block = np.arange(self.taps) * self.step - self.left
        at = np.arange(self.width)[:, np.newaxis] + block
        inside = (at >= 0) & (at < self.image)
        found = levels[:, np.where(inside, at, 0)] * inside[..., np.newaxis]
        return found.reshape(len(levels), self.width, -1)


@dataclass(frozen=True, eq=False)
class Region:
    """Where an input or output of the network lies.

    Attributes:
        edge: its name in the graph.
        kind: its type there.
        word: the first word; planes, pixels: ``planes`` x ``pixels`` words.
        places: channel -> lane, through all planes; with ``columns`` of each block.
        signs: of each plane: 1 for two's complement.
        bits: of an element: 8, or 32 for raw sums.
        columns: what a word of an input holds, if it is not one pixel.
    """

    edge: str
    kind: TensorType
    word: int
    planes: int
    pixels: int
    places: IntArray
    signs: tuple[int, ...]
    bits: int = 8
    columns: Columns | None = None

    @property
    def words(self) -> int:
        return self.planes * self.pixels

    def pack(self, levels: IntArray, lanes: int) -> Bytes:
        """One frame ``shape`` of levels as words; lanes without a channel are 0."""
        lowest = (levels & 255).astype(np.uint8)
        if self.columns is not None:
            lowest = self.columns.spread(lowest)
        table = np.zeros((self.pixels, self.planes * lanes), np.uint8)
        table[:, self.places] = lowest.reshape(self.pixels, -1)
        words = table.reshape(self.pixels, self.planes, lanes).transpose(1, 0, 2)
        return np.ascontiguousarray(words).reshape(-1, lanes)

    def unpack(self, words: Bytes) -> IntArray:
        """The frame's levels from its words."""
        lanes = words.shape[1]
        pixels = words.reshape(self.planes, self.pixels, lanes).transpose(1, 0, 2)
        flat = np.ascontiguousarray(pixels).reshape(self.pixels, -1)
        if self.bits == 32:
            values = flat.view("<i4").astype(np.int64)
        else:
            signed = np.repeat(np.array(self.signs) > 0, lanes)
            values = np.where(signed, flat.view(np.int8).astype(np.int64), flat).astype(np.int64)
        return values[:, self.places].reshape(self.kind.shape)


@dataclass(frozen=True, eq=False)
class HostStep:
    """What the host does with an output: `top_k`, the one operation that the engine leaves."""

    edge: str
    source: str
    k: int


@dataclass(frozen=True, eq=False)
class EngineImage:
    """A compiled network.

    Attributes:
        config: the engine that it is for; graph: digest of what was compiled.
        program: instructions; layers: of each instruction, the layer it is for.
        data: program and constants ``(n, lanes)``.
        words: of the whole memory that a run needs.
        inputs, outputs: regions; host: what the host does afterwards; edges: the graph's outputs.
        macs: layer -> multiply-accumulates of a frame.
    """

    name: str
    config: EngineConfig
    graph: str
    program: tuple[Instruction, ...]
    layers: tuple[str, ...]
    data: Bytes
    words: int
    inputs: tuple[Region, ...]
    outputs: tuple[Region, ...]
    host: tuple[HostStep, ...]
    edges: tuple[str, ...]
    macs: Mapping[str, int]

    def memory(self, feeds: Mapping[str, IntArray] | None = None) -> Memory:
        """The memory before a run; ``feeds``: one frame of levels for each input."""
        memory = Memory.empty(self.words, self.config.lanes)
        memory.put(0, self.data)
        for region in self.inputs:
            if feeds is not None:
                self.feed(memory, region, feeds[region.edge])
        return memory

    def feed(self, memory: Memory, region: Region, levels: IntArray) -> None:
        """Write an input's frame.

        Raises:
            ProgramError: it has another shape.
        """
        memory.put(region.word, self._packed(region, levels))

    def writes(self, feeds: Mapping[str, IntArray]) -> dict[int, bytes]:
        """What a host writes for one frame: byte address -> bytes.

        Raises:
            ProgramError: an input has another shape.
        """
        return {
            region.word * self.config.word_bytes: self._packed(region, feeds[region.edge]).tobytes()
            for region in self.inputs
        }

    def _packed(self, region: Region, levels: IntArray) -> Bytes:
        if levels.shape != region.kind.shape:
            raise ProgramError(
                f"an image of shape {levels.shape}; the program is for {region.kind.shape}",
                where=region.edge,
                hint="resize the image, or compile the network for this size",
            )
        return region.pack(levels, self.config.lanes)

    def read(self, memory: Bytes) -> dict[str, IntArray]:
        """The graph's outputs from all bytes of the memory after a run, as a host reads them."""
        words = memory.reshape(-1, self.config.lanes)
        return self.results(Memory(words, np.ones(words.shape, np.bool_)))

    def results(self, memory: Memory) -> dict[str, IntArray]:
        """The graph's outputs from the memory after a run, what the host does included."""
        found = {
            region.edge: region.unpack(memory.get(region.word, region.words, region.edge))
            for region in self.outputs
        }
        for step in self.host:
            kind = next(r.kind for r in self.outputs if r.edge == step.source)
            node = Node(step.edge, "top_k", (step.source,), (step.edge,), {"k": step.k})
            levels = (found[step.source][np.newaxis],)
            found[step.edge] = INTEGER.spec(node).reference(node, (kind,), levels)[0][0]
        return {edge: found[edge] for edge in self.edges}

    def run(self, feeds: Mapping[str, IntArray]) -> dict[str, IntArray]:
        """Emulate one frame after the other: edge -> levels ``(N, *shape)``, as `Graph.run`."""
        frames = []
        for number in range(len(next(iter(feeds.values())))):
            memory = self.memory({edge: levels[number] for edge, levels in feeds.items()})
            emulate(self.program, memory, self.config)
            frames.append(self.results(memory))
        return {edge: np.stack([frame[edge] for frame in frames]) for edge in self.edges}

    # Files ------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """The file: magic, version, length of the table, digest, table (JSON), data."""
        table = json.dumps(self._table(), sort_keys=True).encode()
        body = table + self.data.tobytes()
        digest = hashlib.sha256(body).digest()
        return _MAGIC + struct.pack("<II", _VERSION, len(table)) + digest + body

    def _table(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "config": json.loads(self.config.to_json()),
            "graph": self.graph,
            "instructions": len(self.program),
            "layers": list(self.layers),
            "words": self.words,
            "inputs": [_region_json(region) for region in self.inputs],
            "outputs": [_region_json(region) for region in self.outputs],
            "host": [{"edge": s.edge, "source": s.source, "k": s.k} for s in self.host],
            "edges": list(self.edges),
            "macs": dict(self.macs),
        }

    @staticmethod
    def from_bytes(data: bytes, where: str = "engine image") -> EngineImage:
        """Read a file, of whatever origin: its digest says that it is whole, not whose it is.

        Raises:
            ProgramError: it is none, of another version, cut off or damaged, contradicts itself,
                or a run of it would take more than a file may ask for (`check_running`).
            TargetError: it is for an engine that there cannot be.
        """
        head = len(_MAGIC) + 8
        if data[: len(_MAGIC)] != _MAGIC or len(data) < head + 32:
            raise ProgramError("this is no image of the engine", where=where)
        version, length = struct.unpack("<II", data[len(_MAGIC) : head])
        if version != _VERSION:
            raise ProgramError(f"version {version}; this is for {_VERSION}", where=where)
        digest, body = data[head : head + 32], data[head + 32 :]
        if hashlib.sha256(body).digest() != digest:
            raise ProgramError(
                "the digest differs: the file is cut off or damaged",
                where=where,
                hint="compile the network again",
            )
        try:
            table = ImageTable.model_validate(parse_json(body[:length]))
            config = EngineConfig.from_json(json.dumps(table.config))
            words = np.frombuffer(body[length:], np.uint8).reshape(-1, config.lanes)
            image = _image(table, config, decode_program(body[length:]), words)
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(map(str, first["loc"])) or "(table)"
            raise ProgramError(
                f"the table is wrong: {field}: {first['msg']}", where=where
            ) from error
        except (GraphError, FormatError, ValueError) as error:
            raise ProgramError(f"the table is wrong: {error}", where=where) from error
        check_running(image.program, config, image.words, where)
        return image


def _image(
    table: ImageTable, config: EngineConfig, program: tuple[Instruction, ...], words: Bytes
) -> EngineImage:  # fmt: skip
    """Raises ValueError if the table does not fit the rest, or GraphError or FormatError."""

    def region(r: RegionTable) -> Region:
        return Region(
            r.edge, r.kind(config.lanes, table.words), r.word, r.planes, r.pixels,
            np.array(r.places, np.int64), tuple(r.signs), r.bits,
            None if r.columns is None else Columns(**r.columns.model_dump()),
        )  # fmt: skip

    inputs, outputs = (tuple(map(region, each)) for each in (table.inputs, table.outputs))
    table.check(len(program), len(words), {r.edge: r.kind.channels for r in outputs})
    host = tuple(HostStep(s.edge, s.source, s.k) for s in table.host)
    return EngineImage(
        table.name, config, table.graph, program, tuple(table.layers), words, table.words, inputs,
        outputs, host, tuple(table.edges), table.macs,
    )  # fmt: skip


@bounded_reader
def load_image(path: Path) -> EngineImage:
    """The image of a file.

    Raises:
        DataError: it cannot be read, or is longer than an image may be.
        ProgramError, TargetError: as `EngineImage.from_bytes`.
    """
    return EngineImage.from_bytes(read_bytes(path, most=room_for(chosen=False)), str(path))


def _region_json(region: Region) -> dict[str, Any]:
    columns = region.columns
    return {
        **({} if columns is None else {"columns": dataclasses.asdict(columns)}),
        "edge": region.edge, "type": str(region.kind), "word": region.word,
        "planes": region.planes, "pixels": region.pixels, "bits": region.bits,
        "places": region.places.tolist(), "signs": list(region.signs),
    }  # fmt: skip


def program_words(count: int, config: EngineConfig) -> int:
    """Words of a program of so many instructions."""
    return -(-32 * count // config.lanes)


def program_bytes(program: tuple[Instruction, ...], config: EngineConfig) -> Bytes:
    """The program as words."""
    data = encode_program(program)
    data += bytes(-len(data) % config.lanes)
    return np.frombuffer(data, np.uint8).reshape(-1, config.lanes)
