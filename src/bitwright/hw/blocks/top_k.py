# SPDX-License-Identifier: Apache-2.0
"""`top_k`: indices of the largest elements of a vector."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from bitwright.hw.blocks.base import Block, Firing, Fold, Instance, divisors


@final
@dataclass(frozen=True)
class TopK(Block):
    """Takes PE classes a beat, gives k indices a frame, one a beat; module `top_k`.

    More than one index needs PE = 1.
    """

    @property
    def k(self) -> int:
        return self.node.integer("k")

    @property
    def lanes(self) -> tuple[int, int]:
        return self.pe, 1

    def foldings(self) -> tuple[Fold, ...]:
        several = divisors(self.input_type.channels) if self.k == 1 else (1,)
        return tuple(Fold((("pe", pe),), pe, 1) for pe in several)

    def firing(self) -> Firing:
        beats = self.inputs[0].beats
        # The indices after the first come from a shift register, one a cycle.
        made = beats - 1 + np.arange(self.k, dtype=np.int64)
        latency = 3 + (self.pe - 1).bit_length()
        return Firing(beats, np.arange(beats, dtype=np.int64), made, latency)

    def features(self, family: str) -> dict[str, float]:
        """Bits of comparisons, of the choices they decide and of what is kept; the K best wait in a
        shift register, each place of it taking the winner, its neighbour or nothing.
        """
        key, index = self.input_type.wire_bits + 1, self.output_type.wire_bits
        beats = self.inputs[0].beats
        leaves = 1 << (self.pe - 1).bit_length()
        return {
            "compare": (leaves - 1 + self.k) * key,
            "chain": leaves - 1 + self.k,
            "choose": (leaves - 1) * (key + index),
            "insert": (self.k - 1) * (key + index),
            "index": (self.pe - 1) * index,
            "register": (2 * self.pe - 1 + self.k) * (key + index),
            "rest": (self.k - 1) * index,
            "counter": (beats - 1).bit_length() + index,
            "skid": index,
        }

    def instance(self) -> Instance:
        return Instance(
            "top_k",
            {
                "Classes": self.input_type.channels,
                "K": self.k,
                "PE": self.pe,
                "Width": self.input_type.wire_bits,
                "Signed": int(self.input_type.is_signed),
                "IndexWidth": self.output_type.wire_bits,
            },
        )
