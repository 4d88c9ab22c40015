# SPDX-License-Identifier: Apache-2.0
"""`pool_max` and `pool_sum`: maximum and sum over the pixels of a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from bitwright.base.figures import Resources
from bitwright.hw.blocks.base import Block, Firing, Fold, Instance, pe_foldings
from bitwright.hw.memory import STYLE_CODES, ram_resources, ram_style
from bitwright.ir import Node


@dataclass(frozen=True)
class _Pool(Block):
    """Takes the beats of a window pixel after pixel, and makes one pixel of them."""

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

    def _features(self, work: str) -> dict[str, float]:
        counter = self.window.bit_length() + self.fold.bit_length()
        return {work: self.outputs[0].width, "counter": counter}

    def _instance(self, module: str, types: dict[str, int]) -> Instance:
        shape = {"Window": self.window, "Fold": self.fold, "PE": self.pe}
        style = {"RamStyle": STYLE_CODES[self.string("ram_style")]}
        return Instance(module, {**shape, **types, **style})


@final
@dataclass(frozen=True)
class PoolMax(_Pool):
    """The largest of each channel; module `pool_max`."""

    def features(self, family: str) -> dict[str, float]:
        return self._features("compare")

    def instance(self) -> Instance:
        kind = self.input_type
        types = {"ElemWidth": kind.wire_bits, "ElemSigned": int(kind.is_signed)}
        if kind.code_format is not None:
            types["ElemCode"] = 1
        return self._instance("pool_max", types)


@final
@dataclass(frozen=True)
class PoolSum(_Pool):
    """The sum of each channel; module `pool_sum`."""

    def features(self, family: str) -> dict[str, float]:
        return self._features("adder")

    def instance(self) -> Instance:
        kind = self.input_type
        types = {
            "InWidth": kind.wire_bits,
            "Signed": int(kind.is_signed),
            "Bipolar": int(kind.is_bipolar),
            "SumWidth": self.output_type.wire_bits,
        }
        return self._instance("pool_sum", types)
