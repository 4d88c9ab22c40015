# SPDX-License-Identifier: Apache-2.0
"""Freezing of what joins, averages or rearranges tensors, and of images' borders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from torch import fx, nn

from bitwright.base.errors import ModelError
from bitwright.quantize.frozen_joins import (
    NO_BORDER,
    Border,
    IntegerAdd,
    IntegerConcat,
    IntegerSumPool2d,
    PaddedMaxPool2d,
    SpaceToDepth,
    Upsample,
)
from bitwright.quantize.joins import GlobalAverage, QuantAdd, Rearrange, channel_major, shuffled
from bitwright.quantize.op_checks import pair
from bitwright.quantize.walk import Edge, Walk, broken, each


def add(walk: Walk, node: fx.Node, module: QuantAdd, first: Edge, second: Edge) -> Edge:
    """Levels of one scale each -> the exact sum, on the grid the multipliers make."""
    path = str(node.target)
    for edge in (first, second):
        if not edge.is_common or not module.bound:
            raise broken(path, f"the operand from {edge.source} is not quantized")
    if first.shape != second.shape:
        raise ModelError(
            f"the operands have shapes {first.shape} and {second.shape}; one is stretched over "
            "the other",
            where=path,
            hint="add tensors of equal shape only",
        )
    found = module.multipliers()
    factors = (found.first, module.sign * found.second)
    frozen = IntegerAdd(factors, (first.interval, second.interval), found.unit, path)
    new = walk.emit(path, frozen, first.node, second.node)
    unit, zero = np.full(1, found.unit), np.zeros(1)
    return Edge(new, unit, zero, frozen.lo, frozen.hi, path, first.shape)


def concat(walk: Walk, node: fx.Node, module: nn.Module, *parts: Edge) -> Edge:
    """Levels -> levels; one scale if all parts have the same, else one a channel."""
    path = str(node.target)
    for edge in parts:
        if not edge.has_levels:
            raise broken(path, f"the part from {edge.source} is not quantized")
        if not edge.shape:
            walk.image(edge, path)
    frozen = IntegerConcat([edge.interval for edge in parts], path)
    new = walk.emit(path, frozen, *(edge.node for edge in parts))
    gain = np.concatenate([each(edge.gain, edge.shape[0]) for edge in parts])
    if all(edge.gain.size == 1 and edge.gain == parts[0].gain for edge in parts):
        gain = parts[0].gain
    shape = (sum(edge.shape[0] for edge in parts), *parts[0].shape[1:])
    return Edge(new, gain, np.zeros(1), frozen.lo, frozen.hi, path, shape)


def average(walk: Walk, node: fx.Node, module: nn.Module, edge: Edge) -> Edge:
    """Levels -> exact sums over windows, whose gain is divided by the window's size."""
    path = str(node.target)
    if not edge.has_levels:
        raise broken(path, f"what it averages, from {edge.source}, is not quantized")
    _, height, width = walk.image(edge, path)
    kernel, stride, border = _window(module, (height, width), path)
    total = added(border, edge.border)
    frozen = IntegerSumPool2d(kernel, stride, total, edge.interval, path)
    new = walk.emit(path, frozen, edge.node)
    shape = walk.shapes.get(node, ())
    if isinstance(module, GlobalAverage) and not module.keep:
        new = walk.emit(f"{path}_flatten", nn.Flatten(), new)
    gain = edge.gain / frozen.count
    return Edge(new, gain, np.zeros(1), frozen.lo, frozen.hi, path, shape)


def _window(
    module: nn.Module, size: tuple[int, int], path: str
) -> tuple[tuple[int, int], tuple[int, int], Border]:
    """Kernel, stride and border of an average pool over an image of this size."""
    if isinstance(module, nn.AvgPool2d):
        kernel, stride = _ints(module.kernel_size), _ints(module.stride)
        return kernel, stride, _even(module.padding)
    target = (1, 1) if isinstance(module, GlobalAverage) else pair(module.output_size)
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


def max_pool(walk: Walk, node: fx.Node, pool: nn.MaxPool2d, edge: Edge) -> Edge:
    """Done at once where the gain is positive, else behind the activation."""
    path = str(node.target)
    if any(edge.border):
        # Zeros may win a maximum; the plan has made sure that no level is below them.
        border = added(_even(pool.padding), edge.border)
        frozen: nn.Module = PaddedMaxPool2d(
            _ints(pool.kernel_size), _ints(pool.stride), border, path
        )
    else:
        frozen = nn.MaxPool2d(pool.kernel_size, pool.stride, pool.padding)
    rising = bool((edge.gain > 0).all())
    return _moved(walk, node, frozen, edge, settled=rising)


def upsample(walk: Walk, node: fx.Node, layer: nn.Upsample, edge: Edge) -> Edge:
    vertical, horizontal = (int(f) for f in pair(layer.scale_factor))
    return _moved(walk, node, Upsample((vertical, horizontal), str(node.target)), edge)


def rearranged(walk: Walk, node: fx.Node, layer: nn.Module, edge: Edge) -> Edge:
    """Space to depth, channel shuffles."""
    path = str(node.target)
    channels, height, width = walk.image(edge, path)
    if edge.gain.size != 1 or edge.offset.size != 1 or edge.pending:
        raise broken(path, "it moves channels that have a scale each")
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
    frozen = SpaceToDepth(block, order or tuple(range(count)), path)
    return _moved(walk, node, frozen, edge)


def _moved(walk: Walk, node: fx.Node, frozen: nn.Module, edge: Edge, settled: bool = True) -> Edge:
    path, shape = str(node.target), walk.shapes.get(node, ())
    if settled and not edge.pending and edge.function is None:
        new = walk.emit(path, frozen, edge.node)
        return replace(edge, node=new, shape=shape, border=NO_BORDER)
    return replace(edge, pending=(*edge.pending, (path, frozen)), shape=shape, border=NO_BORDER)


def padded(walk: Walk, node: fx.Node, layer: nn.ZeroPad2d, edge: Edge) -> Edge:
    """Kept aside for the layer behind."""
    if not edge.has_levels:
        raise broken(str(node.target), "what it pads is not quantized")
    left, right, top, bottom = (*layer.padding, 0, 0)[:4]
    border = added(edge.border, (top, left, bottom, right))
    return replace(edge, border=border, shape=walk.shapes.get(node, ()))


def added(first: Border, second: Border) -> Border:
    """The border that two borders make together."""
    top, left, bottom, right = (a + b for a, b in zip(first, second, strict=True))
    return top, left, bottom, right


def _ints(value: int | tuple[int, ...]) -> tuple[int, int]:
    vertical, horizontal = pair(value)
    return int(vertical), int(horizontal)


def _even(padding: int | tuple[int, ...]) -> Border:
    vertical, horizontal = _ints(padding)
    return vertical, horizontal, vertical, horizontal
