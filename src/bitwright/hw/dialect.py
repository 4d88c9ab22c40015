# SPDX-License-Identifier: Apache-2.0
"""The hardware dialect: streaming blocks as operations on the same levels as the integer dialect.

An edge is a stream. Its type gives the logical tensor of one frame (channel fastest); how many
elements travel in one beat is the producer's folding attribute (`pe`, `simd`, `lanes`). Every
operation has a reference function, so the hardware graph runs and is compared with the integer
graph by ``==``.
"""

from __future__ import annotations

from math import prod

import numpy as np

from bitwright.hw import rules
from bitwright.hw.rules import divides
from bitwright.ir import (
    INTEGER,
    AttrSpec,
    Dialect,
    Node,
    OpSpec,
    ParamSpec,
    TensorType,
    window_shape,
)
from bitwright.ir.dialect import TypeRule
from bitwright.ir.integer import ROUNDED
from bitwright.ir.kernels import pad_image, windows
from bitwright.ir.op_common import Arrays, Types, image_shape, need
from bitwright.ir.op_products import add_bias, infer_product, infer_rounded, run_rounded

RAM_STYLES = ("auto", "distributed", "block")
MULT_STYLES = ("auto", "lut", "dsp")
MEM_MODES = ("internal_embedded", "external")


def _infer_pad(node: Node, types: Types) -> Types:
    (tensor,) = types
    height, width, channels = image_shape(tensor)
    top, left, bottom, right = node.ints("padding")
    divides(node, "simd", channels, "channels")
    value = node.integer("value")
    if tensor.is_coded and tensor.format is not None:
        known = bool(tensor.format.contains(value).all())
        need(known, f"{value} is not a {tensor.format.name} level")
    shape = (height + top + bottom, width + left + right, channels)
    lo, hi = min(tensor.lo, value), max(tensor.hi, value)
    return (TensorType(shape, tensor.format, tensor.scale, lo, hi),)


def _run_pad(node: Node, types: Types, arrays: Arrays) -> Arrays:
    return (pad_image(arrays[0], node.ints("padding"), node.integer("value")),)


def _infer_window(node: Node, types: Types) -> Types:
    (tensor,) = types
    height, width, channels = image_shape(tensor)
    kernel, stride, dilation = node.ints("kernel"), node.ints("stride"), node.ints("dilation")
    divides(node, "simd", channels, "channels")
    span = dilation[0] * (kernel[0] - 1) * width + dilation[1] * (kernel[1] - 1) + 1
    pixels = node.integer("pixels")
    need(pixels >= span, f"pixels={pixels} is less than the {span} that a window spans")
    out_h, out_w = window_shape((height, width), kernel, stride, (0, 0, 0, 0), dilation)
    groups, simd = _window_groups(node, channels), node.integer("simd")
    if node.integer("parallel_window"):
        need(simd == channels, f"a parallel window takes all {channels} channels a beat")
        simd = 1  # the groups lie in one beat
    need(
        node.integer("groups") >= 0 and channels % (groups * simd) == 0,
        f"{groups} groups of beats of {simd} do not divide {channels} channels",
    )
    scale = tensor.scale
    if len(scale) > 1:
        part = channels // groups
        scale = tuple(
            s for g in range(groups) for s in scale[g * part : (g + 1) * part] * prod(kernel)
        )
    shape = (out_h, out_w, prod(kernel) * channels)
    return (TensorType(shape, tensor.format, scale, tensor.lo, tensor.hi),)


def _window_groups(node: Node, channels: int) -> int:
    """Groups of the order of a pixel's elements: where each beat is one, of a parallel window each
    channel.
    """
    lanes = 1 if node.integer("parallel_window") else node.integer("simd")
    return node.integer("groups") or channels // lanes


def _run_window(node: Node, types: Types, arrays: Arrays) -> Arrays:
    view = windows(arrays[0], node.ints("kernel"), node.ints("stride"), node.ints("dilation"))
    groups = _window_groups(node, types[0].channels)
    split = view.reshape(*view.shape[:3], prod(node.ints("kernel")), groups, -1)
    return (np.moveaxis(split, -2, -3).reshape(*view.shape[:3], -1),)


