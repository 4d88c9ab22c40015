# SPDX-License-Identifier: Apache-2.0
"""The integer dialect: a quantized network as exact integer operations on NHWC levels."""

from __future__ import annotations

from bitwright.ir import op_activations, op_images, op_products
from bitwright.ir.dialect import AttrSpec, Dialect, OpSpec, ParamSpec
from bitwright.ir.kernels import SHIFT_ROUNDINGS

_STRIDE = AttrSpec("ints", "(vertical, horizontal)", (1, 1), count=2)
_PADDING = AttrSpec("ints", "(top, left, bottom, right)", (0, 0, 0, 0), count=4)
_WEIGHT_FORMAT = AttrSpec("str", "number format of the weights")
_WEIGHT_SCALE = AttrSpec("floats", "real value of a weight's level 1, one or one per row", (1.0,))
_FORMAT = AttrSpec("str", "number format of the output")
_SCALE = AttrSpec("floats", "real value of the output's level 1", (1.0,))
_BIAS = ParamSpec("(O,)", "added to the accumulator", optional=True)
_CONV = {
    "stride": _STRIDE,
    "padding": _PADDING,
    "dilation": AttrSpec("ints", "(vertical, horizontal)", (1, 1), count=2),
    "groups": AttrSpec("int", "channel groups", 1),
    "weight_format": _WEIGHT_FORMAT,
    "weight_scale": _WEIGHT_SCALE,
}
_CONV_WEIGHT = ParamSpec("(O, KH, KW, I/groups)", "levels")
#: Of accumulators that round.
ROUNDED = {
    "tile": AttrSpec("int", "products added in one step"),
    "drop": AttrSpec("int", "bits that a step's sum loses"),
    "bits": AttrSpec("int", "of the accumulator, two's complement"),
}
_WINDOW = {
    "kernel": AttrSpec("ints", "(height, width)", count=2),
    "stride": AttrSpec("ints", "(vertical, horizontal)", count=2),
    "padding": _PADDING,
}
_SHIFT = AttrSpec("int", "right shift")
_CLIPPED = {
    "rounding": AttrSpec("str", "half_even, half_up or floor", "half_even", SHIFT_ROUNDINGS),
    "lo": AttrSpec("int", "smallest output"),
    "hi": AttrSpec("int", "largest output"),
    "format": _FORMAT,
    "scale": _SCALE,
}
_AFFINE = {
    "multiplier": ParamSpec("(C or 1,)", "integer factor"),
    "offset": ParamSpec("(C or 1,)", "integer offset before the shift"),
}

