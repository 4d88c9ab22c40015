# SPDX-License-Identifier: Apache-2.0
"""Quantize-dequantize: torch equals numpy, C equals torch, and stochastic rounding is fair."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from bitwright.base.errors import FormatError
from bitwright.base.native import Loaded, find_compiler
from bitwright.formats import (
    BlockFormat,
    CodebookFormat,
    Format,
    IntegerFormat,
    Overflow,
    PowerOfTwoFormat,
    Rounding,
    parse_format,
)
from bitwright.formats.pytorch import kernels as native_quantize
from bitwright.formats.pytorch.fake_quantize import block_scales, fake_quantize
from bitwright.formats.pytorch.noise import MAX_SEED, counter_noise
from bitwright.formats.pytorch.quantize_library import QUANTIZE
from bitwright.formats.pytorch.rounding import encode_levels

NAMES = (
    *("int1", "int4", "int8n", "uint8", "int16", "ternary", "bipolar", "fixed<8,-10>"),
    *("ufixed<5,1>", "e3m0<flush>", "e5m10"),
    *("e1m0", "e2m1", "e4m3", "e5m2", "e4m3<finite,flush>", "e8m7", "e8m23"),
    *("po2_2", "po2_4", "po2_4<zero>", "po2_6", "po2_5<zero,linear>", "po2_6<linear>"),
    *("cb4{-7,-2,1,6}", "cb2{-5,3}", "cb4{5}", "cb8{0,1,3,9}", "cb4:e4m3{-448,-3,0,96}"),
    *("mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4", "mxint8"),
    *("mx<e2m1,5>", "mx<po2_4<zero>,16>"),
)  # fmt: skip


ROUNDINGS = (Rounding.HALF_EVEN, Rounding.STOCHASTIC)


def formats() -> list[Format]:
    rng = np.random.default_rng(0)
    codebooks = [CodebookFormat(size).fitted(rng.normal(size=size)) for size in (33, 256)]
    floats = CodebookFormat(16, parse_format("e8m23")).fitted(rng.normal(size=16))
    return [*map(parse_format, NAMES), *codebooks, floats]


def hard_values(number_format: Format, scale: float) -> torch.Tensor:
    """float32: levels, midpoints and neighbours of both, denormals, huge values, signed zeros."""
    unit = scale * number_format.lsb
    if number_format.bits <= 8 and not isinstance(number_format, CodebookFormat):
        grid = number_format.grid().astype(np.float64)
    elif isinstance(number_format, CodebookFormat):
        grid = np.array([float(level) for level in number_format.table])
    else:
        top = min(float(number_format.max_level), 3e38 / unit)
        grid = np.geomspace(1, top, 400).round() * np.resize([1, -1], 400)
    middle = (grid[1:] + grid[:-1]) / 2
    geometric = np.sqrt(np.abs(grid[1:] * grid[:-1]))
    with np.errstate(over="ignore"):
        base = (np.concatenate([grid, middle, geometric]) * unit).astype(np.float32)
    near = [np.nextafter(base, np.float32(side)) for side in (-np.inf, np.inf)]
    rng = np.random.default_rng(1)
    wide = rng.normal(size=500) * 10.0 ** rng.uniform(-12, 12, 500)
    tiny = np.array([0.0, 1e-45, 3e-45, 1e-40, 1.1754942e-38, 1.1754944e-38, 1e-30])
    far = np.array([3.4028235e38, 1e30, 65504.0])
    all_of = np.concatenate([base, *near, wide, tiny, -tiny, far, -far]).astype(np.float32)
    return torch.from_numpy(all_of[np.isfinite(all_of)])


def in_torch(monkeypatch) -> None:
    monkeypatch.setitem(vars(QUANTIZE), "loaded", Loaded(None))


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))


@pytest.fixture
def kernels() -> None:
    if QUANTIZE.cdll is None:
        pytest.skip("no C compiler on PATH")


@pytest.mark.parametrize("number_format", formats(), ids=lambda f: f.name[:24])
def test_c_is_torch_bit_for_bit(number_format: Format, kernels, monkeypatch) -> None:
    blocks = isinstance(number_format, BlockFormat)
    cases = []
    for scale in (1.0, 0.1, 2.0**-7):
        x = hard_values(number_format, scale)
        if not blocks:
            x = torch.cat([x, torch.tensor([math.inf, -math.inf])])
        for rounding in Rounding:
            for overflow in (Overflow.SAT, Overflow.SAT_SYM):
                options = {"rounding": rounding, "overflow": overflow, "noise": 9}
                cases.append((x, None if blocks else scale, options))
    in_c = [fake_quantize(x, number_format, scale, **options) for x, scale, options in cases]
    in_torch(monkeypatch)
    for (x, scale, options), got in zip(cases, in_c, strict=True):
        expected = fake_quantize(x, number_format, scale, **options)
        assert same_bits(got, expected), (scale, options)


@pytest.mark.parametrize("number_format", formats(), ids=lambda f: f.name[:24])
def test_levels_in_c_are_those_of_torch(number_format: Format, kernels) -> None:
    has_zero_point = isinstance(number_format, IntegerFormat)
    for scale in (0.1, 2.0**-7):
        x = hard_values(number_format, scale)
        for rounding in set(Rounding) - {Rounding.STOCHASTIC}:
            options = {"rounding": rounding, "zero_point": 3 if has_zero_point else 0}
            with torch.no_grad():
                fast = encode_levels(x, number_format, scale, **options)
            slow = encode_levels(x.double(), number_format, scale, **options)
            assert fast.dtype == slow.dtype == torch.float64 and torch.equal(fast, slow), rounding


@pytest.mark.parametrize("number_format", formats(), ids=lambda f: f.name[:24])
def test_it_is_what_numpy_says(number_format: Format) -> None:
    for scale in (1.0, 0.1):
        x = hard_values(number_format, scale)
        if isinstance(number_format, BlockFormat):
            expected = number_format.quantized(x.numpy(), number_format.block_scales(x.numpy()))
            got = fake_quantize(x, number_format)
        else:
            expected = number_format.quantized(x.numpy(), scale)
            got = fake_quantize(x, number_format, scale)
        with np.errstate(over="ignore"):  # -128 * 2^121, an mxint8 number, is beyond float32
            expected = expected.astype(np.float32)
        assert np.array_equal(got.numpy(), expected)
        assert not np.signbit(got.numpy()[expected == 0]).any()


@pytest.mark.parametrize("name", ["int8", "e4m3", "po2_4", "cb4{-7,-2,1,6}", "mxfp4"])
def test_layouts_threads_and_scales_for_channels(name: str, kernels, monkeypatch) -> None:
    number_format = parse_format(name)
    torch.manual_seed(0)
    x = torch.randn(5, 20, 90, 21)
    axes = torch.rand(20, 1, 1, dtype=torch.float64) + 0.01
    rows = torch.rand(5, 1, 1, 1) + 0.01
    last = torch.rand(21) + 0.01
    mixed = torch.rand(5, 20, 1, 1) + 0.01  # varies along two axes: torch computes it
    own = number_format.block > 0
    images = x.contiguous(memory_format=torch.channels_last)
    tensors = (x, images, x.transpose(0, 2), x[:, ::3], x[:0], x[0, 0, 0, 0], x[..., :1])
    for rounding in ROUNDINGS:
        rules = {"rounding": rounding, "noise": 3}
        cases = [(y, None if own else 0.1, {}) for y in tensors]
        cases += [(y, scale, {}) for y in (x, images) for scale in (axes, rows, last, mixed)]
        cases += [(x[:1, :1], axes, {})]  # the scale is larger than the tensor
        cases += [(y, None, {"axis": 1}) for y in (x, images)] if own else []
        cases = [c for c in cases if c[0].dim() or not own]
        for number in (1, 3):
            with threads(number):
                got = [fake_quantize(y, number_format, s, **o, **rules) for y, s, o in cases]
            with monkeypatch.context() as patch:
                in_torch(patch)
                for (y, scale, options), one in zip(cases, got, strict=True):
                    expected = fake_quantize(y, number_format, scale, **options, **rules)
                    assert one.shape == expected.shape and same_bits(one, expected)


@pytest.mark.parametrize("shape", [(300_001,), (3, 100_000), (2, 100_003)])
def test_blocks_in_several_threads(shape: tuple[int, ...], kernels, monkeypatch) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape) * torch.logspace(-9, 9, shape[-1])
    with threads(4):
        got = [fake_quantize(x, "mxfp4", rounding=rule, noise=1) for rule in ROUNDINGS]
    in_torch(monkeypatch)
    for rule, one in zip(ROUNDINGS, got, strict=True):
        assert same_bits(one, fake_quantize(x, "mxfp4", rounding=rule, noise=1))


def test_blocks_lie_along_the_axis() -> None:
    number_format = parse_format("mxfp4")
    torch.manual_seed(1)
    x = torch.randn(3, 70, 5) * torch.logspace(-30, 30, 70)[:, None]
    expected = number_format.quantized(x.numpy(), number_format.block_scales(x.numpy(), axis=1))
    assert np.array_equal(fake_quantize(x, number_format, axis=1).numpy(), expected)
    scales = block_scales(x, number_format, axis=1)
    assert np.array_equal(scales.numpy(), number_format.block_scales(x.numpy(), axis=1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes_round_once(dtype: torch.dtype) -> None:
    x = hard_values(parse_format("e4m3"), 0.1)
    x = x[x.abs() < 6e4].to(dtype)
    got = fake_quantize(x, "e4m3", 0.1)
    expected = parse_format("e4m3").quantized(x.double().numpy(), 0.1)
    assert got.dtype == dtype and torch.equal(got, torch.from_numpy(expected).to(dtype))


def test_wrapping_and_zero_points(kernels) -> None:
    x = torch.linspace(-40, 40, 161)
    wrapped = parse_format("int4").quantized(x.numpy(), 1.0, overflow=Overflow.WRAP)
    assert np.array_equal(fake_quantize(x, "int4", overflow=Overflow.WRAP).numpy(), wrapped)
    number_format = parse_format("uint4")
    codes = number_format.encode(x.numpy(), 0.5, 6)
    expected = number_format.decode(codes, 0.5, 6)
    assert np.array_equal(fake_quantize(x, number_format, 0.5, zero_point=6).numpy(), expected)


def test_philox_is_the_published_one() -> None:
    """Known answer of Random123 for counter 0 and key 0; elements 64 apart are its four words."""
    words = (counter_noise(0, 256) * 2**32).to(torch.int64)[[0, 64, 128, 192]]
    assert [hex(int(word)) for word in words] == [
        "0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8",
    ]  # fmt: skip


def test_noise_is_even_and_not_repeated() -> None:
    """Chi-square over 256 cells: a fair generator exceeds the limit once in 10^6 runs."""
    noise = counter_noise(12345, 256_000)
    cells = torch.bincount((noise * 256).to(torch.int64), minlength=256)
    assert float(((cells - 1000) ** 2 / 1000).sum()) < 377.1  # 1 - 10^-6 quantile of 255 degrees
    assert len(torch.unique(noise)) > 255_900  # about 8 collide
    assert not torch.equal(noise, counter_noise(12346, 256_000))
    assert torch.equal(counter_noise(5, 300), counter_noise(5, 1000)[:300])


@pytest.mark.parametrize(
    ("name", "value"),
    [("int8", 3.3), ("e4m3", 1.1), ("e2m1", 0.07), ("po2_6<zero,linear>", 5.0),
     ("cb4{-7,-2,1,6}", 2.5), ("mxfp4", 2.3), ("fixed<8,2>", -0.333), ("bipolar", 0.25)],
)  # fmt: skip
def test_stochastic_rounding_is_unbiased(name: str, value: float) -> None:
    """The mean of n draws between two neighbours is within 5 standard errors: a fair one is not
    once in 1.7 million runs, and the seed is fixed."""
    count = 200_000
    drawn = fake_quantize(
        torch.full((count,), value), name, rounding=Rounding.STOCHASTIC, noise=7
    ).double()
    low, high = float(drawn.min()), float(drawn.max())
    exact = float(torch.tensor(value))
    assert low < exact < high and len(torch.unique(drawn)) == 2
    deviation = math.sqrt((exact - low) * (high - exact) / count)
    assert abs(float(drawn.mean()) - exact) < 5 * deviation


def test_stochastic_rounding_of_logarithms_is_unbiased_in_the_exponent() -> None:
    drawn = fake_quantize(
        torch.full((200_000,), 5.0), "po2_6", rounding=Rounding.STOCHASTIC, noise=7
    )
    share = math.log2(5.0) - 2
    deviation = math.sqrt(share * (1 - share) / 200_000)
    assert abs(float(drawn.log2().double().mean()) - math.log2(5.0)) < 5 * deviation


def test_seeds_and_generators() -> None:
    x = torch.randn(1000)

    def run(noise) -> torch.Tensor:
        return fake_quantize(x, "int4", 0.3, rounding=Rounding.STOCHASTIC, noise=noise)

    assert torch.equal(run(5), run(5)) and not torch.equal(run(5), run(6))
    one, two = (torch.Generator().manual_seed(4) for _ in range(2))
    assert torch.equal(run(one), run(two)) and not torch.equal(run(one), run(5))
    torch.manual_seed(9)
    first = run(None)
    torch.manual_seed(9)
    assert torch.equal(first, run(None)) and not torch.equal(first, run(None))
    given = torch.rand(1000, dtype=torch.float64)
    numpy = parse_format("int4").encode(x.numpy(), 0.3, rng=None)  # a deterministic rule needs none
    assert len(numpy) == 1000 and torch.equal(run(given), run(given))
    assert torch.equal(run(MAX_SEED), run(MAX_SEED))
    for bad in (-1, MAX_SEED + 1, True, 1.5):
        with pytest.raises(FormatError, match="no seed"):
            run(bad)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    "name", ["int8", "e4m3", "po2_4<zero>", "cb4{-7,-2,1,6}", "mxfp4", "bipolar"]
)
def test_nan_is_an_error_wherever_it_hides(name: str, native: bool, monkeypatch) -> None:
    if not native:
        in_torch(monkeypatch)
    for place in (0, 77, 299_999):
        x = torch.ones(300_000)
        x[place] = math.nan
        with pytest.raises(FormatError, match="NaN"):
            fake_quantize(x, name)
        if name == "mxfp4":
            x[place] = -math.inf
            with pytest.raises(FormatError, match="infinity in blocks"):
                fake_quantize(x, name)


def test_bad_input() -> None:
    x = torch.ones(4)
    for scale in (0.0, -1.0, math.inf, math.nan, torch.tensor([1.0, 0.0, 1.0, 1.0])):
        with pytest.raises(FormatError, match="scale must be positive"):
            fake_quantize(x, "int4", scale)
    with pytest.raises(FormatError, match=r"scale of shape \(3,\) does not fit values of \(4,\)"):
        fake_quantize(x, "int4", torch.ones(3))
    with pytest.raises(FormatError, match=r"noise of shape \(3,\) for values of \(4,\)"):
        fake_quantize(x, "int4", rounding=Rounding.STOCHASTIC, noise=torch.rand(3))
    with pytest.raises(FormatError, match="floating point"):
        fake_quantize(torch.ones(4, dtype=torch.int64), "int4")
    with pytest.raises(FormatError, match="wrap"):
        fake_quantize(x, "e4m3", overflow=Overflow.WRAP)
    with pytest.raises(FormatError, match="zero point"):
        fake_quantize(x, "e4m3", 1.0, zero_point=3)
    with pytest.raises(FormatError, match="no table"):
        fake_quantize(x, "cb16")
    with pytest.raises(FormatError, match="no axis 2"):
        fake_quantize(x, "mxfp4", axis=2)
    with pytest.raises(FormatError, match="infinite"):
        fake_quantize(torch.tensor([math.inf]), "int4", overflow=Overflow.WRAP)
    with pytest.raises(FormatError, match="unknown format"):
        fake_quantize(x, "int4k")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3)])
def test_nothing_stays_nothing(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for name in ("int8", "e4m3", "mxfp4", "cb4{-7,-2,1,6}"):
        empty = fake_quantize(torch.zeros(shape, dtype=dtype), name)
        assert empty.shape == shape and empty.dtype == dtype


def test_no_gradient_and_no_change_of_the_input() -> None:
    x = torch.linspace(-1, 1, 9, requires_grad=True)
    before = x.detach().clone()
    y = fake_quantize(x, "int4", 0.3)
    assert not y.requires_grad and torch.equal(x.detach(), before)


def test_without_a_compiler_torch_computes(monkeypatch) -> None:
    x = torch.randn(100)
    expected = fake_quantize(x, "e4m3")

    monkeypatch.setattr("bitwright.base.native.find_compiler", lambda: None)
    monkeypatch.setitem(vars(QUANTIZE), "loaded", None)  # brought back behind the test
    del vars(QUANTIZE)["loaded"]
    assert QUANTIZE.cdll is None
    assert torch.equal(fake_quantize(x, "e4m3"), expected)


def test_plain_compilation_has_the_same_bits(tmp_path, monkeypatch) -> None:
    """Without vector units (-O0, the base instruction set) nothing changes."""
    compiler = find_compiler()
    if compiler is None:
        pytest.skip("no C compiler on PATH")
    plain = Loaded(QUANTIZE.build(compiler, ("-O0",), tmp_path))
    names = ("int8", "e4m3", "po2_5<zero>", "po2_5<linear>", "mxfp4")
    for name in names:
        x = hard_values(parse_format(name), 0.1)
        for rounding in (Rounding.HALF_EVEN, Rounding.HALF_AWAY, Rounding.STOCHASTIC):
            expected = fake_quantize(x, name, rounding=rounding, noise=2)
            with monkeypatch.context() as patch:
                patch.setitem(vars(QUANTIZE), "loaded", plain)
                assert same_bits(fake_quantize(x, name, rounding=rounding, noise=2), expected)


def test_every_power_of_two_has_a_kernel() -> None:
    """The window of rules that C leaves to torch stays as small as it says."""
    for rounding in Rounding:
        linear = PowerOfTwoFormat(4, True, True)
        spec = native_quantize._spec(linear, rounding, Overflow.SAT, 0, False)
        assert (spec is None) == (rounding in (Rounding.UP, Rounding.DOWN))
        log = native_quantize._spec(PowerOfTwoFormat(4), rounding, Overflow.SAT, 0, False)
        assert log is not None
