# SPDX-License-Identifier: Apache-2.0
"""Where torch's channels are in a lowered graph.

Rearrangements of channels cost nothing in hardware if the consumers' weights are permuted instead.
An *order* says which index on torch's axis 1 each element of our last axis has; None: the same.
`place` says what each frozen module does to the orders of its operands, and which of these it needs
restored; lowering and comparison both follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import nn

from bitwright.ir import IntArray
from bitwright.quantize.frozen import (
    AffineActivation,
    IntegerConv2d,
    IntegerLinear,
    QuantizeInput,
    ShiftActivation,
)
from bitwright.quantize.frozen_float import FloatActivation
from bitwright.quantize.frozen_joins import (
    IntegerAdd,
    IntegerConcat,
    IntegerSumPool2d,
    LookupActivation,
    PaddedMaxPool2d,
    SpaceToDepth,
    ThresholdActivation,
    Upsample,
)

Order = IntArray | None
_IMAGE = 3
_KEEPING = (
    AffineActivation,
    ShiftActivation,
    FloatActivation,
    ThresholdActivation,
    LookupActivation,
    IntegerSumPool2d,
    PaddedMaxPool2d,
    Upsample,
    nn.MaxPool2d,
)
_NEW = (QuantizeInput, IntegerLinear)
#: The modules of a frozen model, `Dequantize` apart.
KNOWN = (*_KEEPING, *_NEW, IntegerConv2d, IntegerAdd, IntegerConcat, SpaceToDepth, nn.Flatten)


@dataclass(frozen=True)
class Placement:
    """What a module does to orders.

    Attributes:
        order: of its result.
        restore: for each operand, whether it must be brought into torch's order first.
    """

    order: Order
    restore: tuple[bool, ...]


def place(
    module: nn.Module, orders: Sequence[Order], shapes: Sequence[tuple[int, ...]]
) -> Placement:
    """The placement of one frozen module.

    Args:
        orders: of the operands.
        shapes: of one sample of each operand, as torch has it: (C, H, W) or (C,).
    """
    none = (False,) * len(orders)
    if isinstance(module, _NEW):
        return Placement(None, none)
    if isinstance(module, IntegerConv2d):
        return _conv(module, orders[0])
    if isinstance(module, IntegerAdd):
        if _same(orders[0], orders[1]):
            return Placement(orders[0], none)
        return Placement(None, tuple(order is not None for order in orders))
    if isinstance(module, IntegerConcat):
        return Placement(_concat(orders, [shape[0] for shape in shapes]), none)
    if isinstance(module, SpaceToDepth):
        return Placement(_blocks(module, orders[0], shapes[0][0]), none)
    if isinstance(module, nn.Flatten):
        return Placement(_flatten(orders[0], shapes[0]), none)
    return Placement(orders[0], none)


def nhwc_order(shape: tuple[int, int, int]) -> IntArray:
    """For an (H, W, C) image flattened: the index of each element in torch's flat (C, H, W)."""
    height, width, channels = shape
    places = np.arange(height * width * channels, dtype=np.int64)
    return places.reshape(channels, height, width).transpose(1, 2, 0).ravel()


def straight(order: IntArray) -> Order:
    """None where an order changes nothing."""
    return None if np.array_equal(order, np.arange(len(order))) else order


def _same(first: Order, second: Order) -> bool:
    if first is None or second is None:
        return first is second
    return np.array_equal(first, second)


def _full(order: Order, channels: int) -> IntArray:
    return np.arange(channels, dtype=np.int64) if order is None else order


def _conv(module: IntegerConv2d, order: Order) -> Placement:
    if order is None or module.groups == 1:
        return Placement(None, (False,))
    blocks = group_blocks(module, order)
    if blocks is None:
        return Placement(None, (True,))
    rows = module.weight.shape[0] // module.groups
    result = (blocks[:, np.newaxis] * rows + np.arange(rows)).ravel()
    return Placement(straight(result), (False,))


def group_blocks(module: IntegerConv2d, order: IntArray) -> IntArray | None:
    """For each of our groups of channels torch's group, if the order keeps groups together."""
    groups = order.reshape(module.groups, -1) // (len(order) // module.groups)
    return groups[:, 0] if bool((groups == groups[:, :1]).all()) else None


def _concat(orders: Sequence[Order], channels: Sequence[int]) -> Order:
    if all(order is None for order in orders):
        return None
    starts = np.concatenate([[0], np.cumsum(channels)[:-1]])
    parts = zip(orders, channels, starts, strict=True)
    return straight(np.concatenate([_full(order, count) + start for order, count, start in parts]))


def _blocks(module: SpaceToDepth, order: Order, channels: int) -> Order:
    inner = _full(order, channels)
    places = np.arange(module.block**2)[:, np.newaxis] * channels
    standard = (places + inner).ravel()
    # Torch's channel j is standard channel order[j], so standard channel k is at argsort(order)[k].
    return straight(np.argsort(np.asarray(module.order, dtype=np.int64))[standard])


def _flatten(order: Order, shape: tuple[int, ...]) -> Order:
    if len(shape) != _IMAGE:
        return order
    channels, height, width = shape
    pixels = np.arange(height * width, dtype=np.int64)[:, np.newaxis]
    return straight((_full(order, channels) * (height * width) + pixels).ravel())