_OPS = (
    OpSpec(
        "conv",
        "exact integer convolution, zero padding",
        1,
        op_products.infer_conv,
        op_products.run_conv,
        attrs=_CONV,
        params={"weight": _CONV_WEIGHT, "bias": _BIAS},
    ),
    OpSpec(
        "conv_rounded",
        "convolution, zero padding, in an accumulator of fixed point: it begins with the bias; the "
        "sum of `tile` products in order (kh, kw, c), divided by 2^drop and rounded to the nearest "
        "with ties upwards, is added at a time, and it saturates to `bits` signed bits each time",
        1,
        op_products.infer_conv_rounded,
        op_products.run_conv_rounded,
        attrs={**_CONV, **ROUNDED},
        params={"weight": _CONV_WEIGHT, "bias": _BIAS},
    ),
    OpSpec(
        "dense",
        "exact matrix-vector product",
        1,
        op_products.infer_dense,
        op_products.run_dense,
        attrs={"weight_format": _WEIGHT_FORMAT, "weight_scale": _WEIGHT_SCALE},
        params={"weight": ParamSpec("(O, I)", "levels"), "bias": _BIAS},
    ),
    OpSpec(
        "threshold",
        "`base + step * count(x >= t)` over the channel's thresholds; of `-x` where flip is 1",
        1,
        op_activations.infer_threshold,
        op_activations.run_threshold,
        attrs={
            "base": AttrSpec("int", "output below the first threshold", 0),
            "step": AttrSpec("int", "output step per threshold (2 for bipolar)", 1),
            "format": _FORMAT,
            "scale": _SCALE,
        },
        params={
            "thresholds": ParamSpec("(C or 1, T)", "ascending"),
            "flip": ParamSpec("(C or 1,)", "1: compare -x", optional=True),
        },
    ),
    OpSpec(
        "requant",
        "`clip(round_shift(x * multiplier + offset, shift), lo, hi)`",
        1,
        op_activations.infer_requant,
        op_activations.run_requant,
        attrs={"shift": _SHIFT, **_CLIPPED},
        params=_AFFINE,
    ),
    OpSpec(
        "requant_float",
        "`clip(v, lo, hi)`, v being `(x * multiplier + offset) / 2^shift` rounded once, to an "
        "integer of `significant` significant bits, and 0 where it is below `smallest`: a level of "
        "a minifloat",
        1,
        op_activations.infer_requant_float,
        op_activations.run_requant_float,
        attrs={
            "shift": _SHIFT,
            "significant": AttrSpec("int", "mantissa bits and the leading one"),
            "smallest": AttrSpec("int", "smallest magnitude but 0; 0 where there are denormals", 0),
            **_CLIPPED,
        },
        params=_AFFINE,
    ),
    OpSpec(
        "max_pool",
        "maximum over windows; padding never wins",
        1,
        op_images.infer_max_pool,
        op_images.run_max_pool,
        attrs=_WINDOW,
    ),
    OpSpec(
        "flatten",
        "(H, W, C) -> (H*W*C,), channel fastest",
        1,
        op_images.infer_flatten,
        op_images.run_flatten,
    ),
    OpSpec(
        "top_k",
        "indices of the k largest, largest first; of equals the first index",
        1,
        op_images.infer_top_k,
        op_images.run_top_k,
        attrs={"k": AttrSpec("int", "how many", 1)},
    ),
    OpSpec(
        "lookup",
        "`table[x - lo]` of the channel, lo being the input's smallest level",
        1,
        op_activations.infer_lookup,
        op_activations.run_lookup,
        attrs={"format": _FORMAT, "scale": _SCALE},
        params={"table": ParamSpec("(C or 1, hi - lo + 1)", "output levels")},
    ),
    OpSpec(
        "sum_pool",
        "exact sum over windows, zero padding; its scale is the input's divided by the window's "
        "size, so its real value is the average: the division is exact and rounds nowhere",
        1,
        op_images.infer_sum_pool,
        op_images.run_sum_pool,
        attrs=_WINDOW,
    ),
    OpSpec(
        "add",
        "`multipliers[0] * a + multipliers[1] * b`, elementwise: the multipliers bring two scales "
        "to one",
        2,
        op_images.infer_add,
        op_images.run_add,
        attrs={
            "multipliers": AttrSpec("ints", "one integer an operand, not 0", (1, 1), count=2),
            "scale": _SCALE,
        },
    ),
    OpSpec(
        "concat",
        "channels of the first input, then of the second, ...; each part keeps its scale",
        None,
        op_images.infer_concat,
        op_images.run_concat,
    ),
    OpSpec(
        "space_to_depth",
        "(H, W, C) -> (H/b, W/b, b*b*C): channel `(dy*b + dx)*C + c` is that of pixel (dy, dx) "
        "of the block",
        1,
        op_images.infer_space_to_depth,
        op_images.run_space_to_depth,
        attrs={"block": AttrSpec("int", "side of a block")},
    ),
    OpSpec(
        "upsample",
        "each pixel repeated: nearest neighbour",
        1,
        op_images.infer_upsample,
        op_images.run_upsample,
        attrs={"factor": AttrSpec("ints", "(vertical, horizontal)", count=2)},
    ),
)

INTEGER = Dialect("integer", {spec.name: spec for spec in _OPS})
