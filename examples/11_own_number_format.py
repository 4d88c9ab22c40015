# SPDX-License-Identifier: Apache-2.0
"""Lesson 11: a number format of your own, without editing the package.

A posit<N,0> (Gustafson and Yonemoto 2017): a sign, a run of equal bits that counts a power of two,
and the rest a fraction. Values are dense around 1 and sparse far from it. All that is told here is
what a code means; rounding, torch, integers and hardware follow from that.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from bitwright import data, train
from bitwright.formats import FormatFamily, parse_format, register_family
from bitwright.formats.grid import GridFormat
from bitwright.models import build_model
from bitwright.quantize import Policy
from bitwright.quantize.ptq import post_training_quantize


@dataclass(frozen=True, slots=True)
class PositFormat(GridFormat):
    """posit<N,0>: 3 to 8 bits; the code 10..0 is no number."""

    family: ClassVar[str] = "posit"
    width: int

    @property
    def name(self) -> str:
        return f"posit{self.width}"

    @property
    def bits(self) -> int:
        return self.width

    @property
    def lsb(self) -> float:
        return 2.0 ** (2 - self.width)  # the smallest positive value; all others are multiples

    @property
    def qonnx_name(self) -> str:
        return f"INT{2 * self.width - 2}"

    def float_levels(self, codes):
        return np.array([self._level(int(code)) for code in codes.reshape(-1)]).reshape(codes.shape)

    def _level(self, code: int) -> float:
        if code == 0:
            return 0.0
        if code == 1 << (self.width - 1):
            return float("nan")
        if code >> (self.width - 1):
            return -self._level((1 << self.width) - code)
        bits = f"{code:0{self.width - 1}b}"
        run = len(bits) - len(bits.lstrip(bits[0]))
        exponent = run - 1 if bits[0] == "1" else -run
        fraction = bits[run + 1 :]
        value = 1 + int(fraction or "0", 2) / 2 ** len(fraction)
        return value * 2.0**exponent / self.lsb


def parse(text: str) -> PositFormat | None:
    found = re.fullmatch(r"posit([3-8])", text.lower())
    return PositFormat(int(found[1])) if found else None


register_family(FormatFamily("posit", "positN", "posit<N,0>", ("posit6", "posit8"), parse))


def posit6() -> PositFormat:
    """What a recipe names: ``weight: {format: "my_formats:posit6"}``."""
    return PositFormat(6)


def main() -> None:
    posit5 = parse_format("posit5")
    print("posit5:", *(posit5.grid() * posit5.lsb))

    digits = data.load_dataset("digits")
    model = build_model("digits_cnn", 10, (8, 8, 1), seed=0)
    train.fit(model, digits, train.TrainConfig(epochs=6, lr=0.01), run_dir="runs/lesson-11")
    images = torch.from_numpy(digits.train.take(range(256)).reals())
    for name in ("posit4", "posit6", "int4"):
        weight = {"format": name, "scale": "mse"}
        policy = Policy.from_dict({"input": "uint8", "weight": weight, "activation": "uint6"})
        quantized, _ = post_training_quantize(model, policy, images)
        share = train.evaluate(quantized, digits.test).accuracy
        print(f"{name}: {100 * share:.1f} % of the test images after training, by gptq")
        assert share > 0.9


if __name__ == "__main__":
    main()
