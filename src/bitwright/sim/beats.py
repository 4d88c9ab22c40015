# SPDX-License-Identifier: Apache-2.0
"""Tensors of levels <-> beats on a stream, as bytes.

A frame's elements (NHWC order, channel fastest) are cut into beats of ``lanes`` elements; lane 0
lies in the least significant bits; each lane has ``lane_bits`` bits: two's complement if signed,
else unsigned, or one bit (1 = +1, 0 = -1) if bipolar, or the code of a format. A beat is stored
little endian in ``ceil(width / 8)`` bytes, padding bits zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError
from bitwright.formats import Format

Levels = NDArray[np.int64]
Beats = NDArray[np.uint8]

_CHUNK_BITS = 1 << 26  # bounds the memory of the unpacked bits
_CHUNK_ELEMENTS = 1 << 22  # and of what is made of levels on the way, 8 bytes each


@dataclass(frozen=True)
class StreamSpec:
    """Layout of one stream.

    Attributes:
        lanes: elements in a beat.
        lane_bits: bits of an element, 1 to 63.
        beats: beats of a frame.
        width: bits of the data signal, at least ``lanes * lane_bits``.
        signed: elements are two's complement.
        bipolar: elements are -1 and +1, on one bit.
        codes: elements are codes of this format, as wide as a lane; None: numbers.
    """

    lanes: int
    lane_bits: int
    beats: int
    width: int
    signed: bool = False
    bipolar: bool = False
    codes: Format | None = None

    def __post_init__(self) -> None:
        if min(self.lanes, self.lane_bits, self.beats) < 1 or self.lane_bits > 63:
            raise GraphError(f"a stream needs positive sizes and lanes of up to 63 bits: {self}")
        if self.width < self.lanes * self.lane_bits:
            raise GraphError(f"{self.lanes} lanes of {self.lane_bits} bits do not fit: {self}")
        if self.bipolar and self.lane_bits != 1:
            raise GraphError(f"a bipolar lane has one bit: {self}")
        if self.codes is not None and self.codes.bits != self.lane_bits:
            raise GraphError(f"a code of {self.codes.name} has {self.codes.bits} bits: {self}")

    @property
    def beat_bytes(self) -> int:
        return (self.width + 7) // 8

    @property
    def frame_elements(self) -> int:
        return self.beats * self.lanes

    @property
    def interval(self) -> tuple[int, int]:
        """Smallest and largest level of a lane."""
        if self.bipolar:
            return -1, 1
        if self.codes is not None:
            return self.codes.min_level, self.codes.max_level
        if self.signed:
            return -(1 << (self.lane_bits - 1)), (1 << (self.lane_bits - 1)) - 1
        return 0, (1 << self.lane_bits) - 1


def pack(spec: StreamSpec, levels: Levels) -> Beats:
    """Levels (frames, ...) -> beats (frames * spec.beats, spec.beat_bytes).

    Raises:
        GraphError: a frame has the wrong number of elements, or a level does not fit a lane.
        FormatError: a level is none of the lanes' format.
    """
    frames = levels.shape[0]
    if levels.size != frames * spec.frame_elements:
        raise GraphError(
            f"expected {spec.frame_elements} elements a frame, got an array of shape {levels.shape}"
        )
    flat = np.ascontiguousarray(levels, dtype=np.int64).reshape(-1, spec.lanes)
    _check_levels(spec, flat)
    out = np.zeros((flat.shape[0], spec.beat_bytes), dtype=np.uint8)
    for part in _chunks(spec, flat.shape[0]):
        codes = (flat[part] + 1) >> 1 if spec.bipolar else flat[part]
        if spec.codes is not None:
            codes = spec.codes.to_bits(spec.codes.codes(codes))
        if spec.lane_bits % 8 == 0 or spec.lanes == 1:
            _pack_bytes(spec, codes, out[part])
            continue
        bits = np.unpackbits(
            codes.astype("<i8")
            .view(np.uint8)
            .reshape(-1, spec.lanes, 8)[:, :, : _lane_bytes(spec)],
            axis=2,
            count=spec.lane_bits,
            bitorder="little",
        )
        packed = np.packbits(bits.reshape(bits.shape[0], -1), axis=1, bitorder="little")
        out[part, : packed.shape[1]] = packed
    return out


def unpack(spec: StreamSpec, beats: Beats) -> Levels:
    """Beats (frames * spec.beats, spec.beat_bytes) -> levels (frames, elements of a frame).

    Padding bits are not looked at.

    Raises:
        GraphError: the array is not a whole number of frames.
        FormatError: a lane holds a code that is no number.
    """
    if beats.ndim != 2 or beats.shape[1] != spec.beat_bytes or beats.shape[0] % spec.beats:
        raise GraphError(
            f"expected whole frames of {spec.beats} beats of {spec.beat_bytes} bytes, "
            f"got an array of shape {beats.shape}"
        )
    used = spec.lanes * spec.lane_bits
    found = np.empty((beats.shape[0], spec.lanes), dtype=np.int64)
    for part in _chunks(spec, beats.shape[0]):
        bits = np.unpackbits(beats[part], axis=1, count=used, bitorder="little")
        lanes = bits.reshape(bits.shape[0], spec.lanes, spec.lane_bits)
        packed = np.packbits(lanes, axis=2, bitorder="little")
        wide = np.zeros((*packed.shape[:2], 8), dtype=np.uint8)
        wide[:, :, : packed.shape[2]] = packed
        codes = wide.view("<i8").reshape(-1, spec.lanes).astype(np.int64)
        if spec.bipolar:
            codes = 2 * codes - 1
        elif spec.codes is not None:
            codes = spec.codes.levels(spec.codes.from_bits(codes))
        elif spec.signed:
            codes -= (codes >> (spec.lane_bits - 1)) << spec.lane_bits
        found[part] = codes
    return found.reshape(beats.shape[0] // spec.beats, spec.frame_elements)


def _pack_bytes(spec: StreamSpec, codes: Levels, out: Beats) -> None:
    """Lanes of whole bytes, or a single lane: no bit shuffling."""
    size = _lane_bytes(spec)
    masked = codes & ((1 << spec.lane_bits) - 1)
    lanes = masked.astype("<i8").view(np.uint8).reshape(-1, spec.lanes, 8)[:, :, :size]
    out[:, : spec.lanes * size] = lanes.reshape(-1, spec.lanes * size)


def _lane_bytes(spec: StreamSpec) -> int:
    return (spec.lane_bits + 7) // 8


def _chunks(spec: StreamSpec, beats: int) -> list[slice]:
    step = max(1, min(_CHUNK_BITS // spec.lane_bits, _CHUNK_ELEMENTS) // spec.lanes)
    return [slice(start, min(start + step, beats)) for start in range(0, beats, step)]


def _check_levels(spec: StreamSpec, flat: Levels) -> None:
    if flat.size == 0:
        return
    lo, hi = spec.interval
    if flat.min() < lo or flat.max() > hi:
        raise GraphError(
            f"levels in [{flat.min()}, {flat.max()}] do not fit lanes that hold [{lo}, {hi}]"
        )
    if spec.bipolar and np.any(flat == 0):
        raise GraphError("bipolar levels are -1 and +1, got 0")
