# SPDX-License-Identifier: Apache-2.0
"""One function an operation: integer node -> standard ONNX nodes on levels in float32, exactly."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import GraphError
from bitwright.formats import parse_format
from bitwright.interop.onnx.writer.writer import (
    QONNX_DOMAIN,
    Writer,
    interval_type,
    per_channel,
    qonnx_type,
)
from bitwright.ir import ChannelRange, Node
from bitwright.lower.ranges import compared_range


def _weight_type(node: Node) -> str:
    """The type of the levels: of an uneven format that of the smallest integers holding them."""
    weight_format = parse_format(node.string("weight_format"))
    if weight_format.uniform:
        return weight_format.qonnx_name
    weight = node.params["weight"]
    return interval_type(min(int(weight.min()), 0), int(weight.max()))


#: A name and integers -> the name of a tensor of them.
Hold = Callable[[str, NDArray[np.int64]], str]


def conv(out: Writer, node: Node, weight: str | None = None) -> None:
    """``Conv``; ``weight`` names a tensor that holds the levels already."""
    moved = np.moveaxis(node.params["weight"], 3, 1)
    inputs = [
        node.inputs[0],
        weight or out.levels(f"{node.name}.weight", moved, _weight_type(node)),
    ]
    if "bias" in node.params:
        inputs.append(out.levels(f"{node.name}.bias", node.params["bias"]))
    out.op(
        "Conv",
        inputs,
        node.output,
        node.name,
        kernel_shape=moved.shape[2:],
        strides=node.ints("stride"),
        pads=node.ints("padding"),
        dilations=node.ints("dilation"),
        group=node.integer("groups"),
    )


def dense(out: Writer, node: Node, weight: str | None = None) -> None:
    """``MatMul``, and ``Add`` for a bias."""
    held = weight or out.levels(f"{node.name}.weight", node.params["weight"].T, _weight_type(node))
    if "bias" not in node.params:
        out.op("MatMul", [node.inputs[0], held], node.output, node.name)
        return
    bias, target = node.params["bias"], out.graph.types[node.output]
    lo, hi = target.lo - int(bias.max()), target.hi - int(bias.min())
    given = [node.inputs[0], held]
    product = out.apply(
        "MatMul", given, f"{node.name}.matmul", out.shape(target), interval_type(lo, hi)
    )
    added = out.levels(f"{node.name}.bias", bias)
    out.op("Add", [product, added], node.output, f"{node.name}.add")


def compared(out: Writer, node: Node) -> str:
    """What a threshold node compares: its input, with flipped channels times -1."""
    source, data = out.graph.types[node.inputs[0]], node.inputs[0]
    if "flip" not in node.params or not node.params["flip"].any():
        return data
    sign = per_channel(1 - 2 * node.params["flip"], len(source.shape))
    far = max(abs(source.lo), abs(source.hi))
    given = [data, out.levels(f"{node.name}.sign", sign, "INT2")]
    kind = interval_type(-far, far)
    return out.apply("Mul", given, f"{node.name}.flip", out.shape(source), kind)


def clipped_thresholds(node: Node, seen: ChannelRange) -> NDArray[np.int64]:
    """Thresholds within reach: beyond the input's interval one has no effect, but may not fit
    into float32."""
    reach = compared_range(node, seen)
    thresholds = node.params["thresholds"]
    lo, hi = (
        (np.array([end]) for end in reach.hull)
        if thresholds.shape[0] == 1
        else (reach.lo, reach.hi)
    )
    return np.asarray(np.clip(thresholds, lo[:, np.newaxis], hi[:, np.newaxis] + 1))


def threshold(out: Writer, node: Node, seen: ChannelRange) -> None:
    """QONNX's ``MultiThreshold`` with out_scale = step and out_bias = base."""
    source = out.graph.types[node.inputs[0]]
    data = compared(out, node)
    out.op(
        "MultiThreshold",
        [data, out.levels(f"{node.name}.thresholds", clipped_thresholds(node, seen))],
        node.output,
        node.name,
        domain=QONNX_DOMAIN,
        out_dtype=qonnx_type(out.graph.types[node.output]),
        out_scale=float(node.integer("step")),
        out_bias=float(node.integer("base")),
        data_layout="NCHW" if len(source.shape) == 3 else "NC",
    )


