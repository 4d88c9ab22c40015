# SPDX-License-Identifier: Apache-2.0
"""Products of quantized operands with floating-point multipliers, exact because that is proven.

Sums of integers are exact in float32, in whatever order, as long as no partial sum can exceed 2^24.
Two bounds show it: K products of at most ``a b`` each, or, where that is too weak, the product of
the norms of the two vectors (Cauchy-Schwarz, which holds for every part of the sum, too). A product
with larger sums is cut: along the axis that it sums over, or its operands into digits (an integer
of 16 bits is ``256 high + low``); the parts are exact in float32 and added in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product as pairs_of
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from bitwright.low_precision.arithmetic.geometry import Engine, Geometry, Product, Size
from bitwright.low_precision.arithmetic.operands import Operand, scaled
from bitwright.low_precision.arithmetic.product_kernels import most_squares

#: Integers up to this are float32 numbers.
EXACT = 1 << 24
#: Multiplications that a call of a convolution costs beside its own.
_CALL = 1 << 21
_MOST_DIGITS = 3
#: Into how many parts a product is cut whose sums are small though its words are not.
_MOST_PARTS = 8
#: Bits of both operands together up to which sums have a chance to be that small.
_WORTH_NORMS = 20
#: Exponents up to this leave sums of integers normal numbers of float32, before and behind.
_PLAIN = 100


class EmulatedEngine(Engine):
    """The products on floating-point multipliers. Any geometry, format and device; formats that are
    no integers are multiplied in float32 as they are.
    """

    name = "emulated"

    def __init__(self) -> None:
        inputs, gradients, weights = _Buffer(), _Buffer(), _Buffer()
        self._buffers = {
            Product.FORWARD: (inputs, weights),
            Product.GRAD_INPUT: (gradients, weights),
            Product.GRAD_WEIGHT: (inputs, gradients),
        }

    def supports(self, product: Product, left: Operand, right: Operand, geometry: Geometry) -> bool:
        return True

    def multiply(
        self, product: Product, left: Operand, right: Operand, geometry: Geometry, size: Size
    ) -> Tensor:
        task = _Task.of(product, left, right, geometry, size)
        return _product((left, right), self._buffers[product], task)


class _Buffer:
    """Memory in which an operand becomes float32, kept from product to product: new pages would
    cost more than the conversion. An operand that is still there is not converted again.
    """

    def __init__(self) -> None:
        self._memory: Tensor | None = None
        self._found: Tensor | None = None
        self._owner: Callable[[], Operand | None] = lambda: None

    def floats(self, operand: Operand) -> Tensor:
        """The levels; to be read only, and until the next call."""
        levels = operand.levels
        assert levels is not None
        if self._found is not None and self._owner() is operand:
            return self._found
        count, memory = levels.numel(), self._memory
        if memory is None or memory.numel() < count or memory.device != levels.device:
            with torch.inference_mode(False):  # memory of that mode could not be written later
                memory = self._memory = levels.new_empty(count, dtype=torch.float32)
        images, channels, height, width = levels.shape
        rows = memory[:count].view(images, height, width, channels)
        self._found, self._owner = rows.permute(0, 3, 1, 2).copy_(levels), ref(operand)
        return self._found


@dataclass(frozen=True)
class _Task:
    """A product, and the axis that it sums over.

    Attributes:
        product, geometry, size: as in `Engine.multiply`.
        axes: which axis is summed over, of the left and the right operand.
        length: of that axis.
        each: how many products are added for each of its places.
        groups: parts of the axis that do not meet.
        cost: multiplications for each place.
    """

    product: Product
    geometry: Geometry
    size: Size
    axes: tuple[int, int]
    length: int
    each: int
    groups: int
    cost: int

    @classmethod
    def of(
        cls, product: Product, left: Operand, right: Operand, geometry: Geometry, size: Size
    ) -> _Task:
        each = math.prod(right.shape[2:])
        if product is Product.GRAD_WEIGHT:
            axes, cost, groups = (0, 0), each * math.prod(size), 1
        elif product is Product.GRAD_INPUT:
            pixels = left.shape[0] * math.prod(left.shape[2:])
            axes, cost, groups = (1, 0), pixels * right.shape[1] * each, geometry.groups
        else:
            axes, cost, groups = (1, 1), math.prod(size) * each, geometry.groups
        return cls(product, geometry, size, axes, left.shape[axes[0]], each, groups, cost)

    @property
    def terms(self) -> int:
        """Products that one result adds."""
        return self.length // self.groups * self.each

    def run(self, a: Tensor, b: Tensor) -> Tensor:
        """The product of two tensors of one floating type, or of parts along the axis."""
        return float_product(self.product, a, b, self.geometry, self.size)

    def largest(self, a: Tensor, b: Tensor) -> float:
        """Bound of the sums of two tensors of levels from their norms."""
        if self.product is Product.GRAD_WEIGHT:  # an input pixel meets each weight at most once
            return math.sqrt(most_squares(a) * most_squares(b))
        box = a.new_ones((1, 1, *b.shape[2:]), dtype=torch.float32)
        squares = a.float().square().sum(1, keepdim=True)
        plain, size = replace(self.geometry, groups=1), (self.size[0], 1, *self.size[2:])
        patches = float_product(self.product, squares, box, plain, size)
        kernels = b.float().square().unflatten(0, (self.groups, -1))
        rows = kernels.sum((2, 3, 4) if self.product is Product.FORWARD else (1, 3, 4))
        return _norms(patches.amax(), rows.amax(), a.shape[1] * self.each)


def _product(
    operands: tuple[Operand, Operand], buffers: tuple[_Buffer, _Buffer], task: _Task
) -> Tensor:
    """The product by the cheapest way that is exact, its operands converted in ``buffers``."""
    left, right = operands
    integers = left.levels is not None and right.levels is not None
    with whole_float32(left.tensor.device, exact=integers):
        if left.levels is None or right.levels is None:
            return task.run(left.reals(), right.reals())
        exponent = left.exponent + right.exponent
        places = _exact_places(left, right, task)
        if places:
            a, b = (buffer.floats(side) for buffer, side in zip(buffers, operands, strict=True))
            plain = isinstance(exponent, int) and abs(exponent) <= _PLAIN
            if places >= task.length and task.product is not Product.GRAD_WEIGHT and plain:
                # The scale costs less on the weight; a power of two changes no rounding.
                return task.run(a, b * 2.0**-exponent)
            return scaled(_in_parts(a, b, task, places), exponent)
        _, digits, places = min(_cuts(left, right, task))
        if not places:
            return scaled(task.run(left.levels.double(), right.levels.double()), exponent)
        return scaled(_in_digits(left, right, task, digits, places), exponent)


def _exact_places(left: Operand, right: Operand, task: _Task) -> int:
    """How many places of the shared axis at a time have sums that are surely below the bound; 0 if
    so few that there would be more than `_MOST_PARTS` parts.
    """
    a, b = left.levels, right.levels
    assert a is not None
    assert b is not None
    if task.terms * left.top * right.top <= EXACT or 0 in (a.numel(), b.numel()):
        return max(task.length, 1)
    if left.bits + right.bits > _WORTH_NORMS:
        return 0
    for count in range(_MOST_PARTS.bit_length()):
        places = -(-task.length // (1 << count))
        if places < task.length and task.groups > 1:
            return 0
        if all(task.largest(*pair) <= EXACT for pair in _parts(a, b, task, places)):
            return places
    return 0


def _norms(left: Tensor, right: Tensor, terms: int) -> float:
    """Bound of a sum of products from the largest sums of squares of both sides, which float32
    found from ``terms`` squares at most, each addition at most 2^-24 too small.
    """
    if terms >= EXACT // 4:
        return math.inf
    product = float(left.double() * right.double())  # a GPU is waited for once
    return math.sqrt(product) / (1 - 2 * terms / EXACT)


def _parts(a: Tensor, b: Tensor, task: _Task, places: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Both operands cut along the shared axis."""
    if places >= task.length:
        return iter([(a, b)])
    first, second = task.axes
    return zip(a.split(places, first), b.split(places, second), strict=True)


