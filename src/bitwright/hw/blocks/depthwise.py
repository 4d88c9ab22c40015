# SPDX-License-Identifier: Apache-2.0
"""`depthwise`: every channel times its own weights, PE channels a cycle."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import final

import numpy as np

from bitwright.errors import GraphError
from bitwright.figures import Resources
from bitwright.formats import parse_format
from bitwright.hw.blocks.base import Block, Firing, Fold, Instance, pe_foldings
from bitwright.hw.memory import (
    STYLE_CODES,
    Memory,
    dsp_count,
    pack_lanes,
    rom_luts,
    rom_resources,
    rom_style,
    unpack_lanes,
)
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
    def weight_bipolar(self) -> bool:
        return parse_format(self.node.string("weight_format")).name == "bipolar"

    def _signed_bits(self, name: str) -> int:
        value = self.node.params[name]
        return bits_for_interval(min(-1, int(value.min())), int(value.max()))

    @cached_property
    def weight_bits(self) -> int:
        """Bits of one weight in the memory: those the actual weights need, two's complement."""
        return 1 if self.weight_bipolar else self._signed_bits("weight")

    @cached_property
    def bias_bits(self) -> int:
        return self._signed_bits("bias") if "bias" in self.node.params else 1

    @property
    def one_bit(self) -> bool:
        """One operand is bipolar: there is nothing to multiply."""
        return self.weight_bipolar or self.input_type.is_bipolar

    @property
    def use_dsp(self) -> bool:
        """Whether the products are written as multiplications for the DSP blocks."""
        return self.string("res_type") == "dsp" and not self.one_bit

    @property
    def digits(self) -> int:
        """Partial products of one multiplication: two weight bits each, unless it is one piece."""
        return 1 if self.use_dsp or self.one_bit else ceil(self.weight_bits / 2)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of one frame."""
        return self.input_type.size

    def foldings(self) -> tuple[Fold, ...]:
        kinds = ("lut",) if self.one_bit else ("lut", "dsp")
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
        latency = 5 + (self.digits - 1).bit_length()
        return Firing(len(steps), steps, steps[self.window - 1 :: self.window], latency)

    def weight_memory(self) -> Memory:
        """Word fold*window + k; lane p is the weight of channel fold*PE + p for pixel k."""
        words = self.weight.reshape(self.fold, self.pe, self.window).transpose(0, 2, 1)
        layout = (
            f"{self.name}: word fold*{self.window} + k, lane p is weight k of channel fold*PE + p, "
            f"PE={self.pe}, {self.weight_bits} bits, "
            + ("1 = +1, 0 = -1" if self.weight_bipolar else "two's complement")
        )
        codes = (words + 1) // 2 if self.weight_bipolar else words
        return pack_lanes(codes.reshape(self.depth, self.pe), self.weight_bits, layout)

    def unpack_weight(self, memory: Memory) -> IntArray:
        """The ``(C, window)`` weights that a memory holds: inverse of `weight_memory`."""
        lanes = unpack_lanes(memory, self.pe, signed=not self.weight_bipolar)
        if self.weight_bipolar:
            lanes = 2 * lanes - 1
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
            act = self.input_type.wire_bits + (not self.input_type.is_signed)
            cost += Resources(dsp=self.pe * dsp_count(family, act, self.weight_bits))
        return cost

    def features(self, family: str) -> dict[str, float]:
        act = self.input_type.wire_bits + (not self.input_type.is_signed)
        product = 0 if self.use_dsp else self.weight_bits * (act + 1)
        width = act + (self.weight_bits if self.use_dsp else 2)
        bias = 0.0
        if "bias" in self.node.params:
            bias = rom_luts(family, self.fold, self.pe * self.bias_bits)
        return {
            "product": self.pe * product,
            "partial": self.pe * (self.digits - 1) * (width + 2 * self.digits),
            "acc": self.pe * self.output_type.wire_bits,
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
            "WeightWidth": self.weight_bits,
            "ActWidth": self.input_type.wire_bits,
            "AccWidth": self.output_type.wire_bits,
            "AccSigned": int(self.output_type.is_signed),
            "ActSigned": int(self.input_type.is_signed),
            "WeightBipolar": int(self.weight_bipolar),
            "ActBipolar": int(self.input_type.is_bipolar),
            "HasBias": int(has_bias),
            "BiasWidth": self.bias_bits,
            "UseDsp": int(self.use_dsp),
            "RomStyle": STYLE_CODES[self.string("ram_style")],
        }
        memories = {"WeightFile": self.weight_memory()}
        if has_bias:
            memories["BiasFile"] = self.bias_memory()
        return Instance("depthwise", parameters, memories)
