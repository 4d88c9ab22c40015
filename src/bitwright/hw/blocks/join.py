# SPDX-License-Identifier: Apache-2.0
"""Blocks with two inputs: `add` and `concat`."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import final

import numpy as np

from bitwright.hw.blocks.base import Block, ChannelBlock, Firing, Fold, Instance, pe_foldings
from bitwright.ir import TensorType


def lane_parameters(side: str, kind: TensorType, out: TensorType) -> dict[str, int | str]:
    """Width, sign and bipolarity of a side's lanes; bipolar to bipolar stays a bit pattern."""
    return {
        f"Width{side}": kind.wire_bits,
        f"Signed{side}": int(kind.is_signed),
        f"Bipolar{side}": int(kind.is_bipolar and not out.is_bipolar),
    }


def signed_digits(number: int) -> int:
    """Powers of two that add up to a number with signs, no two neighbours."""
    size = abs(number)
    return ((size ^ (3 * size)) >> 1).bit_count()


def negative_digits(number: int) -> int:
    """Those among `signed_digits` that are taken off."""
    size = abs(number)
    taken = ((size & ~(3 * size)) >> 1).bit_count()
    return taken if number >= 0 else signed_digits(number) - taken


@final
@dataclass(frozen=True)
class Add(ChannelBlock):
    """`m0*a + m1*b`, PE elements a cycle; module `stream_add`."""

    @property
    def multipliers(self) -> tuple[int, int]:
        first, second = self.node.ints("multipliers")
        return first, second

    @property
    def terms(self) -> int:
        """Numbers that are added up in one lane."""
        return sum(map(signed_digits, self.multipliers))

    def firing(self) -> Firing:
        steps = np.arange(self.outputs[0].beats, dtype=np.int64)
        latency = 1 + (self.terms - 1).bit_length()
        return Firing(len(steps), steps, steps, latency, (steps,))

    def features(self, family: str) -> dict[str, float]:
        """Bits of adders and the carry chains they are, of registers behind them, of terms that
        count negative.
        """
        width, count, kept = self.outputs[0].width, self.terms, 0
        while count > 1:
            count = (count + 1) // 2
            kept += count
        return {
            "adder": (self.terms - 1) * width,
            "chain": (self.terms - 1) * self.pe,
            "register": kept * width,
            "negative": sum(map(negative_digits, self.multipliers)) * width,
            "skid": width,
        }

    def instance(self) -> Instance:
        first, second = self.input_types
        out = self.output_type
        return Instance(
            "stream_add",
            {
                "PE": self.pe,
                **lane_parameters("A", first, out),
                "MulA": self.multipliers[0],
                **lane_parameters("B", second, out),
                "MulB": self.multipliers[1],
                "OutWidth": out.wire_bits,
                "OutSigned": int(out.is_signed),
            },
        )


@final
@dataclass(frozen=True)
class Concat(Block):
    """Channels of the first input, then of the second, PE elements a cycle; `stream_concat`."""

    LATENCY = 1

    @property
    def folds(self) -> tuple[int, int]:
        """Beats of a pixel, from each input."""
        first, second = (kind.channels // self.pe for kind in self.input_types)
        return first, second

    def foldings(self) -> tuple[Fold, ...]:
        return pe_foldings(gcd(*(kind.channels for kind in self.input_types)))

    def firing(self) -> Firing:
        steps = np.arange(self.outputs[0].beats, dtype=np.int64)
        pixels = steps.reshape(-1, sum(self.folds))
        first = self.folds[0]
        return Firing(
            len(steps), pixels[:, :first].ravel(), steps, self.LATENCY, (pixels[:, first:].ravel(),)
        )

    def features(self, family: str) -> dict[str, float]:
        return {"skid": self.outputs[0].width, "counter": max(self.folds).bit_length()}

    def instance(self) -> Instance:
        first, second = self.input_types
        return Instance(
            "stream_concat",
            {
                "FoldA": self.folds[0],
                "FoldB": self.folds[1],
                "PE": self.pe,
                **lane_parameters("A", first, self.output_type),
                **lane_parameters("B", second, self.output_type),
                "OutWidth": self.output_type.wire_bits,
            },
        )
