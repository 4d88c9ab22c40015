# SPDX-License-Identifier: Apache-2.0
"""Operators on images and shapes: pools, resize, pad, and everything that only rearranges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

import numpy as np

from bitwright.interop.onnx.reader import views
from bitwright.interop.onnx.reader.build import Importer
from bitwright.interop.onnx.reader.folding import (
    flattened,
    shape_of,
    squeezed,
    target_shape,
    transposed,
    unsqueezed,
)
from bitwright.interop.onnx.reader.joins import concat
from bitwright.interop.onnx.reader.levels import whole_numbers
from bitwright.interop.onnx.reader.model import OnnxNode
from bitwright.interop.onnx.reader.op_products import window
from bitwright.interop.onnx.reader.values import Const, Pool, Step, Value
from bitwright.ir import IntArray, window_shape

_RANK = 4


def _pool_window(node: OnnxNode, frame: tuple[int, ...]) -> Pool:
    """Kernel, stride and padding of a pool on an image (H, W, ...)."""
    if "kernel_shape" not in node.attrs:
        raise node.error("has no kernel_shape")
    if node.ints("dilations", (1, 1)) != (1, 1):
        raise node.error("is dilated", "use dilation 1")
    return Pool(*window(node, (frame[0], frame[1]), node.ints("kernel_shape", ())), 0)


def _ceiled(
    node: OnnxNode, size: tuple[int, int], pool: Pool, *, may_pad: bool
) -> tuple[int, int, int, int]:
    """The padding that gives what ceil_mode gives."""
    if not node.integer("ceil_mode", 0):
        return pool.padding
    pads = list(pool.padding)
    for axis in range(2):
        room = size[axis] + pads[axis] + pads[axis + 2] - pool.kernel[axis]
        extra = -room % pool.stride[axis]
        # A window that starts in the padding behind the image is left out.
        starts = room + extra
        if extra and starts < size[axis] + pads[axis]:
            if not may_pad:
                raise node.error("rounds its size up (ceil_mode)", "export it with ceil_mode=0")
            pads[axis + 2] += extra
    return (pads[0], pads[1], pads[2], pads[3])


def _placed(low: Importer, value: Value, channels: object, last: bool) -> Value:
    """The value with the shape and order of its new frame."""
    place = channels if isinstance(channels, np.ndarray) else None
    frame = low.frame(value)
    order = views.permuted(frame, place, last)
    shape = views.canonical_shape(frame) if order is None else order.shape
    return replace(value, order=order, shape=shape)


def _max_pool(low: Importer, node: OnnxNode) -> Value:
    last = "channels_last" in node.domain or node.op == "MaxPoolNHWC"
    if len([o for o in node.outputs if o]) > 1:
        raise node.error("returns indices too", "only the maximum has hardware")
    value, place = low.image(low.data(node, 0), node, last)
    return _pooled(low, node, value, place, last, _pool_window(node, low.frame(value)))


def _pooled(
    low: Importer,
    node: OnnxNode,
    value: Value,
    place: object,
    last: bool,
    pool: Pool,
) -> Value:
    height, width, _ = low.frame(value)
    if value.edge and not value.pools and value.codes is None:
        value = low.requantized(value, node) or value
    padding = _ceiled(node, (height, width), pool, may_pad=True)
    pool = replace(pool, padding=padding, after=len(value.steps))
    window_shape((height, width), pool.kernel, pool.stride, pool.padding)
    if (value.direction() >= 0).all() and not value.pools:
        value = low.settled(value, node)
        edge = low.add("max_pool", (value.edge,), node, pool.attrs)
        return _placed(low, replace(value, edge=edge), place, last)
    if not value.edge or value.codes is not None:
        low.settled(value, node)
    return _placed(low, replace(value, pools=(*value.pools, pool)), place, last)


def _global(low: Importer, node: OnnxNode) -> Value:
    value, place = low.image(low.data(node, 0), node)
    size = low.frame(value)[:2]
    kernel = (size[0], size[1])
    make = _pooled if node.op == "GlobalMaxPool" else _averaged
    return make(low, node, value, place, False, Pool(kernel, (1, 1), (0, 0, 0, 0), 0))


def _average_pool(low: Importer, node: OnnxNode) -> Value:
    value, place = low.image(low.data(node, 0), node)
    height, width, _ = low.frame(value)
    pool = _pool_window(node, (height, width))
    pool = replace(pool, padding=_ceiled(node, (height, width), pool, may_pad=False))
    if any(pool.padding) and not node.integer("count_include_pad", 0):
        raise node.error(
            "divides by another number at the border (count_include_pad=0 with padding)",
            "use count_include_pad=1, or no padding",
        )
    return _averaged(low, node, value, place, False, pool)


def _averaged(
    low: Importer, node: OnnxNode, value: Value, place: object, last: bool, pool: Pool
) -> Value:
    """The exact sum; dividing by the window's size is a step for the next quantizer."""
    value, _gain, offset = low.linear(value, node)
    if any(pool.padding) and offset.any():
        raise node.error("pads with real zero, which level 0 does not stand for", "use no padding")
    if prod(pool.kernel) == 1 and pool.stride == (1, 1) and not any(pool.padding):
        return _placed(low, value, place, last)
    edge = low.cached(
        ("sum", value.edge, pool),
        lambda: low.add("sum_pool", (value.edge,), node, pool.attrs),
    )
    # The level is a sum: scaled first, then divided, so that ties stay exact.
    size = np.full(1, float(prod(pool.kernel)))
    steps = (Step("div", (size,)), *value.steps)
    return _placed(low, replace(value, edge=edge, steps=steps), place, last)


