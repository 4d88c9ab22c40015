# SPDX-License-Identifier: Apache-2.0
"""Straight-through and learned-scale gradients against their formulas; scale rules."""

from __future__ import annotations

import math

import pytest
import torch

from bitwright.formats import Rounding, parse_format
from bitwright.quantize import straight_through as functions
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.policy_defaults import complete
from bitwright.quantize.quantizer import Phase, set_phase
from bitwright.quantize.scale_rules import observed_scale, weight_scale
from bitwright.quantize.spec import Change, Granularity, Role, ScaleRule
from bitwright.quantize.straight_through import (
    LearnedWeight,
    LevelRange,
    QuantizeActivation,
    SignActivation,
    SignWeight,
    dot,
)
from bitwright.quantize.weight_quantizer import WeightQuantizer

STAIRS = LevelRange(0, 15, Rounding.HALF_EVEN)


def lsq(x, unit, low, high):
    """LSQ written with detach: autograd then gives eq. 3 of Esser et al. 2020."""
    ratio = (x / unit).clamp(low, high)
    rounded = ratio + (torch.round(ratio) - ratio).detach()
    return rounded * unit


@pytest.mark.parametrize("block", [1 << 18, 50])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_activation_gradients_are_those_of_lsq(layout, block, monkeypatch) -> None:
    monkeypatch.setattr(functions, "_BLOCK", block)  # 50: many blocks, the last one short
    torch.manual_seed(0)
    x = (torch.randn(3, 4, 5, 6) * 2).to(memory_format=layout).requires_grad_()
    scale = torch.full((1,), 0.17, requires_grad=True)
    g = torch.randn(3, 4, 5, 6).to(memory_format=layout)
    out = QuantizeActivation.apply(x, scale, float(scale.detach()), STAIRS, 0.5)
    out.backward(g)
    x2 = x.detach().clone().requires_grad_()
    s2 = torch.full((1,), 0.17, requires_grad=True)
    reference = lsq(x2, s2, 0, 15)
    reference.backward(g)
    assert torch.allclose(out, reference, atol=1e-6)
    assert torch.allclose(x.grad, x2.grad, rtol=1e-6)
    assert torch.equal(x.grad == 0, x2.grad == 0)
    assert torch.allclose(scale.grad, 0.5 * s2.grad, rtol=1e-4)


def test_gradients_of_other_layouts_than_the_input(monkeypatch) -> None:
    monkeypatch.setattr(functions, "_BLOCK", 50)
    torch.manual_seed(0)
    x = (torch.randn(3, 4, 5, 6) * 2).requires_grad_()
    scale = torch.full((1,), 0.17, requires_grad=True)
    out = QuantizeActivation.apply(x, scale, float(scale.detach()), STAIRS, 1.0)
    out.sum().backward()  # an expanded gradient, all of it one number
    found = scale.grad.clone(), x.grad.clone()
    x.grad = scale.grad = None
    out = QuantizeActivation.apply(x, scale, float(scale.detach()), STAIRS, 1.0)
    out.backward(torch.ones(3, 4, 5, 6).to(memory_format=torch.channels_last))
    assert torch.allclose(scale.grad, found[0], rtol=1e-4)
    assert torch.equal(x.grad, found[1])
    spaced = torch.randn(3, 4, 10, 6)[:, :, ::2]
    with torch.no_grad():
        whole = QuantizeActivation.apply(spaced.contiguous(), None, 0.17, STAIRS, 0.0)
        assert torch.equal(QuantizeActivation.apply(spaced, None, 0.17, STAIRS, 0.0), whole)


def test_weight_gradients_per_channel_are_those_of_lsq() -> None:
    torch.manual_seed(1)
    w = torch.randn(4, 3, 3, 3, requires_grad=True)
    scale = torch.tensor([0.1, 0.2, 0.3, 0.5], requires_grad=True)
    g = torch.randn_like(w)
    out = LearnedWeight.apply(w, scale, scale.detach(), LevelRange(-7, 7, Rounding.HALF_EVEN), 1.0)
    out.backward(g)
    w2, s2 = w.detach().clone().requires_grad_(), scale.detach().clone().requires_grad_()
    lsq(w2, s2.view(-1, 1, 1, 1), -7, 7).backward(g)
    assert torch.allclose(w.grad, w2.grad, rtol=1e-6)
    assert torch.allclose(scale.grad, s2.grad, rtol=1e-4, atol=1e-5)


