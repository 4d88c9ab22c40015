# SPDX-License-Identifier: Apache-2.0
"""The emulated engine against int64 sums: every word length, geometry and way of being exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import arithmetic_reference as reference

from bitwright.low_precision.arithmetic import emulated
from bitwright.low_precision.arithmetic.emulated import EmulatedEngine
from bitwright.low_precision.arithmetic.geometry import Geometry
from bitwright.low_precision.arithmetic.operand_quantizer import container, quantize
from bitwright.low_precision.arithmetic.operands import Operand, scaled
from bitwright.quantize.policy import Policy
from bitwright.quantize.spec import Layer, Product, Role

ENGINE = EmulatedEngine()
LAST = torch.channels_last


def operand(
    shape: tuple[int, ...], bits: int, draw: np.random.Generator, kind: str = "random"
) -> tuple[np.ndarray[Any, Any], Operand]:
    """Random levels; or all of them the most negative, whose sums are the largest there are."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    if kind == "worst":
        found = np.full(shape, low)
    elif kind == "small":
        found = np.rint(draw.standard_normal(shape) * high / 6).clip(low, high).astype(np.int64)
    else:
        found = draw.integers(low, high + 1, size=shape)
    levels = torch.from_numpy(found).to(container(bits)).contiguous(memory_format=LAST)
    return found, Operand(levels, int(draw.integers(-20, 30)), bits)


def assert_equal(found: torch.Tensor, sums: np.ndarray[Any, Any], *sides: Operand) -> None:
    expected = reference.result(sums, sum(side.exponent for side in sides))
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), expected)


Task = tuple[Product, Operand, Operand, Geometry, tuple[int, ...]]