def _ints(low: Importer, node: OnnxNode, place: int, name: str) -> tuple[int, ...]:
    """Whole numbers from an input (newer operator sets) or an attribute."""
    if node.has(place):
        return tuple(int(v) for v in np.ravel(low.const(node, place).value))
    return node.ints(name, ())


def _reduce_mean(low: Importer, node: OnnxNode) -> Value:
    value = low.data(node, 0)
    axes = _ints(low, node, 1, "axes")
    places = tuple(sorted(a % max(len(value.shape), 1) for a in axes))
    if len(value.shape) != _RANK or places not in ((2, 3), (1, 2)):
        raise node.error(
            f"averages axes {places} of shape {value.shape}",
            "only the average over both image axes has hardware",
        )
    last = places == (1, 2)
    value, place = low.image(value, node, last)
    size = low.frame(value)[:2]
    pool = Pool((size[0], size[1]), (1, 1), (0, 0, 0, 0), 0)
    value = _averaged(low, node, value, place, last, pool)
    if node.integer("keepdims", 1):
        return value
    order = low.order(value)
    return low.viewed(value, order.reshape(1, -1))


def _quant_avg_pool(low: Importer, node: OnnxNode) -> Value:
    """FINN's QuantAvgPool2d: the sum, shifted right (towards -infinity)."""
    last = node.string("data_layout", "NCHW") == "NHWC"
    value, place = low.image(low.data(node, 0), node, last)
    side, stride = node.integer("kernel", 1), node.integer("stride", 1)
    if not 1 <= side <= min(low.frame(value)[:2]) or stride < 1:
        raise node.error(f"a window of {side} does not fit {low.frame(value)[:2]}")
    ibits, obits = node.integer("ibits", 1), node.integer("obits", 1)
    largest = ((1 << min(max(ibits, 1), 32)) - 1) * side * side
    shift = max(0, largest.bit_length() - obits)
    pool = Pool((side, side), (stride, stride), (0, 0, 0, 0), 0)
    value = _averaged(low, node, value, place, last, pool)
    value = value.then("mul", np.full(1, float(side * side)))
    value = value.then("round").then("div", np.full(1, 2.0**shift)).then("floor")
    return low.tabulated(low.settled(value, node), node)


# -- rearranging --------------------------------------------------------------------------------


def _view(low: Importer, node: OnnxNode) -> Value:
    value = low.data(node, 0)
    order = low.order(value)
    match node.op:
        case "Reshape":
            shape = whole_numbers(np.ravel(low.const(node, 1).value))
            order = order.reshape(target_shape(node, order.shape, shape))
        case "Flatten":
            order = flattened(node, order)
        case "Transpose":
            order = transposed(node, order)
        case "Squeeze" | "Unsqueeze":
            axes = low.constant_at(node, 1)
            move = squeezed if node.op == "Squeeze" else unsqueezed
            try:
                order = move(node, order, None if axes is None else axes.value)
            except ValueError as error:
                raise node.error(f"its axes do not fit shape {value.shape}") from error
        case _:
            order = _blocked(node, order)
    return low.viewed(value, np.ascontiguousarray(order))