def test_sign_passes_the_gradient_of_hard_tanh() -> None:
    x = torch.tensor([-2.0, -1.0, -0.3, -0.0, 0.0, 0.5, 1.0, 1.5], requires_grad=True)
    out = SignActivation.apply(x, 1.0)
    assert out.tolist() == [-1, -1, -1, 1, 1, 1, 1, 1]
    out.sum().backward()
    assert x.grad.tolist()[2:6] == [1, 1, 1, 1]
    assert x.grad[0] == 0 and x.grad[-1] == 0
    assert torch.isnan(SignActivation.apply(torch.tensor([1.0, torch.nan]), 1.0)).tolist() == [0, 1]
    endless = torch.tensor([torch.inf, -torch.inf])
    assert SignActivation.apply(endless, 1.0).tolist() == [1.0, -1.0]


def test_signs_of_weights_pass_the_gradient_up_to_one() -> None:
    just_above = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)).item()
    row = [-2.0, -just_above, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1.0, just_above]
    w = torch.tensor([row, row], requires_grad=True)
    unit = torch.tensor([[0.1], [3e30]])
    out = SignWeight.apply(w, unit)
    assert torch.equal(out, torch.tensor([[-1.0] * 4 + [1.0] * 5] * 2) * unit)
    g = torch.randn_like(w)
    out.backward(g)
    assert torch.equal(w.grad, g * (w.detach().abs() <= 1))


@pytest.mark.parametrize("scale", ["mean", "learned", "const"])
def test_bipolar_weights_in_training_are_those_of_evaluation(scale: str) -> None:
    torch.manual_seed(3)
    w = torch.randn(5, 40, requires_grad=True)
    quantizer = WeightQuantizer(spec(Role.WEIGHT, "bipolar", scale=ScaleRule(scale)), 5)
    trained = quantizer(w)
    g = torch.randn_like(w)
    trained.backward(g)
    with torch.no_grad():
        assert torch.equal(quantizer.eval()(w), trained)
    factor = quantizer.current_scale(w).reshape(-1, 1) if scale == "learned" else 1.0
    assert torch.allclose(w.grad, g * factor * (w.detach().abs() <= 1))


def test_dot_of_mixed_layouts() -> None:
    a = torch.randn(2, 3, 4, 5)
    b = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    c = a.to(memory_format=torch.channels_last)
    for left, right in ((a, b), (b, a), (c, b), (a, a), (a[:, ::2], b[:, ::2])):
        assert torch.allclose(dot(left, right), (left * right).sum(), atol=1e-4)


def spec(role: Role, name: str, **change):
    return complete(Change(format=parse_format(name), **change), role, "test")


def test_maximum_scale_clips_nothing_and_passes_every_gradient() -> None:
    torch.manual_seed(2)
    w = torch.randn(6, 10, requires_grad=True)
    quantizer = WeightQuantizer(spec(Role.WEIGHT, "int4"), 6)
    out = quantizer(w)
    g = torch.randn_like(w)
    out.backward(g)
    assert torch.equal(w.grad, g)
    levels, unit = quantizer.levels(w)
    assert levels.abs().amax(dim=1).tolist() == [7.0] * 6
    assert levels.min() == -7  # narrow
    assert torch.allclose(out.double(), levels * unit[:, None], rtol=1e-6)


def test_weight_scale_rules() -> None:
    w = torch.tensor([[0.1, -0.2, 0.3, -4.0], [1.0, 1.0, -1.0, 1.0]])
    rows = spec(Role.WEIGHT, "int4")
    assert torch.allclose(weight_scale(w, rows), torch.tensor([4.0 / 7, 1.0 / 7]))
    one = spec(Role.WEIGHT, "int4", granularity=Granularity.PER_TENSOR)
    assert torch.allclose(weight_scale(w, one), torch.tensor([4.0 / 7]))
    two = spec(Role.WEIGHT, "int4", power_of_two=True)
    assert weight_scale(w, two).tolist() == [1.0, 0.25]
    exact = torch.full((1, 4), 7 * 0.125)
    assert weight_scale(exact, two).tolist() == [0.125]  # a power already: not rounded up
    xnor = spec(Role.WEIGHT, "bipolar")
    assert torch.allclose(weight_scale(w, xnor), torch.tensor([1.15, 1.0]))
    twn = spec(Role.WEIGHT, "ternary")  # threshold 0.7 * 1.15: only 4.0 remains
    assert torch.allclose(weight_scale(w, twn), torch.tensor([4.0, 1.0]))
    levels, _ = WeightQuantizer(twn, 2).levels(w)
    assert levels.tolist() == [[0, 0, 0, -1], [1, 1, -1, 1]]
    fixed = spec(Role.WEIGHT, "fixed<4,1>")
    levels, unit = WeightQuantizer(fixed, 2).levels(w)
    assert unit.tolist() == [0.125, 0.125]
    assert levels.tolist() == [[1, -2, 2, -8], [7, 7, -8, 7]]


