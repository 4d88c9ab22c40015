# SPDX-License-Identifier: Apache-2.0
"""Parameter points of the library modules with numpy references and exact cycle stamps.

The references are written from the module headers alone; nothing of the package computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from tests.verilator.lib_case import (
    Case,
    Levels,
    Stamps,
    Streams,
    image,
    levels_of,
    one_to_one,
    side_by_side,
    spec,
)
from tests.verilator.lib_code_cases import CODE_CASES
from tests.verilator.lib_more_cases import MORE_CASES
from tests.verilator.lib_window_cases import WINDOW_CASES, WindowShape, window, window_parallel

from bitwright.sim import StreamSpec

__all__ = ["CASES", "Case", "Levels", "MatShape", "Stamps", "Streams", "WindowShape", "levels_of",
           "matvec", "spec", "window", "window_parallel"]  # fmt: skip


# --- plumbing -------------------------------------------------------------------------------------


def skid() -> Case:
    port = spec(1, 7, 5)
    return Case("skid", "stream_skid", {"Width": 7}, {"in": port}, {"out": port},
                lambda x: {"out": x["in"]}, 5, one_to_one(5, 1))  # fmt: skip


def fifo(depth: int, style: int, lines: int = 0) -> Case:
    port = spec(3, 4, 9, signed=True)
    parameters = {"Width": 12, "Depth": depth, "RamStyle": style, "RamLines": lines}
    interval, stamps = 9 * 4 // min(depth, 4), _fifo_stamps(9, depth)
    return Case(f"fifo{depth}", "stream_fifo", parameters, {"in": port}, {"out": port},
                lambda x: {"out": x["in"]}, interval, stamps)  # fmt: skip


def _fifo_stamps(beats: int, depth: int) -> Callable[[int], tuple[Stamps, Stamps]]:
    """Latency 3; a place freed in cycle t is filled in t + 1 at the earliest."""

    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        taken = np.zeros(frames * beats, dtype=np.int64)
        given = np.zeros_like(taken)
        for i in range(len(taken)):
            taken[i] = taken[i - 1] + 1 if i else 0
            if i >= depth:
                taken[i] = max(taken[i], given[i - depth] + 1)
            given[i] = max(taken[i] + 3, given[i - 1] + 1 if i else 0)
        return taken, given

    return stamps


def fork() -> Case:
    port = spec(2, 3, 6)
    return Case("fork", "stream_fork", {"Width": 6}, {"in": port}, {"out0": port, "out1": port},
                lambda x: {"out0": x["in"], "out1": x["in"]}, 6, one_to_one(6, 1))  # fmt: skip


def widen(ratio: int) -> Case:
    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        taken = np.arange(frames * 3 * ratio)
        return taken, taken[ratio - 1 :: ratio] + 1

    return Case(f"widen{ratio}", "stream_dwc", {"InWidth": 5, "OutWidth": 5 * ratio},
                {"in": spec(1, 5, 3 * ratio)}, {"out": spec(ratio, 5, 3)},
                lambda x: {"out": x["in"]}, 3 * ratio, stamps)  # fmt: skip


def narrow(ratio: int) -> Case:
    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        return np.arange(frames * 4) * ratio, np.arange(frames * 4 * ratio) + 2

    return Case(f"narrow{ratio}", "stream_dwc", {"InWidth": 3 * ratio, "OutWidth": 3},
                {"in": spec(ratio, 3, 4)}, {"out": spec(1, 3, 4 * ratio)},
                lambda x: {"out": x["in"]}, 4 * ratio, stamps)  # fmt: skip


def axis_in() -> Case:
    wide = StreamSpec(2, 5, 6, 16)
    parameters = {"Width": 10, "TdataWidth": 16, "Beats": 6}
    return Case("axis_in", "axis_in", parameters, {"s_axis": wide}, {"out": spec(2, 5, 6)},
                lambda x: {"out": x["s_axis"]}, 6, one_to_one(6, 1))  # fmt: skip


def axis_out() -> Case:
    wide = StreamSpec(1, 9, 4, 16, signed=True)
    parameters = {"Width": 9, "TdataWidth": 16, "Beats": 4}
    return Case("axis_out", "axis_out", parameters, {"in": spec(1, 9, 4, signed=True)},
                {"m_axis": wide}, lambda x: {"m_axis": x["in"]}, 4, one_to_one(4, 1))  # fmt: skip


def pad(
    height: int, cols: int, fold: int, border: tuple[int, int, int, int], value: int = 0,
    *, first: bool = False,
) -> Case:  # fmt: skip
    top, left, bottom, right = border
    rows_out, cols_out = top + height + bottom, left + cols + right

    def reference(x: Streams) -> Streams:
        frames = x["in"].reshape(-1, height, cols, fold * 2)
        width = ((0, 0), (top, bottom), (left, right), (0, 0))
        return {"out": np.pad(frames, width, constant_values=value).reshape(len(frames), -1)}

    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        inner = np.zeros((frames, rows_out, cols_out, fold), dtype=bool)
        inner[:, top : top + height, left : left + cols] = True
        given = np.arange(inner.size)
        taken = given[inner.ravel()].reshape(frames, -1)
        if first:
            taken[:, 0] = given.reshape(frames, -1)[:, 0]
        return taken.ravel(), given + 1

    parameters: dict[str, int | str] = {
        "Height": height, "Cols": cols, "Fold": fold, "DataWidth": 8,
        "Top": top, "Left": left, "Bottom": bottom, "Right": right, "WaitForInput": int(first),
        "PadValue": f"8'd{(value & 15) * 17}",
    }  # fmt: skip
    beats = rows_out * cols_out * fold
    name = f"pad{height}x{cols}{'first' if first else ''}"
    return Case(name, "stream_pad", parameters,
                {"in": spec(2, 4, height * cols * fold, signed=True)},
                {"out": spec(2, 4, beats, signed=True)},
                reference, beats, stamps, surplus=not first)  # fmt: skip


# --- arithmetic -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatShape:
    mw: int
    mh: int
    pe: int
    simd: int
    weight_bits: int = 4
    act_bits: int = 4
    act_signed: bool = False
    weight_bipolar: bool = False
    act_bipolar: bool = False
    bias: bool = False
    dsp: bool = False
    style: int = 0
    groups: int = 1
    dsp_rows: int = 0
    pack: int = 1
    share: bool = False
    step: int = 1
    rows: int = 1
    wait: int = 0

    @property
    def counts(self) -> bool:
        """Bits times bipolar weights: the unit counts, and starts with minus the weights of -1."""
        plain = not (self.act_signed or self.act_bipolar)
        return self.weight_bipolar and self.act_bits == 1 and plain

    @property
    def stages(self) -> int:
        """Registers from the operands to the accumulator."""
        one_bit = self.weight_bipolar or self.act_bipolar
        pairs = self.counts or (self.weight_bipolar and self.act_bipolar)
        terms = (self.simd + 1) // 2 if pairs else self.simd
        digits = 1 if one_bit else (self.weight_bits + 1) // 2
        adders = (terms - 1).bit_length() + (digits - 1).bit_length() + 1
        luts = max(1, adders // self.step)
        packed = -(-self.simd // self.pack)
        multipliers = luts if one_bit else 2 + (packed - 1).bit_length() // self.step
        rows = self.pe if self.dsp else self.dsp_rows
        return max(([luts] if rows < self.pe else []) + ([multipliers] if rows else []))


def _weights(shape: MatShape, rng: np.random.Generator) -> Levels:
    size = (shape.groups, shape.mh, shape.mw)
    if shape.weight_bipolar:
        return 2 * rng.integers(0, 2, size) - 1
    half = 1 << (shape.weight_bits - 1)
    weights = rng.integers(-half, half, size)
    weights[:, 0, :] = -half  # the corner of the two's complement range
    return weights


def matvec(name: str, shape: MatShape) -> Case:
    rng = np.random.default_rng(sum(name.encode()))
    weights, bias = _weights(shape, rng), rng.integers(-40, 41, (shape.groups, shape.mh))
    nf, sf = shape.mh // shape.pe, shape.mw // shape.simd
    port_in = spec(
        shape.simd,
        shape.act_bits,
        shape.groups * sf,
        signed=shape.act_signed,
        bipolar=shape.act_bipolar,
    )
    low, high = port_in.interval
    reach = int(np.abs(weights).sum(axis=2).max() * max(-low, high) + 41)
    acc_bits = reach.bit_length() + 1
    folded = weights.reshape(shape.groups, nf, shape.pe, sf, shape.simd).transpose(0, 1, 3, 2, 4)
    lanes = folded.reshape(shape.groups * nf * sf, -1)
    codes = (lanes + 1) // 2 if shape.weight_bipolar else lanes

    def reference(x: Streams) -> Streams:
        vectors = x["in"].reshape(-1, shape.groups, shape.mw)
        out = np.einsum("vgc,grc->vgr", vectors, weights) + (bias if shape.bias else 0)
        return {"out": out.reshape(len(out), -1)}

    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        start = np.arange(frames * shape.groups)[:, None] * (nf * sf)
        latency = 4 + shape.wait + shape.stages
        taken, given = start + np.arange(sf), start + np.arange(nf) * sf + sf - 1 + latency
        return taken.ravel(), given.ravel()

    parameters: dict[str, int | str] = {
        "Groups": shape.groups, "MW": shape.mw, "MH": shape.mh, "PE": shape.pe,
        "SIMD": shape.simd, "WeightWidth": shape.weight_bits, "ActWidth": shape.act_bits,
        "AccWidth": acc_bits, "ActSigned": int(shape.act_signed), "BiasWidth": 7,
        "WeightBipolar": int(shape.weight_bipolar), "HasBias": int(shape.bias or shape.counts),
        "ActBipolar": int(shape.act_bipolar),
        "WeightFile": "w.mem", "BiasFile": "b.mem",
        "DspRows": shape.pe if shape.dsp else shape.dsp_rows,
        "DspPack": shape.pack, "DspShare": int(shape.share), "Step": shape.step,
        "RomStyle": shape.style, "RomRows": shape.rows, "Wait": shape.wait,
    }  # fmt: skip
    starts = (bias if shape.bias else 0) - (shape.counts * (weights < 0)).sum(axis=2)
    biases = image(starts.reshape(-1, shape.pe), 7)
    words = image(side_by_side(codes, shape.rows), shape.weight_bits)
    memories = {"w.mem": words, "b.mem": biases}
    return Case(f"matvec_{name}", "matvec", parameters, {"in": port_in},
                {"out": spec(shape.pe, acc_bits, shape.groups * nf, signed=True)}, reference,
                shape.groups * nf * sf, stamps, memories)  # fmt: skip


def threshold(  # noqa: PLR0913 - one argument a parameter of the module
    name: str, channels: int, pe: int, bits: int, *, signed: bool = True, base: int = 0,
    flips: bool = False, style: int = 0, in_bits: int = 7, missing: int = 0,
) -> Case:  # fmt: skip
    rng = np.random.default_rng(sum(name.encode()))
    count = (1 << bits) - 1 - missing
    port_in = spec(pe, in_bits, channels // pe, signed=signed)
    low, high = port_in.interval
    flip = rng.integers(0, 2, channels) if flips else np.zeros(channels, dtype=np.int64)
    steps = np.sort(rng.integers(low, high + 2, (channels, count)), axis=1)
    steps = np.where(flip[:, None] == 1, -steps[:, ::-1], steps)
    bipolar = bits == 1
    port_out = spec(pe, bits, channels // pe, signed=base < 0, bipolar=bipolar)

    def reference(x: Streams) -> Streams:
        values = x["in"] * np.where(flip == 1, -1, 1)
        counts = (values[:, :, None] >= steps).sum(axis=2)
        return {"out": 2 * counts - 1 if bipolar else base + counts}

    thr_bits = in_bits + 2
    never = (1 << (thr_bits - 1)) - 1
    stored = np.concatenate([steps - flip[:, None], np.full((channels, missing), never)], axis=1)
    fold = channels // pe
    memories = {"flip.mem": image(flip.reshape(fold, pe), 1)}
    for stage in range(bits):
        picks = [(2 * prefix + 1) * (1 << (bits - 1 - stage)) - 1 for prefix in range(1 << stage)]
        rows = stored[:, picks].reshape(fold, pe, -1).transpose(0, 2, 1).reshape(-1, pe)
        for lane in range(pe):
            memories[f"t{stage}_{lane:04}.mem"] = image(rows[:, lane : lane + 1], thr_bits)
    parameters: dict[str, int | str] = {
        "Channels": channels, "PE": pe, "InWidth": in_bits, "InSigned": int(signed),
        "ThrWidth": thr_bits, "Bits": bits, "OutWidth": bits, "Base": base, "HasFlip": int(flips),
        "RomStyle": style, "FlipFile": "flip.mem",
        **{f"ThrFile{stage}": f"t{stage}_" for stage in range(bits)},
    }  # fmt: skip
    latency = 2 + int(flips) + bits * (2 if style == 2 else 3)
    return Case(f"threshold_{name}", "threshold", parameters, {"in": port_in}, {"out": port_out},
                reference, fold, one_to_one(fold, latency), memories)  # fmt: skip


def _round_shift(values: Levels, shift: int, mode: int) -> Levels:
    """Exact, from the definition of each mode, on quotient and remainder."""
    unit = 1 << shift
    quotient, rest = values // unit, values % unit
    if mode == 3:
        return quotient
    if mode == 4:
        return quotient + (rest > 0)
    up = {0: quotient % 2 == 1, 1: values >= 0, 2: np.ones_like(values, dtype=bool)}[mode]
    return quotient + np.where(2 * rest == unit, up & (rest > 0), 2 * rest > unit)


def requant(  # noqa: PLR0913 - one argument a parameter of the module
    name: str, channels: int, pe: int, shift: int, mode: int, *, signed: bool = True,
    mul_bits: int = 7, dsp: bool = False, out: tuple[int, int] = (-8, 7),
) -> Case:  # fmt: skip
    rng = np.random.default_rng(sum(name.encode()))
    half = 1 << (mul_bits - 1)
    mul = rng.integers(-half, half, channels)
    mul[0] = 1 << (mul_bits - 2)  # ties are frequent with a power of two
    offset = rng.integers(-500, 501, channels)
    offset[0] = 0
    in_bits, low, high = 9, *out
    out_bits = 4 if low < 0 else high.bit_length()

    def reference(x: Streams) -> Streams:
        return {"out": np.clip(_round_shift(x["in"] * mul + offset, shift, mode), low, high)}

    fold = channels // pe
    memories = {
        "m.mem": image(mul.reshape(fold, pe), mul_bits),
        "o.mem": image(offset.reshape(fold, pe), 10),
    }
    parameters: dict[str, int | str] = {
        "Channels": channels, "PE": pe, "InWidth": in_bits, "InSigned": int(signed),
        "MulWidth": mul_bits, "OffsetWidth": 10, "Shift": shift, "OutWidth": out_bits,
        "OutLo": low, "OutHi": high, "Rounding": mode, "MulFile": "m.mem", "OffsetFile": "o.mem",
        "UseDsp": int(dsp),
    }  # fmt: skip
    digits = 1 if dsp else (mul_bits + 1) // 2
    port_in = spec(pe, in_bits, fold, signed=signed)
    return Case(f"requant_{name}", "requant", parameters, {"in": port_in},
                {"out": spec(pe, out_bits, fold, signed=low < 0)}, reference, fold,
                one_to_one(fold, 7 + (digits - 1).bit_length() + dsp), memories)  # fmt: skip


def pool(
    name: str, size: int, fold: int, pe: int, bits: int, *, signed: bool, pixels: int = 2
) -> Case:
    port_in = spec(pe, bits, pixels * size * fold, signed=signed)

    def reference(x: Streams) -> Streams:
        shaped = x["in"].reshape(-1, pixels, size, fold * pe)
        return {"out": shaped.max(axis=2).reshape(len(shaped), -1)}

    def stamps(frames: int) -> tuple[Stamps, Stamps]:
        taken = np.arange(frames * pixels * size * fold)
        return taken, taken.reshape(-1, size, fold)[:, -1].ravel() + 3

    parameters = {
        "Window": size,
        "Fold": fold,
        "PE": pe,
        "ElemWidth": bits,
        "ElemSigned": int(signed),
    }
    return Case(f"pool_{name}", "pool_max", parameters, {"in": port_in},
                {"out": spec(pe, bits, pixels * fold, signed=signed)}, reference,
                pixels * size * fold, stamps)  # fmt: skip


CASES = (
    skid(), fifo(3, 0), fifo(5, 2), fifo(6, 1), fifo(9, 2, 4), fifo(11, 1, 4), fifo(7, 2, 8),
    fork(), widen(2), widen(3), narrow(2), narrow(5), axis_in(), axis_out(),
    pad(3, 4, 1, (1, 1, 1, 1)), pad(2, 3, 2, (0, 2, 1, 0), value=-8), pad(1, 2, 1, (2, 0, 0, 1)),
    pad(1, 1, 1, (0, 2, 1, 0), first=True), pad(2, 3, 2, (3, 1, 0, 2), value=7, first=True),
    matvec("plain", MatShape(12, 6, 2, 3, style=1)),
    matvec(
        "wide",
        MatShape(10, 4, 4, 5, weight_bits=7, act_bits=3, act_signed=True, bias=True, style=2),
    ),
    matvec("serial", MatShape(6, 5, 1, 1, weight_bits=2, act_bits=2, bias=True)),
    matvec("full", MatShape(7, 3, 3, 7, weight_bits=3, act_bits=1)),
    matvec("dsp", MatShape(8, 4, 2, 2, weight_bits=9, act_bits=8, act_signed=True, dsp=True)),
    matvec("packed", MatShape(10, 4, 2, 5, dsp=True, pack=2)),
    matvec("packed_signed", MatShape(12, 2, 1, 6, act_signed=True, dsp=True, pack=2, bias=True)),
    matvec("packed_three", MatShape(7, 3, 1, 7, weight_bits=2, act_bits=2, dsp=True, pack=3)),
    matvec("shared", MatShape(6, 4, 2, 3, weight_bits=8, act_bits=8, dsp=True, share=True)),
    matvec("shared_signed", MatShape(4, 4, 4, 2, weight_bits=8, act_bits=8, act_signed=True,
                                     dsp_rows=2, share=True, step=2, bias=True)),
    matvec("mixed", MatShape(8, 6, 3, 4, dsp_rows=1, pack=2, bias=True)),
    matvec("mixed_step", MatShape(16, 4, 4, 8, dsp_rows=2, pack=2, step=2)),
    matvec("step_long", MatShape(16, 2, 2, 8, weight_bits=8, act_bits=5, step=9)),
    matvec("step_xnor", MatShape(26, 2, 1, 13, weight_bits=1, act_bits=1, weight_bipolar=True,
                                 act_bipolar=True, step=2)),
    matvec("xnor", MatShape(18, 4, 2, 9, 1, 1, weight_bipolar=True, act_bipolar=True, bias=True)),
    matvec("bits", MatShape(18, 4, 2, 9, 1, 1, weight_bipolar=True)),
    matvec("bits_bias", MatShape(14, 6, 3, 7, 1, 1, weight_bipolar=True, bias=True, groups=2)),
    matvec("bits_step", MatShape(20, 2, 2, 10, 1, 1, weight_bipolar=True, step=2)),
    matvec("binary_weight", MatShape(9, 4, 2, 3, 1, 4, act_signed=True, weight_bipolar=True)),
    matvec("rows", MatShape(12, 6, 2, 2, bias=True, style=1, rows=3, wait=1)),
    matvec("rows_luts", MatShape(12, 6, 2, 2, style=2, rows=5, wait=1)),
    matvec("rows_many", MatShape(9, 7, 1, 1, bias=True, style=2, rows=32, wait=2)),
    matvec("rows_later", MatShape(5, 8, 1, 1, style=1, rows=20, wait=3)),
    matvec("wait", MatShape(12, 6, 2, 3, style=1, wait=1)),
    matvec("wait_one_row", MatShape(12, 2, 2, 3, style=2, wait=2)),
    matvec("groups", MatShape(6, 4, 2, 3, bias=True, groups=3, style=1)),
    matvec("depthwise", MatShape(9, 1, 1, 3, act_signed=True, bias=True, groups=5)),
    matvec("group_xnor", MatShape(4, 2, 2, 4, 1, 1, weight_bipolar=True, act_bipolar=True,
                                  bias=True, groups=3)),
    matvec("binary_act", MatShape(8, 4, 2, 4, 5, 1, act_bipolar=True, bias=True)),
    threshold("four", 6, 2, 4),
    threshold("flip", 6, 3, 2, flips=True, base=-2, style=2),
    threshold("unsigned", 3, 3, 3, signed=False, flips=True, missing=2),
    threshold("bipolar", 8, 2, 1, flips=True, style=1),
    requant("even", 6, 2, 5, 0),
    requant("away", 4, 4, 4, 1, dsp=True),
    requant("up", 3, 1, 3, 2, signed=False, mul_bits=4),
    requant("ceil", 4, 2, 4, 4, out=(0, 15)),
    requant("floor", 2, 2, 0, 3, mul_bits=2, out=(0, 200)),
    pool("fold", 4, 3, 2, 4, signed=True),
    pool("single", 9, 1, 1, 5, signed=False),
    pool("bits", 4, 2, 3, 1, signed=False),
    *WINDOW_CASES,
    *MORE_CASES,
    *CODE_CASES,
)  # fmt: skip
