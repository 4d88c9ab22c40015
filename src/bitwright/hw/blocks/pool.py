# SPDX-License-Identifier: Apache-2.0
"""`pool_max` and `pool_sum`: maximum and sum over the pixels of a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from bitwright.figures import Resources
from bitwright.hw.blocks.base import Block, Firing, Fold, Instance, pe_foldings
from bitwright.hw.memory import STYLE_CODES, ram_resources, ram_style
from bitwright.ir import Node


@final
@dataclass(frozen=True)
class PoolMax(Block):
    """Takes the beats of a window pixel after pixel; module `pool_max`."""

    LATENCY = 3

    @property
    def pe(self) -> int:
        return self.integer("pe")

    @property
    def lanes(self) -> tuple[int, int]:
        return self.pe, self.pe

    @property
    def window(self) -> int:
        """Pixels that become one."""
        return self.input_type.size // self.output_type.size

    @property
    def fold(self) -> int:
        """Beats of one pixel."""
        return self.output_type.channels // self.pe

    def foldings(self) -> tuple[Fold, ...]:
        return pe_foldings(self.output_type.channels)

    def firing(self) -> Firing:
        beats = self.inputs[0].beats
        steps = np.arange(beats, dtype=np.int64)
        last_pixel = steps.reshape(-1, self.window, self.fold)[:, -1]
        return Firing(beats, steps, last_pixel.ravel(), self.LATENCY)

    def memory_cost(self, family: str) -> Resources:
        if self.fold == 1:
            return Resources()
        style = self.string("ram_style")
        return ram_resources(family, self.fold, self.outputs[0].width, style)

    def resolve(self, family: str) -> Node:
        width, style = self.outputs[0].width, self.string("ram_style")
        return self.with_attrs(ram_style=ram_style(family, self.fold, width, style))

    def features(self, family: str) -> dict[str, float]:
        return {
            "compare": self.outputs[0].width,
            "counter": self.window.bit_length() + self.fold.bit_length(),
        }

    def instance(self) -> Instance:
        return Instance(
            "pool_max",
            {
                "Window": self.window,
                "Fold": self.fold,
                "PE": self.pe,
                "ElemWidth": self.input_type.wire_bits,
                "ElemSigned": int(self.input_type.is_signed),
                "RamStyle": STYLE_CODES[self.string("ram_style")],
            },
        )


@final
@dataclass(frozen=True)
class PoolSum(Block):
    """As `PoolMax`, but adds; module `pool_sum`."""

    LATENCY = 3

    @property
    def pe(self) -> int:
        return self.integer("pe")

    @property
    def lanes(self) -> tuple[int, int]:
        return self.pe, self.pe

    @property
    def window(self) -> int:
        """Pixels that become one."""
        return self.input_type.size // self.output_type.size

    @property
    def fold(self) -> int:
        """Beats of one pixel."""
        return self.output_type.channels // self.pe

    def foldings(self) -> tuple[Fold, ...]:
        return pe_foldings(self.output_type.channels)

    def firing(self) -> Firing:
        beats = self.inputs[0].beats
        steps = np.arange(beats, dtype=np.int64)
        last_pixel = steps.reshape(-1, self.window, self.fold)[:, -1]
        return Firing(beats, steps, last_pixel.ravel(), self.LATENCY)

    def memory_cost(self, family: str) -> Resources:
        if self.fold == 1:
            return Resources()
        style = self.string("ram_style")
        return ram_resources(family, self.fold, self.outputs[0].width, style)

    def resolve(self, family: str) -> Node:
        width, style = self.outputs[0].width, self.string("ram_style")
        return self.with_attrs(ram_style=ram_style(family, self.fold, width, style))

    def features(self, family: str) -> dict[str, float]:
        return {
            "adder": self.outputs[0].width,
            "counter": self.window.bit_length() + self.fold.bit_length(),
        }

    def instance(self) -> Instance:
        return Instance(
            "pool_sum",
            {
                "Window": self.window,
                "Fold": self.fold,
                "PE": self.pe,
                "InWidth": self.input_type.wire_bits,
                "Signed": int(self.input_type.is_signed),
                "Bipolar": int(self.input_type.is_bipolar),
                "SumWidth": self.output_type.wire_bits,
                "RamStyle": STYLE_CODES[self.string("ram_style")],
            },
        )
