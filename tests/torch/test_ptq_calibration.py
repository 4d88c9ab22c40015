# SPDX-License-Identifier: Apache-2.0
"""Calibration sets, estimators of ranges, and the scales that `calibrate` sets."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import join_networks as nets
from tests.ptq_networks import calibration, digits, enliven, trained_digits
from torch import Tensor, nn

from bitwright.base.errors import DataError, ModelError, RecipeError
from bitwright.formats import parse_format
from bitwright.models import build_model
from bitwright.quantize import Granularity, Policy, QuantSpec, ScaleRule, apply
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.estimators import estimate_scale, parse_estimator
from bitwright.quantize.histogram import BINS, Observed
from bitwright.quantize.ptq import calibrate, post_training_quantize
from bitwright.quantize.ptq.samples import calibration_batches

POLICY = Policy.uniform("int4", "uint4", "uint8")


def seen(batches: list[Tensor], signed: bool) -> Observed:
    found = Observed(signed)
    for batch in batches:
        found.add(batch)
    return found


def spec(name: str, power: bool = False) -> QuantSpec:
    return QuantSpec(parse_format(name), Granularity.PER_TENSOR, ScaleRule.MSE, power_of_two=power)


def error(x: Tensor, scale: float, name: str) -> float:
    chosen = parse_format(name)
    quantized = torch.from_numpy(chosen.quantized(x.double().numpy(), scale))
    return float((quantized - x.double()).square().mean())


def test_statistics_of_batches() -> None:
    batches = [torch.tensor([-9.0, 1.0, 4.0]), torch.tensor([0.5, 2.0, -1.0])]
    uint4 = spec("uint4")
    assert estimate_scale(seen(batches, False), uint4, parse_estimator("max")) == 4.0 / 15
    assert estimate_scale(seen(batches, False), uint4, parse_estimator("average")) == 3.0 / 15
    int4n = spec("int4n")
    assert estimate_scale(seen(batches, True), int4n, parse_estimator("max")) == 9.0 / 7
    assert estimate_scale(seen(batches, True), spec("int4n", True), parse_estimator("max")) == 2.0


@given(share=st.floats(60, 99.9), seed=st.integers(0, 50))
@settings(max_examples=20)
def test_percentile_keeps_its_share_of_what_is_not_zero(share: float, seed: int) -> None:
    x = torch.randn(5000, generator=torch.Generator().manual_seed(seed)).relu()
    scale = estimate_scale(seen([x], False), spec("uint4"), parse_estimator(f"percentile:{share}"))
    positive, kept = x[x > 0], scale * 15
    width = 2 * float(x.max()) / BINS  # the histogram knows the range to a bin
    assert float((positive <= kept + width).double().mean()) >= share / 100
    assert float((positive < kept - 2 * width).double().mean()) <= share / 100


@pytest.mark.parametrize("name", ["uint2", "uint4", "int4n", "e2m1", "e4m3", "po2_4<zero>"])
def test_mse_is_the_best_clipping(name: str) -> None:
    x = torch.randn(4000, generator=torch.Generator().manual_seed(3)) * 2
    x = x if parse_format(name).signed else x.relu()
    signed = parse_format(name).signed
    found = estimate_scale(seen([x], signed), spec(name), parse_estimator("mse"))
    reach = max(parse_format(name).max_level, 1) * parse_format(name).lsb
    others = [float(x.abs().max()) / reach * f for f in (0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0)]
    assert error(x, found, name) <= min(error(x, scale, name) for scale in others) * 1.01


def test_power_of_two_search_stays_on_powers() -> None:
    x = torch.randn(4000).relu()
    for word in ("mse", "entropy", "percentile", "average"):
        scale = estimate_scale(seen([x], False), spec("uint4", True), parse_estimator(word))
        assert math.log2(scale).is_integer()


def test_entropy_cuts_off_an_outlier() -> None:
    x = torch.cat([torch.rand(20000), torch.tensor([40.0])])
    scale = estimate_scale(seen([x], False), spec("uint8"), parse_estimator("entropy"))
    assert scale * 255 < 10


def test_zeros_only_span_one() -> None:
    nothing = seen([torch.zeros(10)], False)
    assert estimate_scale(nothing, spec("uint4"), parse_estimator("mse")) == 1 / 15


def test_unknown_estimators() -> None:
    for word in ("best", "mse:3", "percentile:x"):
        with pytest.raises(RecipeError, match="unknown estimator"):
            parse_estimator(word)
    with pytest.raises(RecipeError, match="percentile of 20"):
        parse_estimator("percentile:20")


def test_every_quantizer_gets_its_scale() -> None:
    model, x = trained_digits(), calibration()
    converted = calibrate(model, POLICY, x, estimator="max", batch_size=50)
    quantizers = {n: m for n, m in converted.named_modules() if isinstance(m, ActivationQuantizer)}
    assert all(q.ready for q in quantizers.values())
    with torch.no_grad():
        largest = float(model.act1(model.bn1(model.conv1(x))).max())
    assert quantizers["act1"].unit == pytest.approx(largest / 15, rel=1e-6)
    (entering,) = [q for q in quantizers.values() if q.role == "input"]
    assert entering.unit == pytest.approx(float(x.max()) / 255, rel=1e-6)
    # What evaluates is what freezes.
    frozen = apply(converted, POLICY, "freeze")
    with torch.no_grad():
        assert torch.allclose(frozen(x), converted(x), atol=1e-4)


def test_calibration_in_two_batches_or_one() -> None:
    first = calibrate(trained_digits(), POLICY, calibration(), estimator="mse", batch_size=128)
    second = calibrate(
        trained_digits(), POLICY, list(calibration().split(32)), estimator="mse", batch_size=16
    )
    assert first.act1.unit == second.act1.unit


@pytest.mark.parametrize("scale", ["learned", "minmax", "percentile", "entropy"])
def test_fed_by_hand_is_calibrated_the_same(scale: str) -> None:
    policy = Policy.from_dict({"activation": {"format": "uint4", "scale": scale}})
    model, parts = trained_digits(), calibration().split(40)
    once = calibrate(model, policy, calibration(), batch_size=40)
    fed = apply(model.eval(), policy, "calibrate", parts[0])
    for part in parts[1:]:
        fed(part)
    saved = fed.state_dict()
    for found in (apply(fed, policy, "train").state_dict(), saved):
        for name, value in once.state_dict().items():
            assert name.endswith("batches") or torch.equal(value, found[name]), name


def test_the_mean_of_a_shared_range_is_that_of_the_widest_member() -> None:
    """Joined, both are seen in the same batches: the narrow one must not halve the wide one."""
    narrow, wide = [torch.rand(10) for _ in range(4)], [8 * torch.rand(10) for _ in range(4)]
    both = seen(narrow, False)
    both.merge(seen(wide, False))
    alone = estimate_scale(seen(wide, False), spec("uint4"), parse_estimator("average"))
    assert estimate_scale(both, spec("uint4"), parse_estimator("average")) == alone


def test_quantizers_in_front_of_a_product_share_a_scale() -> None:
    torch.manual_seed(0)
    model = enliven(nets.DenseNet(pre=False))
    converted = calibrate(model, POLICY, torch.rand(8, 3, 8, 8), estimator="max")
    shared = [m for m in converted.modules() if isinstance(m, ActivationQuantizer) and m.group]
    assert shared
    assert all(m.unit == m.owner.unit and m.ready for m in shared)
    apply(converted, POLICY, "freeze")


def test_the_model_given_is_left_alone() -> None:
    model = trained_digits()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    calibrate(model, POLICY, calibration())
    assert all(torch.equal(before[n], v) for n, v in model.state_dict().items())


def test_calibration_sets_in_all_forms() -> None:
    images = calibration(30)
    labels = torch.zeros(30)
    assert sum(map(len, calibration_batches(images, 8))) == 30
    pairs = [(images[:20], labels[:20]), (images[20:], labels[20:])]
    assert torch.equal(torch.cat(calibration_batches(pairs)), images)
    assert sum(map(len, calibration_batches(digits().train.take(range(9))))) == 9


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "is empty"),
        (torch.zeros(0, 1, 8, 8), "is empty"),
        (torch.rand(1, 1, 8, 8), "a single sample"),
        ([torch.rand(2, 1, 8, 8), torch.rand(2, 1, 6, 6)], "different shapes"),
        (torch.zeros(4, 1, 8, 8, dtype=torch.uint8), "uint8 numbers, not reals"),
        (torch.full((4, 1, 8, 8), math.nan), "NaN or infinity"),
        (torch.rand(8), r"the shape \(8,\)"),
        (["a.png"], "found str"),
        (torch.rand(4, 3, 8, 8), "the model is for"),
        (torch.rand(4, 1, 9, 20), "the model is for"),
        (None, "must be tensors or a data set, found NoneType"),
        ("images", "found str"),
    ],
)
def test_unusable_calibration_sets(data: object, words: str) -> None:
    with pytest.raises(DataError, match=words):
        calibrate(trained_digits(), POLICY, data)


def test_images_of_another_size_are_refused_where_the_model_would_take_them() -> None:
    """A network with a global pool computes something for any size."""
    model = build_model("resnet20", 10, (32, 32, 3)).eval()
    other = torch.rand(2, 3, 16, 16)
    assert model(other).shape == (2, 10)
    for quantize in (calibrate, post_training_quantize):
        with pytest.raises(DataError, match=r"\(3, 16, 16\), and the model is for \(3, 32, 32\)"):
            quantize(copy.deepcopy(model), POLICY, other)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(DataError, match="does not pass the model"):
        calibrate(plain, POLICY, torch.rand(2, 1, 16, 16))


def test_normalised_images_need_a_signed_input() -> None:
    with pytest.raises(ModelError, match="the input goes down to"):
        calibrate(trained_digits(), POLICY, calibration() - 0.5)
