# SPDX-License-Identifier: Apache-2.0
"""What joins, averages or rearranges tensors, and borders of images, in integers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from torch import fx, nn

from bitwright.base.errors import ModelError
from bitwright.ir import Attr
from bitwright.quantize.integers.affine import (
    NO_BORDER,
    AffineValue,
    Border,
    Context,
    Pending,
    added,
    each,
    even_border,
    pair,
    unquantized,
)
from bitwright.quantize.integers.order import of_blocks, of_concat, of_flatten, same
from bitwright.quantize.joins import GlobalAverage, QuantAdd, Rearrange, channel_major, shuffled


def add(
    context: Context, node: fx.Node, module: QuantAdd, first: AffineValue, second: AffineValue
) -> AffineValue:
    """Levels of one scale each -> the exact sum, on the grid that the multipliers make."""
    path = str(node.target)
    for value in (first, second):
        if not value.is_common or not module.bound:
            raise unquantized(path, f"the operand from {value.source} is not quantized")
    if first.shape != second.shape:
        raise ModelError(
            f"the operands have shapes {first.shape} and {second.shape}; one is stretched over "
            "the other",
            where=path,
            hint="add tensors of equal shape only",
        )
    if not same(first.order, second.order):
        first = context.restored(first, f"{path}_in0")
        second = context.restored(second, f"{path}_in1")
    found = module.multipliers()
    attrs: dict[str, Attr] = {
        "multipliers": (found.first, module.sign * found.second),
        "scale": (float(found.unit),),
    }
    edge = context.add("add", path, (first, second), attrs)
    gain = np.full(1, found.unit)
    return AffineValue(edge, gain, np.zeros(1), path, first.shape, first.order)


def concat(context: Context, node: fx.Node, module: nn.Module, *parts: AffineValue) -> AffineValue:
    """Levels -> levels; one scale if all parts have the same, else one a channel."""
    path = str(node.target)
    for value in parts:
        if not value.has_levels:
            raise unquantized(path, f"the part from {value.source} is not quantized")
        if not value.shape:
            context.image(value, path)
    channels = [value.shape[0] for value in parts]
    gain = np.concatenate(
        [each(value.gain, count) for value, count in zip(parts, channels, strict=True)]
    )
    if all(value.gain.size == 1 and value.gain == parts[0].gain for value in parts):
        gain = parts[0].gain
    return AffineValue(
        context.add("concat", path, parts, {}),
        gain,
        np.zeros(1),
        path,
        (sum(channels), *parts[0].shape[1:]),
        of_concat([value.order for value in parts], channels),
    )


def average(context: Context, node: fx.Node, module: nn.Module, value: AffineValue) -> AffineValue:
    """Levels -> exact sums over windows, whose gain is divided by the window's size."""
    path = str(node.target)
    if not value.has_levels:
        raise unquantized(path, f"what it averages, from {value.source}, is not quantized")
    _, height, width = context.image(value, path)
    kernel, stride, border = _window(module, (height, width), path)
    attrs: dict[str, Attr] = {
        "kernel": kernel,
        "stride": stride,
        "padding": added(border, value.border),
    }
    made = AffineValue(
        context.add("sum_pool", path, value, attrs),
        value.gain / (kernel[0] * kernel[1]),
        np.zeros(1),
        path,
        context.shape_behind(node),
        value.order,
    )
    if isinstance(module, GlobalAverage) and not module.keep:
        made = replace(made, edge=context.add("flatten", f"{path}_flatten", made, {}))
    return made


