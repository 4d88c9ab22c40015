# SPDX-License-Identifier: Apache-2.0
"""Parameter points of the modules beyond plain chains: depthwise products, joins, resampling.

The references are written from the module headers alone; nothing of the package computes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tests.verilator.lib_case import Case, Levels, Stamps, Streams, image, spec


@dataclass(frozen=True)
class DepthShape:
    channels: int
    pe: int
    window: int
    weight_bits: int = 4
    act_bits: int = 4
    act_signed: bool = False
    weight_bipolar: bool = False
    act_bipolar: bool = False
    bias: bool = False
    dsp: bool = False
    style: int = 0
    pixels: int = 2

    @property
    def fold(self) -> int:
        return self.channels // self.pe

    @property
    def levels(self) -> int:
        one = self.dsp or self.weight_bipolar or self.act_bipolar
        return 0 if one else ((self.weight_bits + 1) // 2 - 1).bit_length()


def _taps(shape: DepthShape, rng: np.random.Generator) -> Levels:
    """(channels, window) weights, with the corner of the two's complement range."""
    size = (shape.channels, shape.window)
    if shape.weight_bipolar:
        return 2 * rng.integers(0, 2, size) - 1
    half = 1 << (shape.weight_bits - 1)
    taps = rng.integers(-half, half, size)
    taps[0] = -half
    return taps


def depthwise(name: str, shape: DepthShape) -> Case:
    rng = np.random.default_rng(sum(name.encode()))
    taps, bias = _taps(shape, rng), rng.integers(-40, 41, shape.channels)
    fold, window, pe = shape.fold, shape.window, shape.pe
    beats = shape.pixels * fold * window
    port_in = spec(pe, shape.act_bits, beats, signed=shape.act_signed, bipolar=shape.act_bipolar)
    low, high = port_in.interval
    acc_bits = int(np.abs(taps).sum(axis=1).max() * max(-low, high) + 41).bit_length() + 1
    words = taps.reshape(fold, pe, window).transpose(0, 2, 1).reshape(-1, pe)
    codes = (words + 1) // 2 if shape.weight_bipolar else words

    def reference(x: Streams) -> Streams:
        beats = x["in"].reshape(-1, shape.pixels, fold, window, pe)
        sums = (beats * words.reshape(fold, window, pe)).sum(axis=3).reshape(-1, shape.channels)
        sums += bias if shape.bias else 0
        return {"out": sums.reshape(len(x["in"]), -1)}

    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        taken = np.arange(frames * beats)
        return taken, taken[window - 1 :: window] + 5 + shape.levels

    parameters: dict[str, int | str] = {
        "Channels": shape.channels, "PE": pe, "Window": window, "WeightWidth": shape.weight_bits,
        "ActWidth": shape.act_bits, "AccWidth": acc_bits, "ActSigned": int(shape.act_signed),
        "WeightBipolar": int(shape.weight_bipolar), "ActBipolar": int(shape.act_bipolar),
        "HasBias": int(shape.bias), "BiasWidth": 7, "WeightFile": "w.mem", "BiasFile": "b.mem",
        "UseDsp": int(shape.dsp), "RomStyle": shape.style,
    }  # fmt: skip
    memories = {"w.mem": image(codes, shape.weight_bits), "b.mem": image(bias.reshape(-1, pe), 7)}
    return Case(f"depthwise_{name}", "depthwise", parameters, {"in": port_in},
                {"out": spec(pe, acc_bits, shape.pixels * fold, signed=True)}, reference,
                beats, stamps, memories)  # fmt: skip


MORE_CASES = (
    depthwise("3x3", DepthShape(6, 2, 9, style=1)),
    depthwise("wide", DepthShape(3, 3, 4, 7, 3, act_signed=True, bias=True, style=2)),
    depthwise("scale", DepthShape(8, 2, 1, 5, 6, act_signed=True, bias=True)),
    depthwise("serial", DepthShape(5, 1, 2, 2, 2, bias=True)),
    depthwise("dsp", DepthShape(4, 2, 3, 9, 8, act_signed=True, dsp=True)),
    depthwise("xnor", DepthShape(4, 2, 9, 1, 1, weight_bipolar=True, act_bipolar=True, bias=True)),
    depthwise("binary_weight", DepthShape(6, 3, 4, 1, 4, act_signed=True, weight_bipolar=True)),
    depthwise("binary_act", DepthShape(4, 4, 3, 5, 1, act_bipolar=True, bias=True)),
)
