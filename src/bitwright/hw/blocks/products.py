# SPDX-License-Identifier: Apache-2.0
"""What the units that multiply have in common: operands, weight memory, bias, cost."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from bitwright.base.errors import GraphError
from bitwright.base.figures import Resources
from bitwright.formats import parse_format
from bitwright.hw.blocks.base import Block, Fold
from bitwright.hw.blocks.rows import Packing, Row, packing_of
from bitwright.hw.memory import (
    STYLE_CODES,
    Memory,
    pack_lanes,
    rom_luts,
    rom_outputs,
    rom_style,
    unpack_lanes,
)
from bitwright.hw.operands import Operand, Product, stream_operand, weight_operand
from bitwright.hw.roms import Rom, rom_of
from bitwright.ir import IntArray, Node, bits_for_interval

STYLES, KINDS = ("distributed", "block"), ("lut", "dsp")  # of memories, of multipliers
_PARTS = 4  # rows are divided by, some of them in DSP blocks


@lru_cache(maxsize=64)
def _starts(node: Node, counts: bool) -> IntArray | None:
    """What the sums of a node start with, row by row, None for zeros: the bias and, where products
    are counted, minus one for every weight of -1.
    """
    bias = node.params.get("bias")
    if not counts:
        return bias
    weight = node.params["weight"]
    below: IntArray = -(weight < 0).sum(axis=1)
    return below if bias is None else bias + below


@lru_cache(maxsize=64)
def _start_bits(node: Node, counts: bool) -> int:
    """Bits in two's complement of every start, 1 without one; a search asks for it very often."""
    value = _starts(node, counts)
    return 1 if value is None else bits_for_interval(min(-1, int(value.min())), int(value.max()))


@lru_cache(maxsize=64)
def _digit_share(node: Node, bits: int) -> float:
    """Share of the weights' digits, of two bits each, that are not 0."""
    digits = range(0, bits, 2)
    weight = node.params["weight"]
    return float(np.mean([(weight >> place) & 3 != 0 for place in digits]))


@lru_cache(maxsize=64)
def _node_weights(node: Node) -> Operand:
    """How the weights of a node are kept.

    Raises:
        ModelError: their format has no hardware.
    """
    kind = parse_format(node.string("weight_format"))
    return weight_operand(kind, node.params["weight"], node.source or node.name)


