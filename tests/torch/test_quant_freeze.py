# SPDX-License-Identifier: Apache-2.0
"""Frozen models: integers equal to a plain numpy recomputation, `==` on every element."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bitwright.base.errors import ModelError
from bitwright.formats import Rounding, parse_format
from bitwright.formats.rounding import round_to_int
from bitwright.formats.thresholds import affine_levels
from bitwright.ir.kernels import round_shift as reference_shift
from bitwright.quantize import Policy, apply
from bitwright.quantize.frozen import (
    AffineActivation,
    Dequantize,
    FrozenModel,
    IntegerConv2d,
    IntegerLinear,
    QuantizeInput,
    ShiftActivation,
    round_shift,
)

CONTRACT = (
    QuantizeInput,
    IntegerConv2d,
    IntegerLinear,
    AffineActivation,
    ShiftActivation,
    Dequantize,
    nn.MaxPool2d,
    nn.Flatten,
)


def by_channel(values: np.ndarray, dims: int) -> np.ndarray:
    return values.reshape(1, -1, *(1,) * (dims - 2))


def numpy_conv(x: np.ndarray, module: IntegerConv2d) -> np.ndarray:
    """Direct int64 convolution, NCHW."""
    weight = module.weight.numpy().astype(np.int64)
    (ph, pw), (sh, sw), (dh, dw) = module.padding, module.stride, module.dilation
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    rows, depth, kh, kw = weight.shape
    height = (x.shape[2] - dh * (kh - 1) - 1) // sh + 1
    width = (x.shape[3] - dw * (kw - 1) - 1) // sw + 1
    out = np.zeros((x.shape[0], rows, height, width), dtype=np.int64)
    for row in range(rows):
        first = row // (rows // module.groups) * depth
        for i in range(kh):
            for j in range(kw):
                part = x[:, first : first + depth, i * dh :: sh, j * dw :: sw]
                part = part[:, :, :height, :width]
                out[:, row] += np.einsum("nchw,c->nhw", part, weight[row, :, i, j])
    return out


def numpy_levels(frozen: FrozenModel, x: torch.Tensor) -> dict[str, np.ndarray]:
    """The whole frozen network in numpy, from buffers and attributes alone."""
    values: dict[str, np.ndarray] = {}
    for node in frozen.graph.nodes:
        if node.op == "placeholder":
            values[node.name] = x.numpy().astype(np.float64)
        if node.op != "call_module":
            continue
        module = frozen.get_submodule(node.target)
        v = values[node.args[0].name]
        values[node.name] = numpy_module(module, v)
    return values


def numpy_module(module: nn.Module, v: np.ndarray) -> np.ndarray:
    if isinstance(module, QuantizeInput):
        codes = module.format.encode(v, module.scale, module.zero_point, module.rounding)
        return module.format.levels(codes, module.zero_point)
    if isinstance(module, IntegerConv2d):
        out = numpy_conv(v, module)
        bias = module.bias
        return out if bias is None else out + by_channel(bias.numpy().astype(np.int64), 4)
    if isinstance(module, IntegerLinear):
        out = v @ module.weight.numpy().astype(np.int64).T
        return out if module.bias is None else out + module.bias.numpy().astype(np.int64)
    if isinstance(module, AffineActivation):
        a, b = (by_channel(t.numpy(), v.ndim) for t in (module.a, module.b))
        return affine_levels(v, a, b, module.format, module.rounding)
    if isinstance(module, ShiftActivation):
        m, o = (by_channel(t.numpy(), v.ndim) for t in (module.multiplier, module.offset))
        shifted = reference_shift(v * m + o, module.shift, module.rounding.value)
        return np.clip(shifted, module.format.min_level, module.format.max_level)
    if isinstance(module, nn.MaxPool2d):
        return module(torch.from_numpy(v).double()).numpy().astype(np.int64)
    if isinstance(module, nn.Flatten):
        return v.reshape(v.shape[0], -1)
    assert isinstance(module, Dequantize)
    return v * module.scale


def assert_exact(frozen: FrozenModel, x: torch.Tensor) -> None:
    expected = numpy_levels(frozen, x)
    found = frozen.intermediates(x)
    for name, value in expected.items():
        if not name.startswith("dequantize"):
            assert np.array_equal(found[name].numpy(), value), name
    scores = frozen.levels(x).double().numpy() * frozen.score_scale
    assert np.array_equal(scores, expected["dequantize"])
    with torch.no_grad():
        assert np.allclose(frozen(x).numpy(), expected["dequantize"], rtol=1e-6)


def shake(model: nn.Module, seed: int) -> None:
    """Batch norms with statistics and negative, zero and tiny gains."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            count = module.num_features
            module.running_mean.copy_(torch.randn(count, generator=generator))
            module.running_var.copy_(torch.rand(count, generator=generator) + 0.1)
            with torch.no_grad():
                module.weight.copy_(torch.randn(count, generator=generator))
                module.bias.copy_(torch.randn(count, generator=generator))
                module.weight[0] = 0.0
                module.weight[-1] = -1e-6


