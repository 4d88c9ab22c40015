# SPDX-License-Identifier: Apache-2.0
"""Where external weights lie: the regions of the memory image, and the traffic to read them.

The image has a region for each unit, on a multiple of the burst's size. A region holds the words
of `MatVec.weight_memory` in order, in cells: a cell is ``cell_beats`` memory words with
``cell_words`` weight words, the first in the least significant bits, then zeros; little endian.
A region shorter than a burst is repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import ceil

import numpy as np

from bitwright.base.errors import GraphError, MismatchError, TargetError
from bitwright.hw.blocks import MatVec, blocks_of
from bitwright.hw.external import BURST, EPOCH_BITS, PAGE, WeightMemory, burst_bytes
from bitwright.hw.memory import Bits, packing
from bitwright.ir import Graph

PORT = "m_axi_gmem0"
BASE = "gmem0_base"
IMAGE = "weights.bin"
_MOST_BYTES = 1 << 31  # of an image: offsets are 32-bit parameters


@dataclass(frozen=True)
class Region:
    """One unit's part of the memory image.

    Attributes:
        node: the matrix unit.
        offset: byte at which it starts.
        words, word_bits: weight words of the matrix.
        cell_beats, cell_words: see the module.
        copies: how often the words are repeated in the region.
        beats: memory words of the region.
        reads: times that all words are read for one frame.
        data_bits: width of a memory word.
        prefetch: memory words that the unit buffers.
    """

    node: str
    offset: int
    words: int
    word_bits: int
    cell_beats: int
    cell_words: int
    copies: int
    beats: int
    reads: int
    data_bits: int
    prefetch: int

    @property
    def bytes(self) -> int:
        return self.beats * self.data_bits // 8

    @property
    def beats_per_frame(self) -> int:
        """Memory words read for a frame."""
        return self.reads * self.words * self.cell_beats // self.cell_words

    @property
    def bytes_per_frame(self) -> int:
        return self.beats_per_frame * self.data_bits // 8

    @property
    def demand(self) -> float:
        """Memory words a cycle while the unit steps every cycle."""
        return self.cell_beats / self.cell_words

    def to_json(self) -> dict[str, object]:
        table = asdict(self)
        return {**table, "bytes": self.bytes, "bytes_per_frame": self.bytes_per_frame}


@dataclass(frozen=True)
class MemoryPlan:
    """All regions of a design, and the port that reads them."""

    regions: tuple[Region, ...]
    memory: WeightMemory

    @property
    def bytes(self) -> int:
        """Size of the image."""
        last = self.regions[-1]
        return last.offset + last.bytes

    @property
    def beats_per_frame(self) -> int:
        return sum(region.beats_per_frame for region in self.regions)

    @property
    def demand(self) -> float:
        """Memory words a cycle when all units step every cycle."""
        return sum(region.demand for region in self.regions)

    @property
    def id_bits(self) -> int:
        """Of ARID: the epoch (see `axi_arbiter`) and the number of the unit."""
        return EPOCH_BITS + max(1, (len(self.regions) - 1).bit_length())

    def region(self, node: str) -> Region | None:
        """The region of a unit; None for one that keeps its weights itself."""
        return next((r for r in self.regions if r.node == node), None)

    def bandwidth(self, interval: int, clock_hz: float) -> dict[str, object]:
        """Bytes a frame and GB/s at this interval and clock, of every unit and together.

        ``peak`` is what all units take when they step every cycle; ``available`` what the memory
        gives to the port.
        """
        frames = clock_hz / interval
        width = self.memory.data_bits / 8 * clock_hz / 1e9
        units = {
            r.node: {
                "bytes_per_frame": r.bytes_per_frame,
                "gbytes_per_s": r.bytes_per_frame * frames / 1e9,
                "peak_gbytes_per_s": r.demand * width,
                "reads_per_frame": r.reads,
            }
            for r in self.regions
        }
        total = sum(r.bytes_per_frame for r in self.regions)
        return {
            "units": units,
            "bytes_per_frame": total,
            "gbytes_per_s": total * frames / 1e9,
            "peak_gbytes_per_s": self.demand * width,
            "available_gbytes_per_s": self.memory.beats_per_cycle * width,
            "image_bytes": self.bytes,
            "source": "model",
        }


def memory_plan(hardware: Graph) -> MemoryPlan | None:
    """Where the weights of every unit lie; None if no unit has weights from outside.

    Raises:
        GraphError: a unit has not been placed by `place_weights`, or they differ in their port.
        TargetError: there are too many weights for one port.
    """
    units = [b for b in blocks_of(hardware).values() if isinstance(b, MatVec) and b.external]
    if not units:
        return None
    ports = {
        (u.integer("port_bits"), u.integer("port_address_bits"), u.node.floats("port_share"))
        for u in units
    }
    if len(ports) > 1 or 0 in next(iter(ports)):
        raise GraphError("units with external weights need one common port", where=hardware.name)
    data_bits, address_bits, share = ports.pop()
    grain = burst_bytes(BURST, data_bits)
    regions: list[Region] = []
    offset = 0
    for unit in units:
        region = _region(unit, offset, data_bits)
        regions.append(region)
        offset += ceil(region.bytes / grain) * grain
    if offset >= min(_MOST_BYTES, 1 << address_bits):
        raise TargetError(
            f"{offset} bytes of weights are more than the port can address",
            where=f"weight memory of {hardware.name}",
            hint="keep some weights internal, use fewer bits or several devices",
        )
    memory = WeightMemory(data_bits, address_bits, beats_per_cycle=share[0])
    return MemoryPlan(tuple(regions), memory)


def _region(unit: MatVec, offset: int, data_bits: int) -> Region:
    cell_beats, cell_words = packing(unit.word_bits, unit.depth, data_bits)
    once = unit.depth // cell_words * cell_beats
    copies = max(1, ceil(BURST / once))
    return Region(
        node=unit.name,
        offset=offset,
        words=unit.depth,
        word_bits=unit.word_bits,
        cell_beats=cell_beats,
        cell_words=cell_words,
        copies=copies,
        beats=once * copies,
        reads=unit.vectors // unit.groups,
        data_bits=data_bits,
        prefetch=unit.integer("prefetch"),
    )


def memory_image(hardware: Graph, plan: MemoryPlan) -> bytes:
    """The contents of the memory; see the module."""
    blocks = blocks_of(hardware)
    image = np.zeros(plan.bytes, dtype=np.uint8)
    for region in plan.regions:
        unit = blocks[region.node]
        assert isinstance(unit, MatVec)
        cells = region.words // region.cell_words
        bits = np.zeros((cells, region.cell_beats * region.data_bits), dtype=np.uint8)
        used = region.cell_words * region.word_bits
        bits[:, :used] = unit.weight_memory().bits.reshape(cells, used)
        packed = np.packbits(bits, axis=1, bitorder="little").ravel()
        image[region.offset : region.offset + region.bytes] = np.tile(packed, region.copies)
    return image.tobytes()


def words_in_image(image: bytes, region: Region) -> Bits:
    """The weight words of a unit, ``(words, word_bits)``, as a memory image holds them.

    Raises:
        MismatchError: the image is too short, or the copies of a short region differ.
    """
    part = np.frombuffer(image, dtype=np.uint8)[region.offset : region.offset + region.bytes]
    if part.size != region.bytes:
        raise MismatchError("the memory image is too short", where=region.node)
    copies = part.reshape(region.copies, -1)
    if not (copies == copies[0]).all():
        raise MismatchError("the copies of a region differ", where=region.node)
    cells = copies[0].reshape(region.words // region.cell_words, -1)
    bits = np.unpackbits(cells, axis=1, bitorder="little")
    used = region.cell_words * region.word_bits
    return bits[:, :used].reshape(region.words, region.word_bits)


def port_json(plan: MemoryPlan, instances: Mapping[str, str]) -> dict[str, object]:
    """The entry of design.json: the port, its image and the regions."""
    return {
        "name": PORT,
        "base": BASE,
        "data_bits": plan.memory.data_bits,
        "address_bits": plan.memory.address_bits,
        "id_bits": plan.id_bits,
        "burst": BURST,
        "beats_per_cycle": plan.memory.beats_per_cycle,
        "image": IMAGE,
        "image_bytes": plan.bytes,
        "base_alignment": PAGE,
        "beats_per_frame": plan.beats_per_frame,
        "bytes_per_frame": sum(r.bytes_per_frame for r in plan.regions),
        "regions": [{**r.to_json(), "instance": instances[r.node]} for r in plan.regions],
    }
