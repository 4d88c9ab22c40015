# SPDX-License-Identifier: Apache-2.0
"""`depthwise`: every channel times its own weights, PE channels a cycle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from bitwright.hw.blocks.base import Firing, Fold, Instance, pe_foldings
from bitwright.hw.blocks.products import STYLES, ProductUnit
from bitwright.hw.memory import STYLE_CODES, Memory
from bitwright.ir import IntArray


@final
@dataclass(frozen=True)
class Depthwise(ProductUnit):
    """Products of PE channels a cycle; module `depthwise`. Cycles: pixels * window * C/PE a frame.

    It takes the beats of a pixel in order (channel fold, pixel of the window), as a window with
    `groups` = 0 and as many lanes gives them; a window of one pixel is a factor a channel. The
    weights are ``(C, window)``.
    """

    bias_words = "word fold, lane p is the bias of channel fold*PE + p"

    @property
    def simd(self) -> int:
        return 1

    @property
    def folds(self) -> tuple[int, int]:
        """(channel folds, pixels of a window)."""
        channels, window = self.weight.shape
        return channels // self.pe, window

    @property
    def depth(self) -> int:
        return self.folds[0] * self.folds[1]

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one frame."""
        return self.input_type.size

    def foldings(self) -> tuple[Fold, ...]:
        return self.with_multipliers(pe_foldings(self.output_type.channels, ram_style=STYLES))

    def firing(self) -> Firing:
        steps, window = np.arange(self.inputs[0].beats, dtype=np.int64), self.folds[1]
        return Firing(len(steps), steps, steps[window - 1 :: window], self.latency_of_steps)

    def weight_words(self) -> IntArray:
        fold, window = self.folds
        words = self.weight.reshape(fold, self.pe, window).transpose(0, 2, 1)
        return words.reshape(self.depth, self.pe)

    def weight_memory(self) -> Memory:
        """Word fold*window + k; lane p is the weight of channel fold*PE + p for pixel k."""
        return self.packed(
            f"word fold*{self.folds[1]} + k, lane p is weight k of channel fold*PE + p, "
            f"PE={self.pe}, {self.weight_bits} bits"
        )

    def unpack_weight(self, memory: Memory) -> IntArray:
        """The ``(C, window)`` weights that a memory holds: inverse of `weight_memory`."""
        words = self.unpacked(memory).reshape(*self.folds, self.pe)
        return words.transpose(0, 2, 1).reshape(self.weight.shape)

    @property
    def counters(self) -> tuple[int, ...]:
        return self.folds[1], self.depth

    def instance(self) -> Instance:
        parameters: dict[str, int | str] = {
            "Channels": self.output_type.channels,
            "PE": self.pe,
            "Window": self.folds[1],
            **self.parameters(),
            "RomStyle": STYLE_CODES[self.string("ram_style")],
        }
        return Instance(
            "depthwise", parameters, {"WeightFile": self.weight_memory(), **self.constants()}
        )
