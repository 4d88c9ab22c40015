# SPDX-License-Identifier: Apache-2.0
"""`matvec`: the matrix-vector unit, PE rows by SIMD columns a cycle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from bitwright.base.figures import Resources
from bitwright.hw.blocks.base import Firing, Fold, Instance, all_foldings, divisors
from bitwright.hw.blocks.products import STYLES, ProductUnit
from bitwright.hw.memory import Memory, packing, ram_resources, registers_in_brams, tool_style
from bitwright.ir import IntArray, Node

EXTERNAL = "external"
# Requests, control and a share of the arbiter of one weight reader: from the synthesis of a design
# with two of them for ECP5 (`tests/yosys/test_external_synth.py` holds it to that).
_READER_LUTS, _READER_FFS = 150.0, 130.0


@final
@dataclass(frozen=True)
class MatVec(ProductUnit):
    """Weight @ vector + bias; module `matvec`. Cycles per frame: vectors * (MW/SIMD) * (MH/PE).

    With groups a pixel is as many vectors, one after the other, and each has a matrix of its own.
    The weights are ``(groups * MH, MW)``: the matrices of all groups, one below the other.
    """

    bias_words = "word nf, lane p is the bias of row nf*PE + p"

    @property
    def simd(self) -> int:
        return self.integer("simd")

    @property
    def lanes(self) -> tuple[int, int]:
        return self.simd, self.pe

    @cached_property
    def groups(self) -> int:
        return self.node.integer("groups")

    @property
    def matrix(self) -> tuple[int, int]:
        """(MH, MW): rows and columns of the matrix of one group."""
        rows, columns = self.weight.shape
        return rows // self.groups, columns

    @cached_property
    def folds(self) -> tuple[int, int]:
        """(NF, SF): neuron fold MH/PE and synapse fold MW/SIMD, of one group."""
        rows, columns = self.matrix
        return rows // self.pe, columns // self.simd

    @property
    def vectors(self) -> int:
        """Matrix-vector products of one frame."""
        return self.output_type.size // self.matrix[0]

    @property
    def depth(self) -> int:
        return self.groups * self.folds[0] * self.folds[1]

    @property
    def shares(self) -> bool:
        return True

    @property
    def external(self) -> bool:
        """Whether the weights come from outside; see `hw.external`."""
        return self.node.string("mem_mode") == EXTERNAL

    def foldings(self) -> tuple[Fold, ...]:
        rows, columns = self.matrix
        lanes = {"pe": divisors(rows), "simd": divisors(columns)}
        styles: dict[str, Sequence[int | str]] = {"ram_style": STYLES}
        if self.external:
            styles |= {"ram_style": ("auto",), "mem_mode": (EXTERNAL,)}
        return self.with_multipliers(all_foldings("simd", "pe", **lanes, **styles))

    @property
    def interval(self) -> int:
        return self.vectors * self.folds[0] * self.folds[1]

    def firing(self) -> Firing:
        neuron, synapse = self.folds
        vector = np.arange(self.vectors, dtype=np.int64)[:, None] * (neuron * synapse)
        consume = vector + np.arange(synapse, dtype=np.int64)
        produce = vector + (np.arange(neuron, dtype=np.int64) + 1) * synapse - 1
        return Firing(self.interval, consume.ravel(), produce.ravel(), self.latency_of_steps)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one frame."""
        return self.vectors * self.matrix[0] * self.matrix[1]

    def weight_words(self) -> IntArray:
        words = self.weight.reshape(-1, self.pe, self.folds[1], self.simd).transpose(0, 2, 1, 3)
        return words.reshape(self.depth, self.pe * self.simd)

    def weight_memory(self) -> Memory:
        """Word (g*NF + nf)*SF + sf; lane p*SIMD + s is the weight of group g, row nf*PE + p,
        column sf*SIMD + s.
        """
        neuron, synapse = self.folds
        group = f"(g*NF + nf)*SF + sf, {self.groups} groups" if self.groups > 1 else "nf*SF + sf"
        return self.packed(
            f"word {group}, SF={synapse}, NF={neuron}; lane p*SIMD + s, PE={self.pe}, "
            f"SIMD={self.simd}, {self.weight_bits} bits a weight"
        )

    def unpack_weight(self, memory: Memory) -> IntArray:
        """The ``(groups * MH, MW)`` weights that a memory holds: inverse of `weight_memory`."""
        words = self.unpacked(memory).reshape(-1, self.folds[1], self.pe, self.simd)
        return words.transpose(0, 2, 1, 3).reshape(self.weight.shape)

    def resolve(self, family: str) -> Node:
        if self.external:  # its buffer is sized later, by `hw.external`
            return self.resolve_multipliers(family)
        return super().resolve(family)

    def memory_cost(self, family: str) -> Resources:
        cost = super().memory_cost(family)
        if self.replays:
            size = self.folds[1], self.inputs[0].width
            cost += ram_resources(family, *size, tool_style(family, *size))
        return cost

    @property
    def replays(self) -> bool:
        """Whether a vector is kept for the next rows."""
        return self.folds[0] > 1

    def waits(self, family: str) -> int:
        """A word of a vector that a block RAM keeps takes a cycle more, too."""
        kept = self.replays and tool_style(family, self.folds[1], self.inputs[0].width) == "block"
        return max(super().waits(family), int(kept))

    def waiting_bits(self, family: str) -> int:
        """A word that is replayed waits beside one that comes in."""
        more = self.replays and self.waits(family) > 0
        kept = self.inputs[0].width
        if registers_in_brams(family) and tool_style(family, self.folds[1], kept) == "block":
            kept = 0
        return super().waiting_bits(family) + more * (kept + 1)

    def weight_cost(self, family: str) -> Resources:
        if not self.external:
            return super().weight_cost(family)
        places = self.node.integer("prefetch") or 128
        return ram_resources(family, places, self._port_bits, self.string("ram_style"))

    @property
    def _port_bits(self) -> int:
        return self.node.integer("port_bits") or 64

    def more_cost(self, family: str) -> Resources:
        """The reader of external weights, without its buffer: requests, converters to a cell."""
        if not self.external:
            return Resources()
        port = self._port_bits
        cost = Resources(lut=_READER_LUTS, ff=_READER_FFS)
        # Converters to a cell and from it: registers, and the multiplexers in front of them.
        beats, words = packing(self.word_bits, self.depth, port)
        if beats > 1:
            cost += Resources(lut=beats * port, ff=(3 * beats - 1) * port)
        if words > 1:
            bits = self.word_bits
            cost += Resources(lut=(words + 1) * bits, ff=(words + 2) * bits)
        return cost

    @property
    def counters(self) -> tuple[int, ...]:
        return (*self.folds, self.depth)

    def features(self, family: str) -> dict[str, float]:
        own = super().features(family)
        return {**own, "stream": self.inputs[0].width * (2 if self.replays else 1)}

    def instance(self) -> Instance:
        rows, columns = self.matrix
        parameters: dict[str, int | str] = {} if self.groups == 1 else {"Groups": self.groups}
        parameters |= {"MW": columns, "MH": rows, "PE": self.pe, "SIMD": self.simd}
        parameters |= {**self.parameters(), **self.packing_parameters()}
        if self.external:
            return Instance("matvec_stream", parameters, self.constants())
        parameters |= self.rom_parameters()
        memories = {"WeightFile": self.weight_memory(), **self.constants()}
        return Instance("matvec", parameters, memories)