def _infer_matvec(node: Node, types: Types) -> Types:
    (tensor,) = types
    weight = node.params["weight"]
    groups = node.integer("groups")
    need(
        groups >= 1
        and weight.ndim == 2
        and weight.shape[0] % groups == 0
        and weight.shape[1] * groups == tensor.channels,
        f"weight {weight.shape} in {groups} groups does not fit {tensor.channels} elements",
    )
    rows, columns = weight.shape
    divides(node, "pe", rows // groups, "MH, output channels of a group")
    divides(node, "simd", columns, "MW, matrix columns")
    if node.integer("bits"):
        rules.check_step(node)
        return infer_rounded(node, tensor, tensor.shape[:-1], groups)
    return infer_product(node, tensor, tensor.shape[:-1], groups)


def _run_matvec(node: Node, types: Types, arrays: Arrays) -> Arrays:
    groups, weight = node.integer("groups"), node.params["weight"]
    vectors = arrays[0].reshape(*arrays[0].shape[:-1], groups, -1)
    if node.integer("bits"):
        return run_rounded(node, vectors, groups)
    parts = [vectors[..., g, :] @ w.T for g, w in enumerate(np.split(weight, groups))]
    return add_bias(node, np.concatenate(parts, axis=-1))


def _folded(spec: OpSpec, meaning: str, rule: TypeRule | None = None, **more: AttrSpec) -> OpSpec:
    """A row of the integer dialect with folding added: same meaning, `pe` channels a beat."""

    def infer(node: Node, types: Types) -> Types:
        divides(node, "pe", types[0].channels, "channels")
        return spec.infer(node, types)

    attrs = {**spec.attrs, "pe": PE, **more}
    return OpSpec(spec.name, meaning, spec.arity, rule or infer, spec.reference, attrs, spec.params)


def _joined(spec: OpSpec, meaning: str) -> OpSpec:
    """A row of the integer dialect with two inputs, `pe` elements a beat at each."""
    attrs = {**spec.attrs, "pe": PE}
    return OpSpec(spec.name, meaning, 2, rules.infer_join, spec.reference, attrs)


def _infer_dwc(node: Node, types: Types) -> Types:
    (tensor,) = types
    divides(node, "in_lanes", tensor.size, "elements of a frame")
    divides(node, "out_lanes", tensor.size, "elements of a frame")
    wide, narrow = sorted((node.integer("in_lanes"), node.integer("out_lanes")), reverse=True)
    need(wide % narrow == 0, f"one of the lane counts {wide}, {narrow} must divide the other")
    return types


def _infer_fifo(node: Node, types: Types) -> Types:
    (tensor,) = types
    divides(node, "lanes", tensor.size, "elements of a frame")
    need(node.integer("depth") >= 2, "a FIFO has at least two entries")
    return types


def _infer_flatten(node: Node, types: Types) -> Types:
    divides(node, "lanes", types[0].size, "elements of a frame")
    return INTEGER.ops["flatten"].infer(node, types)


def _infer_fork(node: Node, types: Types) -> Types:
    divides(node, "lanes", types[0].size, "elements of a frame")
    return (types[0], types[0])


def _identity(node: Node, types: Types, arrays: Arrays) -> Arrays:
    return arrays


def _run_fork(node: Node, types: Types, arrays: Arrays) -> Arrays:
    return (arrays[0], np.array(arrays[0]))


PE = AttrSpec("int", "output elements a beat", 1)
_SIMD = AttrSpec("int", "input elements a beat", 1)
_LANES = AttrSpec("int", "elements a beat", 1)
_KERNEL = AttrSpec("ints", "(height, width)", count=2)
_RAM = AttrSpec("str", "memory: auto, distributed (LUT) or block", "auto", RAM_STYLES)
_MULT = AttrSpec("str", "multipliers: auto, lut or dsp", "auto", MULT_STYLES)

_MULTIPLIERS = {
    "dsp_pe": AttrSpec("int", "of res_type dsp: PE rows that use DSP blocks; 0: all", 0),
    "dsp_pack": AttrSpec("int", "products of a row that a DSP block makes and adds", 1),
    "dsp_share": AttrSpec("int", "1: a DSP block makes products of two rows", 0),
    "adders": AttrSpec("int", "adders in a line between registers", 1),
    "rom_rows": AttrSpec("int", "words side by side in a line of the weight memory", 1),
    "wait": AttrSpec("int", "cycles more than one in which operands are read", 0),
}
_MODE = AttrSpec("str", "weights in the unit or from outside", "internal_embedded", MEM_MODES)
_WEIGHTS = {
    "weight_format": AttrSpec("str", "number format of the weights"),
    "weight_scale": AttrSpec("floats", "real value of a weight's level 1", (1.0,)),
}
#: Of `conv_rounded`; an exact accumulator has 0 bits.
_ROUNDED = {
    name: AttrSpec(
        spec.kind, f"{spec.meaning}; 0: it is exact" if name == "bits" else spec.meaning, 0
    )
    for name, spec in ROUNDED.items()
}

_POOL = {
    "window": AttrSpec("int", "pixels of a window; 0: all pixels of the image are one"),
    "pe": PE,
    "ram_style": _RAM,
}

_OPS = (
    OpSpec(
        "pad",
        "adds a border of one level",
        1,
        _infer_pad,
        _run_pad,
        attrs={
            "padding": AttrSpec("ints", "(top, left, bottom, right)", count=4),
            "value": AttrSpec("int", "level of the border", 0),
            "wait_for_input": AttrSpec(
                "int",
                "1: no border beat of a frame before its first input beat is there, as is needed "
                "where a whole window lies in front of the first pixel",
                0,
            ),
            "simd": _SIMD,
        },
    ),
    OpSpec(
        "window",
        "for each output pixel the elements (group, kh, kw, channel of the group) of its window",
        1,
        _infer_window,
        _run_window,
        attrs={
            "kernel": _KERNEL,
            "stride": AttrSpec("ints", "(vertical, horizontal)", (1, 1), count=2),
            "dilation": AttrSpec("ints", "(vertical, horizontal)", (1, 1), count=2),
            "pixels": AttrSpec("int", "pixels of the circular buffer"),
            "groups": AttrSpec(
                "int",
                "channel groups; 0: each beat of a pixel is one, for a depthwise unit; of a "
                "parallel window each channel",
                1,
            ),
            "parallel_window": AttrSpec(
                "int", "1: all elements of an output pixel in one beat, all channels a beat in", 0
            ),
            "simd": _SIMD,
            "ram_style": _RAM,
        },
    ),
    OpSpec(
        "matvec",
        "weight @ vector + bias, PE rows by SIMD columns a cycle; with groups, elements come as "
        "(group, column) and leave as (group, row), each group with its own rows of the weight",
        1,
        _infer_matvec,
        _run_matvec,
        attrs={
            **_WEIGHTS,
            **_ROUNDED,
            "groups": AttrSpec("int", "products of a pixel, one after the other", 1),
            "mem_mode": _MODE,
            "port_bits": AttrSpec("int", "external: width of the memory port", 0),
            "port_address_bits": AttrSpec("int", "external: width of its addresses", 0),
            "port_share": AttrSpec("floats", "external: port words a cycle the memory gives", (1,)),
            "prefetch": AttrSpec("int", "external: port words that the unit buffers", 0),
            "pe": PE,
            "simd": _SIMD,
            "ram_style": _RAM,
            "res_type": _MULT,
            **_MULTIPLIERS,
        },
        params={
            "weight": ParamSpec("(groups*MH, MW)", "levels, columns in order (kh, kw, c)"),
            "bias": ParamSpec("(groups*MH,)", "added to the accumulator", optional=True),
        },
    ),
    OpSpec(
        "depthwise",
        "each channel times its own weights, PE channels a cycle; elements in order (channel fold, "
        "pixel of the window, lane), PE lanes a fold; with SIMD pixels a cycle (channel, pixel)",
        1,
        rules.infer_depthwise,
        rules.run_depthwise,
        attrs={
            **_WEIGHTS,
            **_ROUNDED,
            "pe": PE,
            "simd": AttrSpec("int", "pixels of a window a cycle: 1, or all", 1),
            "ram_style": _RAM,
            "res_type": _MULT,
            **_MULTIPLIERS,
        },
        params={
            "weight": ParamSpec("(C, window)", "levels, pixels in order (kh, kw)"),
            "bias": ParamSpec("(C,)", "added to the accumulator", optional=True),
        },
    ),
    _folded(
        INTEGER.ops["threshold"],
        "`base + step * count(x >= t)`, PE channels a cycle",
        ram_style=_RAM,
    ),
    _folded(
        INTEGER.ops["requant"],
        "multiply, add, shift, round, clip, PE channels a cycle",
        ram_style=_RAM,
        res_type=_MULT,
    ),
    _folded(
        INTEGER.ops["requant_float"],
        "multiply, add, shift, round once to a minifloat, clip, PE channels a cycle",
        ram_style=_RAM,
        res_type=_MULT,
    ),
    OpSpec(
        "pool_max",
        "maximum over the pixels of a window",
        1,
        rules.infer_pool_max,
        rules.run_pool_max,
        attrs=_POOL,
    ),
    OpSpec(
        "pool_sum",
        "sum over the pixels of a window; its scale is divided by their number",
        1,
        rules.infer_pool_sum,
        rules.run_pool_sum,
        attrs=_POOL,
    ),
    _folded(
        INTEGER.ops["lookup"],
        "`table[x - lo]` of the channel, PE channels a cycle",
        ram_style=_RAM,
    ),
    _joined(INTEGER.ops["add"], "`m0*a + m1*b`, PE elements a cycle"),
    _joined(INTEGER.ops["concat"], "channels of the first input, then of the second, of a pixel"),
    _folded(
        INTEGER.ops["upsample"],
        "each pixel repeated, PE channels a cycle",
        ram_style=_RAM,
    ),
    _folded(
        INTEGER.ops["top_k"],
        "indices of the k largest, PE classes a cycle, one index a cycle",
        rules.infer_top_k,
    ),
    OpSpec(
        "flatten",
        "another name for the same stream; no hardware",
        1,
        _infer_flatten,
        INTEGER.ops["flatten"].reference,
        attrs={"lanes": _LANES},
    ),
    OpSpec("fork", "one stream to two", 1, _infer_fork, _run_fork, {"lanes": _LANES}, n_outputs=2),
    OpSpec(
        "dwc",
        "width converter; element order kept",
        1,
        _infer_dwc,
        _identity,
        attrs={
            "in_lanes": AttrSpec("int", "elements a beat, in"),
            "out_lanes": AttrSpec("int", "elements a beat, out"),
        },
    ),
    OpSpec(
        "fifo",
        "first in, first out; a depth of 2 is the elastic register",
        1,
        _infer_fifo,
        _identity,
        attrs={"depth": AttrSpec("int", "beats"), "lanes": _LANES, "ram_style": _RAM},
    ),
)

HARDWARE = Dialect("hardware", {spec.name: spec for spec in _OPS})
