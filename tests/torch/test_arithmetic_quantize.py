# SPDX-License-Identifier: Apache-2.0
"""The quantizer of training: scales, rounding, random numbers, whatever memory and threads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest
from tests import arithmetic_reference as reference
from torch import Tensor, nn

from bitwright.base.errors import RecipeError
from bitwright.base.native import FLAG_SETS, Loaded, find_compiler
from bitwright.formats import Overflow, Rounding
from bitwright.formats.pytorch.noise import counter_noise
from bitwright.formats.pytorch.quantize_library import QUANTIZE
from bitwright.low_precision.arithmetic import operand_quantizer
from bitwright.low_precision.arithmetic.apply import apply_arithmetic, layer_formats
from bitwright.low_precision.arithmetic.emulated import EmulatedEngine
from bitwright.low_precision.arithmetic.geometry import Engine, Geometry
from bitwright.low_precision.arithmetic.int_mm import IntMatrixEngine
from bitwright.low_precision.arithmetic.layers import Context
from bitwright.low_precision.arithmetic.operand_quantizer import quantize, signed_bits
from bitwright.low_precision.arithmetic.operands import NotFinite, Operand
from bitwright.quantize.policy import Policy
from bitwright.quantize.scale_rules import dynamic_exponent, weight_scale
from bitwright.quantize.spec import Layer, QuantSpec, Role, ScaleRule

#: Probability with which a right quantizer fails one of the tests of chance below.
ALPHA = 1e-9
LAST = torch.channels_last


def spec(name: str = "int8", rounding: str = "stochastic", **fields: Any) -> QuantSpec:
    data = {"input": {"format": name, "rounding": rounding, **fields}}
    found = Policy.for_training(data).resolve(Layer("conv", "Conv2d"), Role.INPUT, "forward").spec
    assert found is not None
    return found


def levels(x: Tensor, how: QuantSpec, seed: int = 0) -> Tensor:
    found = quantize(x, how, seed).levels
    assert found is not None
    return found


@pytest.fixture(params=["C", "torch"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setattr(operand_quantizer, "runs_natively", lambda x: False)
    elif QUANTIZE.cdll is None:
        pytest.skip("no C compiler")
    return str(request.param)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_there_is_a_c_program_where_there_is_a_compiler() -> None:
    if find_compiler() is None:
        pytest.skip("no C compiler")
    assert QUANTIZE.cdll is not None


@pytest.mark.parametrize(
    ("bits", "expected"),
    [(8, (6, 7, 4)), (12, (10, 11, 8)), (14, (12, 13, 10)), (16, (14, 15, 12))],
)
def test_scales_of_the_document(path: str, bits: int, expected: tuple[int, int, int]) -> None:
    for (low, high), exponent in zip([(-1, 1), (-0.99, 0.99), (0, 6)], expected, strict=True):
        x = torch.tensor([low, 0.1, high])
        assert quantize(x, spec(f"int{bits}"), 0).exponent == exponent


@pytest.mark.parametrize(("value", "upper", "chance"), [(1.2, 2, 0.2), (0.6, 1, 0.6)])
def test_worked_examples_of_stochastic_rounding(
    path: str, value: float, upper: int, chance: float
) -> None:
    count = 200_000
    x = torch.full((count + 1,), value)
    x[-1] = 100.0  # with 8 bits its scale is 2^0
    operand = quantize(x, spec(), 7)
    assert operand.exponent == 0
    assert operand.levels is not None
    found = operand.levels[:-1]
    assert set(found.unique().tolist()) == {upper - 1, upper}
    ups = int((found == upper).sum())
    assert binomtest(ups, count, chance).pvalue > ALPHA


FORMATS = (
    *(f"int{bits}" for bits in (2, 3, 4, 5, 8, 9, 12, 14, 16)),
    *("uint4", "uint8", "fixed<8,3>", "e4m3", "e5m2", "e2m1", "e8m7", "e5m10", "mxfp8", "mxint8"),
)


@pytest.mark.parametrize("name", FORMATS)
def test_the_mean_of_stochastic_rounding_is_the_number(name: str) -> None:
    """Every one of 40 numbers is rounded up as often as its place between two levels says."""
    copies, numbers = 4096, 40
    how = spec(name)
    row = torch.linspace(0.011, 0.987, numbers)
    row = row if name.startswith("u") else row * torch.tensor([1.0, -1.0]).repeat(numbers // 2)
    x = row[:, None].repeat(1, copies)
    x[:, ::32] = 1.0  # so that neither a tensor nor a block clips anything
    operand = quantize(x, how, 3)
    real = operand.reals().double().unflatten(1, (-1, 32))[..., 1:].flatten(1)
    for number, found in zip(row.double().tolist(), real, strict=True):
        low, high = float(found.min()), float(found.max())
        if low == high:
            # So it is a level, or next to none of the copies went to the other neighbour.
            step = 2.0**-operand.exponent if operand.levels is not None else abs(number)
            assert abs(low - number) <= 24 / copies * step
            continue
        chance = (number - low) / (high - low)
        assert 0 < chance < 1
        assert binomtest(int((found == high).sum()), len(found), chance).pvalue > ALPHA / numbers


WORDS = [
    *(f"int{bits}" for bits in range(2, 17)),
    *(f"uint{bits}" for bits in range(2, 17)),
    "int8n",
]


@settings(max_examples=120, deadline=None)
@given(
    name=st.sampled_from(WORDS),
    rounding=st.sampled_from([mode.value for mode in Rounding]),
    shape=st.sampled_from(
        [(2, 5, 3, 3), (1, 16, 2, 9), (3, 1, 4, 4), (2, 4, 1, 1), (6, 7), (300,)]
    ),
    size=st.sampled_from([1.0, 3e-7, 2.0**-145, 2.0**120, 2.0**-40]),
    grid=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
def test_equals_the_definition(
    name: str, rounding: str, shape: tuple[int, ...], size: float, grid: bool, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=draw)
    x = (x * 8).round() / 2 if grid else x  # ties
    x = x * size
    how = spec(name, rounding)
    expected, exponent = reference.quantized(x.numpy(), how, seed)
    layouts = [x, x.contiguous(memory_format=LAST)] if x.dim() == 4 else [x]
    layouts.append(torch.stack([x, x], -1)[..., 0])
    for layout in layouts:
        for native in (True, False):
            if not native:
                fast, operand_quantizer.runs_natively = (
                    operand_quantizer.runs_natively,
                    lambda x: False,
                )
            try:
                found = quantize(layout, how, seed)
            finally:
                if not native:
                    operand_quantizer.runs_natively = fast
            assert found.exponent == exponent
            assert found.levels is not None
            np.testing.assert_array_equal(found.levels.numpy(), expected)
            assert found.bits == int(re.sub(r"\D", "", name)) + name.startswith("u")
            assert x.dim() != 4 or found.levels.is_contiguous(memory_format=LAST)


def test_results_do_not_depend_on_threads(threads: None) -> None:
    x = torch.randn(4, 33, 40, 41)
    found = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(levels(x, spec(), 5))
        found.append(levels(x.contiguous(memory_format=LAST), spec(), 5))
    assert all(torch.equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("name", ["int8", "int12", "e4m3", "mxfp8"])
def test_a_seed_is_a_result(name: str) -> None:
    x = torch.randn(3, 32, 9, 9)
    first, again, other = (quantize(x, spec(name), seed).reals() for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    # In whatever memory: elements are counted in channels-last order.
    moved = quantize(x.contiguous(memory_format=LAST), spec(name), 1).reals()
    assert torch.equal(first, moved)
    assert first.is_contiguous(memory_format=LAST)


def test_random_bits_go_to_elements_in_channels_last_order() -> None:
    """Element i = ((n H + h) W + w) C + c takes word i / 512 * 256 + i % 256, or that rotated."""
    x = torch.full((2, 3, 16, 8), 0.5)
    x[0, 0, 0, 0] = 100.0
    found = levels(x, spec(), 11)
    words = counter_noise(11, 512)
    halves = [words[:256] >= 0.5, (words[:256] * 2**16) % 1 >= 0.5]  # the upper bit of either half
    late = words[256:] >= 0.5
    up = torch.cat([*halves, late]).view(2, 16, 8, 3).permute(0, 3, 1, 2)
    expected = up.to(torch.int8)
    expected[0, 0, 0, 0] = 100
    assert torch.equal(found, expected)


def test_elements_that_share_a_word_are_rounded_as_if_they_did_not() -> None:
    """Both go up as often as one and the other chance say together."""
    pairs, chance = 1 << 18, 0.3
    x = torch.full((2 * pairs,), chance)
    x[-1] = 100.0
    up = levels(x, spec(), 5).view(-1, 2, 256) == 1
    both = int((up[:, 0] & up[:, 1]).sum())
    assert binomtest(both, pairs, chance**2).pvalue > ALPHA


def test_tensors_without_two_signs(path: str) -> None:
    zeros = quantize(torch.zeros(5), spec(), 0)
    assert zeros.exponent == 0
    assert torch.equal(zeros.reals(), torch.zeros(5))
    positive = quantize(torch.tensor([0.0, 6.0]), spec(), 0)
    assert positive.exponent == 4
    negative = quantize(torch.tensor([-6.0, -1.0]), spec(), 0)
    assert negative.exponent == 4
    # 128 steps below zero, 127 above.
    assert quantize(torch.tensor([-128.0, 0.0]), spec(), 0).exponent == 0
    assert quantize(torch.tensor([0.0, 128.0]), spec(), 0).exponent == -1
    assert levels(torch.empty(0, 3), spec()).shape == (0, 3)
    assert levels(torch.empty(0, 3, 2, 2), spec()).shape == (0, 3, 2, 2)
    one = quantize(torch.tensor(0.75), spec("int2", "half_even"), 0)
    assert (one.levels, one.exponent) == (torch.tensor(1), 1) or one.reals() == 1.0


def test_what_rounds_beyond_an_end_saturates(path: str) -> None:
    """The scale leaves half a level beyond the ends, which rounds to one too far."""
    x = torch.full((4000,), 127.5)
    x[:2000] = -128.5
    found = quantize(x, spec(), 1)
    assert found.exponent == 0
    assert found.levels is not None
    assert set(found.levels.tolist()) == {-128, 127}
    assert levels(torch.tensor([127.5, -128.5]), spec("int8", "half_away")).tolist() == [127, -128]


def test_extreme_sizes_keep_the_exponent_in_its_range(path: str) -> None:
    smallest = torch.tensor([torch.finfo(torch.float32).tiny * 2.0**-23, 0.0])
    assert quantize(smallest, spec(), 0).exponent == 120
    largest = quantize(torch.tensor([torch.finfo(torch.float32).max]), spec(), 0)
    assert largest.exponent == -120
    assert largest.levels is not None
    assert int(largest.levels) == 127


def test_unsigned_formats_cut_off_what_is_negative(path: str) -> None:
    found = quantize(torch.tensor([-50.0, 0.0, 1.0, 3.0]), spec("uint4", "half_even"), 0)
    assert found.exponent == 2
    assert found.levels is not None
    assert found.levels.tolist() == [0, 0, 4, 12]
    assert (found.bits, found.top) == (5, 16)


def test_words_have_the_smallest_container() -> None:
    kinds = {"int8": torch.int8, "uint7": torch.int8, "uint8": torch.int16, "int9": torch.int16}
    for name, kind in {**kinds, "int16": torch.int16, "uint16": torch.int32}.items():
        assert levels(torch.randn(3), spec(name)).dtype == kind


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["int8", "int16", "e5m10", "e4m3", "mxfp8"])
def test_what_is_not_finite_is_named(path: str, name: str, value: float) -> None:
    for place in (0, 37, 69_999):
        x = torch.ones(70_000)
        x[place] = value
        with pytest.raises(NotFinite, match="the gradient of conv3 holds NaN or an infinity"):
            quantize(x, spec(name), 0, name="the gradient of conv3")


def test_float32_is_left_alone() -> None:
    x = torch.randn(3, 4)
    operand = quantize(x, None, 0)
    assert operand.reals() is x
    assert (operand.levels, operand.bits, operand.top) == (None, 0, 0)


def test_floats_are_those_of_torch() -> None:
    x = torch.randn(4, 8, 5, 5) * 10
    x[0, 0, 0, 0] = 1e6
    half = quantize(x, spec("e5m10", "half_even"), 0).reals()
    assert half[0, 0, 0, 0] == 65504.0  # clamped, where a cast gives infinity
    assert torch.equal(half.flatten()[1:], x.half().float().flatten()[1:])
    brain = quantize(x, spec("e8m7", "half_even"), 0).reals()
    assert torch.equal(brain, x.bfloat16().float())


def test_small_floats_follow_the_largest_magnitude() -> None:
    x = torch.randn(4, 8, 5, 5) * 1e-6
    how = spec("e4m3", "half_even")
    assert how.scale_text == "max, power of two"
    unit = float(weight_scale(x, how))
    scaled = (x / unit).to(torch.float8_e4m3fn).float() * unit
    assert torch.equal(quantize(x, how, 0).reals(), scaled)


def test_blocks_lie_along_the_axis_that_is_summed_over() -> None:
    x = torch.randn(64, 4)
    x[:32, 1] *= 1000
    how = spec("mxint8", "half_even")
    down = quantize(x, how, 0, axis=0).reals()
    assert torch.equal(down, quantize(x.T.contiguous(), how, 0, axis=1).reals().T)
    images = x.view(64, 4, 1, 1)
    assert torch.equal(quantize(images, how, 0, axis=0).reals()[..., 0, 0], down)
    # The column beside the large one keeps its own scale.
    assert float((down[:32, 0] - x[:32, 0]).abs().max()) < 0.05


def test_constant_scales_of_powers_of_two_have_levels() -> None:
    how = spec("int8", "half_even", scale="const", value=0.25)
    found = quantize(torch.tensor([1.0, -3.1, 500.0]), how, 0)
    assert found.exponent == 2
    assert found.levels is not None
    assert found.levels.tolist() == [4, -12, 127]
    fixed = quantize(torch.tensor([1.5, -9.0]), spec("fixed<8,3>", "half_even"), 0)
    assert (fixed.exponent, fixed.reals().tolist()) == (5, [1.5, -4.0])
    odd = spec("int8", "half_even", scale="const", value=0.3)
    assert signed_bits(odd) == 0
    assert quantize(torch.tensor([0.9, 1.0]), odd, 0).reals().tolist() == pytest.approx([0.9, 0.9])


@pytest.mark.parametrize("path_name", ["C", "torch"])
def test_other_overflow_rules(path_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if path_name == "torch":
        monkeypatch.setattr(operand_quantizer, "runs_natively", lambda x: False)
    x = torch.tensor([-200.0, 130.0, 5.0])
    fixed = spec("int8", "half_even", scale="const", value=1.0)
    for rule, expected in {
        Overflow.SAT: [-128, 127, 5],
        Overflow.SAT_SYM: [-127, 127, 5],
        Overflow.WRAP: [56, -126, 5],
    }.items():
        assert levels(x, replace(fixed, overflow=rule)).tolist() == expected


def test_rules_with_a_memory_are_refused() -> None:
    learned = replace(spec(), scale=ScaleRule.LEARNED)
    with pytest.raises(RecipeError, match="'learned' is no rule for the input of conv1"):
        quantize(torch.ones(3), learned, 0, name="the input of conv1")


@given(
    low=st.floats(-(2.0**99), 0, width=32),
    high=st.floats(0, 2.0**99, width=32),
    ends=st.sampled_from([(-128, 127), (-127, 127), (0, 255), (-2, 1), (-32768, 32767), (0, 3)]),
)
def test_the_exponent_is_the_largest_that_fits(
    low: float, high: float, ends: tuple[int, int]
) -> None:
    found = dynamic_exponent(*torch.tensor([low, high], dtype=torch.float64), *ends)
    assert int(found) == reference.exponent_of(low, high, *ends)


@pytest.mark.parametrize("flags", FLAG_SETS[1:], ids=" ".join)
def test_other_compilers_give_the_same_bits(
    flags: tuple[str, ...], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler")
    x, how = torch.randn(3, 20, 30, 31), spec()
    expected = levels(x, how, 9)
    library = Loaded(QUANTIZE.build(compiler, flags, tmp_path))
    monkeypatch.setitem(vars(QUANTIZE), "loaded", library)
    assert torch.equal(levels(x, how, 9), expected)
    assert torch.equal(
        levels(x, replace(how, rounding=Rounding.HALF_EVEN)), levels(x, spec("int8", "half_even"))
    )


def test_reals_of_operands_are_exact_at_every_exponent() -> None:
    whole = torch.tensor([-32768, 1, 32767], dtype=torch.int16)
    for exponent in (-112, 0, 5, 120):
        found = Operand(whole, exponent, 16).reals()
        assert found.double().tolist() == [level * 2.0**-exponent for level in whole.tolist()]


@pytest.fixture
def deferred(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: nothing looks at values while it quantizes."""
    monkeypatch.setattr(operand_quantizer, "runs_natively", lambda x: False)
    monkeypatch.setattr(operand_quantizer, "is_deferred", lambda x: True)


