# SPDX-License-Identifier: Apache-2.0
"""Error feedback, AdaRound, equalisation, bias correction, codebooks; and all of them together."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import join_networks as nets
from tests.ptq_networks import calibration, enliven, largest_difference, scored, trained_digits
from torch import nn

from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.formats import parse_format
from bitwright.formats.pytorch.rounding import quantize_ratio
from bitwright.lower import certify
from bitwright.quantize import Policy, apply
from bitwright.quantize.ptq import (
    AdaRound,
    Gptq,
    absorb_high_biases,
    calibrate,
    equalize,
    fold_batch_norms,
    folding_of,
    post_training_quantize,
)
from bitwright.quantize.ptq.bias_correction import rectified_mean
from bitwright.quantize.ptq.folding import ChannelStatistics
from bitwright.quantize.ptq.gptq import error_feedback, fed_or_rounded

W4A4 = Policy.uniform("int4", "uint4", "uint8")
EVERY = (
    "int2",
    "int4",
    "ternary",
    "bipolar",
    "fixed<6,5>",
    "e2m1",
    "e4m3",
    "po2_4",
    "po2_4<zero>",
    "cb4",
    "cb16:e4m3",
    "mxfp4",
    "mxint8",
    "e8m7",
)


def problem(seed: int, inputs: int = 24, rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(inputs, inputs, generator=generator).double()
    x = mix @ torch.randn(inputs, 400, generator=generator).double()
    weights = torch.randn(1, rows, inputs, generator=generator).double()
    return weights, (x @ x.T / 400 + 0.01 * torch.eye(inputs).double())[None]


def missed(weights: torch.Tensor, rounded: torch.Tensor, hessian: torch.Tensor) -> float:
    miss = weights - rounded
    return float(torch.einsum("grk,gkl,grl->", miss, hessian, miss))


@pytest.mark.parametrize("name", ["int3", "int4", "e2m1", "po2_4<zero>", "ternary", "fixed<4,1>"])
def test_feedback_beats_rounding_each_weight_alone(name: str) -> None:
    """Over many rows: the method is greedy, so a single row may be unlucky."""
    chosen = parse_format(name)

    def nearest(values: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return quantize_ratio(values / step, chosen) * step

    fed, alone = 0.0, 0.0
    for seed in range(6):
        weights, hessian = problem(seed, rows=40)
        steps = torch.full_like(weights, 3.0 / max(chosen.max_level, 1))
        rounded = error_feedback(weights, hessian, steps, nearest)
        levels = (rounded / steps).round().long().numpy()
        assert chosen.contains(levels).all()
        assert np.allclose(levels * steps.numpy(), rounded.numpy())
        fed += missed(weights, rounded, hessian)
        alone += missed(weights, nearest(weights, steps), hessian)
    assert fed < 0.9 * alone


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    inputs=st.integers(1, 12),
    name=st.sampled_from(["int2", "int3", "e2m1", "po2_4", "po2_4<zero>", "ternary", "bipolar"]),
    step=st.floats(0.05, 2.0),
)
def test_no_row_is_worse_than_rounded_to_nearest(
    seed: int, inputs: int, name: str, step: float
) -> None:
    weights, hessian = problem(seed, inputs, rows=40)
    chosen = parse_format(name)
    steps = torch.full_like(weights, step)

    def nearest(values: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return quantize_ratio(values / step, chosen) * step

    values, errors = fed_or_rounded(weights, hessian, steps, nearest)
    assert chosen.contains((values / steps).round().long().numpy()).all()
    alone = nearest(weights, steps)
    for row in range(40):
        one = slice(row, row + 1)
        kept = missed(weights[:, one], values[:, one], hessian)
        assert kept <= missed(weights[:, one], alone[:, one], hessian) * (1 + 1e-9)
        assert math.isclose(kept, float(errors[0, row]), rel_tol=1e-9, abs_tol=1e-12)


def test_independent_inputs_leave_nothing_to_make_up_for() -> None:
    weights, _ = problem(0)
    steps = torch.full_like(weights, 0.25)

    def nearest(values: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return torch.round(values / step) * step

    hessian = torch.diag_embed(torch.rand(1, 24).double() + 0.1)
    rounded = error_feedback(weights, hessian, steps, nearest)
    assert torch.equal(rounded, nearest(weights, steps))


@pytest.mark.parametrize("name", EVERY)
def test_every_weight_format_gains_and_freezes(name: str) -> None:
    model, x = trained_digits(), calibration(96)
    policy = Policy.uniform(name, "uint8", "uint8")
    converted, report = post_training_quantize(model, policy, x, ["fold", "gptq", "bias"])
    assert [layer.path for layer in report.layers] == ["conv1", "conv2", "fc1"]
    total = sum(layer.error for layer in report.layers)
    nearest = sum(layer.nearest_error for layer in report.layers)
    assert total < 0.8 * nearest or nearest < 1e-5
    quantizer = converted.conv2.weight_quantizer
    levels, unit = quantizer.levels(converted.conv2.weight)
    assert torch.equal(
        quantizer.frozen_weight(converted.conv2.weight),
        (levels * unit.reshape(-1, 1, 1, 1)).float(),
    )
    if name == "e8m7":  # levels beyond 62 bits: simulated only
        return
    frozen = apply(converted, policy, "freeze")
    # Freezing may take a common power of two out of the levels.
    (node,) = [node for node in frozen.graph if node.name == "conv2"]
    real = node.params["weight"] * np.reshape(node.floats("weight_scale"), (-1, 1, 1, 1))
    expected = (levels * unit.reshape(-1, 1, 1, 1)).permute(0, 2, 3, 1)
    assert np.array_equal(real, expected.numpy())
    with torch.no_grad():
        assert float((frozen(x) - converted(x)).abs().max()) < 0.05 * float(frozen(x).abs().max())


def test_adaround_chooses_between_neighbours() -> None:
    model, x = trained_digits(), calibration(96)
    method = AdaRound(iterations=60, search_scale=False)
    for name in ("int3", "e2m1", "cb8"):
        policy = Policy.uniform(name, "uint8", "uint8")
        converted, report = post_training_quantize(model, policy, x, ["fold", method, "bias"])
        assert sum(r.error for r in report.layers) < sum(r.nearest_error for r in report.layers)
        layer = converted.conv2
        grid = torch.from_numpy(layer.weight_quantizer.format.grid()).double()
        levels, unit = layer.weight_quantizer.levels(layer.weight)
        ratio = layer.weight.detach().double() / unit.reshape(-1, 1, 1, 1)
        inside = (ratio > grid[0]) & (ratio < grid[-1])
        between = torch.searchsorted(grid, torch.minimum(ratio, levels)) - torch.searchsorted(
            grid, torch.maximum(ratio, levels)
        )
        assert int(between[inside].abs().max()) <= 1


def test_equalising_keeps_the_function_and_evens_the_ranges() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 6, 1, groups=2),
        nn.Flatten(),
        nn.Linear(6 * 9, 4),
    )
    with torch.no_grad():
        model[0].weight *= torch.logspace(-2, 2, 8)[:, None, None, None]
    even, rows = equalize(model)
    x = torch.randn(6, 3, 8, 8)
    assert largest_difference(model, even, x) < 1e-5
    assert [(r.pair.first, r.pair.second) for r in rows] == [("0", "2"), ("2", "5"), ("5", "7")]
    assert rows[0].spread_before > 5 * rows[0].spread_after
    depthwise = even.get_submodule("2").weight.detach().reshape(8, -1).abs().amax(1)
    behind = even.get_submodule("5").weight.detach().reshape(2, 3, 4).abs().amax(1).reshape(-1)
    assert torch.allclose(depthwise, behind, rtol=1e-2)


def test_equalising_stops_at_forks_and_bends() -> None:
    six = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU6(), nn.Conv2d(2, 2, 1))
    assert equalize(six)[1] == []
    assert len(equalize(enliven(nets.ResNet()))[1]) == 0  # batch norm lies between


def test_equalising_rescues_scales_of_a_tensor() -> None:
    model, x = fold_batch_norms(trained_digits()), calibration()
    factor = torch.logspace(-2.5, 2.5, 8)
    with torch.no_grad():
        model.conv1.weight *= factor[:, None, None, None]
        model.conv1.bias *= factor
        model.conv2.weight /= factor[None, :, None, None]
    policy = Policy.from_dict(
        {"weight": {"format": "int4", "granularity": "per_tensor"}, "activation": "uint8"}
    )
    plain = scored(post_training_quantize(model, policy, x, ["calibrate"])[0])
    rescued = scored(post_training_quantize(model, policy, x, ["equalize"])[0])
    assert plain < 0.7 < scored(model) - 0.1 < rescued


def test_absorbing_moves_what_is_never_cut_off() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3))
    enliven(model)
    with torch.no_grad():
        model[1].bias.copy_(torch.tensor([20.0, 0.0, 9.0, -1.0]))
    folded = fold_batch_norms(model)
    moved, channels = absorb_high_biases(folded)
    assert channels == {"0": 2}
    known = folding_of(moved).statistics["0"]
    assert torch.all(known.mean - 3 * known.deviation <= 1e-9)
    x = torch.randn(4, 2, 6, 6) * 0.3
    with torch.no_grad():
        high = float(moved.get_submodule("0")(x).max())
    assert high < 0.6 * 20
    assert largest_difference(folded, moved, x) < 1e-5
    with pytest.raises(ModelError, match="folded batch norms"):
        absorb_high_biases(model)


def test_mean_behind_a_relu() -> None:
    known = ChannelStatistics(
        torch.tensor([0.0, 1.0, -2.0, 3.0]).double(), torch.tensor([1.0, 2.0, 0.5, 0.0]).double()
    )
    x = torch.linspace(-12, 12, 200_001).double()
    for k, found in enumerate(rectified_mean(known).tolist()):
        mean, deviation = float(known.mean[k]), max(float(known.deviation[k]), 1e-12)
        if deviation < 1e-6:
            assert found == pytest.approx(max(0.0, mean))
            continue
        density = torch.exp(-0.5 * ((x - mean) / deviation) ** 2) / (
            deviation * math.sqrt(2 * math.pi)
        )
        assert found == pytest.approx(float(torch.trapezoid(x.relu() * density, x)), abs=1e-4)


@pytest.mark.parametrize("kind", ["bias", "bias:analytic"])
def test_bias_correction_takes_the_mean_error_away(kind: str) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(8 * 16, 4),
    )
    x = torch.randn(256, 3, 8, 8)
    with torch.no_grad():
        model.train()
        for _ in range(30):
            model(x)  # running statistics that are true
    model.eval()
    policy = Policy.uniform("int2", "uint8", "int8")

    def shifts(methods: list[str]) -> float:
        converted, report = post_training_quantize(model, policy, x, methods)
        if kind == "bias:analytic" and len(methods) > 1:
            assert report.analytic == ("3", "7")
        folded = fold_batch_norms(model)
        with torch.no_grad():
            a = converted.get_submodule("3")(_until(folded, x))
            b = folded.get_submodule("3")(_until(folded, x))
        return float((a - b).mean(dim=(0, 2, 3)).abs().max())

    assert shifts(["fold", kind]) < 0.3 * shifts(["fold"])


def _until(folded: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.relu(folded.get_submodule("0")(x))


def test_codebooks_follow_importance() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(32, 12)), torch.rand(200, 32)
    with torch.no_grad():
        x[:, :8] *= 10
        model[0].weight[:, 8:] *= 4  # where the weights lie is not where they count
    policy = Policy.uniform("cb4", "uint8", "uint8")
    plain = post_training_quantize(model, policy, x, ["clip", "bias"])[1]
    refit = post_training_quantize(model, policy, x, ["codebooks", "clip", "bias"])[1]
    assert refit.layers[0].error < 0.5 * plain.layers[0].error


def test_four_bits_without_retraining() -> None:
    model = trained_digits()
    converted, report = post_training_quantize(model, W4A4, calibration())
    frozen = apply(converted, W4A4, "freeze")
    assert scored(model) > 0.93
    assert scored(frozen) >= scored(model) - 0.01
    assert report.samples == 128
    assert report.to_dict()["folded"][0]["merged"] is True
    assert "conv1" in report.to_markdown()
    certify(frozen.graph)


def test_dynamic_fixed_point_survives_folding() -> None:
    """Eight bits, one power of two a tensor: where naive ranges lose a quarter of the answers."""
    model = trained_digits()
    fixed = {"granularity": "per_tensor", "power_of_two": True, "scale": "max"}
    policy = Policy.from_dict(
        {
            "weight": {"format": "int8", **fixed},
            "activation": {"format": "uint8", "scale": "mse", "power_of_two": True},
        }
    )
    converted, _ = post_training_quantize(model, policy, calibration(), ["fold", "bias"])
    for layer in converted.modules():
        quantizer = getattr(layer, "weight_quantizer", None)
        if quantizer is not None:
            assert math.log2(float(quantizer.current_scale(layer.weight))).is_integer()
    assert scored(apply(converted, policy, "freeze")) >= scored(model) - 0.01


def test_recalibrating_does_no_harm() -> None:
    model, policy = trained_digits(), Policy.uniform("int3", "uint3", "uint8")
    methods = ["fold", "calibrate:max", "gptq", "bias"]
    plain = post_training_quantize(model, policy, calibration(), methods)
    again = post_training_quantize(
        model, policy, calibration(), [*methods[:2], "recalibrate", *methods[2:]]
    )
    assert again[1].scales["act1"] < plain[1].scales["act1"]
    assert again[1].layers[-1].error < plain[1].layers[-1].error


def test_results_repeat_exactly() -> None:
    runs = [
        post_training_quantize(trained_digits(), W4A4, calibration(64), ["fold", "gptq", "bias"])
        for _ in range(2)
    ]
    first, second = (converted.state_dict() for converted, _ in runs)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        (["gptq", "fold"], "makes no sense"),
        (["gptq", "adaround"], "both choose"),
        (["fold", "fold"], "given twice"),
        (["round"], "unknown method 'round'"),
        (["bias:guess"], "unknown bias correction"),
        (["calibrate:best"], "unknown estimator"),
        (["absorb"], "folded batch norms"),
    ],
)
def test_methods_that_do_not_fit(methods: list[str], words: str) -> None:
    with pytest.raises((RecipeError, ModelError), match=words):
        post_training_quantize(trained_digits(), W4A4, calibration(8), methods)


def test_settings_that_make_no_sense() -> None:
    for make in (lambda: Gptq(damping=0), lambda: Gptq(match=2), lambda: AdaRound(iterations=0)):
        with pytest.raises(RecipeError):
            make()


def test_bad_weights_and_samples() -> None:
    broken = trained_digits()
    with torch.no_grad():
        broken.conv2.weight[0, 0, 0, 0] = math.inf
    with pytest.raises(ModelError, match=r"conv2\.weight holds NaN or infinity"):
        post_training_quantize(broken, W4A4, calibration(8))
    with pytest.raises(DataError, match="single sample"):
        post_training_quantize(trained_digits(), W4A4, calibration(1))
    with pytest.raises(ModelError, match=r"conv2\.weight holds NaN"):
        calibrate(broken, W4A4, calibration(8))