def test_mse_beats_max_where_there_are_outliers() -> None:
    torch.manual_seed(3)
    w = torch.randn(1, 4000)
    w[0, 0] = 40.0
    errors = {}
    for rule in (ScaleRule.MAX, ScaleRule.MSE, ScaleRule.PERCENTILE):
        quantizer = WeightQuantizer(spec(Role.WEIGHT, "int4", scale=rule), 1)
        levels, unit = quantizer.levels(w)
        errors[rule] = float((levels * unit - w).square().mean())
    assert errors[ScaleRule.MSE] < errors[ScaleRule.MAX]
    assert errors[ScaleRule.MSE] <= errors[ScaleRule.PERCENTILE]


def test_observed_scale_ignores_what_an_unsigned_format_cannot_hold() -> None:
    x = torch.tensor([-100.0, 0.0, 3.0])
    rule = spec(Role.ACTIVATION, "uint2", scale=ScaleRule.MAX)
    assert torch.allclose(observed_scale(x, rule), torch.tensor([1.0]))


def test_running_statistics_follow_training_and_stand_still_in_evaluation() -> None:
    quantizer = ActivationQuantizer(
        spec(Role.ACTIVATION, "uint2", scale=ScaleRule.MAX, momentum=0.5)
    )
    quantizer(torch.tensor([[3.0]]))
    assert quantizer.unit == 1.0
    quantizer(torch.tensor([[9.0]]))
    assert quantizer.unit == 2.0  # halfway from 1 to 3
    quantizer.eval()
    quantizer(torch.tensor([[300.0]]))
    assert quantizer.unit == 2.0


def test_calibration_observes_and_passes_through() -> None:
    quantizer = ActivationQuantizer(spec(Role.ACTIVATION, "uint2"), clip=(0.0, 6.0))
    set_phase(quantizer, Phase.CALIBRATE)
    x = torch.tensor([[-1.0, 2.2, 7.0]])
    assert torch.equal(quantizer(x), x.clamp(0.0, 6.0))
    assert quantizer.ready and quantizer.unit <= 2.0


def test_the_inputs_maximum_only_grows() -> None:
    quantizer = ActivationQuantizer(spec(Role.INPUT, "uint8"), Role.INPUT)
    for peak in (0.5, 1.0, 0.25):
        quantizer(torch.tensor([[peak]]))
    assert math.isclose(quantizer.unit, 1 / 255, rel_tol=1e-6)


def test_a_batch_of_zeros_does_not_spoil_the_scale() -> None:
    quantizer = ActivationQuantizer(spec(Role.ACTIVATION, "uint4"))
    out = quantizer(torch.zeros(2, 3))
    assert torch.equal(out, torch.zeros(2, 3))
    assert math.isclose(quantizer.unit, 1 / 15, rel_tol=1e-6)


def test_learned_scale_learns() -> None:
    torch.manual_seed(4)
    x = torch.rand(256, 8) * 3
    quantizer = ActivationQuantizer(spec(Role.ACTIVATION, "uint2"))
    quantizer(x)
    with torch.no_grad():
        quantizer.scale.mul_(0.2)  # far too small
    optimizer = torch.optim.SGD(quantizer.parameters(), lr=2.0)
    errors = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (quantizer(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        errors.append(float(loss.detach()))
    assert errors[-1] < 0.1 * errors[0]


def test_power_of_two_learned_scale_is_one_in_use() -> None:
    quantizer = ActivationQuantizer(spec(Role.ACTIVATION, "uint4", power_of_two=True))
    quantizer(torch.rand(8, 8))
    assert math.log2(quantizer.unit).is_integer()
