# SPDX-License-Identifier: Apache-2.0
"""Blocks that compute nothing: FIFO, width converter, fork, and the renaming `flatten`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from bitwright.base.errors import GraphError
from bitwright.hw.blocks.base import Block, Firing, Instance, one_to_one


@final
@dataclass(frozen=True)
class Fifo(Block):
    """First in, first out; module `stream_fifo`, latency 3."""

    LANES, LATENCY = "lanes", 3
    IN_ROWS = True

    @property
    def depth(self) -> int:
        return self.integer("depth")

    def firing(self) -> Firing:
        return one_to_one(self.inputs[0].beats, self.LATENCY)

    @property
    def buffer(self) -> tuple[int, int]:
        return self.depth, self.inputs[0].width

    def features(self, family: str) -> dict[str, float]:
        """Two addresses, two counts and, where the memory is LUTs, the register behind it."""
        in_luts = self.string("ram_style") == "distributed"
        return {
            "address": (self.depth - 1).bit_length(),
            "counter": self.depth.bit_length(),
            "width": self.inputs[0].width if in_luts else 0,
            "behind": 0 if in_luts else self.inputs[0].width,
        }

    def instance(self) -> Instance:
        return Instance(
            "stream_fifo",
            {
                "Width": self.inputs[0].width,
                "Depth": self.depth,
                **self.ram_parameters,
            },
        )


@final
@dataclass(frozen=True)
class Dwc(Block):
    """Width converter; module `stream_dwc`. The narrow side moves one beat a cycle."""

    @property
    def lanes(self) -> tuple[int, int]:
        return self.integer("in_lanes"), self.integer("out_lanes")

    def firing(self) -> Firing:
        beats_in, beats_out = self.inputs[0].beats, self.outputs[0].beats
        fires = max(beats_in, beats_out)
        ratio_in, ratio_out = fires // beats_in, fires // beats_out
        consume = np.arange(beats_in, dtype=np.int64) * ratio_in
        produce = (np.arange(beats_out, dtype=np.int64) + 1) * ratio_out - 1
        return Firing(fires, consume, produce, 2 if ratio_in > 1 else 1)

    def features(self, family: str) -> dict[str, float]:
        wide = max(self.inputs[0].width, self.outputs[0].width)
        narrow = min(self.inputs[0].width, self.outputs[0].width)
        down = self.lanes[0] > self.lanes[1]
        return {
            "shift_down": wide if down else 0,
            "shift_up": 0 if down else wide - narrow,
            "skid": self.outputs[0].width,
            "counter": (wide // narrow - 1).bit_length(),
        }

    def instance(self) -> Instance:
        widths = {"InWidth": self.inputs[0].width, "OutWidth": self.outputs[0].width}
        return Instance("stream_dwc", widths)


@final
@dataclass(frozen=True)
class Fork(Block):
    """One stream to two; module `stream_fork`."""

    LANES = "lanes"

    def firing(self) -> Firing:
        return one_to_one(self.inputs[0].beats, 1)

    def features(self, family: str) -> dict[str, float]:
        return {"skid": 2 * self.inputs[0].width}

    def instance(self) -> Instance:
        return Instance("stream_fork", {"Width": self.inputs[0].width})


@final
@dataclass(frozen=True)
class Flatten(Block):
    """Another name for the same stream: no hardware, no time, the lanes of its producer."""

    LANES = "lanes"

    def firing(self) -> Firing:
        return one_to_one(self.inputs[0].beats, 0)

    def features(self, family: str) -> dict[str, float]:
        return {}

    def instance(self) -> Instance:
        raise GraphError("a flatten has no hardware", where=self.name)
