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
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from bitwright.low_precision.arithmetic.geometry import Geometry
from bitwright.low_precision.arithmetic.operands import Operand, scaled
from bitwright.low_precision.arithmetic.product_kernels import most_squares
from bitwright.quantize.spec import Product

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


class EmulatedEngine:
    """The products on floating-point multipliers. Any geometry, format and device; formats that are
    no integers are multiplied in float32 as they are.
    """

    name = "emulated"

    def __init__(self) -> None:
        self._inputs, self._gradients, self._weights = _Buffer(), _Buffer(), _Buffer()

    def supports(self, product: Product, left: Operand, right: Operand, geometry: Geometry) -> bool:
        return True

    def forward(self, x: Operand, w: Operand, geometry: Geometry) -> Tensor:
        taps = math.prod(w.shape[2:])
        images = x.shape[0] * math.prod(_output_size(x, w, geometry))
        shared = _Shared((1, 1), x.shape[1], taps, geometry.groups, images * w.shape[0] * taps)

        def largest(a: Tensor, b: Tensor) -> float:
            box = a.new_ones((1, 1, *b.shape[2:]), dtype=torch.float32)
            squares = a.float().square().sum(1, keepdim=True)
            patches = _forward(squares, box, replace(geometry, groups=1))
            rows = b.float().square().sum((1, 2, 3))
            return _norms(patches.amax(), rows.amax(), a.shape[1] * taps)

        buffers = self._inputs, self._weights
        return _product((x, w), buffers, shared, largest, lambda a, b: _forward(a, b, geometry))

    def grad_input(
        self, g: Operand, w: Operand, geometry: Geometry, input_size: tuple[int, ...]
    ) -> Tensor:
        taps = math.prod(w.shape[2:])
        cost = g.shape[0] * math.prod(g.shape[2:]) * w.shape[1] * taps
        shared = _Shared((1, 0), g.shape[1], taps, geometry.groups, cost)
        size = (input_size[0], 1, *input_size[2:])

        def largest(a: Tensor, b: Tensor) -> float:
            box = a.new_ones((1, 1, *b.shape[2:]), dtype=torch.float32)
            squares = a.float().square().sum(1, keepdim=True)
            patches = _grad_input(squares, box, replace(geometry, groups=1), size)
            columns = b.float().unflatten(0, (geometry.groups, -1)).square().sum((1, 3, 4))
            return _norms(patches.amax(), columns.amax(), a.shape[1] * taps)

        def run(a: Tensor, b: Tensor) -> Tensor:
            return _grad_input(a, b, geometry, input_size)

        return _product((g, w), (self._gradients, self._weights), shared, largest, run)

    def grad_weight(
        self, x: Operand, g: Operand, geometry: Geometry, weight_size: tuple[int, ...]
    ) -> Tensor:
        pixels = math.prod(g.shape[2:])
        shared = _Shared((0, 0), g.shape[0], pixels, 1, pixels * math.prod(weight_size))

        def largest(a: Tensor, b: Tensor) -> float:
            # An input pixel meets each weight at most once.
            return math.sqrt(most_squares(a) * most_squares(b))

        def run(a: Tensor, b: Tensor) -> Tensor:
            return _grad_weight(a, b, geometry, weight_size)

        return _product((x, g), (self._inputs, self._gradients), shared, largest, run)


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
class _Shared:
    """The axis that a product sums over.

    Attributes:
        axes: which one it is, of the left and the right operand.
        size: its length.
        each: how many products are added for each of its places.
        groups: parts of the axis that do not meet.
        cost: multiplications for each place.
    """

    axes: tuple[int, int]
    size: int
    each: int
    groups: int
    cost: int

    @property
    def right_is_weight(self) -> bool:
        return self.axes[0] == 1

    @property
    def length(self) -> int:
        """Products that one result adds."""
        return self.size // self.groups * self.each