def products(
    sizes: tuple[int, int, int, int],
    outputs: int,
    kernel: tuple[int, int],
    geometry: Geometry,
    bits: tuple[int, int, int],
    kind: str,
    seed: int,
) -> Iterator[tuple[Task, np.ndarray[Any, Any]]]:
    """The three products of one layer: what an engine multiplies, and the sums of the reference."""
    draw = np.random.default_rng(seed)
    how = (geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
    x_levels, x = operand(sizes, bits[0], draw, kind)
    w_shape = (outputs, sizes[1] // geometry.groups, *kernel)
    w_levels, w = operand(w_shape, bits[1], draw, kind)
    out = reference.forward(x_levels, w_levels, *how)
    yield (Product.FORWARD, x, w, geometry, out.shape), out
    g_levels, g = operand(out.shape, bits[2], draw, kind)
    back = reference.grad_input(g_levels, w_levels, sizes, *how)
    yield (Product.GRAD_INPUT, g, w, geometry, sizes), back
    weights = reference.grad_weight(x_levels, g_levels, w_shape, *how)
    yield (Product.GRAD_WEIGHT, x, g, geometry, w_shape), weights


def check_all(*layer: Any) -> None:
    """The three products of one layer against the reference."""
    for task, sums in products(*layer):
        assert_equal(ENGINE.multiply(*task), sums, *task[1:3])


PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def layers(draw: st.DrawFn) -> tuple[tuple[int, int, int, int], int, tuple[int, int], Geometry]:
    """Input size, outputs, kernel and geometry of any convolution with an output."""
    groups, kernel = draw(st.sampled_from([1, 1, 2, 3])), draw(PAIRS)
    stride, dilation = draw(PAIRS), draw(PAIRS)
    padding = draw(st.tuples(st.integers(0, 2), st.integers(0, 2)))
    height, width = (
        max(draw(st.integers(1, 14)), dilation[a] * (kernel[a] - 1) + 1 - 2 * padding[a])
        for a in (0, 1)
    )
    channels, outputs = groups * draw(st.integers(1, 5)), groups * draw(st.integers(1, 4))
    sizes = (draw(st.integers(1, 4)), channels, height, width)
    return sizes, outputs, kernel, Geometry(stride, padding, dilation, groups)


@settings(max_examples=120, deadline=None)
@given(
    layer=layers(),
    bits=st.tuples(st.integers(2, 17), st.integers(2, 17), st.integers(2, 17)),
    kind=st.sampled_from(["random", "worst", "small"]),
    seed=st.integers(0, 2**32),
)
def test_products_equal_the_reference(
    layer: tuple[tuple[int, int, int, int], int, tuple[int, int], Geometry],
    bits: tuple[int, int, int],
    kind: str,
    seed: int,
) -> None:
    check_all(*layer, bits, kind, seed)


@pytest.mark.parametrize("bits", [(8, 8, 8), (12, 12, 12), (14, 14, 14), (16, 16, 16), (9, 8, 8)])
@pytest.mark.parametrize("kind", ["small", "worst"])
def test_long_sums_equal_the_reference(bits: tuple[int, int, int], kind: str) -> None:
    """More products than the word lengths alone allow: 2304 forward, 1568 backward."""
    geometry = Geometry((1, 1), (1, 1))
    check_all((2, 256, 28, 28), 3, (3, 3), geometry, bits, kind, 1)


@pytest.mark.parametrize("bits", [2, 8, 16])
def test_linear_layers_are_products_of_matrices(bits: int) -> None:
    check_all((7, 300, 1, 1), 11, (1, 1), Geometry(), (bits,) * 3, "random", 2)


@pytest.mark.parametrize("groups", [1, 4])
def test_depthwise_and_pointwise(groups: int) -> None:
    kernel = (3, 3) if groups == 4 else (1, 1)
    check_all(
        (2, 4, 9, 9), 4, kernel, Geometry((2, 2), (0, 0), groups=groups), (8,) * 3, "worst", 3
    )


def counted(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The type of every product that the engine computes in floats."""
    calls: list[torch.dtype] = []
    real: Callable[..., torch.Tensor] = emulated.float_product

    def call(product: Product, left: torch.Tensor, *rest: Any) -> torch.Tensor:
        calls.append(left.dtype)
        return real(product, left, *rest)

    monkeypatch.setattr(emulated, "float_product", call)
    return calls


def test_usual_operands_of_8_bits_take_one_pass_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = np.random.default_rng(0)
    _, x = operand((16, 16, 32, 32), 8, draw, "small")
    _, g = operand((16, 16, 32, 32), 8, draw, "small")
    calls = counted(monkeypatch)
    ENGINE.grad_weight(x, g, Geometry((1, 1), (1, 1)), (16, 16, 3, 3))
    assert calls == [torch.float32]


def test_sums_beyond_float32_are_not_added_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """4096 times 2^14 is 2^26, then one more: float32 would lose it."""
    levels = torch.full((1, 4097, 1, 1), -128, dtype=torch.int8)
    x, w = Operand(levels, 0, 8), Operand(levels.clone(), 0, 8)
    w.tensor[0, 0], x.tensor[0, 0] = 1, 1
    calls = counted(monkeypatch)
    found = ENGINE.forward(x, w, Geometry())
    assert float(found) == float(np.float32(4096 * 128 * 128 + 1))
    assert len(calls) > 1
    shorter = Operand(levels[:, :4096], 0, 8)
    assert float(ENGINE.forward(shorter, Operand(w.tensor[:, :4096], 0, 8), Geometry())) == float(
        np.float32(4095 * 128 * 128 + 1)
    )


def test_results_are_rounded_once_at_every_exponent() -> None:
    sums = torch.tensor([1.0, 3.0, 2.0**24 - 1, -(2.0**24) + 3])
    for exponent in range(-240, 241, 5):
        with np.errstate(over="ignore"):
            expected = np.ldexp(sums.double().numpy(), -exponent).astype(np.float32)
        for kind in (torch.float32, torch.float64):
            np.testing.assert_array_equal(scaled(sums.to(kind), exponent).numpy(), expected)


def test_norms_bound_every_sum() -> None:
    draw = np.random.default_rng(4)
    for _ in range(20):
        a = torch.from_numpy(draw.integers(-128, 128, size=(3, 500)).astype(np.float32))
        b = torch.from_numpy(draw.integers(-128, 128, size=(500, 4)).astype(np.float32))
        rows, columns = a.square().sum(1).amax(), b.square().sum(0).amax()
        largest = float((a.double().abs() @ b.double().abs()).amax())
        assert emulated._norms(rows, columns, 500) >= largest
    assert emulated._norms(torch.tensor(1.0), torch.tensor(1.0), 1 << 23) == float("inf")


@pytest.mark.parametrize("name", ["e4m3", "e8m7", "e5m10", "mxfp8"])
def test_formats_that_are_no_integers_are_multiplied_in_float32(name: str) -> None:
    policy = Policy.for_training({"input": name, "weight": name, "grad_output": name})
    spec = policy.resolve(Layer("conv", "Conv2d"), Role.INPUT, Product.FORWARD).spec
    geometry = Geometry((2, 2), (1, 1))
    x = quantize(torch.randn(2, 32, 9, 9), spec, 0)
    w = quantize(torch.randn(5, 32, 3, 3), spec, 1)
    found = ENGINE.forward(x, w, geometry)
    left, right = (side.reals().requires_grad_() for side in (x, w))
    plain = torch.nn.functional.conv2d(left, right, None, (2, 2), (1, 1))
    assert torch.equal(found, plain)
    g = quantize(torch.randn_like(found), spec, 2)
    plain.backward(g.reals())
    torch.testing.assert_close(ENGINE.grad_input(g, w, geometry, tuple(x.shape)), left.grad)
    torch.testing.assert_close(ENGINE.grad_weight(x, g, geometry, tuple(w.shape)), right.grad)


def test_a_float_operand_makes_a_float_product() -> None:
    _, x = operand((2, 3, 5, 5), 8, np.random.default_rng(5))
    w = quantize(torch.randn(4, 3, 3, 3), None, 0)
    found = ENGINE.forward(x, w, Geometry())
    assert torch.equal(found, torch.nn.functional.conv2d(x.reals(), w.reals()))


def test_backends_get_their_precision_back() -> None:
    unit = torch.backends.mkldnn.conv
    before = unit.fp32_precision
    try:
        unit.fp32_precision = "bf16"
        with pytest.raises(ZeroDivisionError), emulated.whole_float32(torch.device("cpu"), True):
            assert unit.fp32_precision == "ieee"
            raise ZeroDivisionError
        assert unit.fp32_precision == "bf16"
    finally:
        unit.fp32_precision = before


def test_nothing_to_multiply() -> None:
    empty = Operand(torch.empty((0, 3, 5, 5), dtype=torch.int8), 0, 8)
    _, w = operand((4, 3, 3, 3), 8, np.random.default_rng(6))
    assert ENGINE.forward(empty, w, Geometry()).shape == (0, 4, 3, 3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["int8", "int12", "int16", "uint8"])
def test_a_gpu_gives_the_same_bits(name: str) -> None:
    """Quantizer and products, with TF32 allowed and every algorithm that cuDNN might choose."""
    policy = Policy.for_training({"input": {"format": name, "rounding": "stochastic"}})
    spec = policy.resolve(Layer("conv", "Conv2d"), Role.INPUT, Product.FORWARD).spec
    geometry, draw = Geometry((1, 1), (1, 1)), torch.Generator().manual_seed(0)
    x = torch.randn(8, 64, 20, 20, generator=draw)
    w, g = torch.randn(32, 64, 3, 3, generator=draw), torch.randn(8, 32, 20, 20, generator=draw)
    found = []
    for device in ("cpu", "cuda"):
        a, b, c = (quantize(t.to(device), spec, seed) for seed, t in enumerate((x, w, g)))
        products = (
            ENGINE.forward(a, b, geometry),
            ENGINE.grad_input(c, b, geometry, tuple(x.shape)),
            ENGINE.grad_weight(a, c, geometry, tuple(w.shape)),
        )
        found.append([t.cpu() for t in (a.tensor, b.tensor, c.tensor, *products)])
    assert all(torch.equal(cpu, gpu) for cpu, gpu in zip(*found, strict=True))
