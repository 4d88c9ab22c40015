# SPDX-License-Identifier: Apache-2.0
"""Samples of every block that the cost model is fitted to (`benchmarks/estimates.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bitwright.formats import MinifloatFormat, parse_format
from bitwright.hw.dialect import HARDWARE
from bitwright.ir import Graph, GraphBuilder, TensorType
from bitwright.ir.op_activations import float_rule

Sample = Callable[[GraphBuilder, str, np.random.Generator], str]


def levels(shape: tuple[int, ...], name: str) -> TensorType:
    """A tensor that uses all levels of a format."""
    kind = parse_format(name)
    return TensorType(shape, kind, (1.0,), kind.min_level, kind.max_level)


def wide(shape: tuple[int, ...], bits: int) -> TensorType:
    """A signed accumulator of `bits` bits."""
    return TensorType(shape, None, (1.0,), -(1 << (bits - 1)), (1 << (bits - 1)) - 1)


def block(
    kind: TensorType | tuple[TensorType, ...],
    op: str,
    attrs: dict[str, Any],
    params: Callable[[np.random.Generator], dict[str, Any]] = lambda rng: {},
) -> Sample:
    """A sample: one block reading graph inputs of its own."""
    kinds = kind if isinstance(kind, tuple) else (kind,)

    def add(builder: GraphBuilder, name: str, rng: np.random.Generator) -> str:
        edges = tuple(builder.input(f"x{i}_{name}", k) for i, k in enumerate(kinds))
        outputs = (f"{name}_a", f"{name}_b") if op == "fork" else None
        return builder.add(op, edges, name=name, outputs=outputs, attrs=attrs, params=params(rng))

    return add


def matvec(
    size: tuple[int, int],
    fold: tuple[int, int],
    formats: tuple[str, str],
    style: str = "distributed",
    res: str = "lut",
    bias: bool = False,
    groups: int = 1,
    **more: int,
) -> Sample:
    """`size` is (MW, MH), `fold` (SIMD, PE), `formats` (activation, weight); `more` attributes."""

    def params(rng: np.random.Generator) -> dict[str, Any]:
        rows = groups * size[1]
        weight = random_weights(rng, formats[1], (rows, size[0]))
        return {"weight": weight, **({"bias": rng.integers(-99, 99, rows)} if bias else {})}

    attrs = {"simd": fold[0], "pe": fold[1], "ram_style": style, "res_type": res}
    attrs |= {"weight_format": formats[1], "groups": groups, **more}
    return block(levels((groups * size[0],), formats[0]), "matvec", attrs, params)


def random_weights(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> Any:
    kind = parse_format(name)
    if name == "bipolar":
        return rng.integers(0, 2, shape) * 2 - 1
    if not kind.uniform:
        return rng.choice(kind.grid(), shape)
    return rng.integers(kind.min_level, kind.max_level + 1, shape)


def depthwise(
    channels: int, pixels: int, pe: int, formats: tuple[str, str], style: str = "distributed",
    res: str = "lut", bias: bool = False,
) -> Sample:  # fmt: skip
    def params(rng: np.random.Generator) -> dict[str, Any]:
        weight = random_weights(rng, formats[1], (channels, pixels))
        return {"weight": weight, **({"bias": rng.integers(-99, 99, channels)} if bias else {})}

    attrs = {"pe": pe, "ram_style": style, "res_type": res, "weight_format": formats[1]}
    return block(levels((2, 2, channels * pixels), formats[0]), "depthwise", attrs, params)


def lookup(channels: int, pe: int, source: str, out: str, style: str, shared: bool) -> Sample:
    kind = parse_format(source)

    def params(rng: np.random.Generator) -> dict[str, Any]:
        entries = kind.max_level - kind.min_level + 1
        return {"table": random_weights(rng, out, (1 if shared else channels, entries))}

    attrs = {"format": out, "scale": (1.0,), "pe": pe, "ram_style": style}
    return block(levels((2, 2, channels), source), "lookup", attrs, params)


def add(
    kinds: tuple[str, str], multipliers: tuple[int, int], pe: int, channels: int = 16
) -> Sample:
    types = tuple(levels((2, 2, channels), kind) for kind in kinds)
    return block(types, "add", {"multipliers": multipliers, "pe": pe, "scale": (1.0,)})


def concat(channels: tuple[int, int], kinds: tuple[str, str], pe: int) -> Sample:
    types = tuple(levels((2, 2, c), kind) for c, kind in zip(channels, kinds, strict=True))
    return block(types, "concat", {"pe": pe})


def threshold(channels: int, pe: int, bits: int, out: str, style: str = "distributed") -> Sample:
    kind = parse_format(out)

    def params(rng: np.random.Generator) -> dict[str, Any]:
        count = (kind.max_level - kind.min_level) // kind.level_step
        edge = 1 << (bits - 2)
        return {"thresholds": np.sort(rng.integers(-edge, edge, (channels, count)), axis=1)}

    attrs = {"base": kind.min_level, "step": kind.level_step, "format": out, "scale": (1.0,)}
    attrs |= {"pe": pe, "ram_style": style}
    return block(wide((2, 2, channels), bits), "threshold", attrs, params)


def requant(
    channels: int, pe: int, bits: int, multiplier: int, res: str = "lut", out: str = "int8"
) -> Sample:
    """`multiplier` bits; 0: all channels are shifted only. `out` may be a minifloat."""

    def params(rng: np.random.Generator) -> dict[str, Any]:
        top = 1 << max(multiplier - 1, 0)
        offset = 1 << (multiplier + 4)
        factors = rng.integers(top // 2, top, channels) if multiplier else np.ones(1, dtype=int)
        return {"multiplier": factors, "offset": rng.integers(-offset, offset, channels)}

    kind = parse_format(out)
    shift = multiplier or bits - kind.bits
    attrs = {"shift": shift, "lo": kind.min_level, "hi": kind.max_level, "format": out}
    attrs |= {"scale": (1.0,), "pe": pe, "res_type": res, "ram_style": "distributed"}
    op = "requant"
    if isinstance(kind, MinifloatFormat):
        significant, smallest = float_rule(kind)
        attrs |= {"significant": significant, "smallest": smallest}
        op = "requant_float"
    return block(wide((2, 2, channels), bits), op, attrs, params)


CODEBOOK = "cb16{-31,-25,-18,-13,-9,-6,-3,-1,0,2,4,7,12,19,26,30}"
HYBRID = "cb16:e4m3{-3840,-960,-448,-52,-9,-1,0,1,3,13,60,72,104,480,1024,3584}"


def window(
    shape: tuple[int, int, int], kernel: int, simd: int, kind: str, stride: int = 1,
    style: str = "distributed", groups: int = 1,
) -> Sample:  # fmt: skip
    attrs = {
        "kernel": (kernel, kernel),
        "stride": (stride, stride),
        "groups": groups,
        "pixels": (kernel - 1 + stride) * shape[1] + kernel,
    }
    return block(levels(shape, kind), "window", {**attrs, "simd": simd, "ram_style": style})


def parallel(
    shape: tuple[int, int, int], kernel: tuple[int, int], kind: str, stride: int = 1,
    style: str = "distributed", dilation: int = 1,
) -> Sample:  # fmt: skip
    attrs = {
        "kernel": kernel,
        "stride": (stride, stride),
        "dilation": (dilation, dilation),
        "pixels": shape[0] * shape[1],
        "parallel_window": 1,
    }
    return block(levels(shape, kind), "window", {**attrs, "simd": shape[2], "ram_style": style})


def fifo(width: int, depth: int, style: str = "distributed") -> Sample:
    attrs = {"depth": depth, "lanes": width, "ram_style": style}
    return block(levels((width * 4,), "uint1"), "fifo", attrs)


def dwc(bits: int, lanes_in: int, lanes_out: int) -> Sample:
    size = lanes_in * lanes_out * 2
    attrs = {"in_lanes": lanes_in, "out_lanes": lanes_out}
    return block(levels((size,), f"uint{bits}"), "dwc", attrs)


GROUPS: dict[str, tuple[Sample, ...]] = {
    "matvec": (
        matvec((9, 8), (3, 2), ("uint4", "int4n")),
        matvec((72, 16), (4, 4), ("uint4", "int4n")),
        matvec((72, 16), (8, 2), ("uint4", "int4n"), "block"),
        matvec((64, 10), (4, 1), ("uint4", "int4n"), bias=True),
        matvec((27, 8), (3, 2), ("uint8", "int8")),
        matvec((36, 8), (2, 2), ("uint8", "int8"), "block", bias=True),
        matvec((32, 8), (4, 2), ("int8", "int8"), "block", "dsp"),
        matvec((32, 16), (2, 4), ("int4", "int4"), "block", "dsp"),
        matvec((64, 16), (8, 4), ("uint2", "int2n")),
        matvec((64, 32), (16, 2), ("uint2", "int2n"), "block"),
        matvec((64, 16), (8, 4), ("uint8", "bipolar")),
        matvec((48, 12), (6, 3), ("int4", "ternary")),
        matvec((36, 8), (36, 1), ("uint4", "int4n")),
        matvec((16, 16), (1, 1), ("uint6", "int6")),
        matvec((256, 16), (8, 1), ("uint3", "int3"), "block"),
        matvec((72, 16), (2, 8), ("int5", "int5"), "block"),
        matvec((18, 8), (3, 2), ("uint4", "int4n"), groups=4),
        matvec((36, 4), (4, 4), ("uint4", "int4n"), "block", groups=8),
        matvec((600, 12), (1, 1), ("uint4", "int4n"), "block", bias=True),
        matvec((144, 16), (24, 2), ("uint4", "int4n"), "block"),
        matvec((72, 32), (12, 4), ("uint4", "int4n"), "block"),
        matvec((128, 32), (32, 2), ("uint2", "int2n"), "block"),
        matvec((96, 24), (32, 2), ("uint4", "int4n")),
        matvec((72, 16), (8, 4), ("uint4", "int4"), "block", "dsp"),
        matvec((72, 16), (9, 2), ("uint4", "int4n"), "block", "dsp", bias=True),
        matvec((64, 16), (8, 4), ("uint4", "int4"), "block", "dsp", dsp_pe=2),
        matvec((72, 32), (4, 8), ("uint4", "int4n"), "block", "dsp", dsp_pe=2),
        matvec((32, 16), (4, 4), ("uint8", "int8"), "block", "dsp"),
        matvec((64, 16), (8, 2), ("uint2", "int2n"), "block", "dsp"),
        matvec((72, 16), (8, 4), ("uint4", "int4n"), "block", adders=2),
        matvec((32, 16), (4, 4), ("uint8", "int8"), "block", adders=3),
    ),
    "matvec_xnor": tuple(
        matvec(size, fold, (bits, "bipolar"), style)
        for size, fold, style, bits in (
            ((64, 16), (16, 2), "distributed", "bipolar"), ((128, 16), (32, 4), "block", "bipolar"),
            ((64, 64), (64, 8), "distributed", "bipolar"),
            ((128, 32), (128, 4), "distributed", "bipolar"),
            ((36, 16), (9, 8), "distributed", "bipolar"),
            ((784, 32), (56, 16), "distributed", "bipolar"),
            ((64, 16), (16, 4), "distributed", "uint1"), ((196, 32), (49, 4), "block", "uint1"),
            ((72, 16), (36, 8), "distributed", "uint1"),
            ((784, 16), (112, 4), "distributed", "uint1"),
        )
    ),
    "matvec_constant": (
        matvec((9, 8), (9, 8), ("uint4", "int4n")), matvec((27, 8), (27, 8), ("uint4", "int4n")),
        matvec((16, 16), (16, 16), ("uint4", "int4")), matvec((36, 4), (36, 4), ("uint8", "int8")),
        matvec((18, 12), (18, 12), ("uint2", "int2n")), matvec((64, 8), (64, 8), ("int4", "int4n")),
        matvec((9, 12), (9, 12), ("uint8", "int4n"), bias=True),
        matvec((12, 12), (12, 12), ("uint4", "int6"), adders=2),
    ),
    "matvec_codes": (
        matvec((9, 8), (3, 2), ("uint4", "po2_4")),
        matvec((32, 8), (4, 2), ("int8", "po2_6<zero>")),
        matvec((16, 8), (4, 2), ("uint4", CODEBOOK)),
        matvec((32, 8), (8, 1), ("int8", CODEBOOK), "block"),
        matvec((16, 8), (4, 2), ("uint4", HYBRID)),
        matvec((16, 8), (4, 2), ("uint8", "e4m3")),
        matvec((16, 8), (2, 4), ("e4m3", "e4m3")),
        matvec((32, 8), (8, 2), ("e2m1", "e2m1")),
        matvec((16, 8), (4, 2), ("e3m2", "int4n")),
        matvec((32, 4), (2, 2), ("int8", "mx<e2m1,32>")),
        matvec((16, 4), (4, 1), ("uint8", "e5m2")),
        matvec((9, 8), (3, 1), ("e4m3", "po2_4")),
        matvec((16, 4), (2, 2), ("int8", "e4m3"), res="dsp"),
        depthwise(16, 9, 4, ("uint8", "e4m3")),
        depthwise(16, 9, 4, ("uint4", "po2_4")),
    ),
    "depthwise": (
        depthwise(8, 9, 1, ("uint4", "int4n")),
        depthwise(16, 9, 4, ("uint4", "int4n")),
        depthwise(64, 9, 16, ("uint4", "int4n"), "block"),
        depthwise(32, 9, 8, ("uint8", "int8"), "block"),
        depthwise(32, 25, 4, ("uint4", "int4n"), "block"),
        depthwise(16, 9, 8, ("uint2", "int2n")),
        depthwise(16, 9, 4, ("int8", "int8"), "block", "dsp"),
        depthwise(32, 9, 8, ("bipolar", "bipolar")),
        depthwise(48, 9, 2, ("int4", "ternary"), bias=True),
        depthwise(128, 9, 1, ("uint4", "int4n")),
        depthwise(256, 9, 1, ("uint4", "int4n")),
        depthwise(128, 9, 4, ("uint4", "int4n")),
    ),
    "add": (
        add(("uint4", "uint4"), (1, 1), 1), add(("uint4", "uint4"), (3, 2), 4),
        add(("uint4", "uint4"), (7, 5), 8), add(("int8", "int8"), (1, 1), 4),
        add(("int8", "uint4"), (11, -6), 2), add(("uint2", "uint4"), (13, 4), 16),
        add(("uint4", "uint4"), (23, 21), 4), add(("uint8", "uint8"), (3, 1), 4),
        add(("int4", "int4"), (1, 1), 16), add(("uint4", "int8"), (-3, 5), 2),
        add(("uint4", "uint4"), (45, 51), 8), add(("uint2", "uint2"), (1, 1), 4),
        add(("int8", "int8"), (9, -7), 8),
    ),
    "concat": (
        concat((8, 8), ("uint4", "uint4"), 4), concat((16, 8), ("int4", "uint4"), 8),
        concat((64, 32), ("uint4", "uint4"), 16), concat((12, 6), ("uint8", "int4"), 2),
        concat((768, 512), ("uint4", "uint4"), 16),
    ),
    "pool_sum": tuple(
        block(
            levels((2, 2, max(pixels, 1) * channels) if pixels else (4, 4, channels), kind),
            "pool_sum",
            {"window": pixels, "pe": pe, "ram_style": "distributed"},
        )
        for pixels, channels, kind, pe in (
            (4, 8, "uint4", 2), (4, 16, "uint4", 16), (9, 8, "int8", 1), (0, 64, "uint4", 4),
            (0, 64, "uint4", 1), (4, 32, "uint2", 4), (0, 16, "uint8", 8),
        )
    ),
    "upsample": tuple(
        block(levels(shape, kind), "upsample", {"factor": factor, "pe": pe, "ram_style": style})
        for shape, kind, factor, pe, style in (
            ((4, 4, 8), "uint4", (2, 2), 2, "distributed"),
            ((4, 8, 8), "uint4", (2, 2), 8, "distributed"),
            ((4, 4, 16), "uint8", (1, 2), 4, "distributed"),
            ((4, 8, 16), "uint2", (3, 3), 4, "distributed"),
            ((2, 16, 4), "int8", (2, 1), 1, "distributed"),
            ((2, 64, 16), "uint4", (2, 2), 4, "block"),
            ((2, 64, 16), "uint4", (2, 2), 1, "block"),
        )
    ),
    "lookup": (
        lookup(8, 2, "uint4", "uint4", "distributed", True),
        lookup(8, 8, "uint6", "uint4", "distributed", True),
        lookup(16, 4, "int4", "uint4", "distributed", False),
        lookup(32, 1, "uint8", "uint4", "block", False),
        lookup(8, 4, "int8", "uint8", "distributed", True),
    ),
    "threshold": (
        threshold(8, 2, 11, "uint4"), threshold(16, 4, 13, "uint4"),
        threshold(16, 1, 16, "uint4"), threshold(64, 1, 12, "uint4", "block"),
        threshold(16, 8, 9, "bipolar"), threshold(32, 4, 10, "uint2"),
        threshold(64, 16, 8, "bipolar"), threshold(8, 1, 14, "int4"),
        threshold(16, 2, 18, "uint6", "block"), threshold(8, 8, 12, "uint3"),
    ),
    "requant": (
        requant(8, 1, 16, 12), requant(8, 2, 18, 16), requant(16, 4, 12, 8),
        requant(16, 1, 20, 16, "dsp"), requant(16, 2, 14, 12, "dsp"), requant(4, 4, 16, 8, "dsp"),
        requant(256, 1, 16, 11, "dsp"), requant(1280, 1, 18, 11, "dsp"),
        requant(128, 2, 16, 12, "dsp"), requant(16, 4, 20, 0), requant(64, 2, 16, 0),
    ),
    "requant_float": (
        requant(8, 2, 24, 12, out="e4m3"), requant(16, 4, 16, 8, out="e2m1"),
        requant(8, 1, 32, 0, out="e4m3"), requant(8, 2, 20, 12, "dsp", out="e5m2"),
        requant(16, 2, 24, 10, out="e3m2"), requant(16, 1, 16, 10, out="e4m3"),
        requant(32, 4, 20, 8, "dsp", out="e4m3"), requant(8, 8, 16, 6, out="e2m1"),
        requant(32, 2, 28, 0, out="e5m2"), requant(16, 8, 18, 10, "dsp", out="e2m1"),
    ),
    "window": (
        window((10, 10, 1), 3, 1, "uint4"), window((6, 6, 8), 3, 4, "uint4"),
        window((8, 8, 8), 2, 2, "uint4", 2), window((4, 4, 16), 2, 4, "uint4", 2),
        window((12, 12, 16), 3, 16, "uint2"), window((30, 30, 3), 3, 3, "uint8", 1, "block"),
        window((28, 28, 8), 5, 8, "uint4", 1, "block"),
        window((14, 14, 32), 3, 8, "bipolar", 1, "block"), window((16, 16, 4), 1, 2, "int8", 2),
        window((18, 18, 16), 3, 4, "uint4", groups=0),
        window((22, 42, 64), 3, 8, "uint4", 1, "block", groups=0),
        window((10, 10, 16), 3, 2, "uint4", groups=4),
        window((34, 34, 16), 3, 2, "uint4", 1, "block"),
        window((34, 34, 16), 3, 8, "uint4", 2, "block"),
        window((10, 10, 64), 3, 1, "uint4", 1, "block"), window((18, 18, 8), 3, 8, "uint4"),
        window((20, 20, 1), 3, 1, "uint8"), window((14, 14, 16), 2, 8, "uint4", 2),
        window((26, 26, 16), 3, 4, "uint4"),
    ),
    "window_parallel": (
        parallel((10, 10, 1), (3, 3), "uint4"), parallel((30, 30, 1), (3, 3), "uint8"),
        parallel((30, 30, 3), (3, 3), "uint8", 1, "block"), parallel((10, 10, 8), (3, 3), "uint4"),
        parallel((32, 32, 1), (5, 5), "uint4"), parallel((20, 20, 4), (2, 2), "uint4", 2),
        parallel((34, 34, 8), (3, 3), "uint2", 2), parallel((18, 18, 16), (3, 3), "uint4"),
        parallel((1, 64, 8), (1, 9), "uint4"), parallel((64, 1, 4), (7, 1), "uint4"),
        parallel((16, 16, 8), (1, 1), "int8", 2), parallel((14, 14, 32), (3, 3), "bipolar"),
        parallel((20, 28, 2), (3, 3), "uint4", 1, "distributed", 2),
        parallel((56, 56, 3), (7, 7), "uint4", 2, "block"),
    ),
    "pad": tuple(
        block(
            levels(shape, kind),
            "pad",
            {"padding": (border,) * 4, "simd": simd},
        )
        for shape, kind, border, simd in (
            ((8, 8, 1), "uint4", 1, 1),
            ((4, 4, 8), "uint4", 1, 4),
            ((16, 16, 16), "uint8", 1, 8),
            ((28, 28, 4), "uint2", 2, 2),
            ((14, 14, 32), "int4", 1, 32),
        )
    ),
    "pool_max": tuple(
        block(
            levels((2, 2, pixels * channels), kind),
            "pool_max",
            {"window": pixels, "pe": pe, "ram_style": "distributed"},
        )
        for pixels, channels, kind, pe in (
            (4, 8, "uint4", 2), (4, 16, "uint4", 16), (9, 8, "int8", 1), (4, 64, "bipolar", 16),
            (4, 32, "uint2", 4), (4, 4, "int6", 4),
        )
    ),
    "top_k": tuple(
        block(wide((classes,), bits), "top_k", {"pe": pe, "k": k})
        for classes, bits, pe, k in (
            (10, 13, 1, 1), (10, 16, 2, 1), (10, 10, 5, 1), (100, 20, 1, 1), (16, 12, 8, 1),
            (10, 13, 1, 3), (100, 16, 1, 5), (100, 12, 4, 1), (10, 16, 1, 2), (64, 20, 16, 1),
            (1000, 14, 1, 1), (20, 18, 4, 1),
        )
    ),
    "dwc": (
        dwc(4, 1, 3), dwc(4, 2, 4), dwc(4, 4, 1), dwc(8, 1, 16), dwc(8, 16, 1), dwc(1, 32, 8),
        dwc(12, 4, 1), dwc(6, 3, 6), dwc(4, 8, 2), dwc(2, 16, 32), dwc(16, 4, 16), dwc(8, 24, 3),
    ),
    "fifo": (
        fifo(4, 16), fifo(16, 16), fifo(16, 48), fifo(32, 32), fifo(8, 128),
        fifo(16, 1024, "block"), fifo(36, 512, "block"),
    ),
    "fork": tuple(
        block(wide((8,), b), "fork", {"lanes": n}) for b, n in ((13, 1), (10, 4), (16, 8))
    ),
}  # fmt: skip


def samples(groups: list[str]) -> Graph:
    """All samples of these groups as one hardware graph with one stream each."""
    builder, rng = GraphBuilder("samples", HARDWARE), np.random.default_rng(0)
    outputs: list[str] = []
    for group in groups:
        for number, add in enumerate(GROUPS[group]):
            name = f"{group}_{number}"
            add(builder, name, rng)
            outputs += [f"{name}_a", f"{name}_b"] if group == "fork" else [name]
    return builder.finish(*outputs)