def convnet(order: str, activation: type[nn.Module], padding: int, bias: bool) -> nn.Sequential:
    """Two blocks with conv, norm, activation and pool in the given order, and a head."""
    layers: list[nn.Module] = []
    channels = 2
    for width in (4, 6):
        parts = {
            "c": nn.Conv2d(channels, width, 3, padding=padding, bias=bias),
            "b": nn.BatchNorm2d(width),
            "a": activation(),
            "p": nn.MaxPool2d(2),
        }
        layers += [parts[letter] for letter in order]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["cbap", "cbpa", "cpba", "ca", "cba", "cab"]),
    st.sampled_from([nn.ReLU, nn.Hardtanh, nn.ReLU6]),
    st.sampled_from(
        [
            ("int4", "uint4", "uint8"),
            ("int2", "uint2", "int4"),
            ("bipolar", "bipolar", "uint4"),
            ("ternary", "int3", "fixed<6,2>"),
            ("int8", "uint8", "int8"),
            ("fixed<5,1>", "ufixed<4,2>", "ufixed<8,0>"),
        ]
    ),
    st.booleans(),
    st.integers(0, 1000),
)
def test_random_networks_are_exact(order, activation, names, bias, seed) -> None:
    torch.manual_seed(seed)
    padding = 0 if names[1] == "bipolar" else 1
    model = convnet(order, activation, padding, bias)
    x = torch.randn(5, 2, 12, 12)
    x = x if parse_format(names[2]).signed else x.abs()
    model(x)  # lazy layers
    shake(model, seed)
    frozen = apply(model, Policy.uniform(*names), "freeze", x)
    assert all(type(m) in CONTRACT for m in frozen.children())
    assert_exact(frozen, x)
    assert_exact(frozen, x * 3)


@pytest.mark.parametrize("name", ["uint4", "bipolar", "int3", "uint8"])
def test_dense_networks_are_exact(name: str) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(36, 20, bias=False),
        nn.BatchNorm1d(20),
        nn.Hardtanh(),
        nn.Dropout(0.5),
        nn.Linear(20, 12),
        nn.ReLU(),
        nn.Linear(12, 4),
    )
    shake(model, 2)
    x = torch.rand(9, 1, 6, 6)
    assert_exact(apply(model, Policy.uniform("int3", name, "uint4"), "freeze", x), x)


def test_trained_model_and_its_frozen_form_agree() -> None:
    torch.manual_seed(3)
    model = apply(
        convnet_ready(torch.rand(8, 2, 12, 12)), Policy.uniform(), "train", torch.rand(8, 2, 12, 12)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for _ in range(10):
        optimizer.zero_grad()
        x = torch.rand(16, 2, 12, 12)
        nn.functional.cross_entropy(model(x), torch.arange(16) % 3).backward()
        optimizer.step()
    frozen = apply(model, Policy.uniform(), "freeze")
    x = torch.rand(32, 2, 12, 12)
    with torch.no_grad():
        difference = (model.eval()(x) - frozen(x)).abs().max()
    assert difference < 1e-4 * frozen(x).abs().max() + 3 * frozen.score_scale
    assert_exact(frozen, x)


def test_frozen_modules_keep_the_users_paths_and_intervals() -> None:
    torch.manual_seed(4)
    model = nn.Sequential()
    model.add_module("stem", nn.Conv2d(1, 2, 3, padding=1))
    model.add_module("act", nn.ReLU())
    model.add_module("flat", nn.Flatten())
    model.add_module("head", nn.Linear(32, 3))
    x = torch.rand(4, 1, 4, 4)
    frozen = apply(model, Policy.uniform("int4", "uint4", "uint4"), "freeze", x)
    assert frozen.stem.source == "stem" and frozen.head.source == "head"
    assert frozen.act.source == "act"
    assert frozen.stem.bias is None and frozen.head.bias is not None
    values = frozen.intermediates(torch.rand(64, 1, 4, 4))
    assert frozen.stem.lo <= values["stem"].min() and values["stem"].max() <= frozen.stem.hi
    worst = torch.where(frozen.stem.weight > 0, 15.0, 0.0).flip(-1).flip(-2)
    assert frozen.stem.hi >= int(
        (worst * frozen.stem.weight.flip(-1).flip(-2)).sum((1, 2, 3)).max()
    )


def test_wide_accumulators_move_to_float64() -> None:
    weight = torch.full((1, 600), 127.0)
    wide = IntegerLinear(weight, None, parse_format("int8"), (0, 255), "fc")
    assert wide.dtype is torch.float64  # 600 * 127 * 255 exceeds 2^24
    narrow = IntegerLinear(weight, None, parse_format("int8"), (0, 15), "fc")
    assert narrow.dtype is torch.float32
    x = torch.full((1, 600), 255.0)
    x[0, 0] = 254.0
    assert int(wide(x)) == 600 * 127 * 255 - 127
    with pytest.raises(ModelError):
        IntegerLinear(torch.full((1, 1), 2.0**50), None, parse_format("int8"), (0, 255), "fc")


def test_unproven_float32_falls_back_to_the_definition() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=8) * 1e-6, rng.normal(size=8) * 8
    module = AffineActivation(a, b, parse_format("uint4"), interval=(-(1 << 23), 1 << 23))
    assert not module.proven
    found = module.thresholds().thresholds
    for side in (0, 1):
        acc = np.clip(found - side, -(1 << 23), 1 << 23)
        acc = np.where(module.thresholds().flip[:, None], -acc, acc).T
        got = module(torch.from_numpy(acc.astype(np.float32)))
        assert np.array_equal(got.numpy(), affine_levels(acc, a, b, parse_format("uint4")))