def _blocked(node: OnnxNode, order: IntArray) -> IntArray:
    """SpaceToDepth and DepthToSpace as what they are: rearrangements."""
    block = node.integer("blocksize", 0)
    if order.ndim != _RANK or block < 1:
        raise node.error(f"blocks of {block} in shape {order.shape}")
    _, depth, height, width = order.shape
    if node.op == "SpaceToDepth":
        if height % block or width % block:
            raise node.error(f"blocks of {block} do not divide {height} x {width}")
        split = order.reshape(1, depth, height // block, block, width // block, block)
        moved = split.transpose(0, 3, 5, 1, 2, 4)
        return moved.reshape(1, depth * block * block, height // block, width // block)
    if depth % (block * block):
        raise node.error(f"{depth} channels are no multiple of {block} x {block}")
    left = depth // (block * block)
    if node.string("mode", "DCR") == "DCR":
        split = order.reshape(1, block, block, left, height, width).transpose(0, 3, 4, 1, 5, 2)
    else:
        split = order.reshape(1, left, block, block, height, width).transpose(0, 1, 4, 2, 5, 3)
    return split.reshape(1, left, height * block, width * block)


def _pad(low: Importer, node: OnnxNode) -> Value:
    value = low.data(node, 0)
    pads = _ints(low, node, 1, "pads")
    fill = node.real("value", 0.0)
    if node.has(2):
        fill = float(np.ravel(low.const(node, 2).value)[0])
    rank = len(value.shape)
    if node.has(3):
        axes = np.ravel(low.const(node, 3).value).tolist()
        if [axis % rank for axis in axes] != [*range(rank)]:
            raise node.error(f"pads axes {axes}", "give pads for all axes, in their order")
    if len(pads) != 2 * rank or rank != _RANK or any(pads[i] for i in (0, 1, 4, 5)):
        raise node.error(f"pads {pads} of shape {value.shape}: only image axes can be padded")
    if not any(pads):
        return value
    if node.string("mode", "constant") != "constant" or fill != 0 or min(pads) < 0:
        raise node.error("pads with something other than zeros", "use zero padding")
    if max(pads) > 1 << 16:
        raise node.error(f"impossible pads {pads}")
    return replace(value, border=(pads[2], pads[3], pads[6], pads[7]))


def _resize(low: Importer, node: OnnxNode) -> Value:
    if node.string("mode", "nearest") != "nearest":
        raise node.error(
            f"resizes by {node.string('mode', '')} interpolation", "only nearest has hardware"
        )
    value, place = low.image(low.data(node, 0), node)
    value = low.settled(value, node)
    factor = _factor(low, node, value)
    # Up to operator set 10, Resize has no such attributes and two inputs.
    first = len(node.inputs) == 2
    rule = node.string("coordinate_transformation_mode", "asymmetric" if first else "half_pixel")
    rounding = node.string("nearest_mode", "floor" if first else "round_prefer_floor")
    plain = {("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")}
    plain |= {("half_pixel", "round_prefer_ceil"), ("pytorch_half_pixel", "round_prefer_floor")}
    if node.op == "Resize" and (rule, rounding) not in plain:
        raise node.error(
            f"resizes with {rule} and {rounding}", "use asymmetric coordinates and floor"
        )
    edge = low.add("upsample", (value.edge,), node, {"factor": factor})
    return _placed(low, replace(value, edge=edge), place, False)


def _factor(low: Importer, node: OnnxNode, value: Value) -> tuple[int, int]:
    places = (1,) if node.op == "Upsample" or len(node.inputs) == 2 else (2, 3)
    factors: tuple[float, ...] = node.attrs.get("scales", ())
    for index in places:
        if node.has(index):
            array = np.ravel(low.const(node, index).value).astype(np.float64)
            if array.size:
                sizes = index == 3
                if sizes and low.batch > 1 and array[0] == low.batch:
                    array[0] = 1  # of one sample
                factors = tuple(array / np.array(value.shape[: array.size]) if sizes else array)
    whole = tuple(int(f) for f in factors if np.isfinite(f))
    if len(factors) != _RANK or whole[:2] != (1, 1) or whole != factors or min(whole) < 1:
        raise node.error(
            f"resizes by {factors}", "only whole factors of height and width have hardware"
        )
    if max(whole) > 1 << 12:
        raise node.error(f"impossible factors {whole}")
    return whole[2], whole[3]


def _shape(low: Importer, node: OnnxNode) -> Const:
    """With the batch that the file spells out, as the file itself computes with it."""
    shape = low.data(node, 0).shape
    return Const(shape_of(node, (low.batch * shape[0], *shape[1:]) if shape else shape))


HANDLERS: dict[str, Callable[[Importer, OnnxNode], Value | Const]] = {
    **dict.fromkeys(("MaxPool", "MaxPoolNHWC"), _max_pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), _global),
    "AveragePool": _average_pool,
    "ReduceMean": _reduce_mean,
    "QuantAvgPool2d": _quant_avg_pool,
    "Concat": concat,
    "Pad": _pad,
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "Shape": _shape,
    **dict.fromkeys(
        ("Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "SpaceToDepth"), _view
    ),
    "DepthToSpace": _view,
}
