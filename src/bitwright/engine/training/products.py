# SPDX-License-Identifier: Apache-2.0
"""A product of a layer as programs: its groups of channels, and of an input gradient its phases.

With a stride s the gradient of the input is s x s convolutions, one for every place of a pixel
between two steps: each has the taps of the kernel that meet there, so no zero is ever multiplied.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product as pairs_of
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import ModelError
from bitwright.engine.checker import check_program
from bitwright.engine.config import EngineConfig
from bitwright.engine.timing import OutsideMemory, simulate
from bitwright.engine.training.gradient import Gradient
from bitwright.engine.training.program import Pair, Program, Window
from bitwright.engine.training.sliding import Sliding
from bitwright.low_precision.costs.network import LayerWork
from bitwright.quantize.spec import Product

Levels = NDArray[Any]
#: Widest operands, and values of one digit: an operand of more than 8 bits is several.
_WIDEST, _DIGIT, _RADIX = 16, 8, 256


@dataclass(frozen=True)
class _Phase:
    """Taps of one axis that meet at every ``step``-th place from ``start`` on.

    Attributes:
        taps: of the kernel, in the order in which the gradient is read.
        padding, dilation: of the convolution with these taps; size: of its result.
    """

    start: int
    step: int
    taps: tuple[int, ...]
    padding: int
    dilation: int
    size: int


@dataclass(frozen=True)
class TrainingProgram:
    """A part of a product.

    Attributes:
        product: of which.
        program: that computes it.
        group: of channels, of so many ``groups``.
        phases: of an input gradient, down and across; else None.
        flat: the images of a linear layer are the pixels of one.
    """

    product: Product
    program: Program
    group: int
    groups: int
    phases: tuple[_Phase, _Phase] | None = None
    flat: bool = False

    def operands(self, left: Levels, right: Levels) -> tuple[Levels, Levels]:
        """Its operands, of those of the layer's product in few bits (int8)."""
        weights_axis = 1 if self.product is Product.GRAD_WEIGHT else 0
        left = np.split(left, self.groups, 1)[self.group]
        right = np.split(right, self.groups, weights_axis)[self.group]
        if self.phases is not None:
            down, across = self.phases
            right = right[:, :, down.taps][:, :, :, across.taps].transpose(1, 0, 2, 3)
        if self.flat:
            left = left.transpose(2, 1, 3, 0)
        return left, right

    def put(self, sums: Levels, out: Levels) -> None:
        """Its part of the product's result."""
        if self.flat:
            sums = sums.transpose(3, 1, 2, 0)
        axis = 0 if self.product is Product.GRAD_WEIGHT else 1
        mine = np.split(out, self.groups, axis)[self.group]
        if self.phases is None:
            mine += sums
        else:
            down, across = self.phases
            mine[:, :, down.start :: down.step, across.start :: across.step] += sums


def training_programs(
    work: LayerWork, product: Product, config: EngineConfig, shift: int | None = None
) -> list[TrainingProgram]:
    """The programs of a product, to be run one after the other.

    Args:
        shift: of forward products and input gradients whose results leave in 8 bits as
            ``round(sum * 2^-shift)``; None: exact sums.

    Raises:
        ModelError: the layer does not fit the engine; says which memory.
    """
    try:
        return list(_programs(work, product, config, shift))
    except ModelError as error:
        raise ModelError(
            f"the {product.value} of {work.layer!r}: {error.message}",
            where=error.where,
            hint=error.hint,
        ) from error


def _programs(
    work: LayerWork, product: Product, config: EngineConfig, shift: int | None
) -> Iterator[TrainingProgram]:
    images, groups = work.input[0], work.groups
    size, out, kernel = (_pair(shape[2:]) for shape in (work.input, work.output, work.weight))
    channels, kernels = work.weight[1], work.weight[0] // groups
    moves = (work.stride, work.dilation, work.padding)
    window = Window(images, channels, size, kernels, kernel, out, *moves)
    if product is Product.GRAD_WEIGHT:
        gradient = Gradient(window, config)
        for group in range(groups):
            yield TrainingProgram(product, gradient, group, groups)
        return
    flat = size == out == kernel == (1, 1)
    if product is Product.FORWARD:
        sliding = Sliding(_flattened(window) if flat else window, config, shift)
        for group in range(groups):
            yield TrainingProgram(product, sliding, group, groups, flat=flat)
        return
    axes = [
        list(_phases(size[a], kernel[a], work.stride[a], work.dilation[a], work.padding[a]))
        for a in (0, 1)
    ]
    for down, across in pairs_of(*axes):
        window = Window(
            images, kernels, out, channels, (len(down.taps), len(across.taps)),
            (down.size, across.size), (1, 1), (down.dilation, across.dilation),
            (down.padding, across.padding),
        )  # fmt: skip
        sliding = Sliding(_flattened(window) if flat else window, config, shift)
        for group in range(groups):
            yield TrainingProgram(product, sliding, group, groups, (down, across), flat)