def requant(out: Writer, node: Node) -> None:
    """float64: cast, multiply, add, scale by 2^-shift (exact), round, clip, cast back."""
    shape = out.shape(out.graph.types[node.inputs[0]])
    rank, shift, rounding = len(shape) - 1, node.integer("shift"), node.string("rounding")
    steps: list[tuple[str, NDArray[Any]]] = [
        ("Mul", per_channel(node.params["multiplier"], rank)),
        ("Add", per_channel(node.params["offset"], rank)),
        ("Mul", np.array(2.0**-shift)),
    ]
    if rounding == "half_up":
        steps.append(("Add", np.array(0.5)))
    wide = partial(out.apply, shape=shape, element="DOUBLE")
    value = wide("Cast", [node.inputs[0]], f"{node.name}.cast", to=11)
    for index, (op, operand) in enumerate(steps):
        constant = out.constant(f"{node.name}.k{index}", np.asarray(operand, np.float64))
        value = wide(op, [value, constant], f"{node.name}.{op.lower()}{index}")
    rounded = wide("Round" if rounding == "half_even" else "Floor", [value], f"{node.name}.round")
    ends = out.ends(node.name, node.integer("lo"), node.integer("hi"), np.float64)
    clipped = wide("Clip", [rounded, *ends], f"{node.name}.clip")
    out.op("Cast", [clipped], node.output, node.name, to=1)


def lookup(out: Writer, node: Node) -> None:
    """``Gather`` from the tables of all channels, one behind the other."""
    source = out.graph.types[node.inputs[0]]
    table, rank, shape = node.params["table"], len(source.shape), out.shape(source)
    start = np.arange(len(table)) * table.shape[1] - source.lo
    first = out.levels(f"{node.name}.start", per_channel(start, rank))
    place = out.apply("Add", [node.inputs[0], first], f"{node.name}.add", shape)
    index = out.apply("Cast", [place], f"{node.name}.cast", shape, element="INT64", to=7)
    values = out.levels(f"{node.name}.table", table.ravel())
    out.op("Gather", [values, index], node.output, node.name, axis=0)


def max_pool(out: Writer, node: Node) -> None:
    """``MaxPool``."""
    out.op("MaxPool", [node.inputs[0]], node.output, node.name, **_window(node))


def sum_pool(out: Writer, node: Node, hold: Hold | None = None) -> None:
    """``AveragePool`` times the window's size where that is exact in float32 (powers of two); else
    a depthwise ``Conv`` of ones, which ``hold`` makes a tensor of; None: floats."""
    size = int(np.prod(node.ints("kernel")))
    target = out.graph.types[node.output]
    if size & (size - 1) == 0:
        options = {"count_include_pad": 1, **_window(node)}
        name, shape = f"{node.name}.mean", out.shape(target)
        mean = out.apply("AveragePool", [node.inputs[0]], name, shape, "FLOAT32", **options)
        factor = out.levels(f"{node.name}.size", np.array(size, np.int64))
        out.op("Mul", [mean, factor], node.output, f"{node.name}.mul")
        return
    ones = np.ones((target.channels, 1, *node.ints("kernel")), np.int64)
    held = (hold or out.levels)(f"{node.name}.ones", ones)
    options = {"group": target.channels, **_window(node)}
    out.op("Conv", [node.inputs[0], held], node.output, node.name, **options)


def _window(node: Node) -> dict[str, Any]:
    return {
        "kernel_shape": node.ints("kernel"),
        "strides": node.ints("stride"),
        "pads": node.ints("padding"),
    }


