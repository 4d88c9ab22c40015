# SPDX-License-Identifier: Apache-2.0
"""What a test case of a library module is, and the helpers that all of them use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bitwright.formats import parse_format
from bitwright.sim import StreamSpec

Levels = NDArray[np.int64]
Streams = dict[str, Levels]
Stamps = NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """One module at one parameter point.

    Attributes:
        reference: inputs (port -> (frames, elements)) -> outputs.
        interval: cycles per frame, steady state.
        stamps: frames -> (input stamps, output stamps) when nothing ever stalls; input stamps one
            an input where they differ.
        surplus: beats may follow the last frame (a border made ahead).
    """

    name: str
    module: str
    parameters: Mapping[str, int | str]
    inputs: Mapping[str, StreamSpec]
    outputs: Mapping[str, StreamSpec]
    reference: Callable[[Streams], Streams]
    interval: int
    stamps: Callable[[int], tuple[Stamps | Mapping[str, Stamps], Stamps]]
    memories: Mapping[str, str] = field(default_factory=dict)
    surplus: bool = False


def spec(
    lanes: int,
    bits: int,
    beats: int,
    *,
    signed: bool = False,
    bipolar: bool = False,
    codes: str | None = None,
) -> StreamSpec:
    kind = None if codes is None else parse_format(codes)
    return StreamSpec(lanes, bits, beats, lanes * bits, signed, bipolar, kind)


def levels_of(port: StreamSpec, frames: int, rng: np.random.Generator) -> Levels:
    """Random levels with many extremes."""
    low, high = port.interval
    size = (frames, port.frame_elements)
    if port.bipolar:
        return 2 * rng.integers(0, 2, size) - 1
    if port.codes is not None:
        values = rng.choice(port.codes.grid(), size)
    else:
        values = rng.integers(low, high + 1, size)
    return np.where(rng.random(size) < 0.2, np.where(rng.random(size) < 0.5, low, high), values)


def image(rows: Levels, bits: int) -> str:
    """Memory image: one line a row, column 0 in the least significant bits."""
    lines = []
    for row in rows:
        mask = (1 << bits) - 1
        word = sum((int(value) & mask) << (bits * lane) for lane, value in enumerate(row))
        lines.append(f"{word:0{(bits * len(row) + 3) // 4}x}")
    return "\n".join(lines) + "\n"


def side_by_side(words: Levels, rows: int) -> Levels:
    """Words of a ROM as lines that have one of each row, as `mem_rom` takes them."""
    if rows == 1:
        return words
    lines = 1 << (-(-len(words) // rows) - 1).bit_length()
    padded = np.zeros((rows * lines, words.shape[1]), dtype=words.dtype)
    padded[: len(words)] = words
    return np.concatenate(np.split(padded, rows), axis=1)


def one_to_one(beats: int, latency: int) -> Callable[[int], tuple[Stamps, Stamps]]:
    """A beat in and a beat out every cycle."""

    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        taken = np.arange(frames * beats)
        return taken, taken + latency

    return stamps
