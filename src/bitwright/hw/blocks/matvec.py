# SPDX-License-Identifier: Apache-2.0
"""`matvec`: the matrix-vector unit, PE rows by SIMD columns a cycle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import final

import numpy as np

from bitwright.base.errors import GraphError
from bitwright.base.figures import Resources
from bitwright.formats import parse_format
from bitwright.hw.blocks.base import Block, Firing, Fold, Instance, divisors
from bitwright.hw.memory import (
    STYLE_CODES,
    Memory,
    pack_lanes,
    packing,
    ram_resources,
    rom_luts,
    rom_resources,
    rom_style,
    unpack_lanes,
)
from bitwright.hw.operands import Operand, Product, stream_operand, weight_operand
from bitwright.ir import IntArray, Node, bits_for_interval

EXTERNAL = "external"
# Requests, control and a share of the arbiter of one weight reader: from the synthesis of a design
# with two of them for ECP5 (`tests/yosys/test_external_synth.py` holds it to that).
_READER_LUTS, _READER_FFS = 150.0, 130.0


@lru_cache(maxsize=64)
def _signed_bits(node: Node, name: str) -> int:
    """Bits in two's complement of every value of a parameter; a search asks for it very often."""
    value = node.params[name]
    return bits_for_interval(min(-1, int(value.min())), int(value.max()))


@lru_cache(maxsize=64)
def node_weights(node: Node) -> Operand:
    """How the weights of a `matvec` or `depthwise` node are kept.

    Raises:
        ModelError: their format has no hardware.
    """
    kind = parse_format(node.string("weight_format"))
    return weight_operand(kind, node.params["weight"], node.source or node.name)