def _in_parts(a: Tensor, b: Tensor, task: _Task, places: int) -> Tensor:
    """The sum over parts, each of which is exact in float32; float64 if there are several."""
    sums: Tensor | None = None
    for part in _parts(a, b, task, places):
        found = task.run(*part)
        if places >= task.length:
            return found
        sums = found.double() if sums is None else sums.add_(found)
    assert sums is not None
    return sums


def _cuts(
    left: Operand, right: Operand, task: _Task
) -> Iterator[tuple[float, tuple[int, int], int]]:
    """Ways whose exactness follows from the word lengths: what each costs, into how many digits it
    splits either operand, and places of the shared axis at a time (0 and endless costs where
    nothing gets below the bound).
    """
    for m, n in pairs_of(range(1, _MOST_DIGITS + 1), repeat=2):
        tops = _digit_top(left, m) * _digit_top(right, n)
        if task.groups > 1:  # channels of a group cannot be cut without cutting all groups
            places = task.length if task.terms * tops <= EXACT else 0
        else:
            places = min(EXACT // (task.each * tops), task.length)
        calls = -(-task.length // places) if places else math.inf
        yield m * n * (task.length * task.cost + calls * _CALL), (m, n), places


def _digit_bits(operand: Operand, digits: int) -> int:
    """Bits of a digit, sign included."""
    return -(-operand.bits // digits)


def _digit_top(operand: Operand, digits: int) -> int:
    """The largest magnitude of a digit of an operand."""
    return 1 << (_digit_bits(operand, digits) - 1)


def _digits(operand: Operand, digits: int) -> Iterator[tuple[Tensor, int]]:
    """``level = sum of digit * 2^shift``, lowest first; digits have both signs, float32."""
    assert operand.levels is not None
    rest, bits = operand.levels.int(), _digit_bits(operand, digits)
    half = 1 << (bits - 1)
    for place in range(digits - 1):
        low = ((rest + half) & (2 * half - 1)) - half
        yield low.float(), place * bits
        rest = (rest - low) >> bits
    yield rest.float(), (digits - 1) * bits


def _in_digits(
    left: Operand, right: Operand, task: _Task, digits: tuple[int, int], places: int
) -> Tensor:
    """The sum over pairs of digits, float64."""
    others = list(_digits(right, digits[1]))
    sums: Tensor | None = None
    for a, first in _digits(left, digits[0]):
        for b, second in others:
            found = _in_parts(a, b, task, places).double()
            found.mul_(2.0 ** (first + second))
            sums = found if sums is None else sums.add_(found)
    assert sums is not None
    return sums


@contextmanager
def whole_float32(device: torch.device, exact: bool) -> Iterator[None]:
    """float32 multipliers that are what they are called: no TF32 or bfloat16 inside.

    Args:
        exact: nor algorithms that multiply anything but the operands (Winograd, Fourier), which the
            CPU's library does not have.
    """
    backends = torch.backends
    places: list[tuple[Any, str, Any]] = []
    if device.type == "cuda":
        places = [
            (backends.cuda.matmul, "fp32_precision", "ieee"),
            (backends.cudnn.conv, "fp32_precision", "ieee"),
        ]
        places += [(backends.cudnn, "enabled", False)] if exact else []
    elif device.type == "cpu":
        units = (backends.mkldnn.matmul, backends.mkldnn.conv)
        places = [(unit, "fp32_precision", "ieee") for unit in units]
    before = [getattr(unit, name) for unit, name, _ in places]
    try:
        for unit, name, value in places:
            setattr(unit, name, value)
        yield
    finally:
        for (unit, name, _), value in zip(places, before, strict=True):
            setattr(unit, name, value)


def float_product(
    product: Product, left: Tensor, right: Tensor, geometry: Geometry, size: Size
) -> Tensor:
    """A product of two tensors of one floating type as torch computes it, rounding as it does."""
    pixels = math.prod(left.shape[2:]) * math.prod(right.shape[2:]) * math.prod(size[2:])
    if pixels == 1 and geometry.groups == 1 and geometry.padding == (0, 0):
        # Of matrices: convolutions are slow there.
        a, b = left.flatten(1), right.flatten(1)
        if product is Product.GRAD_WEIGHT:
            return (b.T @ a)[:, :, None, None]
        return (a @ (b.T if product is Product.FORWARD else b))[:, :, None, None]
    moves = (geometry.stride, geometry.padding, geometry.dilation)
    if product is Product.FORWARD:
        return torch.nn.functional.conv2d(left, right, None, *moves, geometry.groups)
    shape = left.new_empty(1).expand(size)  # all that matters of the tensor whose gradient it is
    to_input = product is Product.GRAD_INPUT
    tensors = (left, shape, right) if to_input else (right, left, shape)
    mask = (to_input, not to_input, False)
    found: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        *tensors, None, *moves, False, (0, 0), geometry.groups, mask
    )
    return found[not to_input]