@pytest.mark.parametrize("scale", ["dynamic", "max"])
@pytest.mark.parametrize("size", [0.0, 1e-44, 1e-30, 1.0, 3e38])
@pytest.mark.parametrize("name", ["int8", "uint4", "int16"])
def test_on_a_gpu_exponents_stay_there(
    name: str, size: float, scale: str, deferred: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = spec(name, scale=scale, power_of_two=True) if scale == "max" else spec(name)
    x = torch.rand(3, 5, 6, 7).sub_(0.3) * size
    found = quantize(x, how, 3)
    assert isinstance(found.exponent, Tensor)
    assert found.finite is not None and bool(found.finite)
    monkeypatch.undo()
    expected = quantize(x, how, 3)
    assert found.levels is not None and expected.levels is not None
    assert torch.equal(found.levels, expected.levels)
    assert int(found.exponent) == expected.exponent
    assert torch.equal(found.reals(), expected.reals())


@pytest.mark.parametrize("engine", [EmulatedEngine(), IntMatrixEngine()], ids=lambda e: e.name)
@pytest.mark.parametrize("exponent", [-240, -120, -7, 0, 90, 126, 150, 240])
def test_products_take_exponents_on_a_gpu(engine: Engine, exponent: int) -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.randint(-128, 128, (4, 9, 5, 5), generator=draw, dtype=torch.int8)
    w = torch.randint(-128, 128, (6, 9, 3, 3), generator=draw, dtype=torch.int8)
    halves = exponent // 2, exponent - exponent // 2
    plain = [Operand(t, half, 8) for t, half in zip((x, w), halves, strict=True)]
    there = [Operand(t, torch.tensor(half), 8) for t, half in zip((x, w), halves, strict=True)]
    expected = engine.forward(*plain, Geometry())
    assert torch.equal(engine.forward(*there, Geometry()), expected)


def test_on_a_gpu_numbers_that_are_not_finite_are_found_once_a_step(deferred: None) -> None:
    context = Context(EmulatedEngine())
    target = apply_arithmetic(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 2, 1)), context)
    policy = Policy.for_training({"input": "int8", "weight": "int8"})
    target.use(layer_formats(policy, target.layers))
    target.model(torch.ones(2, 3, 8, 8))
    assert context.not_finite() is None
    target.model(torch.full((2, 3, 8, 8), float("nan")))
    error = context.not_finite()
    assert error is not None and "the input of 0 holds NaN" in error.message
    assert context.not_finite() is None