def flatten(out: Writer, node: Node) -> None:
    """``Transpose`` to NHWC, so that dense layers keep their columns, and ``Flatten``."""
    source = out.graph.types[node.inputs[0]]
    data = node.inputs[0]
    if len(source.shape) == 3 and source.size != source.channels:
        shape, kind = (out.batch, *source.shape), qonnx_type(source)
        name = f"{node.name}.transpose"
        data = out.apply("Transpose", [data], name, shape, kind, perm=(0, 2, 3, 1))
    out.op("Flatten", [data], node.output, node.name, axis=1)


def top_k(out: Writer, node: Node) -> None:
    """``ArgMax``, or ``TopK`` for several: of equals the first index, in both. ``Cast`` to the
    floats that every other node reads, if one does.
    """
    k, data, label = node.integer("k"), node.inputs[0], node.output
    if not out.is_label(label):
        shape = out.shape(out.graph.types[label])
        label = out.declare(f"{node.name}.index", shape, "", "INT64")
    if k == 1:
        out.op("ArgMax", [data], label, node.name, axis=1, keepdims=1)
    else:
        kind = out.graph.types[data]
        values = out.declare(f"{node.name}.values", (out.batch, k), qonnx_type(kind))
        count = out.constant(f"{node.name}.k", np.array([k], np.int64))
        out.op("TopK", [data, count], [values, label], node.name, axis=1)
    if label != node.output:
        out.op("Cast", [label], node.output, f"{node.name}.cast", to=1)


def add(out: Writer, node: Node) -> None:
    """``Add`` of operands times their multipliers."""
    operands = []
    for index, (edge, factor) in enumerate(zip(node.inputs, node.ints("multipliers"), strict=True)):
        if factor == 1:
            operands.append(edge)
            continue
        kind = out.graph.types[edge]
        lo, hi = sorted((factor * kind.lo, factor * kind.hi))
        given = [edge, out.levels(f"{node.name}.factor{index}", np.array(factor, np.int64))]
        name, range_type = f"{node.name}.mul{index}", interval_type(lo, hi)
        operands.append(out.apply("Mul", given, name, out.shape(kind), range_type))
    out.op("Add", operands, node.output, node.name)


def concat(out: Writer, node: Node) -> None:
    """``Concat`` of channels."""
    out.op("Concat", node.inputs, node.output, node.name, axis=1)


def space_to_depth(out: Writer, node: Node) -> None:
    """``SpaceToDepth``: the same order of channels."""
    out.op(
        "SpaceToDepth", [node.inputs[0]], node.output, node.name, blocksize=node.integer("block")
    )


def upsample(out: Writer, node: Node) -> None:
    """``Resize``, nearest."""
    scales = np.array((1, 1, *node.ints("factor")), np.float32)
    inputs = [
        node.inputs[0],
        out.constant(f"{node.name}.roi", np.zeros(0, np.float32)),
        out.constant(f"{node.name}.scales", scales),
    ]
    rule = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    out.op("Resize", inputs, node.output, node.name, mode="nearest", **rule)


SIMPLE: dict[str, Callable[[Writer, Node], None]] = {
    function.__name__: function
    for function in (
        *(conv, dense, requant, lookup, max_pool, sum_pool),
        *(flatten, top_k, add, concat, space_to_depth, upsample),
    )
}


def simple(out: Writer, node: Node) -> None:
    """Write a node whose form is the same in every dialect of ONNX.

    Raises:
        GraphError: it has none.
    """
    if node.op == "requant_float":
        raise GraphError(
            f"{node.string('format')} activations have no exact ONNX form: its operators cannot "
            "round integers to a float's mantissa",
            where=node.name,
            hint="use an integer format for the activations",
        )
    if node.op not in SIMPLE:
        raise GraphError(f"{node.op} has no ONNX form", where=node.name)
    SIMPLE[node.op](out, node)