@pytest.mark.parametrize("rounding", [Rounding.HALF_EVEN, Rounding.HALF_UP, Rounding.FLOOR])
def test_shift_is_the_rational_rule(rounding: Rounding) -> None:
    value = torch.arange(-100, 100)
    for shift in (0, 1, 3):
        expected = round_to_int(value.numpy() / 2**shift, rounding)
        assert np.array_equal(round_shift(value, shift, rounding).numpy(), expected)
    module = ShiftActivation(
        torch.tensor([3, -5]), torch.tensor([4, 2]), 3, parse_format("int8"), rounding
    )
    exact = ShiftActivation(
        torch.tensor([3, -5]), torch.tensor([4, 2]), 3, parse_format("int8"), rounding
    )
    exact.by_float = False
    acc = torch.arange(-50, 50).repeat(2, 1).T.float()
    assert torch.equal(module(acc), exact(acc))


def test_multipliers_keep_sixteen_bits() -> None:
    torch.manual_seed(6)
    x = torch.rand(16, 2, 12, 12)
    frozen = apply(convnet_ready(x), Policy.uniform("int8", "uint8", "uint8"), "freeze", x)
    activations = [m for m in frozen.modules() if isinstance(m, ShiftActivation)]
    assert activations
    for module in activations:
        assert 1 << 16 <= int(module.multiplier.abs().max()) <= 1 << 17


def convnet_ready(x: torch.Tensor) -> nn.Sequential:
    model = convnet("cba", nn.ReLU, 1, False)
    model(x)
    return model


def test_power_of_two_scales_reach_the_integers() -> None:
    torch.manual_seed(7)
    x = torch.rand(16, 2, 12, 12)
    policy = Policy.from_dict(
        {
            "input": {"format": "uint8", "power_of_two": True},
            "weight": {"format": "int4", "power_of_two": True, "scale": "mse"},
            "activation": {"format": "uint4", "power_of_two": True},
        }
    )
    frozen = apply(convnet_ready(x), policy, "freeze", x)
    assert float(np.log2(frozen.score_scale)).is_integer()
    assert_exact(frozen, x)


@pytest.mark.parametrize("padding", [(1, 1), (2, 0, 1, 1)], ids=["even", "uneven"])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_path_of_other_devices_is_the_same_convolution(padding, groups: int) -> None:
    torch.manual_seed(8)
    conv = IntegerConv2d(
        torch.randint(-7, 8, (4, 4 // groups, 3, 2)).float(),
        torch.randint(-50, 50, (4,)).float(),
        parse_format("int4n"),
        stride=(2, 1),
        padding=padding,
        dilation=(1, 2),
        groups=groups,
        input_interval=(0, 15),
        source="conv",
    )
    x = torch.randint(0, 16, (3, 4, 7, 6)).float()
    top, left, bottom, right = conv.border
    padded = nn.functional.pad(x, (left, right, top, bottom))
    expected = nn.functional.conv2d(padded, conv.weight, conv.bias, (2, 1), 0, (1, 2), groups)
    assert torch.equal(conv(x), expected)
    x, inner = (x, padding) if len(padding) == 2 else (padded, (0, 0))
    assert torch.equal(conv._by_matmul(x, inner), expected)