@dataclass(frozen=True)
class _Cut:
    """How a product is made of exact ones.

    Attributes:
        digits: into how many each operand is split.
        places: of the shared axis at a time; 0: there is no way to get below the bound.
    """

    digits: tuple[int, int]
    places: int

    def cost(self, shared: _Shared) -> float:
        if not self.places:
            return math.inf
        calls = -(-shared.size // self.places)
        return math.prod(self.digits) * (shared.size * shared.cost + calls * _CALL)


def _product(
    operands: tuple[Operand, Operand],
    buffers: tuple[_Buffer, _Buffer],
    shared: _Shared,
    largest: Callable[[Tensor, Tensor], float],
    run: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """The product by the cheapest way that is exact.

    Args:
        buffers: where the operands are converted.
        largest: bound of the sums of two tensors of levels from their norms.
        run: the product of two tensors of one floating type.
    """
    left, right = operands
    integers = left.levels is not None and right.levels is not None
    with whole_float32(left.tensor.device, exact=integers):
        if left.levels is None or right.levels is None:
            return run(left.reals(), right.reals())
        exponent = left.exponent + right.exponent
        places = _exact_places(left, right, shared, largest)
        if places:
            a, b = (buffer.floats(side) for buffer, side in zip(buffers, operands, strict=True))
            plain = isinstance(exponent, int) and abs(exponent) <= _PLAIN
            if places >= shared.size and shared.right_is_weight and plain:
                # The scale costs less on the weight; a power of two changes no rounding.
                return run(a, b * 2.0**-exponent)
            return scaled(_in_parts(a, b, shared, places, run), exponent)
        cut = min(_cuts(left, right, shared), key=lambda way: way.cost(shared))
        if not cut.places:
            return scaled(run(left.levels.double(), right.levels.double()), exponent)
        return scaled(_in_digits(left, right, shared, cut, run), exponent)


def _exact_places(
    left: Operand,
    right: Operand,
    shared: _Shared,
    largest: Callable[[Tensor, Tensor], float],
) -> int:
    """How many places of the shared axis at a time have sums that are surely below the bound; 0 if
    so few that there would be more than `_MOST_PARTS` parts.
    """
    a, b = left.levels, right.levels
    assert a is not None
    assert b is not None
    if shared.length * left.top * right.top <= EXACT or 0 in (a.numel(), b.numel()):
        return max(shared.size, 1)
    if left.bits + right.bits > _WORTH_NORMS:
        return 0
    for count in range(_MOST_PARTS.bit_length()):
        places = -(-shared.size // (1 << count))
        if places < shared.size and shared.groups > 1:
            return 0
        if all(largest(*pair) <= EXACT for pair in _parts(a, b, shared, places)):
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


def _parts(a: Tensor, b: Tensor, shared: _Shared, places: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Both operands cut along the shared axis."""
    if places >= shared.size:
        return iter([(a, b)])
    first, second = shared.axes
    return zip(a.split(places, first), b.split(places, second), strict=True)


def _in_parts(
    a: Tensor, b: Tensor, shared: _Shared, places: int, run: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """The sum over parts, each of which is exact in float32; float64 if there are several."""
    sums: Tensor | None = None
    for part in _parts(a, b, shared, places):
        found = run(*part)
        if places >= shared.size:
            return found
        sums = found.double() if sums is None else sums.add_(found)
    assert sums is not None
    return sums


def _cuts(left: Operand, right: Operand, shared: _Shared) -> Iterator[_Cut]:
    """Ways whose exactness follows from the word lengths."""
    for m in range(1, _MOST_DIGITS + 1):
        for n in range(1, _MOST_DIGITS + 1):
            tops = _digit_top(left, m) * _digit_top(right, n)
            if shared.groups > 1:  # channels of a group cannot be cut without cutting all groups
                places = shared.size if shared.length * tops <= EXACT else 0
            else:
                places = min(EXACT // (shared.each * tops), shared.size)
            yield _Cut((m, n), places)


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
    left: Operand,
    right: Operand,
    shared: _Shared,
    cut: _Cut,
    run: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """The sum over pairs of digits, float64."""
    others = list(_digits(right, cut.digits[1]))
    sums: Tensor | None = None
    for a, first in _digits(left, cut.digits[0]):
        for b, second in others:
            found = _in_parts(a, b, shared, cut.places, run).double()
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


def _output_size(x: Operand, w: Operand, geometry: Geometry) -> tuple[int, int]:
    height, width = (
        (x.shape[2 + a] + 2 * geometry.padding[a] - geometry.dilation[a] * (w.shape[2 + a] - 1) - 1)
        // geometry.stride[a]
        + 1
        for a in (0, 1)
    )
    return height, width


def _is_matrix(images: Tensor, kernel: tuple[int, ...], geometry: Geometry) -> bool:
    """Whether a product is one of matrices: one pixel, one tap. Convolutions are slow there."""
    pixels = math.prod(images.shape[2:]) * math.prod(kernel[2:])
    return pixels == 1 and geometry.groups == 1 and geometry.padding == (0, 0)


def _forward(x: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    if _is_matrix(x, tuple(w.shape), geometry):
        return (x.flatten(1) @ w.flatten(1).T)[:, :, None, None]
    return torch.nn.functional.conv2d(
        x, w, None, geometry.stride, geometry.padding, geometry.dilation, geometry.groups
    )


def _grad_input(g: Tensor, w: Tensor, geometry: Geometry, size: tuple[int, ...]) -> Tensor:
    if math.prod(size[2:]) == 1 and _is_matrix(g, tuple(w.shape), geometry):
        return (g.flatten(1) @ w.flatten(1))[:, :, None, None]
    return _backward(g, g.new_empty(1).expand(size), w, geometry, 0)


def _grad_weight(x: Tensor, g: Tensor, geometry: Geometry, size: tuple[int, ...]) -> Tensor:
    if _is_matrix(x, size, geometry):
        return (g.flatten(1).T @ x.flatten(1))[:, :, None, None]
    return _backward(g, x, g.new_empty(1).expand(size), geometry, 1)


def _backward(g: Tensor, x: Tensor, w: Tensor, geometry: Geometry, which: int) -> Tensor:
    """Gradient 0 (input) or 1 (weight) of a convolution; of the tensor asked for only the shape
    matters.
    """
    found: Tensor = torch.ops.aten.convolution_backward(
        g,
        x,
        w,
        None,
        geometry.stride,
        geometry.padding,
        geometry.dilation,
        False,
        (0, 0),
        geometry.groups,
        (which == 0, which == 1, False),
    )[which]
    return found
