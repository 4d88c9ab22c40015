# SPDX-License-Identifier: Apache-2.0
"""`requant` and `requant_float`: multiply, add, shift, round, clip; to integers and to floats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil
from typing import final

import numpy as np

from bitwright.base.errors import GraphError
from bitwright.base.figures import Resources
from bitwright.formats import MinifloatFormat
from bitwright.hw.blocks.base import Firing, Fold, Instance, TableBlock, one_to_one, pe_foldings
from bitwright.hw.memory import Memory, bram_count, dsp_count, pack_lanes, rom_luts
from bitwright.hw.operands import DENORMAL, ZERO
from bitwright.ir import Node, bits_for_interval

ROUNDINGS = {"half_even": 0, "half_up": 2, "floor": 3}
MAX_OUT_BITS = 30


@dataclass(frozen=True)
class _Requant(TableBlock):
    """Module `requant`; a multiplier that is the same power of two for all channels is wires."""

    LATENCY = 7

    @property
    def rows(self) -> int:
        """Rows of the tables: one per channel, or one per lane if all channels share theirs."""
        shared = all(len(value) == 1 for value in self.node.params.values())
        return self.pe if shared else self.input_type.channels

    @property
    def fold(self) -> int:
        """Beats after which the tables repeat."""
        return self.rows // self.pe

    @cached_property
    def power(self) -> int:
        """k, if every channel's multiplier is 2^k; else -1."""
        values = self.node.params["multiplier"]
        first = int(values[0])
        same = first > 0 and first & (first - 1) == 0 and bool((values == first).all())
        return first.bit_length() - 1 if same else -1

    @property
    def use_dsp(self) -> bool:
        return self.string("res_type") == "dsp" and self.power < 0

    @property
    def terms(self) -> int:
        """Partial products of one multiplication."""
        return 1 if self.use_dsp or self.power >= 0 else ceil(self.multiplier_bits / 2)

    def foldings(self) -> tuple[Fold, ...]:
        kinds = ("lut",) if self.power >= 0 else ("lut", "dsp")
        return pe_foldings(self.input_type.channels, res_type=kinds)

    def firing(self) -> Firing:
        # Behind the operands: adders of digits, or the registers at those of a DSP block.
        latency = self.LATENCY + (self.terms - 1).bit_length() + self.use_dsp
        return one_to_one(self.inputs[0].beats, latency)

    def _signed_bits(self, name: str) -> int:
        value = self.node.params[name]
        return bits_for_interval(min(-1, int(value.min())), int(value.max()))

    @cached_property
    def multiplier_bits(self) -> int:
        """Bits of a multiplier in the memory; none of a power of two."""
        return 0 if self.power >= 0 else self._signed_bits("multiplier")

    @cached_property
    def offset_bits(self) -> int:
        return self._signed_bits("offset")

    def memory(self, name: str, width: int) -> Memory:
        """Word fold; lane p holds the value of channel fold*PE + p."""
        value = np.broadcast_to(self.node.params[name], (self.rows,))
        layout = (
            f"{self.name}: word fold, lane p is the {name} of channel fold*PE + p, PE={self.pe}, "
            f"{width} bits, two's complement"
        )
        return pack_lanes(value.reshape(self.fold, self.pe), width, layout)

    def rom_cost(self, family: str, *, in_luts: bool) -> Resources:
        widths = [self.pe * bits for bits in (self.multiplier_bits, self.offset_bits) if bits]
        if in_luts:
            return Resources(lut=sum(rom_luts(family, self.fold, width) for width in widths))
        return Resources(bram=sum(bram_count(family, self.fold, width) for width in widths))

    def resolve(self, family: str) -> Node:
        node = super().resolve(family)
        return replace(node, attrs={**node.attrs, "res_type": "dsp" if self.use_dsp else "lut"})

    def memory_cost(self, family: str) -> Resources:
        products = dsp_count(family, self.x_bits, self.multiplier_bits) if self.use_dsp else 0
        return super().memory_cost(family) + Resources(dsp=self.pe * products)

    @property
    def x_bits(self) -> int:
        """Bits of the input, with a sign."""
        return self.input_type.wire_bits + (not self.input_type.is_signed)

    def features(self, family: str) -> dict[str, float]:
        x_bits = self.x_bits
        product = self.product_bits
        wide = max(product, self.offset_bits, self.node.integer("shift")) + 2
        return {
            "product": 0 if self.use_dsp else self.pe * self.multiplier_bits * (x_bits + 1),
            "tree": self.pe * (self.terms - 1) * (product + 1),
            "sum": self.pe * wide,
            "operand": self.pe * (2 * x_bits + self.multiplier_bits + self.offset_bits),
            "out": self.outputs[0].width,
        }

    @property
    def product_bits(self) -> int:
        return self.x_bits + (self.power if self.power >= 0 else self.multiplier_bits)

    def _instance(self, result: dict[str, int | str]) -> Instance:
        parameters: dict[str, int | str] = {
            "Channels": self.rows,
            "PE": self.pe,
            "InWidth": self.input_type.wire_bits,
            "InSigned": int(self.input_type.is_signed),
            "MulWidth": max(1, self.multiplier_bits),
            "OffsetWidth": self.offset_bits,
            "Shift": self.node.integer("shift"),
            "OutWidth": self.output_type.wire_bits,
            **result,
            "Rounding": ROUNDINGS[self.node.string("rounding")],
            "UseDsp": int(self.use_dsp),
            "RomStyle": 2 if self.in_luts else 1,
        }
        memories = {"OffsetFile": self.memory("offset", self.offset_bits)}
        if self.power >= 0:
            parameters["Power"] = self.power
        else:
            memories["MulFile"] = self.memory("multiplier", self.multiplier_bits)
        return Instance("requant", parameters, memories)


@final
@dataclass(frozen=True)
class Requant(_Requant):
    """`clip(round_shift(x * m + o, shift), lo, hi)`."""

    def instance(self) -> Instance:
        return self._instance({"OutLo": self.node.integer("lo"), "OutHi": self.node.integer("hi")})


@final
@dataclass(frozen=True)
class RequantFloat(_Requant):
    """`x * m + o`, rounded once to the code of a minifloat, within lo .. hi."""

    LATENCY = 10

    @property
    def kind(self) -> MinifloatFormat:
        kind = self.output_type.format
        if not isinstance(kind, MinifloatFormat):
            name = None if kind is None else kind.name
            raise GraphError(f"{name} is no minifloat", where=self.name)
        return kind

    def features(self, family: str) -> dict[str, float]:
        own = _Requant.features(self, family)
        wide = max(self.product_bits, self.offset_bits, self.node.integer("shift")) + 2
        # The barrel shifter that brings the leading one to the top; behind a shift by a constant
        # many of its bits are those of the offset, or none.
        shifter = "shift" if self.power < 0 else "shift_constant"
        return {**own, shifter: self.pe * wide * wide.bit_length()}

    def instance(self) -> Instance:
        kind = self.kind
        magnitudes = (1 << (kind.bits - 1)) - 1
        low, high = (int(kind.codes(self.node.integer(name))) & magnitudes for name in ("lo", "hi"))
        return self._instance(
            {
                "OutLo": -low,
                "OutHi": high,
                "OutMant": kind.mantissa,
                "OutLow": DENORMAL if kind.denormals else ZERO,
            }
        )