@final
@dataclass(frozen=True)
class MatVec(Block):
    """Weight @ vector + bias; module `matvec`. Cycles per frame: vectors * (MW/SIMD) * (MH/PE).

    With groups a pixel is as many vectors, one after the other, and each has a matrix of its own.
    """

    @property
    def pe(self) -> int:
        return self.integer("pe")

    @property
    def simd(self) -> int:
        return self.integer("simd")

    @property
    def lanes(self) -> tuple[int, int]:
        return self.simd, self.pe

    @property
    def weight(self) -> IntArray:
        """``(groups * MH, MW)``: the matrices of all groups, one below the other."""
        return self.node.params["weight"]

    @cached_property
    def groups(self) -> int:
        return self.node.integer("groups")

    @property
    def matrix(self) -> tuple[int, int]:
        """(MH, MW): rows and columns of the matrix of one group."""
        rows, columns = self.weight.shape
        return rows // self.groups, columns

    @property
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
        """Words of the weight memory."""
        return self.groups * self.folds[0] * self.folds[1]

    @cached_property
    def product(self) -> Product:
        """The products of a processing element."""
        act = stream_operand(self.input_type, self.node.source or self.name)
        plain = Product(act, node_weights(self.node))
        wanted = self.string("res_type") == "dsp" and not plain.one_bit
        return Product(act, plain.weight, dsp=wanted)

    @property
    def cost_kind(self) -> str:
        return self.product.cost_kind(self.node.op)

    @property
    def weight_bits(self) -> int:
        """Bits of one weight in the memory: of its code, or those the actual numbers need."""
        return self.product.weight.word

    @property
    def word_bits(self) -> int:
        """Bits of a weight word: what one step takes."""
        return self.pe * self.simd * self.weight_bits

    @property
    def external(self) -> bool:
        """Whether the weights come from outside; see `hw.external`."""
        return self.node.string("mem_mode") == EXTERNAL

    @property
    def use_dsp(self) -> bool:
        """Whether the products are written as multiplications for the DSP blocks."""
        return self.product.dsp

    @property
    def terms(self) -> int:
        """Leaves of one adder tree; a processing element has one tree per weight digit."""
        return (self.simd + 1) // 2 if self.product.xnor else self.simd

    def foldings(self) -> tuple[Fold, ...]:
        rows, columns = self.matrix
        kinds = ("lut",) if self.product.one_bit else ("lut", "dsp")
        styles = ("auto",) if self.external else ("distributed", "block")
        where = (("mem_mode", EXTERNAL),) if self.external else ()
        return tuple(
            Fold(
                (*where, ("pe", pe), ("ram_style", style), ("res_type", kind), ("simd", simd)),
                simd,
                pe,
            )
            for pe in divisors(rows)
            for simd in divisors(columns)
            for style in styles
            for kind in kinds
        )

    @property
    def interval(self) -> int:
        return self.vectors * self.folds[0] * self.folds[1]

    def firing(self) -> Firing:
        neuron, synapse = self.folds
        per_vector = neuron * synapse
        vector = np.arange(self.vectors, dtype=np.int64)[:, None] * per_vector
        consume = vector + np.arange(synapse, dtype=np.int64)
        produce = vector + (np.arange(neuron, dtype=np.int64) + 1) * synapse - 1
        latency = 5 + (self.terms - 1).bit_length() + self.product.latency
        return Firing(self.vectors * per_vector, consume.ravel(), produce.ravel(), latency)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one frame."""
        return self.vectors * self.matrix[0] * self.matrix[1]

    def weight_memory(self) -> Memory:
        """Word (g*NF + nf)*SF + sf; lane p*SIMD + s is the weight of group g, row nf*PE + p,
        column sf*SIMD + s.
        """
        neuron, synapse = self.folds
        words = self.weight.reshape(-1, self.pe, synapse, self.simd).transpose(0, 2, 1, 3)
        lanes = words.reshape(self.depth, self.pe * self.simd)
        group = f"(g*NF + nf)*SF + sf, {self.groups} groups" if self.groups > 1 else "nf*SF + sf"
        layout = (
            f"{self.name}: word {group}, SF={synapse}, NF={neuron}; lane p*SIMD + s, "
            f"PE={self.pe}, SIMD={self.simd}, {self.weight_bits} bits a weight, "
            + self.product.weight.describe()
        )
        return pack_lanes(self.product.weight.words(lanes), self.weight_bits, layout)

    def unpack_weight(self, memory: Memory) -> IntArray:
        """The ``(groups * MH, MW)`` weights that a memory holds: inverse of `weight_memory`."""
        synapse, weight = self.folds[1], self.product.weight
        lanes = unpack_lanes(memory, self.pe * self.simd, signed=weight.words_signed)
        words = weight.levels(lanes).reshape(-1, synapse, self.pe, self.simd).transpose(0, 2, 1, 3)
        return words.reshape(self.weight.shape)

    @cached_property
    def bias_bits(self) -> int:
        return _signed_bits(self.node, "bias") if "bias" in self.node.params else 1

    def bias_memory(self) -> Memory:
        """Word nf (g*NF + nf with groups); lane p is the bias of row nf*PE + p.

        Raises:
            GraphError: the node has no bias.
        """
        bias = self.node.params.get("bias")
        if bias is None:
            raise GraphError("has no bias", where=self.name)
        layout = f"{self.name}: word nf, lane p is the bias of row nf*PE + p, {self.bias_bits} bits"
        return pack_lanes(bias.reshape(-1, self.pe), self.bias_bits, layout)

    def resolve(self, family: str) -> Node:
        kind = "dsp" if self.use_dsp else "lut"
        if self.external:  # its buffer is sized later, by `hw.external`
            return self.with_attrs(res_type=kind)
        style = rom_style(family, self.depth, self.word_bits, self.string("ram_style"))
        return self.with_attrs(ram_style=style, res_type=kind)

    def memory_cost(self, family: str) -> Resources:
        if self.external:
            port, places = self._port_bits, self.node.integer("prefetch") or 128
            cost = ram_resources(family, places, port, self.string("ram_style"))
        else:
            cost = rom_resources(family, self.depth, self.word_bits, self.string("ram_style"))
        if self.folds[0] > 1:
            cost += ram_resources(family, self.folds[1], self.inputs[0].width, "auto")
        if self.use_dsp:
            cost += Resources(dsp=self.pe * self.simd * self.product.dsp_count(family))
        return cost

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

    def features(self, family: str) -> dict[str, float]:
        """Bits of products, of adders and of registers, per processing element times PE."""
        product = self.product
        adders, count, width = 0, self.terms, product.term_bits
        trees = 1 if product.is_float else product.digits
        while count > 1:
            adders += trees * (count // 2) * (width + 1)
            count, width = (count + 1) // 2, width + 1
        partial = (trees - 1) * (width + 2 * product.digits)
        bias = 0.0
        if "bias" in self.node.params:
            bias = rom_luts(family, self.groups * self.folds[0], self.pe * self.bias_bits)
        return {
            "product": self.pe * self.simd * product.cells,
            "partial": self.pe * partial,
            "adder": self.pe * adders,
            "acc": self.pe * self.output_type.wire_bits,
            "shift": self.pe * self.simd * product.shifter,
            "term": self.pe * self.simd * product.term_bits if product.is_float else 0,
            "table": self.pe * self.simd * product.table_luts(family),
            "stream": self.inputs[0].width * (2 if self.folds[0] > 1 else 1),
            "bias": bias,
            "counter": sum(n.bit_length() for n in (*self.folds, self.depth)),
        }

    def instance(self) -> Instance:
        rows, columns = self.matrix
        has_bias = "bias" in self.node.params
        parameters: dict[str, int | str] = {} if self.groups == 1 else {"Groups": self.groups}
        parameters |= {
            "MW": columns,
            "MH": rows,
            "PE": self.pe,
            "SIMD": self.simd,
            **self.product.parameters(),
            "AccWidth": self.output_type.wire_bits,
            "AccSigned": int(self.output_type.is_signed),
            "HasBias": int(has_bias),
            "BiasWidth": self.bias_bits,
            "UseDsp": int(self.use_dsp),
        }
        memories = self.product.weight.memories(self.name)
        if has_bias:
            memories["BiasFile"] = self.bias_memory()
        if self.external:
            return Instance("matvec_stream", parameters, memories)
        parameters["RomStyle"] = STYLE_CODES[self.string("ram_style")]
        return Instance("matvec", parameters, {"WeightFile": self.weight_memory(), **memories})
