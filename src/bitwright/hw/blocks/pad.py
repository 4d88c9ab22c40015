# SPDX-License-Identifier: Apache-2.0
"""`pad`: adds a border of one level to every frame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from bitwright.base.figures import Resources
from bitwright.hw.blocks.base import Block, Firing, Fold, Instance, all_foldings, divisors
from bitwright.hw.operands import wire_words


@final
@dataclass(frozen=True)
class Pad(Block):
    """Border beats are made without input, one beat a cycle; module `stream_pad`.

    With `wait_for_input` the first step of a frame takes the frame's first beat, ahead of its
    place: then no border is made for a frame that does not come.
    """

    LANES, LATENCY = "simd", 1

    @property
    def _waits(self) -> bool:
        return self.node.integer("wait_for_input") != 0

    def foldings(self) -> tuple[Fold, ...]:
        return all_foldings("simd", "simd", simd=divisors(self.input_type.channels))

    def firing(self) -> Firing:
        top, left, bottom, right = self.node.ints("padding")
        height, width, channels = self.input_type.shape
        fold = channels // self.lanes[0]
        inside = np.zeros((top + height + bottom, left + width + right, fold), dtype=bool)
        inside[top : top + height, left : left + width] = True
        steps = np.arange(inside.size, dtype=np.int64)
        consume = steps[inside.ravel()]
        if self._waits:
            consume[0] = 0
        return Firing(inside.size, consume, steps, self.LATENCY)

    def pad_code(self) -> int:
        """Wire pattern of one beat of the border."""
        bits = self.output_type.wire_bits
        lane = int(wire_words(self.output_type, np.array(self.node.integer("value"))))
        return sum(lane << (i * bits) for i in range(self.lanes[0]))

    def features(self, family: str) -> dict[str, float]:
        height, width, channels = self.input_type.shape
        width_bits = self.outputs[0].width
        counters = sum(n.bit_length() for n in (height, width, channels // self.lanes[0]))
        return {"width": width_bits, "counter": counters}

    def more_cost(self, family: str) -> Resources:
        """The register of the beat that is taken ahead, and the choice of it."""
        width = self.outputs[0].width
        return Resources(lut=width, ff=width + 2) if self._waits else Resources()

    def instance(self) -> Instance:
        top, left, bottom, right = self.node.ints("padding")
        height, width, channels = self.input_type.shape
        return Instance(
            "stream_pad",
            {
                "Height": height,
                "Cols": width,
                "Fold": channels // self.lanes[0],
                "DataWidth": self.outputs[0].width,
                "Top": top,
                "Left": left,
                "Bottom": bottom,
                "Right": right,
                **({"WaitForInput": 1} if self._waits else {}),
                "PadValue": f"{self.outputs[0].width}'h{self.pad_code():x}",
            },
        )
