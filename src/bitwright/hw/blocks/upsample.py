# SPDX-License-Identifier: Apache-2.0
"""`upsample`: every pixel repeated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from bitwright.hw.blocks.base import ChannelBlock, Firing, Instance


@final
@dataclass(frozen=True)
class Upsample(ChannelBlock):
    """Repeats pixels and rows from a buffer of one row; module `stream_upsample`."""

    LATENCY = 3
    IN_ROWS = True

    @property
    def fold(self) -> int:
        """Beats of one pixel."""
        return self.input_type.channels // self.pe

    @property
    def depth(self) -> int:
        """Words of the buffer: those of a row, or of a pixel if rows are not repeated."""
        vertical, horizontal = self.node.ints("factor")
        if vertical * horizontal == 1:
            return 0
        return self.fold * (self.input_type.shape[1] if vertical > 1 else 1)

    def firing(self) -> Firing:
        height, width, _ = self.input_type.shape
        vertical, horizontal = self.node.ints("factor")
        steps = np.arange(self.outputs[0].beats, dtype=np.int64)
        fresh = steps.reshape(height, vertical, width, horizontal, self.fold)[:, 0, :, 0]
        return Firing(len(steps), fresh.ravel(), steps, self.LATENCY)

    @property
    def buffer(self) -> tuple[int, int]:
        return self.depth, self.inputs[0].width

    def features(self, family: str) -> dict[str, float]:
        counters = sum(n.bit_length() for n in (*self.node.ints("factor"), self.fold))
        width = self.outputs[0].width
        return {
            "width": width,
            "behind": 0 if self.string("ram_style") == "block" else width,
            "counter": counters,
            "address": self.depth.bit_length(),
        }

    def instance(self) -> Instance:
        vertical, horizontal = self.node.ints("factor")
        return Instance(
            "stream_upsample",
            {
                "Cols": self.input_type.shape[1],
                "Fold": self.fold,
                "DataWidth": self.inputs[0].width,
                "FactorV": vertical,
                "FactorH": horizontal,
                **self.ram_parameters,
            },
        )