def _phases(size: int, kernel: int, stride: int, dilation: int, padding: int) -> Iterator[_Phase]:
    """The phases of an axis that any tap meets: input pixel i meets output (i + p - k d) / s."""
    for start in range(min(stride, size)):
        taps = [k for k in range(kernel) if (start + padding - k * dilation) % stride == 0]
        if not taps:
            continue
        taps.reverse()
        reads = [(start + padding - k * dilation) // stride for k in taps]
        step = reads[1] - reads[0] if len(reads) > 1 else 1
        yield _Phase(
            start, stride, tuple(taps), -reads[0], step, -(-(size - start) // stride)
        )  # fmt: skip


def product_cycles(
    work: LayerWork,
    product: Product,
    config: EngineConfig,
    memory: OutsideMemory,
    shift: int | None = None,
) -> int:
    """Cycles of the programs of a product of operands of up to 8 bits, one after the other.

    Args:
        memory: behind the engine's port.
        shift: as `training_programs` takes it.

    Raises:
        ModelError: the layer does not fit the engine.
    """
    known: dict[int, int] = {}  # the groups of a phase share their program
    total = 0
    for part in training_programs(work, product, config, shift):
        program = part.program
        if id(program) not in known:
            check_program(program.program, config, program.words)
            size = program.words * config.lanes
            known[id(program)] = int(simulate(program.program, config, memory, size).cycles[0])
        total += known[id(program)]
    return total


def digit_count(bits: int) -> int:
    """Digits of 8 bits that the engine takes integers of so many bits apart into."""
    return -(-bits // _DIGIT)


def multiply(
    work: LayerWork, product: Product, left: Levels, right: Levels, config: EngineConfig
) -> Levels:
    """A product by the emulator: the exact sums, int64.

    Args:
        left, right: integers of up to 16 bits, in the order in which `Product` names them. One of
            more than 8 bits is multiplied in digits of 8.

    Raises:
        ModelError: an operand is wider, or the layer does not fit.
    """
    programs = training_programs(work, product, config)
    shape = {
        Product.FORWARD: work.output,
        Product.GRAD_INPUT: work.input,
        Product.GRAD_WEIGHT: work.weight,
    }[product]
    out = np.zeros(shape, np.int64)
    for (a, x), (b, y) in pairs_of(enumerate(digits(left)), enumerate(digits(right))):
        found = np.zeros(shape, np.int64)
        for part in programs:
            part.put(part.program.emulated(*part.operands(x, y)), found)
        out += found * _RADIX ** (a + b)
    return out


def digits(levels: Levels) -> list[Levels]:
    """Integers as digits of -128 .. 127, the lowest first: ``sum of digit[i] * 256^i``.

    Raises:
        ModelError: they have more than 16 bits.
    """
    rest = np.asarray(levels).astype(np.int64)
    found: list[Levels] = []
    if rest.size and not -(1 << (_WIDEST - 1)) <= rest.min() <= rest.max() < 1 << (_WIDEST - 1):
        raise ModelError(
            f"operands of {rest.min()} .. {rest.max()}: the engine multiplies up to 16 bits",
            hint="take a level of 4 to 16 bits",
        )
    while not found or rest.any():
        low = (rest + _RADIX // 2) % _RADIX - _RADIX // 2
        found.append(low.astype(np.int8))
        rest = (rest - low) // _RADIX
    return found


def _flattened(window: Window) -> Window:
    """The images of a linear layer side by side, as the pixels of one."""
    wide = (1, window.images)
    return replace(window, images=1, size=wide, out=wide, padding=(0, 0))


def _pair(values: tuple[int, ...]) -> Pair:
    height, width = values
    return height, width
