# SPDX-License-Identifier: Apache-2.0
"""`threshold`: accumulator to level by comparison with ascending thresholds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from bitwright.base.figures import Resources
from bitwright.hw.blocks.base import Firing, Instance, TableBlock, one_to_one
from bitwright.hw.memory import Memory, bram_count, output_luts, pack_lanes, rom_luts, rom_outputs
from bitwright.ir import IntArray, bits_for_interval

MAX_BITS = 8  # search stages of the module
_SMALL_ROM = 2048  # bits up to which `threshold_stage` keeps a ROM in LUTs


@final
@dataclass(frozen=True)
class Threshold(TableBlock):
    """`base + step * count(x >= t)`; module `threshold`, a binary search of one stage per bit.

    A flipped channel compares `~x = -x - 1`, so its thresholds are stored less one. Thresholds
    outside the range of x are moved to its edges, which changes no comparison and keeps the words
    narrow.
    """

    @cached_property
    def stages(self) -> int:
        """Comparators, one per bit of the count: T thresholds count from 0 to T."""
        return int(self.node.params["thresholds"].shape[1]).bit_length()

    @cached_property
    def flips(self) -> IntArray:
        """``(rows,)``: which rows of the table are flipped."""
        flip = self.node.params.get("flip", np.zeros(1, dtype=np.int64))
        return np.broadcast_to(flip, (self.rows,)).astype(np.int64)

    @property
    def rows(self) -> int:
        """Rows of the table: one per channel, or one per lane if all channels share theirs."""
        shared = all(len(self.node.params[name]) == 1 for name in self.node.params)
        return self.pe if shared else self.input_type.channels

    @property
    def fold(self) -> int:
        """Beats after which the table repeats."""
        return self.rows // self.pe

    @cached_property
    def has_flip(self) -> bool:
        return bool(self.flips.any())

    @cached_property
    def table(self) -> IntArray:
        """Stored thresholds (rows, 2**stages - 1), ascending; missing ones are never reached."""
        low, high = self.input_type.lo, self.input_type.hi
        if self.has_flip:
            low, high = min(low, -high - 1), max(high, -low - 1)
        given = self.node.params["thresholds"]
        full = np.full((self.rows, (1 << self.stages) - 1), high + 1, dtype=np.int64)
        full[:, : given.shape[1]] = given - self.flips[:, None]
        return np.clip(full, low, high + 1)

    @cached_property
    def word_bits(self) -> int:
        """Bits of one stored threshold: holds x, sign-extended, and every threshold."""
        own = bits_for_interval(min(-1, int(self.table.min())), int(self.table.max()))
        return max(own, self.input_type.wire_bits + (not self.input_type.is_signed))

    def firing(self) -> Firing:
        latency = 2 + self.has_flip + self.stages * (2 if self.in_luts else 3)
        return one_to_one(self.inputs[0].beats, latency)

    def stage_memories(self, stage: int) -> tuple[Memory, ...]:
        """One a lane: word fold*2^stage + prefix is the threshold that decides the next bit."""
        step = 1 << (self.stages - 1 - stage)
        picked = (2 * np.arange(1 << stage, dtype=np.int64) + 1) * step - 1
        words = self.table[:, picked].reshape(self.fold, self.pe, -1).transpose(0, 2, 1)
        columns = words.reshape(-1, self.pe)
        layout = (
            f"{self.name}: word fold*{1 << stage} + prefix is the threshold of channel "
            f"fold*{self.pe} + {{}} that search stage {stage} compares"
        )
        return tuple(
            pack_lanes(columns[:, lane : lane + 1], self.word_bits, layout.format(lane))
            for lane in range(self.pe)
        )

    def flip_memory(self) -> Memory:
        layout = f"{self.name}: word fold, lane p is 1 if channel fold*PE + p is flipped"
        return pack_lanes(self.flips.reshape(self.fold, self.pe), 1, layout)

    def rom_cost(self, family: str, *, in_luts: bool) -> Resources:
        """The ROMs of all stages, one per lane and stage; small ones stay in LUTs."""
        luts, brams = 0.0, 0
        for stage, outputs in enumerate(self.outputs_of_stages):
            depth, width = self.fold << stage, self.word_bits
            if in_luts or depth * width <= _SMALL_ROM:
                luts += outputs * output_luts(family, depth)
            else:
                brams += self.pe * bram_count(family, depth, width)
        return Resources(lut=luts, bram=brams)

    @property
    def outputs_of_stages(self) -> tuple[int, ...]:
        """Bits of the words of all lanes that differ, of each stage: all lanes look up their first
        threshold at the same place, then each at its own.
        """
        first = rom_outputs(self.fold, self.pe * self.word_bits)
        later = (rom_outputs(self.fold << n, self.word_bits) for n in range(1, self.stages))
        return (first, *(self.pe * outputs for outputs in later))

    def memory_cost(self, family: str) -> Resources:
        flips = rom_luts(family, self.fold, self.pe) if self.has_flip else 0.0
        return super().memory_cost(family) + Resources(lut=flips)

    def features(self, family: str) -> dict[str, float]:
        """Bits of comparisons and the carry chains they are, and of registers: x, the place in the
        table and the decided bits through all stages, and the thresholds that are read.
        """
        x, place = self.input_type.wire_bits, (self.fold - 1).bit_length()
        steps = 2 if self.in_luts else 3
        delays = self.stages * steps - 1 + 1 + self.has_flip
        decided = sum(stage * steps + 1 for stage in range(self.stages))
        waits = (delays - steps + 1) * place
        words = sum(self.outputs_of_stages)
        return {
            "compare": self.pe * self.stages * self.word_bits,
            "chain": self.pe * self.stages,
            "register": self.pe * (delays * x + decided) + (steps - 1) * words + waits,
            "flip": self.pe * x if self.has_flip else 0,
            "counter": place,
            "out": self.outputs[0].width,
        }

    def instance(self) -> Instance:
        base = 0 if self.output_type.is_bipolar else self.node.integer("base")
        lanes = {f"ThrFile{i}": self.stage_memories(i) for i in range(self.stages)}
        memories = {"FlipFile": self.flip_memory()} if self.has_flip else {}
        return Instance(
            "threshold",
            {
                "Channels": self.rows,
                "PE": self.pe,
                "InWidth": self.input_type.wire_bits,
                "InSigned": int(self.input_type.is_signed),
                "ThrWidth": self.word_bits,
                "Bits": self.stages,
                "OutWidth": self.output_type.wire_bits,
                "Base": base,
                "HasFlip": int(self.has_flip),
                "RomStyle": 2 if self.in_luts else 0,
            },
            memories,
            lanes,
        )
