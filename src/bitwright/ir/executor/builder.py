# SPDX-License-Identifier: Apache-2.0
"""A native plan under construction: its steps, its buffers, and where they lie in memory.

Tensors share one arena per worker; a buffer is reused once its last reader is done.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bitwright.ir.executor.alignment import ALIGN, aligned
from bitwright.ir.executor.compiler import Library
from bitwright.ir.executor.layout import COp, CPlan, CTensor, Kind, Op, storage
from bitwright.ir.graph import Graph
from bitwright.ir.placement import first_fit
from bitwright.ir.types import TensorType

Array = NDArray[np.generic]

_TILE_BYTES = 256 * 1024  # what one worker keeps at hand: half of a usual second-level cache
_TILE_MAX = 32


@dataclass(frozen=True)
class View:
    """A tensor of the plan: a buffer seen with a shape."""

    buffer: int
    kind: Kind
    zero: int
    shape: tuple[int, int, int]
    pixel: int


@dataclass
class _Buffer:
    """Bytes per image and the steps between which it is in use."""

    size: int
    first: int
    last: int
    offset: int = 0


@dataclass
class _Step:
    op: COp
    source: View | None
    target: View | None
    other: View | None = None


@dataclass
class NativePlan:
    """A plan ready to run, and everything that must stay alive while it does.

    Attributes:
        kernels: node name -> kernel, for reports and tests.
    """

    plan: CPlan
    ops: ctypes.Array[COp]
    keep: list[Array]
    arena_bytes: int
    tile: int
    kernels: dict[str, str]


@dataclass
class Builder:
    graph: Graph
    native: Library
    only: frozenset[Op] | None
    views: dict[str, View] = field(default_factory=dict)
    buffers: list[_Buffer] = field(default_factory=list)
    steps: list[_Step] = field(default_factory=list)
    keep: list[Array] = field(default_factory=list)
    kernels: dict[str, str] = field(default_factory=dict)
    macs: int = 0

    def buffer(self, size: int) -> int:
        """A new buffer, in use from the next step on."""
        whole = -(-size // ALIGN) * ALIGN
        self.buffers.append(_Buffer(whole, len(self.steps), len(self.steps)))
        return len(self.buffers) - 1

    def view(self, tensor: TensorType) -> View:
        """A new tensor of a graph type."""
        kind, zero = storage(tensor)
        height, width, channels = _image_shape(tensor)
        pixel = channels * kind.size
        buffer = self.buffer(height * width * pixel)
        return View(buffer, kind, zero, (height, width, channels), pixel)

    def address(self, array: Array) -> int:
        """Address of an array, or of an aligned copy, that lives as long as the plan."""
        right = array.flags.c_contiguous and not array.ctypes.data % ALIGN
        kept = array if right else aligned(array)
        self.keep.append(kept)
        return int(kept.ctypes.data)

    def emit(
        self, op: COp, source: View | None, target: View | None, other: View | None = None
    ) -> None:
        """Append a step and note which buffers it uses; ``other`` is a second operand."""
        for view in (source, target, other):
            if view is not None:
                self.buffers[view.buffer].last = len(self.steps)
        self.steps.append(_Step(op, source, target, other))


def _image_shape(tensor: TensorType) -> tuple[int, int, int]:
    if len(tensor.shape) == 1:
        return 1, 1, tensor.shape[0]
    height, width, channels = tensor.shape
    return height, width, channels


def _allocate(buffers: list[_Buffer]) -> int:
    """First-fit offsets for buffers that are in use at the same time; returns the total size."""
    ordered = sorted(buffers, key=lambda b: -b.size)
    places, total = first_fit([b.size for b in ordered], [(b.first, b.last) for b in ordered])
    for buffer, place in zip(ordered, places, strict=True):
        buffer.offset = place
    return total


def _tensor(builder: Builder, view: View, tile: int) -> CTensor:
    buffer = builder.buffers[view.buffer]
    height, width, channels = view.shape
    return CTensor(
        offset=buffer.offset * tile,
        pitch=buffer.size,
        kind=view.kind,
        zero=view.zero,
        h=height,
        w=width,
        c=channels,
        pixel=view.pixel,
    )


def finish(builder: Builder) -> NativePlan:
    total = _allocate(builder.buffers)
    tile = max(1, min(_TILE_MAX, _TILE_BYTES // max(1, total)))
    ops = (COp * len(builder.steps))()
    for index, step in enumerate(builder.steps):
        if step.source is not None:
            step.op.input = _tensor(builder, step.source, tile)
        if step.target is not None:
            step.op.output = _tensor(builder, step.target, tile)
        if step.other is not None:
            step.op.other = _tensor(builder, step.other, tile)
        ops[index] = step.op
    arena = total * tile + ALIGN
    plan = CPlan(
        ops=ops,
        arena=arena,
        n_ops=len(ops),
        tile=tile,
        work=builder.macs,
    )
    return NativePlan(plan, ops, builder.keep, arena, tile, builder.kernels)