@dataclass(frozen=True)
class ProductUnit(Block):
    """A unit of `pe` rows by `simd` columns a cycle, with weights in a memory of its own."""

    @property
    @abstractmethod
    def simd(self) -> int:
        """Products of a row in one cycle."""

    @property
    @abstractmethod
    def folds(self) -> tuple[int, int]:
        """Groups of `pe` rows, and cycles of each."""

    @property
    @abstractmethod
    def depth(self) -> int:
        """Words of the weight memory."""

    @abstractmethod
    def weight_words(self) -> IntArray:
        """``(depth, pe * simd)`` levels: what the weight memory holds, word by word."""

    @property
    def weight(self) -> IntArray:
        return self.node.params["weight"]

    @cached_property
    def product(self) -> Product:
        """The products of a processing element, in LUTs."""
        act = stream_operand(self.input_type, self.node.source or self.name)
        return Product(act, _node_weights(self.node), rounds=self.rounds)

    @property
    def shares(self) -> bool:
        """Whether all rows have the same activations."""
        return False

    @property
    def dsp_rows(self) -> int:
        """Processing elements that multiply in DSP blocks: `dsp_pe`, all where that is 0."""
        if self.string("res_type") != "dsp" or self.product.one_bit:
            return 0
        return self.integer("dsp_pe") or self.pe

    @property
    def packing(self) -> Packing:
        """What a multiplication of a DSP block does, as `resolve` has set it."""
        return Packing(max(1, self.integer("dsp_pack")), bool(self.integer("dsp_share")))

    def rows(self, family: str | None = None) -> tuple[tuple[int, Row], ...]:
        """How many rows there are in LUTs and in DSP blocks, and what one of them is.

        Args:
            family: before `resolve`, which gives the packing.
        """
        packing, step = self.packing, self.integer("adders")
        if family is not None:
            packing = self._best_packing(family)
        dsp = replace(self.product, dsp=True)
        kinds = (
            (self.pe - self.dsp_rows, Row(self.product, self.simd, step=step)),
            (self.dsp_rows, Row(dsp, self.simd, packing, step)),
        )
        return tuple(kind for kind in kinds if kind[0])

    def _best_packing(self, family: str) -> Packing:
        even = self.shares and self.dsp_rows % 2 == 0
        return packing_of(self.product, self.simd, family, shares=even)

    @property
    def rounds(self) -> bool:
        """Whether the accumulator is one of fixed point, which rounds and saturates."""
        return self.integer("bits") > 0

    @property
    def tile(self) -> int:
        """Products that are added in one step of a sum that is rounded; 0: any number."""
        return self.integer("tile")

    @property
    def cost_kind(self) -> str:
        kind = self.product.cost_kind(self.node.op)
        return f"{kind}_constant" if self.is_constant else kind

    @property
    def is_constant(self) -> bool:
        """Whether every weight has a multiplication of its own in LUTs, which synthesis makes of
        its digits that are not 0.
        """
        product = self.product
        coded = product.is_float or product.weight.index > 0
        return self.depth == 1 and self.dsp_rows == 0 and not coded

    @property
    def weight_bits(self) -> int:
        """Bits of one weight in the memory: of its code, or those the actual numbers need."""
        return self.product.weight.word

    @property
    def word_bits(self) -> int:
        """Bits of a weight word: what one step takes."""
        return self.pe * self.simd * self.weight_bits

    def with_multipliers(self, folds: Sequence[Fold]) -> tuple[Fold, ...]:
        """These foldings with no row in DSP blocks, with all, and of many rows with some. Where the
        accumulator rounds, those that add as many products a cycle as a step of the sum has.
        """
        found: list[Fold] = []
        for fold in folds:
            if self.rounds and fold.as_dict()["simd"] != self.tile:
                continue
            found.append(replace(fold, attrs=(*fold.attrs, ("res_type", "lut"))))
            if self.product.one_bit:
                continue
            pe = int(fold.as_dict()["pe"])
            parts = {0, *(pe * part // _PARTS for part in range(1, _PARTS) if pe % _PARTS == 0)}
            for rows in sorted(parts):
                own = (("res_type", "dsp"), *((("dsp_pe", rows),) if rows else ()))
                found.append(replace(fold, attrs=(*fold.attrs, *own)))
        return tuple(found)

    @property
    def latency_of_steps(self) -> int:
        """Cycles from a step to its result."""
        stages = max(row.stages for _, row in self.rows())
        return 4 + self.integer("wait") + stages + (self.product.weight.index > 0)

    def packed(self, layout: str) -> Memory:
        """The weight memory, with what its words are in front of what every such memory says."""
        weight = self.product.weight
        layout = f"{self.name}: {layout}, {weight.describe()}"
        words = pack_lanes(weight.words(self.weight_words()), self.weight_bits, layout)
        return self.rom.arranged(words)

    def unpacked(self, memory: Memory) -> IntArray:
        """``(depth, pe * simd)`` levels that a memory holds: inverse of `packed`."""
        weight = self.product.weight
        words = self.rom.words(memory)
        lanes = unpack_lanes(words, self.pe * self.simd, signed=weight.words_signed)
        return weight.levels(lanes)

    @property
    def rom(self) -> Rom:
        """How the weight memory is kept, as `resolve` has set it."""
        return Rom(self.depth, self.word_bits, max(1, self.integer("rom_rows")))

    def waits(self, family: str) -> int:
        """Cycles more than one in which the operands are read."""
        return self._rom_of(family).choices

    def _rom_of(self, family: str) -> Rom:
        """How the weight memory is kept in a family, before `resolve` sets it."""
        return rom_of(family, self.depth, self.word_bits, self._style_of(family))

    def _style_of(self, family: str) -> str:
        return rom_style(family, self.depth, self.word_bits, self.string("ram_style"))

    @property
    def starts(self) -> IntArray | None:
        """What the sums start with, row by row through all groups; None: all with 0."""
        return _starts(self.node, self.product.counts)

    @cached_property
    def bias_bits(self) -> int:
        return _start_bits(self.node, self.product.counts)

    def bias_memory(self) -> Memory:
        """Word i; lane p is what the sum of row i*PE + p starts with, through all groups.

        Raises:
            GraphError: all sums start with 0.
        """
        starts = self.starts
        if starts is None:
            raise GraphError("has no bias", where=self.name)
        less = " less its weights of -1" if self.product.counts else ""
        layout = f"{self.name}: {self.bias_words}{less}, {self.bias_bits} bits"
        return pack_lanes(starts.reshape(-1, self.pe), self.bias_bits, layout)

    @property
    @abstractmethod
    def bias_words(self) -> str:
        """What stands where in the memory of the bias."""

    def resolve(self, family: str) -> Node:
        own = replace(self, node=self.resolve_multipliers(family))
        return own.with_attrs(
            ram_style=self._style_of(family),
            rom_rows=self._rom_of(family).rows,
            wait=self.waits(family),
        )

    def resolve_multipliers(self, family: str) -> Node:
        """The node with a definite number of rows in DSP blocks, and what these do."""
        rows = self.dsp_rows
        packing = self._best_packing(family) if rows else Packing()
        return self.with_attrs(
            res_type=KINDS[rows > 0],
            dsp_pe=rows,
            dsp_pack=packing.products,
            dsp_share=int(packing.shared),
        )

    def memory_cost(self, family: str) -> Resources:
        dsps = sum(count * row.dsps(family) for count, row in self.rows(family))
        return self.weight_cost(family) + Resources(dsp=dsps)

    def weight_cost(self, family: str) -> Resources:
        own = self._rom_of(family).resources(family, self._style_of(family))
        return own + Resources(ff=self.waiting_bits(family))

    def waiting_bits(self, family: str) -> int:
        """Registers of activations, flags and addresses that wait for weights."""
        waits = self.waits(family)
        spare = (waits - self._rom_of(family).choices) * (self.depth - 1).bit_length()
        return waits * (self.inputs[0].width + 3) + spare

    @property
    def operand_bits(self) -> int:
        """Bits of the register that a word of weights has."""
        if self.string("ram_style") == "block":
            return self.word_bits
        return rom_outputs(self.depth, self.word_bits, registered=True)

    @property
    @abstractmethod
    def counters(self) -> tuple[int, ...]:
        """What the unit counts to."""

    def features(self, family: str) -> dict[str, float]:
        """Bits of products, of adders and of registers of all rows; products that need no carry
        chain, whose ends cost beside its bits, are `small`.
        """
        product, lanes = self.product, self.pe * self.simd
        rows = self.rows(family)
        stages = max(row.stages for _, row in rows)
        cells = float(sum(count * self.simd * row.product.cells for count, row in rows))
        found = dict.fromkeys(("partial", "adder", "register", "pack"), 0.0)
        for count, row in rows:
            adders, partial, registers = row.tree()
            waits = (stages - row.stages) * (row.term_bits + row.levels)
            each = (partial, adders, registers + waits, row.pack_bits)
            for name, bits in zip(found, each, strict=True):
                found[name] += count * bits
        if self.is_constant:
            share = _digit_share(self.node, product.weight.width)
            cells *= share
            found = {name: bits * share for name, bits in found.items()}
        starts, bias = self.starts, 0.0
        if starts is not None:
            bias = rom_luts(family, len(starts) // self.pe, self.pe * self.bias_bits)
        return {
            **found,
            "small" if product.small else "product": cells,
            "acc": self.pe * self.output_type.wire_bits,
            "operand": self.operand_bits,
            "shift": lanes * product.shifter,
            "term": lanes * product.term_bits if product.is_float else 0,
            "table": lanes * product.table_luts(family),
            "stream": self.inputs[0].width,
            "bias": bias,
            "counter": sum(n.bit_length() for n in self.counters),
        }

    def parameters(self) -> dict[str, int | str]:
        """Parameters of the module that do not depend on its shape."""
        return {
            **self.product.parameters(),
            "AccWidth": self.output_type.wire_bits,
            "AccSigned": int(self.output_type.is_signed),
            "HasBias": int(self.starts is not None),
            "BiasWidth": self.bias_bits,
            "DspRows": self.dsp_rows,
            **({} if self.integer("adders") == 1 else {"Step": self.integer("adders")}),
            **({"Drop": self.integer("drop")} if self.rounds else {}),
        }

    def rom_parameters(self) -> dict[str, int | str]:
        """Parameters that say how the weights are kept and read."""
        rows, wait = self.rom.rows, self.integer("wait")
        return {
            "RomStyle": STYLE_CODES[self.string("ram_style")],
            **({} if rows == 1 else {"RomRows": rows}),
            **({} if wait == 0 else {"Wait": wait}),
        }

    def packing_parameters(self) -> dict[str, int | str]:
        """Parameters that say what a multiplication of a DSP block does, where it is not one."""
        own: dict[str, int | str] = {}
        if self.packing.products > 1:
            own["DspPack"] = self.packing.products
        if self.packing.shared:
            own["DspShare"] = 1
        return own

    def constants(self) -> dict[str, Memory]:
        """Memory images beside those of the weights, by parameter."""
        bias = {} if self.starts is None else {"BiasFile": self.bias_memory()}
        return {**self.product.weight.memories(self.name), **bias}
