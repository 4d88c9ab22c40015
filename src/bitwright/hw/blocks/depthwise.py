# SPDX-License-Identifier: Apache-2.0
"""`depthwise`: every channel times its own weights, PE channels a cycle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from bitwright.base.errors import GraphError
from bitwright.base.figures import Resources
from bitwright.hw.blocks.base import Block, Firing, Fold, Instance, pe_foldings
from bitwright.hw.blocks.matvec import node_weights
from bitwright.hw.memory import (
    STYLE_CODES,
    Memory,
    pack_lanes,
    rom_luts,
    rom_resources,
    rom_style,
    unpack_lanes,
)
from bitwright.hw.operands import Product, stream_operand
from bitwright.ir import IntArray, Node, bits_for_interval


@final
@dataclass(frozen=True)
class Depthwise(Block):
    """Products of PE channels a cycle; module `depthwise`. Cycles: pixels * window * C/PE a frame.

    It takes the beats of a pixel in order (channel fold, pixel of the window), as a window with
    `groups` = 0 and as many lanes gives them; a window of one pixel is a factor a channel.
    """

    @property
    def pe(self) -> int:
        return self.integer("pe")

    @property
    def lanes(self) -> tuple[int, int]:
        return self.pe, self.pe

    @property
    def weight(self) -> IntArray:
        """``(C, window)``"""
        return self.node.params["weight"]

    @property
    def window(self) -> int:
        """Pixels of a window."""
        return int(self.weight.shape[1])

    @property
    def fold(self) -> int:
        """Beats of one output pixel."""
        return int(self.weight.shape[0]) // self.pe

    @property
    def depth(self) -> int:
        """Words of the weight memory."""
        return self.fold * self.window

    @cached_property
    def product(self) -> Product:
        """The products of a lane."""
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

    @cached_property
    def bias_bits(self) -> int:
        if "bias" not in self.node.params:
            return 1
        value = self.node.params["bias"]
        return bits_for_interval(min(-1, int(value.min())), int(value.max()))

    @property
    def use_dsp(self) -> bool:
        """Whether the products are written as multiplications for the DSP blocks."""
        return self.product.dsp

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one frame."""
        return self.input_type.size

    def foldings(self) -> tuple[Fold, ...]:
        kinds = ("lut",) if self.product.one_bit else ("lut", "dsp")
        return tuple(
            Fold(
                (*fold.attrs, ("ram_style", style), ("res_type", kind)),
                fold.lanes_in,
                fold.lanes_out,
            )
            for fold in pe_foldings(self.output_type.channels)
            for style in ("distributed", "block")
            for kind in kinds
        )

    def firing(self) -> Firing:
        steps = np.arange(self.inputs[0].beats, dtype=np.int64)
        latency = 5 + self.product.latency
        return Firing(len(steps), steps, steps[self.window - 1 :: self.window], latency)

    def weight_memory(self) -> Memory:
        """Word fold*window + k; lane p is the weight of channel fold*PE + p for pixel k."""
        words = self.weight.reshape(self.fold, self.pe, self.window).transpose(0, 2, 1)
        layout = (
            f"{self.name}: word fold*{self.window} + k, lane p is weight k of channel fold*PE + p, "
            f"PE={self.pe}, {self.weight_bits} bits, {self.product.weight.describe()}"
        )
        lanes = self.product.weight.words(words.reshape(self.depth, self.pe))
        return pack_lanes(lanes, self.weight_bits, layout)

    def unpack_weight(self, memory: Memory) -> IntArray:
        """The ``(C, window)`` weights that a memory holds: inverse of `weight_memory`."""
        weight = self.product.weight
        lanes = weight.levels(unpack_lanes(memory, self.pe, signed=weight.words_signed))
        words = lanes.reshape(self.fold, self.window, self.pe)
        return words.transpose(0, 2, 1).reshape(self.weight.shape)

    def bias_memory(self) -> Memory:
        """Word fold; lane p is the bias of channel fold*PE + p.

        Raises:
            GraphError: the node has no bias.
        """
        bias = self.node.params.get("bias")
        if bias is None:
            raise GraphError("has no bias", where=self.name)
        layout = (
            f"{self.name}: word fold, lane p is the bias of channel fold*PE + p, "
            f"{self.bias_bits} bits"
        )
        return pack_lanes(bias.reshape(self.fold, self.pe), self.bias_bits, layout)

    def resolve(self, family: str) -> Node:
        style = self.string("ram_style")
        style = rom_style(family, self.depth, self.pe * self.weight_bits, style)
        return self.with_attrs(ram_style=style, res_type="dsp" if self.use_dsp else "lut")

    def memory_cost(self, family: str) -> Resources:
        style = self.string("ram_style")
        cost = rom_resources(family, self.depth, self.pe * self.weight_bits, style)
        if self.use_dsp:
            cost += Resources(dsp=self.pe * self.product.dsp_count(family))
        return cost

    def features(self, family: str) -> dict[str, float]:
        product = self.product
        trees = 1 if product.is_float else product.digits
        bias = 0.0
        if "bias" in self.node.params:
            bias = rom_luts(family, self.fold, self.pe * self.bias_bits)
        return {
            "product": self.pe * product.cells,
            "partial": self.pe * (trees - 1) * (product.term_bits + 2 * product.digits),
            "acc": self.pe * self.output_type.wire_bits,
            "shift": self.pe * product.shifter,
            "term": self.pe * product.term_bits if product.is_float else 0,
            "table": self.pe * product.table_luts(family),
            "stream": self.inputs[0].width,
            "bias": bias,
            "counter": self.window.bit_length() + self.depth.bit_length(),
        }

    def instance(self) -> Instance:
        has_bias = "bias" in self.node.params
        parameters: dict[str, int | str] = {
            "Channels": self.output_type.channels,
            "PE": self.pe,
            "Window": self.window,
            **self.product.parameters(),
            "AccWidth": self.output_type.wire_bits,
            "AccSigned": int(self.output_type.is_signed),
            "HasBias": int(has_bias),
            "BiasWidth": self.bias_bits,
            "UseDsp": int(self.use_dsp),
            "RomStyle": STYLE_CODES[self.string("ram_style")],
        }
        memories = {"WeightFile": self.weight_memory(), **self.product.weight.memories(self.name)}
        if has_bias:
            memories["BiasFile"] = self.bias_memory()
        return Instance("depthwise", parameters, memories)
