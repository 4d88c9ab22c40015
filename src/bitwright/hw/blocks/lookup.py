# SPDX-License-Identifier: Apache-2.0
"""`lookup`: a table of output levels, one word for each input code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from bitwright.base.figures import Resources
from bitwright.hw.blocks.base import Firing, Fold, Instance, TableBlock, one_to_one, pe_foldings
from bitwright.hw.memory import STYLE_CODES, Memory, bram_count, pack_lanes, rom_luts
from bitwright.hw.operands import wire_words
from bitwright.ir import IntArray


@final
@dataclass(frozen=True)
class Lookup(TableBlock):
    """Any activation of a few bits; module `lookup`. The address is the code on the wire."""

    LATENCY = 3

    @property
    def shared(self) -> bool:
        """All channels have the same table."""
        return len(self.node.params["table"]) == 1

    @property
    def fold(self) -> int:
        """Tables that one lane goes through."""
        return 1 if self.shared else self.input_type.channels // self.pe

    @property
    def depth(self) -> int:
        """Words of one lane's memory."""
        return self.fold << self.input_type.wire_bits

    def foldings(self) -> tuple[Fold, ...]:
        return pe_foldings(self.input_type.channels, ram_style=("distributed", "block"))

    def firing(self) -> Firing:
        return one_to_one(self.inputs[0].beats, self.LATENCY)

    @cached_property
    def codes(self) -> IntArray:
        """``(tables, 2**bits)``: the output's wire pattern as a number, for every input code; codes
        that do not occur give that of some level that does."""
        kind, bits = self.input_type, self.input_type.wire_bits
        code = np.arange(1 << bits, dtype=np.int64)
        if kind.is_bipolar:
            level = 2 * code - 1
        else:
            level = np.where(code >> (bits - 1), code - (1 << bits), code) if kind.lo < 0 else code
        level = np.clip(level, kind.lo, kind.hi)
        out = self.node.params["table"][:, level - kind.lo]
        return wire_words(self.output_type, out)

    def table_memory(self) -> Memory:
        """Word code, or fold*2^bits + code; lane p holds the table of channel fold*PE + p."""
        bits, size = self.output_type.wire_bits, 1 << self.input_type.wire_bits
        if self.shared:
            layout = f"{self.name}: word code, the output code of every channel, {bits} bits"
            return pack_lanes(self.codes.T, bits, layout)
        words = self.codes.reshape(self.fold, self.pe, size).transpose(0, 2, 1)
        layout = (
            f"{self.name}: word fold*{size} + code, lane p is the output code of channel "
            f"fold*PE + p, PE={self.pe}, {bits} bits"
        )
        return pack_lanes(words.reshape(-1, self.pe), bits, layout)

    def rom_cost(self, family: str, *, in_luts: bool) -> Resources:
        """One ROM a lane."""
        bits = self.output_type.wire_bits
        if in_luts:
            return Resources(lut=self.pe * rom_luts(family, self.depth, bits))
        return Resources(bram=self.pe * bram_count(family, self.depth, bits))

    def features(self, family: str) -> dict[str, float]:
        return {"skid": self.outputs[0].width, "counter": self.fold.bit_length()}

    def instance(self) -> Instance:
        return Instance(
            "lookup",
            {
                "Channels": self.pe if self.shared else self.input_type.channels,
                "PE": self.pe,
                "InWidth": self.input_type.wire_bits,
                "OutWidth": self.output_type.wire_bits,
                "Shared": int(self.shared),
                "RomStyle": STYLE_CODES[self.string("ram_style")],
            },
            {"TableFile": self.table_memory()},
        )
