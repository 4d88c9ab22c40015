# SPDX-License-Identifier: Apache-2.0
"""Parameter points of the modules beyond plain chains: depthwise products, joins, resampling.

The references are written from the module headers alone; nothing of the package computes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tests.verilator.lib_case import (
    Case,
    Levels,
    Stamps,
    Streams,
    image,
    one_to_one,
    side_by_side,
    spec,
)

from bitwright.sim import StreamSpec


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
    step: int = 1
    simd: int = 1
    rows: int = 1
    wait: int = 0

    @property
    def fold(self) -> int:
        return self.channels // self.pe

    @property
    def taps(self) -> int:
        """Beats of a window."""
        return self.window // self.simd

    @property
    def counts(self) -> bool:
        """Bits times bipolar weights: the unit counts, and starts with minus the weights of -1."""
        plain = not (self.act_signed or self.act_bipolar)
        return self.weight_bipolar and self.act_bits == 1 and plain

    @property
    def stages(self) -> int:
        """Registers from the operands to the accumulator."""
        one = self.weight_bipolar or self.act_bipolar
        tree = (self.simd - 1).bit_length()
        if self.counts or (self.weight_bipolar and self.act_bipolar):
            tree = ((self.simd + 1) // 2 - 1).bit_length()
        if self.dsp and not one:  # registers at the operands and behind the product
            return 2 + tree // self.step
        adders = 1 + tree + (0 if one else ((self.weight_bits + 1) // 2 - 1).bit_length())
        return max(1, adders // self.step)


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
    fold, window, pe, simd = shape.fold, shape.taps, shape.pe, shape.simd
    beats = shape.pixels * fold * window
    lanes = pe * simd
    port_in = spec(lanes, shape.act_bits, beats, signed=shape.act_signed, bipolar=shape.act_bipolar)
    low, high = port_in.interval
    acc_bits = int(np.abs(taps).sum(axis=1).max() * max(-low, high) + 41).bit_length() + 1
    words = taps.reshape(fold, pe, window, simd).transpose(0, 2, 1, 3).reshape(-1, pe * simd)
    codes = (words + 1) // 2 if shape.weight_bipolar else words

    def reference(x: Streams) -> Streams:
        beats = x["in"].reshape(-1, shape.pixels, fold, window, pe, simd)
        sums = (beats * words.reshape(fold, window, pe, simd)).sum(axis=(3, 5))
        sums = sums.reshape(-1, shape.channels)
        sums += bias if shape.bias else 0
        return {"out": sums.reshape(len(x["in"]), -1)}

    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        taken = np.arange(frames * beats)
        return taken, taken[window - 1 :: window] + 4 + shape.wait + shape.stages

    parameters: dict[str, int | str] = {
        "Channels": shape.channels, "PE": pe, "SIMD": simd, "Window": shape.window,
        "WeightWidth": shape.weight_bits,
        "ActWidth": shape.act_bits, "AccWidth": acc_bits, "ActSigned": int(shape.act_signed),
        "WeightBipolar": int(shape.weight_bipolar), "ActBipolar": int(shape.act_bipolar),
        "HasBias": int(shape.bias or shape.counts), "BiasWidth": 7,
        "WeightFile": "w.mem", "BiasFile": "b.mem",
        "DspRows": shape.pe if shape.dsp else 0, "Step": shape.step, "RomStyle": shape.style,
        "RomRows": shape.rows, "Wait": shape.wait,
    }  # fmt: skip
    starts = (bias if shape.bias else 0) - (shape.counts * (taps < 0)).sum(axis=1)
    biases = image(starts.reshape(-1, pe), 7)
    rows = image(side_by_side(codes, shape.rows), shape.weight_bits)
    memories = {"w.mem": rows, "b.mem": biases}
    return Case(f"depthwise_{name}", "depthwise", parameters, {"in": port_in},
                {"out": spec(pe, acc_bits, shape.pixels * fold, signed=True)}, reference,
                beats, stamps, memories)  # fmt: skip


@dataclass(frozen=True)
class Lane:
    """How the lanes of a stream are read: bits, and two's complement or bipolar."""

    bits: int
    signed: bool = False
    bipolar: bool = False

    def port(self, lanes: int, beats: int) -> StreamSpec:
        return spec(lanes, self.bits, beats, signed=self.signed, bipolar=self.bipolar)

    def parameters(self, side: str, *, as_number: bool = True) -> dict[str, int | str]:
        return {
            f"Width{side}": self.bits,
            f"Signed{side}": int(self.signed),
            f"Bipolar{side}": int(self.bipolar and as_number),
        }