def _window(
    module: nn.Module, size: tuple[int, int], path: str
) -> tuple[tuple[int, int], tuple[int, int], Border]:
    """Kernel, stride and border of an average pool over an image of this size."""
    if isinstance(module, nn.AvgPool2d):
        return pair(module.kernel_size), pair(module.stride), even_border(module.padding)
    target = (1, 1) if isinstance(module, GlobalAverage) else module.output_size
    target = target if isinstance(target, tuple) else (target, target)
    wanted = tuple(s if t is None else int(t) for s, t in zip(size, target, strict=True))
    if any(s % t for s, t in zip(size, wanted, strict=True)):
        raise ModelError(
            f"an image of {size[0]} x {size[1]} does not divide into {wanted[0]} x {wanted[1]} "
            "equal windows",
            where=path,
            hint="use nn.AdaptiveAvgPool2d(1), or an nn.AvgPool2d",
        )
    window = (size[0] // wanted[0], size[1] // wanted[1])
    return window, window, NO_BORDER


def max_pool(
    context: Context, node: fx.Node, pool: nn.MaxPool2d, value: AffineValue
) -> AffineValue:
    """Done at once where the gain is positive, else behind the activation.

    Zeros of a border may win a maximum; the plan has made sure that no level is below them.
    """
    attrs: dict[str, Attr] = {
        "kernel": pair(pool.kernel_size),
        "stride": pair(pool.stride),
        "padding": added(even_border(pool.padding), value.border),
    }
    rising = bool((value.gain > 0).all())
    return _moved(context, node, "max_pool", attrs, value, at_once=rising)


def upsample(
    context: Context, node: fx.Node, layer: nn.Upsample, value: AffineValue
) -> AffineValue:
    """Each pixel repeated."""
    return _moved(context, node, "upsample", {"factor": pair(layer.scale_factor)}, value)


def rearranged(
    context: Context, node: fx.Node, layer: nn.Module, value: AffineValue
) -> AffineValue:
    """Space to depth, channel shuffles: a change of order, and of blocks of pixels."""
    path = str(node.target)
    channels, height, width = context.image(value, path)
    if value.gain.size != 1 or value.offset.size != 1 or value.pending:
        raise unquantized(path, "it moves channels that have a scale each")
    if isinstance(layer, Rearrange):
        block, order = layer.block, layer.order
    elif isinstance(layer, nn.PixelUnshuffle):
        block = int(layer.downscale_factor)
        order = channel_major(block, channels)
    else:
        block, order = 1, shuffled(int(layer.groups), channels)
    count = block * block * channels
    if height % block or width % block or (order and len(order) != count):
        raise ModelError(
            f"blocks of {block} do not fit an image of {channels} x {height} x {width}",
            where=path,
            hint="choose an input size that the blocks divide",
        )
    moved = value
    if block > 1:
        moved = _moved(context, node, "space_to_depth", {"block": block}, value)
    placed = of_blocks(value.order, channels, block, order or tuple(range(count)))
    return replace(moved, shape=context.shape_behind(node), order=placed)


def _moved(
    context: Context,
    node: fx.Node,
    op: str,
    attrs: Mapping[str, Attr],
    value: AffineValue,
    at_once: bool = True,
) -> AffineValue:
    path, shape = str(node.target), context.shape_behind(node)
    if at_once and not value.pending and value.function is None:
        edge = context.add(op, path, value, attrs)
        return replace(value, edge=edge, shape=shape, border=NO_BORDER)
    pending = (*value.pending, Pending(op, path, attrs))
    return replace(value, pending=pending, shape=shape, border=NO_BORDER)


def flatten(context: Context, node: fx.Node, layer: nn.Flatten, value: AffineValue) -> AffineValue:
    """(C, H, W) -> a vector: here in the order (H, W, C)."""
    path = str(node.target)
    if len(value.shape) == 1:
        return value
    if value.gain.size != 1 or value.offset.size != 1 or value.pending:
        raise ModelError(
            "it flattens channels that have a scale each",
            where=path,
            hint="put the batch norm and activation before the flatten",
        )
    context.image(value, path)
    order = of_flatten(value.order, value.shape)
    edge = context.add("flatten", path, value, {})
    return replace(value, edge=edge, shape=context.shape_behind(node), order=order)


def padded(context: Context, node: fx.Node, layer: nn.ZeroPad2d, value: AffineValue) -> AffineValue:
    """Kept aside for the layer behind."""
    if not value.has_levels:
        raise unquantized(str(node.target), "what it pads is not quantized")
    left, right, top, bottom = (*layer.padding, 0, 0)[:4]
    border = added(value.border, (top, left, bottom, right))
    return replace(value, border=border, shape=context.shape_behind(node))
