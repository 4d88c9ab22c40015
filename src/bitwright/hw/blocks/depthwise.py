# SPDX-License-Identifier: Apache-2.0
"""`depthwise`: every channel times its own weights, PE channels a cycle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from bitwright.hw.blocks.base import Firing, Fold, Instance, pe_foldings
from bitwright.hw.blocks.products import STYLES, ProductUnit
from bitwright.hw.memory import Memory
from bitwright.ir import IntArray


@final
@dataclass(frozen=True)
class Depthwise(ProductUnit):
    """Products of PE channels a cycle, and of `simd` pixels of the window; module `depthwise`.
    Cycles: pixels * window/SIMD * C/PE a frame.

    With `simd` = 1 it takes the beats of a pixel in order (channel fold, pixel of the window), as a
    window with `groups` = 0 and as many lanes gives them; a window of one pixel is a factor a
    channel. With `simd` = window it takes all pixels of a channel in one beat, channel after
    channel, as a parallel window gives them. The weights are ``(C, window)``.
    """

    bias_words = "word fold, lane p is the bias of channel fold*PE + p"

    @property
    def simd(self) -> int:
        return self.integer("simd")

    @property
    def window(self) -> int:
        """Pixels of a window."""
        return int(self.weight.shape[1])

    @property
    def lanes(self) -> tuple[int, int]:
        return self.pe * self.simd, self.pe

    @property
    def in_pixels(self) -> bool:
        return self.simd < self.window

    @property
    def folds(self) -> tuple[int, int]:
        """(channel folds, beats of a window)."""
        return self.weight.shape[0] // self.pe, self.window // self.simd

    @property
    def depth(self) -> int:
        return self.folds[0] * self.folds[1]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one frame."""
        return self.input_type.size

    def foldings(self) -> tuple[Fold, ...]:
        taps = sorted({1, self.window})
        found = [
            Fold((*fold.attrs, ("simd", simd)), fold.lanes_in * simd, fold.lanes_out)
            for simd in taps
            for fold in pe_foldings(self.output_type.channels, ram_style=STYLES)
        ]
        return self.with_multipliers(found)

    def firing(self) -> Firing:
        steps, window = np.arange(self.inputs[0].beats, dtype=np.int64), self.folds[1]
        return Firing(len(steps), steps, steps[window - 1 :: window], self.latency_of_steps)

    def weight_words(self) -> IntArray:
        words = self.weight.reshape(self.folds[0], self.pe, self.folds[1], self.simd)
        return words.transpose(0, 2, 1, 3).reshape(self.depth, self.pe * self.simd)

    def weight_memory(self) -> Memory:
        """Word fold*beats + k; lane p*SIMD + s is the weight of channel fold*PE + p for pixel
        k*SIMD + s.
        """
        lane, weight, simd = "lane p", "weight k", ""
        if self.simd > 1:
            lane, weight, simd = "lane p*SIMD + s", "weight k*SIMD + s", f"SIMD={self.simd}, "
        return self.packed(
            f"word fold*{self.folds[1]} + k, {lane} is {weight} of channel fold*PE + p, "
            f"PE={self.pe}, {simd}{self.weight_bits} bits"
        )

    def unpack_weight(self, memory: Memory) -> IntArray:
        """The ``(C, window)`` weights that a memory holds: inverse of `weight_memory`."""
        words = self.unpacked(memory).reshape(*self.folds, self.pe, self.simd)
        return words.transpose(0, 2, 1, 3).reshape(self.weight.shape)

    @property
    def counters(self) -> tuple[int, ...]:
        return self.folds[1], self.depth

    def instance(self) -> Instance:
        parameters: dict[str, int | str] = {
            "Channels": self.output_type.channels,
            "PE": self.pe,
            **({} if self.simd == 1 else {"SIMD": self.simd}),
            "Window": self.window,
            **self.parameters(),
            **self.packing_parameters(),
            **self.rom_parameters(),
        }
        return Instance(
            "depthwise", parameters, {"WeightFile": self.weight_memory(), **self.constants()}
        )
