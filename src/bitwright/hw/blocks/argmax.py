# SPDX-License-Identifier: Apache-2.0
"""`argmax`: index of the first maximum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from bitwright.hw.blocks.base import Block, Firing, Fold, Instance


@final
@dataclass(frozen=True)
class Argmax(Block):
    """Takes PE classes a beat, gives one index a frame; module `argmax`."""

    @property
    def pe(self) -> int:
        return self.integer("pe")

    @property
    def lanes(self) -> tuple[int, int]:
        return self.pe, 1

    @property
    def classes(self) -> int:
        return self.input_type.channels

    def foldings(self) -> tuple[Fold, ...]:
        fold = Fold((("pe", self.pe),), self.pe, 1)
        return (fold,)

    def firing(self) -> Firing:
        beats = self.inputs[0].beats
        last = np.array([beats - 1], dtype=np.int64)
        return Firing(beats, np.arange(beats, dtype=np.int64), last, 3 + (self.pe - 1).bit_length())

    def features(self, family: str) -> dict[str, float]:
        node = self.input_type.wire_bits + self.output_type.wire_bits + 1
        return {"compare": 2 * self.pe * node}

    def instance(self) -> Instance:
        return Instance(
            "argmax",
            {
                "Classes": self.classes,
                "PE": self.pe,
                "Width": self.input_type.wire_bits,
                "Signed": int(self.input_type.is_signed),
                "IndexWidth": self.output_type.wire_bits,
            },
        )
