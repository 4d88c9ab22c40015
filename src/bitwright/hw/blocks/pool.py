# SPDX-License-Identifier: Apache-2.0
"""`pool_max` and `pool_sum`: maximum and sum over the pixels of a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from bitwright.hw.blocks.base import ChannelBlock, Firing, Instance
from bitwright.hw.memory import STYLE_CODES


@dataclass(frozen=True)
class _Pool(ChannelBlock):
    """Takes the beats of a window pixel after pixel, and makes one pixel of them."""

    LATENCY = 3

    @property
    def window(self) -> int:
        """Pixels that become one."""
        return self.input_type.size // self.output_type.size

    @property
    def fold(self) -> int:
        """Beats of one pixel."""
        return self.output_type.channels // self.pe

    def firing(self) -> Firing:
        beats = self.inputs[0].beats
        steps = np.arange(beats, dtype=np.int64)
        last_pixel = steps.reshape(-1, self.window, self.fold)[:, -1]
        return Firing(beats, steps, last_pixel.ravel(), self.LATENCY)

    @property
    def buffer(self) -> tuple[int, int]:
        return (self.fold if self.fold > 1 else 0), self.outputs[0].width

    def _features(self, work: str) -> dict[str, float]:
        counter = self.window.bit_length() + self.fold.bit_length()
        return {
            work: self.outputs[0].width,
            "lane": self.pe,
            "input": self.inputs[0].width,
            "old": self.outputs[0].width if self.fold > 1 else 0,
            "counter": counter,
        }

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
