# SPDX-License-Identifier: Apache-2.0
"""What the units that multiply have in common: operands, weight memory, bias, cost."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache

from bitwright.base.errors import GraphError
from bitwright.base.figures import Resources
from bitwright.formats import parse_format
from bitwright.hw.blocks.base import Block
from bitwright.hw.memory import Memory, pack_lanes, rom_luts, rom_resources, rom_style, unpack_lanes
from bitwright.hw.operands import Operand, Product, stream_operand, weight_operand
from bitwright.ir import IntArray, Node, bits_for_interval

STYLES, KINDS = ("distributed", "block"), ("lut", "dsp")  # of memories, of multipliers


@lru_cache(maxsize=64)
def _bias_bits(node: Node) -> int:
    """Bits in two's complement of every bias, 1 without one; a search asks for it very often."""
    value = node.params.get("bias")
    return 1 if value is None else bits_for_interval(min(-1, int(value.min())), int(value.max()))


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
        """The products of a processing element."""
        act = stream_operand(self.input_type, self.node.source or self.name)
        plain = Product(act, _node_weights(self.node))
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
    def res_type(self) -> str:
        """``dsp`` where products are multiplications for the DSP blocks, else ``lut``."""
        return "dsp" if self.product.dsp else "lut"

    @property
    def kinds(self) -> tuple[str, ...]:
        """Choices of `res_type`."""
        return KINDS[:1] if self.product.one_bit else KINDS

    @property
    def terms(self) -> int:
        """Leaves of one adder tree; a processing element has one tree per weight digit."""
        return (self.simd + 1) // 2 if self.product.xnor else self.simd

    @property
    def latency_of_steps(self) -> int:
        """Cycles from a step to its result."""
        return 5 + (self.terms - 1).bit_length() + self.product.latency

    def packed(self, layout: str) -> Memory:
        """The weight memory, with what its words are in front of what every such memory says."""
        weight = self.product.weight
        layout = f"{self.name}: {layout}, {weight.describe()}"
        return pack_lanes(weight.words(self.weight_words()), self.weight_bits, layout)

    def unpacked(self, memory: Memory) -> IntArray:
        """``(depth, pe * simd)`` levels that a memory holds: inverse of `packed`."""
        weight = self.product.weight
        lanes = unpack_lanes(memory, self.pe * self.simd, signed=weight.words_signed)
        return weight.levels(lanes)

    @cached_property
    def bias_bits(self) -> int:
        return _bias_bits(self.node)

    def bias_memory(self) -> Memory:
        """Word i; lane p is the bias of row i*PE + p, through all groups.

        Raises:
            GraphError: the node has no bias.
        """
        bias = self.node.params.get("bias")
        if bias is None:
            raise GraphError("has no bias", where=self.name)
        layout = f"{self.name}: {self.bias_words}, {self.bias_bits} bits"
        return pack_lanes(bias.reshape(-1, self.pe), self.bias_bits, layout)

    @property
    @abstractmethod
    def bias_words(self) -> str:
        """What stands where in the memory of the bias."""

    def resolve(self, family: str) -> Node:
        style = rom_style(family, self.depth, self.word_bits, self.string("ram_style"))
        return self.with_attrs(ram_style=style, res_type=self.res_type)

    def memory_cost(self, family: str) -> Resources:
        return self.weight_cost(family) + Resources(
            dsp=self.pe * self.simd * self.product.dsp_count(family)
        )

    def weight_cost(self, family: str) -> Resources:
        return rom_resources(family, self.depth, self.word_bits, self.string("ram_style"))

    @property
    @abstractmethod
    def counters(self) -> tuple[int, ...]:
        """What the unit counts to."""

    def features(self, family: str) -> dict[str, float]:
        """Bits of products, of adders and of registers, per processing element times PE; products
        that need no carry chain, whose ends cost beside its bits, are `small`.
        """
        product, lanes = self.product, self.pe * self.simd
        adders, count, width = 0, self.terms, product.term_bits
        trees = 1 if product.is_float else product.digits
        while count > 1:
            adders += trees * (count // 2) * (width + 1)
            count, width = (count + 1) // 2, width + 1
        bias = 0.0
        if "bias" in self.node.params:
            words = len(self.node.params["bias"]) // self.pe
            bias = rom_luts(family, words, self.pe * self.bias_bits)
        return {
            "small" if product.small else "product": lanes * product.cells,
            "partial": self.pe * (trees - 1) * (width + 2 * product.digits),
            "adder": self.pe * adders,
            "acc": self.pe * self.output_type.wire_bits,
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
            "HasBias": int("bias" in self.node.params),
            "BiasWidth": self.bias_bits,
            "UseDsp": int(self.product.dsp),
        }

    def constants(self) -> dict[str, Memory]:
        """Memory images beside those of the weights, by parameter."""
        bias = {"BiasFile": self.bias_memory()} if "bias" in self.node.params else {}
        return {**self.product.weight.memories(self.name), **bias}
