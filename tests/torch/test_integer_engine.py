# SPDX-License-Identifier: Apache-2.0
"""Engines that multiply integers give exact sums for all word lengths and geometries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bitwright.low_precision.arithmetic.choose import ChoosingEngine, make_engine
from bitwright.low_precision.arithmetic.emulated import EmulatedEngine
from bitwright.low_precision.arithmetic.geometry import Engine, Geometry, NoProductError, Product
from bitwright.low_precision.arithmetic.int_mm import IntMatrixEngine, _matrix_product
from bitwright.low_precision.arithmetic.integer import IntegerEngine
from bitwright.low_precision.arithmetic.operands import Operand
from bitwright.low_precision.arithmetic.product_kernels import PRODUCT

ENGINES = (IntegerEngine(), IntMatrixEngine())
needs_compiler = pytest.mark.skipif(PRODUCT.cdll is None, reason="no C compiler")


def random_operand(
    shape: tuple[int, ...], bits: int, exponent: int, draw: np.random.Generator
) -> Operand:
    """Uniform levels, the ends of the range among them."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    levels = draw.integers(low, high, shape, endpoint=True)
    ends = draw.random(shape)
    levels = np.where(ends < 0.2, low, np.where(ends > 0.8, high, levels))
    return operand(levels, bits, exponent)


def operand(levels: np.ndarray, bits: int, exponent: int) -> Operand:
    kind = torch.int8 if bits <= 8 else torch.int16
    tensor = torch.from_numpy(levels).to(kind).contiguous(memory_format=torch.channels_last)
    return Operand(tensor, exponent, bits)