def add(
    name: str, pe: int, a: Lane, b: Lane, multipliers: tuple[int, int] = (1, 1), beats: int = 3
) -> Case:
    ports = {"in0": a.port(pe, beats), "in1": b.port(pe, beats)}
    pairs = zip(multipliers, (p.interval for p in ports.values()), strict=True)
    ends = [(m * low, m * high) for m, (low, high) in pairs]
    low, high = sum(map(min, ends)), sum(map(max, ends))
    bits = max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0) + (low < 0)

    def reference(x: Streams) -> Streams:
        return {"out": multipliers[0] * x["in0"] + multipliers[1] * x["in1"]}

    terms = sum(_signed_digits(abs(m)) for m in multipliers)
    parameters: dict[str, int | str] = {
        "PE": pe, **a.parameters("A"), "MulA": multipliers[0], **b.parameters("B"),
        "MulB": multipliers[1], "OutWidth": bits, "OutSigned": int(low < 0),
    }  # fmt: skip
    return Case(f"add_{name}", "stream_add", parameters, ports,
                {"out": spec(pe, bits, beats, signed=low < 0)}, reference, beats,
                one_to_one(beats, 1 + (terms - 1).bit_length()))  # fmt: skip


def _signed_digits(number: int) -> int:
    """Fewest powers of two, with signs, that make a number: by trying."""
    if number < 2:
        return number
    if number % 2 == 0:
        return _signed_digits(number // 2)
    return 1 + min(_signed_digits(number // 2), _signed_digits(number // 2 + 1))


def concat(name: str, pe: int, a: tuple[Lane, int], b: tuple[Lane, int], out: Lane) -> Case:
    (lane_a, fold_a), (lane_b, fold_b), pixels = a, b, 3

    def reference(x: Streams) -> Streams:
        parts = [x[n].reshape(len(x[n]), pixels, -1) for n in ("in0", "in1")]
        return {"out": np.concatenate(parts, axis=2).reshape(len(x["in0"]), -1)}

    def stamps(frames: int) -> tuple[dict[str, Stamps], Stamps]:
        every = np.arange(frames * pixels * (fold_a + fold_b)).reshape(-1, fold_a + fold_b)
        taken = {"in0": every[:, :fold_a].ravel(), "in1": every[:, fold_a:].ravel()}
        return taken, every.ravel() + 1

    parameters: dict[str, int | str] = {
        "FoldA": fold_a, "FoldB": fold_b, "PE": pe,
        **lane_a.parameters("A", as_number=not out.bipolar),
        **lane_b.parameters("B", as_number=not out.bipolar), "OutWidth": out.bits,
    }  # fmt: skip
    beats = pixels * (fold_a + fold_b)
    inputs = {"in0": lane_a.port(pe, pixels * fold_a), "in1": lane_b.port(pe, pixels * fold_b)}
    return Case(f"concat_{name}", "stream_concat", parameters, inputs,
                {"out": out.port(pe, beats)}, reference, beats, stamps)  # fmt: skip


def pool_sum(
    name: str, size: int, fold: int, pe: int, lane: Lane, *, pixels: int = 2, style: int = 0
) -> Case:
    beats = pixels * size * fold
    port_in = lane.port(pe, beats)
    low, high = (size * end for end in port_in.interval)
    bits = max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0) + (low < 0)

    def reference(x: Streams) -> Streams:
        shaped = x["in"].reshape(-1, pixels, size, fold * pe)
        return {"out": shaped.sum(axis=2).reshape(len(shaped), -1)}

    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        taken = np.arange(frames * beats)
        return taken, taken.reshape(-1, size, fold)[:, -1].ravel() + 3

    parameters: dict[str, int | str] = {
        "Window": size, "Fold": fold, "PE": pe, "InWidth": lane.bits, "Signed": int(lane.signed),
        "Bipolar": int(lane.bipolar), "SumWidth": bits, "RamStyle": style,
    }  # fmt: skip
    return Case(f"sum_{name}", "pool_sum", parameters, {"in": port_in},
                {"out": spec(pe, bits, pixels * fold, signed=low < 0)}, reference, beats,
                stamps)  # fmt: skip


def upsample(
    name: str,
    size: tuple[int, int],
    fold: int,
    factors: tuple[int, int],
    style: int = 0,
    lines: int = 0,
) -> Case:
    (height, cols), (vertical, horizontal) = size, factors

    def reference(x: Streams) -> Streams:
        frames = x["in"].reshape(-1, height, cols, fold * 2)
        out = frames.repeat(vertical, axis=1).repeat(horizontal, axis=2)
        return {"out": out.reshape(len(frames), -1)}

    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        shape = (frames * height, vertical, cols, horizontal, fold)
        steps = np.arange(np.prod(shape)).reshape(shape)
        return steps[:, 0, :, 0].ravel(), steps.ravel() + 3

    parameters = {"Cols": cols, "Fold": fold, "DataWidth": 8, "FactorV": vertical,
                  "FactorH": horizontal, "RamStyle": style, "RamLines": lines}  # fmt: skip
    beats = height * cols * fold
    return Case(f"upsample_{name}", "stream_upsample", parameters,
                {"in": spec(2, 4, beats, signed=True)},
                {"out": spec(2, 4, beats * vertical * horizontal, signed=True)}, reference,
                beats * vertical * horizontal, stamps)  # fmt: skip


def lookup(
    name: str, channels: int, pe: int, lane: Lane, out: Lane, *, shared: bool, style: int = 0
) -> Case:
    rng = np.random.default_rng(sum(name.encode()))
    codes, fold = 1 << lane.bits, channels // pe
    port_out = out.port(pe, fold)
    low, high = port_out.interval
    table = rng.integers(low, high + 1, (channels, codes))
    if out.bipolar:
        table = 2 * (table > 0) - 1
    if shared:
        table[:] = table[0]

    def reference(x: Streams) -> Streams:
        code = (x["in"] + 1) // 2 if lane.bipolar else x["in"] & (codes - 1)
        return {"out": table[np.arange(channels), code]}

    stored = (table + 1) // 2 if out.bipolar else table
    words = stored.reshape(fold, pe, codes).transpose(0, 2, 1).reshape(-1, pe)
    parameters: dict[str, int | str] = {
        "Channels": pe if shared else channels, "PE": pe, "InWidth": lane.bits,
        "OutWidth": out.bits, "Shared": int(shared), "TableFile": "t.mem", "RomStyle": style,
    }  # fmt: skip
    memories = {"t.mem": image(stored[:1].T if shared else words, out.bits)}
    return Case(f"lookup_{name}", "lookup", parameters, {"in": lane.port(pe, fold)},
                {"out": port_out}, reference, fold, one_to_one(fold, 3), memories)  # fmt: skip


def top_k(classes: int, k: int, pe: int, *, signed: bool = True, bits: int = 3) -> Case:
    fold = classes // pe

    def reference(x: Streams) -> Streams:
        order = sorted_indices(x["in"])
        return {"out": order[:, :k]}

    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        taken = np.arange(frames * fold)
        last = taken[fold - 1 :: fold, None] + 3 + (pe - 1).bit_length()
        return taken, (last + np.arange(k)).ravel()

    index_bits = max(1, (classes - 1).bit_length())
    parameters = {"Classes": classes, "K": k, "PE": pe, "Width": bits, "Signed": int(signed),
                  "IndexWidth": index_bits}  # fmt: skip
    return Case(f"top{k}of{classes}_{pe}", "top_k", parameters,
                {"in": spec(pe, bits, fold, signed=signed)}, {"out": spec(1, index_bits, k)},
                reference, fold, stamps)  # fmt: skip


def sorted_indices(scores: Levels) -> Levels:
    """Largest first, of equals the first."""
    rows = [sorted(range(scores.shape[1]), key=lambda i, row=row: (-row[i], i)) for row in scores]
    return np.array(rows)


MORE_CASES = (
    depthwise("3x3", DepthShape(6, 2, 9, style=1)),
    depthwise("wide", DepthShape(3, 3, 4, 7, 3, act_signed=True, bias=True, style=2)),
    depthwise("scale", DepthShape(8, 2, 1, 5, 6, act_signed=True, bias=True)),
    depthwise("serial", DepthShape(5, 1, 2, 2, 2, bias=True)),
    depthwise("dsp", DepthShape(4, 2, 3, 9, 8, act_signed=True, dsp=True)),
    depthwise("parallel", DepthShape(6, 2, 9, bias=True, simd=9)),
    depthwise("parallel_one", DepthShape(3, 3, 4, 7, 3, act_signed=True, style=2, simd=4)),
    depthwise("parallel_part", DepthShape(4, 1, 6, 5, 4, act_signed=True, bias=True, simd=3)),
    depthwise("parallel_dsp", DepthShape(4, 2, 9, 9, 8, act_signed=True, dsp=True, simd=9)),
    depthwise("parallel_xnor", DepthShape(4, 2, 9, 1, 1, weight_bipolar=True, act_bipolar=True,
                                          bias=True, simd=9)),
    depthwise("rows", DepthShape(6, 2, 9, bias=True, style=1, rows=2, wait=1)),
    depthwise("rows_many", DepthShape(5, 1, 7, style=2, rows=18, wait=2)),
    depthwise("step", DepthShape(4, 2, 3, 9, 8, act_signed=True, step=2)),
    depthwise("xnor", DepthShape(4, 2, 9, 1, 1, weight_bipolar=True, act_bipolar=True, bias=True)),
    depthwise("bits", DepthShape(4, 2, 9, 1, 1, weight_bipolar=True)),
    depthwise("bits_parallel", DepthShape(4, 2, 9, 1, 1, weight_bipolar=True, bias=True, simd=9)),
    depthwise("binary_weight", DepthShape(6, 3, 4, 1, 4, act_signed=True, weight_bipolar=True)),
    depthwise("binary_act", DepthShape(4, 4, 3, 5, 1, act_bipolar=True, bias=True)),
    add("plain", 2, Lane(4), Lane(4)),
    add("signs", 3, Lane(4, signed=True), Lane(6), (1, -1)),
    add("scaled", 1, Lane(5, signed=True), Lane(3, signed=True), (7, -45)),
    add("bipolar", 2, Lane(1, bipolar=True), Lane(1, bipolar=True), (-3, 8)),
    add("narrow", 2, Lane(8), Lane(2, signed=True), (1, 256)),
    concat("plain", 2, (Lane(4), 1), (Lane(4), 1), Lane(4)),
    concat("mixed", 2, (Lane(3), 3), (Lane(5, signed=True), 2), Lane(5, signed=True)),
    concat("bipolar", 3, (Lane(1, bipolar=True), 2), (Lane(4), 1), Lane(5, signed=True)),
    concat("bits", 1, (Lane(1, bipolar=True), 1), (Lane(1, bipolar=True), 4),
           Lane(1, bipolar=True)),
    pool_sum("fold", 4, 3, 2, Lane(4, signed=True)),
    pool_sum("global", 35, 2, 1, Lane(5), pixels=1),
    pool_sum("bits", 9, 1, 3, Lane(1, bipolar=True)),
    pool_sum("one", 1, 2, 2, Lane(3)),
    upsample("2x2", (3, 4), 2, (2, 2)),
    upsample("rows", (3, 2), 1, (3, 1), style=1),
    upsample("cols", (2, 3), 3, (1, 2), style=2),
    upsample("lines", (2, 5), 2, (2, 1), style=1, lines=4),
    upsample("lines_luts", (3, 3), 1, (2, 2), style=2, lines=2),
    upsample("pixel", (2, 3), 1, (1, 4)),
    upsample("same", (2, 2), 2, (1, 1)),
    lookup("shared", 6, 2, Lane(4, signed=True), Lane(6, signed=True), shared=True),
    lookup("channels", 6, 2, Lane(3), Lane(4), shared=False, style=1),
    lookup("bits", 4, 4, Lane(1, bipolar=True), Lane(1, bipolar=True), shared=False, style=2),
    lookup("large", 2, 1, Lane(9, signed=True), Lane(5, signed=True), shared=False),
    top_k(10, 1, 1), top_k(12, 1, 3), top_k(5, 1, 5, signed=False),
    top_k(10, 3, 1), top_k(4, 4, 1), top_k(7, 5, 1, signed=False, bits=2), top_k(6, 2, 1, bits=9),
)  # fmt: skip