@dataclass(frozen=True)
class Layer:
    """A convolution and the word lengths of its operands: input, weight, gradient."""

    input: tuple[int, int, int, int]
    outputs: int
    kernel: tuple[int, int]
    geometry: Geometry
    bits: tuple[int, int, int] = (8, 8, 8)
    exponents: tuple[int, int, int] = (3, -2, 7)

    @property
    def weight(self) -> tuple[int, ...]:
        return (self.outputs, self.input[1], *self.kernel)

    @property
    def result(self) -> tuple[int, ...]:
        g, sizes = self.geometry, []
        for i in range(2):
            reach = g.dilation[i] * (self.kernel[i] - 1) + 1
            sizes.append((self.input[2 + i] + 2 * g.padding[i] - reach) // g.stride[i] + 1)
        return (self.input[0], self.outputs, *sizes)


def reference(
    x: Operand, w: Operand, g: Operand, geometry: Geometry
) -> tuple[Tensor, Tensor, Tensor]:
    """The three products, tap by tap in int64, scaled and rounded once."""
    a, b, c = (t.tensor.numpy().astype(np.int64) for t in (x, w, g))
    height, width = a.shape[2:]
    (sy, sx), (py, px), (dy, dx) = geometry.stride, geometry.padding, geometry.dilation
    rows, columns = c.shape[2:]
    padded = np.pad(a, ((0, 0), (0, 0), (py, py), (px, px)))
    out = np.zeros(c.shape, np.int64)
    to_input, to_weight = np.zeros_like(padded), np.zeros_like(b)
    for ky in range(b.shape[2]):
        for kx in range(b.shape[3]):
            # What this tap sees at every position.
            place = np.s_[
                :, :, ky * dy : ky * dy + sy * (rows - 1) + 1 : sy,
                kx * dx : kx * dx + sx * (columns - 1) + 1 : sx,
            ]  # fmt: skip
            tap = b[:, :, ky, kx]
            out += np.einsum("ncyx,oc->noyx", padded[place], tap)
            to_input[place] += np.einsum("noyx,oc->ncyx", c, tap)
            to_weight[:, :, ky, kx] = np.einsum("ncyx,noyx->oc", padded[place], c)
    to_input = to_input[:, :, py : py + height, px : px + width]

    def real(sums: np.ndarray, left: Operand, right: Operand) -> Tensor:
        assert np.abs(sums).max(initial=0) < 2**53
        scaled = np.ldexp(sums.astype(np.float64), -(left.exponent + right.exponent))
        with np.errstate(over="ignore", under="ignore"):
            return torch.from_numpy(scaled.astype(np.float32))

    return real(out, x, w), real(to_input, g, w), real(to_weight, x, g)


def check(layer: Layer, engine: Engine, seed: int = 0) -> None:
    """All three products of a layer are those of the reference."""
    draw = np.random.default_rng(seed)
    shapes = (layer.input, layer.weight, layer.result)
    x, w, g = (
        random_operand(*of, draw) for of in zip(shapes, layer.bits, layer.exponents, strict=True)
    )
    geometry = layer.geometry
    expected = reference(x, w, g, geometry)
    for product, left, right in (
        (Product.FORWARD, x, w), (Product.GRAD_INPUT, g, w), (Product.GRAD_WEIGHT, x, g),
    ):  # fmt: skip
        assert engine.supports(product, left, right, geometry)
    found = (
        engine.forward(x, w, geometry),
        engine.grad_input(g, w, geometry, layer.input),
        engine.grad_weight(x, g, geometry, layer.weight),
    )
    for product, mine, other in zip(Product, found, expected, strict=True):
        assert mine.dtype == torch.float32
        assert torch.equal(mine, other), (product, engine.name, layer)


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    stride, dilation = draw(pairs), draw(pairs)
    padding = draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    sizes = [
        draw(st.integers(max(1, dilation[i] * (kernel[i] - 1) + 1 - 2 * padding[i]), 14))
        if dilation[i] * (kernel[i] - 1) + 1 - 2 * padding[i] <= 14
        else dilation[i] * (kernel[i] - 1) + 1
        for i in range(2)
    ]
    bits = draw(st.tuples(*[st.integers(2, 16)] * 3))
    exponents = draw(st.tuples(*[st.integers(-120, 120)] * 3))
    return Layer(
        (draw(st.integers(1, 15)), draw(st.integers(1, 19)), sizes[0], sizes[1]),
        draw(st.sampled_from([1, 2, 3, 10, 16, 17, 33])),
        kernel,
        Geometry(stride, padding, dilation),
        bits,
        exponents,
    )


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("threads", [1, 2])
@settings(max_examples=25, deadline=None)
@given(layer=layers(), seed=st.integers(0, 2**32))
def test_any_convolution_is_exact(engine: Engine, threads: int, layer: Layer, seed: int) -> None:
    if engine.name == "integer" and PRODUCT.cdll is None:
        pytest.skip("no C compiler")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(layer, engine, seed)
    finally:
        torch.set_num_threads(before)


#: Layers of the networks that we train: stems, 3 x 3, downsampling, 1 x 1, kernels as large as
#: the image, and a linear layer.
REAL = {
    "stem": Layer((5, 3, 32, 32), 16, (3, 3), Geometry(padding=(1, 1))),
    "large stem": Layer((5, 3, 32, 32), 64, (11, 11), Geometry((4, 4), (5, 5))),
    "3x3": Layer((13, 16, 32, 32), 16, (3, 3), Geometry(padding=(1, 1))),
    "down": Layer((6, 32, 16, 16), 64, (3, 3), Geometry((2, 2), (1, 1))),
    "1x1 down": Layer((6, 32, 16, 16), 64, (1, 1), Geometry((2, 2))),
    "5x5 on 4x4": Layer((70, 64, 4, 4), 96, (5, 5), Geometry(padding=(2, 2))),
    "3x3 on 2x2": Layer((70, 96, 2, 2), 64, (3, 3), Geometry(padding=(1, 1))),
    "full": Layer((9, 31, 7, 7), 40, (7, 7), Geometry()),
    "linear": Layer((64, 256, 1, 1), 10, (1, 1), Geometry()),
}


@needs_compiler
@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("bits", [8, 16])
def test_layers_of_real_networks(name: str, bits: int) -> None:
    layer = REAL[name]
    both = Layer(layer.input, layer.outputs, layer.kernel, layer.geometry, (bits,) * 3)
    check(both, IntegerEngine())


@st.composite
def small_kernels(draw: st.DrawFn) -> Layer:
    """3 x 3 at stride 1, for which there is a product with fewer multiplications."""
    padding = draw(st.tuples(st.integers(0, 4), st.integers(0, 4)))
    sizes = [draw(st.integers(max(3 - 2 * p, 1), 13)) for p in padding]
    channels, outputs = draw(st.tuples(*[st.sampled_from([8, 9, 16, 23, 32, 47])] * 2))
    bits = draw(st.tuples(*[st.integers(2, 12)] * 3))
    exponents = draw(st.tuples(*[st.integers(-60, 60)] * 3))
    images = draw(st.integers(1, 9))
    geometry = Geometry(padding=padding)
    return Layer((images, channels, *sizes), outputs, (3, 3), geometry, bits, exponents)


@needs_compiler
@settings(max_examples=40, deadline=None)
@given(layer=small_kernels(), seed=st.integers(0, 2**32))
def test_small_kernels_are_exact(layer: Layer, seed: int) -> None:
    check(layer, IntegerEngine(), seed)


@needs_compiler
@pytest.mark.parametrize("channels", [227, 228, 3640, 3641])
@pytest.mark.parametrize("sign", [-1, 1])
def test_small_kernels_at_the_limit_of_32_bits(channels: int, sign: int) -> None:
    """Ten bits and 227 channels, or eight and 3640, are the most whose fourfold sums fit."""
    bits = 10 if channels < 1000 else 8
    low = -(1 << (bits - 1))
    x = operand(np.full((1, channels, 6, 6), low), bits, 0)
    w = operand(np.full((8, channels, 3, 3), low if sign > 0 else -low - 1), bits, 0)
    expected = EmulatedEngine().forward(x, w, Geometry(padding=(1, 1)))
    assert float(expected.abs().max()) > 2**28
    assert torch.equal(IntegerEngine().forward(x, w, Geometry(padding=(1, 1))), expected)


@needs_compiler
@pytest.mark.parametrize("bits", [(16, 16), (8, 16), (16, 8), (14, 14), (12, 12), (8, 8)])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_sums_do_not_overflow(bits: tuple[int, int], sign: int) -> None:
    """All levels at the ends of their range: 32 bits would overflow in every sum but the last."""
    a, b = (-(1 << (n - 1)) for n in bits)
    b = b if sign > 0 else -b - 1
    n, c, o, size = (160, 513, 3, 2) if bits != (8, 8) else (40, 7, 3, 64)
    x = operand(np.full((n, c, size, size), a), bits[0], 0)
    g = operand(np.full((n, o, size, size), b), bits[1], 0)
    w = operand(np.full((o, c, 1, 1), b), bits[1], 0)
    for engine in ENGINES:
        forward = engine.forward(x, w, Geometry())
        assert (forward == float(np.float32(c * a * b))).all()
        weight = engine.grad_weight(x, g, Geometry(), (o, c, 1, 1))
        assert (weight == float(np.float32(n * size * size * a * b))).all()


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_what_an_engine_cannot_do_it_says(engine: Engine) -> None:
    draw = np.random.default_rng(0)
    x = random_operand((2, 4, 5, 5), 8, 0, draw)
    w = random_operand((4, 2, 3, 3), 8, 0, draw)
    assert not engine.supports(Product.FORWARD, x, w, Geometry(groups=2))
    reals = Operand(None, real=torch.zeros(2, 4, 5, 5))
    assert not engine.supports(Product.FORWARD, reals, w, Geometry())
    wide = Operand(torch.zeros((4, 4, 3, 3), dtype=torch.int32), 0, 17)
    assert not engine.supports(Product.FORWARD, x, wide, Geometry())


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
@pytest.mark.parametrize("exponent", [-240, -100, -91, 126, 127, 140, 170, 240])
def test_results_at_the_ends_of_float32_are_rounded_once(engine: Engine, exponent: int) -> None:
    draw = np.random.default_rng(exponent + 300)
    half = exponent // 2
    x = random_operand((7, 70, 3, 3), 8, half, draw)
    w = random_operand((5, 70, 2, 2), 8, exponent - half, draw)
    g = random_operand((7, 5, 2, 2), 8, exponent - half, draw)
    if engine.supports(Product.FORWARD, x, w, Geometry()):
        expected = reference(x, w, g, Geometry())
        assert torch.equal(engine.forward(x, w, Geometry()), expected[0])
        found = engine.grad_weight(x, g, Geometry(), (5, 70, 2, 2))
        assert torch.equal(found, expected[2])


def test_operands_in_any_memory() -> None:
    draw = np.random.default_rng(1)
    x, w = random_operand((6, 5, 8, 8), 8, 0, draw), random_operand((4, 5, 3, 3), 8, 0, draw)
    levels = x.levels
    assert levels is not None
    for other in (levels.contiguous(), levels.flip(3).contiguous().flip(3)):
        for engine in (*ENGINES, EmulatedEngine()):
            if engine.supports(Product.FORWARD, x, w, Geometry()):
                found = engine.forward(Operand(other, 0, 8), w, Geometry())
                assert torch.equal(found, EmulatedEngine().forward(x, w, Geometry()))


@pytest.mark.parametrize("name", ["auto", "emulated", "integer"])
def test_the_choice_changes_no_number(name: str) -> None:
    for bits in ((8, 8, 8), (12, 12, 12), (5, 16, 9)):
        layer = Layer((9, 6, 7, 7), 17, (3, 3), Geometry((2, 1), (1, 1)), bits)
        engine = make_engine(name)  # type: ignore[arg-type]
        check(layer, engine)
        check(layer, engine, seed=1)
        assert len(engine.choices) == 3


def test_what_was_measured_is_remembered() -> None:
    layer = Layer((9, 6, 9, 7), 18, (3, 3), Geometry())
    first, second = make_engine("auto"), make_engine("auto")
    check(layer, first)
    check(layer, second)
    for case, choice in first.choices.items():
        assert second.choices[case].milliseconds is choice.milliseconds
        assert choice.engine.name == min(choice.milliseconds, key=choice.milliseconds.__getitem__)
        assert "emulated" in choice.milliseconds
        assert all(ms > 0 for ms in choice.milliseconds.values())
    assert [case.product for case in first.choices] == list(Product)
    assert all(case.bits == (8, 8) for case in first.choices)
    assert next(iter(first.choices)).left == (9, 6, 9, 7)


@pytest.mark.parametrize(
    "sizes", [(m, k, n) for m in (1, 3, 17) for k in (1, 2, 5) for n in (1, 3, 16)]
)
def test_matrices_in_any_memory(sizes: tuple[int, int, int]) -> None:
    """torch 2.13 returns unset memory for k = 1 and a transposed view, with AVX512-VNNI."""
    m, k, n = sizes
    draw = np.random.default_rng(0)
    left = torch.from_numpy(draw.integers(-128, 128, (m, k), dtype=np.int8))
    right = torch.from_numpy(draw.integers(-128, 128, (k, n), dtype=np.int8))
    expected = left.long() @ right.long()
    for a in (left, left.t().contiguous().t()):
        for b in (right, right.t().contiguous().t()):
            for _ in range(3):
                assert torch.equal(_matrix_product(a, b).long(), expected)


class WrongEngine(EmulatedEngine):
    """Fast, and one off: from the first run on, or in a later one."""

    name = "wrong"

    def __init__(self, right_runs: int = 0) -> None:
        super().__init__()
        self.right_runs = right_runs

    def multiply(self, *task: Any) -> Tensor:
        out = super().multiply(*task)
        self.right_runs -= 1
        return out if self.right_runs >= 0 else out + 1


@pytest.mark.parametrize(
    ("preferred", "right_runs"), [(True, 0), (False, 0), (False, 1), (False, 3)]
)
def test_an_engine_with_other_numbers_is_never_chosen(
    preferred: bool, right_runs: int, caplog: pytest.LogCaptureFixture
) -> None:
    draw = np.random.default_rng(0)
    x = random_operand((2, 3, 6, 5 + right_runs), 8, 0, draw)
    w = random_operand((4, 3, 3, 3), 8, 0, draw)
    expected = EmulatedEngine().forward(x, w, Geometry())
    for _ in range(2):  # the second one reads what the process remembers
        engines = [WrongEngine(right_runs), EmulatedEngine()]
        engine = ChoosingEngine(engines, name="both", preferred=preferred)
        for _ in range(3):
            assert torch.equal(engine.forward(x, w, Geometry()), expected)
        (choice,) = engine.choices.values()
        assert choice.engine.name == "emulated" and choice.wrong == ("wrong",)
    assert len([r for r in caplog.records if "gives other numbers" in r.message]) == 1


class FailingEngine(EmulatedEngine):
    """As a GPU's library that has no product of some sizes, or as one with a mistake."""

    name = "failing"

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def multiply(self, *task: Any) -> torch.Tensor:
        raise self.error


@pytest.mark.parametrize("preferred", [True, False])
def test_an_engine_without_a_product_of_some_sizes_is_not_chosen_for_them(
    preferred: bool, caplog: pytest.LogCaptureFixture
) -> None:
    draw = np.random.default_rng(0)
    x = random_operand((2, 3, 6, 9 + preferred), 8, 0, draw)
    w = random_operand((4, 3, 3, 3), 8, 0, draw)
    engines = [FailingEngine(NoProductError("no 24 rows")), EmulatedEngine()]
    engine = ChoosingEngine(engines, name="both", preferred=preferred)
    expected = EmulatedEngine().forward(x, w, Geometry())
    for _ in range(2):
        assert torch.equal(engine.forward(x, w, Geometry()), expected)
    (choice,) = engine.choices.values()
    assert choice.engine.name == "emulated" and choice.wrong == ("failing",)
    assert caplog.text.count("failing is not used") == 1 and "no 24 rows" in caplog.text


@pytest.mark.parametrize("preferred", [True, False])
def test_a_mistake_of_an_engine_is_told(preferred: bool) -> None:
    draw = np.random.default_rng(0)
    x = random_operand((2, 3, 7, 9 + preferred), 8, 0, draw)
    w = random_operand((4, 3, 3, 3), 8, 0, draw)
    engines = [FailingEngine(RuntimeError("shapes cannot be multiplied")), EmulatedEngine()]
    engine = ChoosingEngine(engines, name="both", preferred=preferred)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        engine.forward(x, w, Geometry())


def test_what_is_no_integer_is_emulated() -> None:
    engine = make_engine("integer")
    x = Operand(None, real=torch.randn(2, 3, 5, 5))
    w = Operand(None, real=torch.randn(4, 3, 3, 3))
    out = engine.forward(x, w, Geometry())
    assert torch.equal(out, EmulatedEngine().forward(x, w, Geometry()))
    only = ChoosingEngine([IntegerEngine()], name="only", preferred=True)
    with pytest.raises(ValueError, match="no engine of 'only'"):
        only.forward(x, w, Geometry())
