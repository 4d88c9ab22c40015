# SPDX-License-Identifier: Apache-2.0
"""Batch-norm folding: the same function, both cases, exact counts; and ranges."""

from __future__ import annotations

import math

import pytest
import torch
from tests import join_networks as nets
from tests.ptq_networks import calibration, enliven, largest_difference, trained_digits
from torch import Tensor, nn

from bitwright.base.errors import DataError, ModelError
from bitwright.models import build_model
from bitwright.quantize import Policy, apply
from bitwright.quantize.ptq import (
    Group,
    equalize,
    fold_batch_norms,
    fold_groups,
    folding_of,
    measure_ranges,
)


class Forked(nn.Module):
    """Batch norm behind: a convolution with a second reader, a concatenation, a pool, a vector."""

    def __init__(self, bias: bool, groups: int) -> None:
        super().__init__()
        self.merged = nn.Conv2d(4, 8, 3, padding=1, bias=bias, groups=groups)
        self.bn_merged = nn.BatchNorm2d(8)
        self.shared = nn.Conv2d(8, 4, 1, bias=bias)
        self.bn_shared = nn.BatchNorm2d(4)
        self.bn_cat = nn.BatchNorm2d(8, affine=False)
        self.pool = nn.MaxPool2d(2)
        self.bn_pool = nn.BatchNorm2d(8)
        self.fc1 = nn.Linear(8 * 9, 6, bias=bias)
        self.bn_fc = nn.BatchNorm1d(6)
        self.bn_vector = nn.BatchNorm1d(6)
        self.fc2 = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn_merged(self.merged(x)))
        shared = self.shared(x)
        x = torch.cat([self.bn_shared(shared), shared], 1)
        x = self.bn_pool(self.pool(torch.relu(self.bn_cat(x))))
        x = torch.relu(self.bn_fc(self.fc1(torch.flatten(x, 1))))
        return self.fc2(self.bn_vector(x))


@pytest.mark.parametrize(("bias", "groups"), [(True, 1), (False, 4)])
def test_both_cases_keep_the_function(bias: bool, groups: int) -> None:
    model = enliven(Forked(bias, groups))
    x = torch.randn(5, 4, 6, 6)
    folded = fold_batch_norms(model)
    assert largest_difference(model, folded, x) < 1e-6
    assert not any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in folded.modules())
    folding = folding_of(folded)
    assert folding is not None
    assert {n.path for n in folding.norms if n.merged} == {"bn_merged", "bn_fc"}
    # Merged: 4N go, N come back where a bias is made. Stand-alone: 2N of 4N (2N of 2N) remain.
    made = 0 if bias else 8 + 6
    assert folding.parameters_removed == 4 * 8 + 4 * 6 - made + 2 * 4 + 0 + 2 * 8 + 2 * 6
    assert folding.layers_removed == 2


def test_counts_what_is_stored() -> None:
    folded = fold_batch_norms(enliven(Forked(False, 1)))
    stored = sum(t.numel() for t in folded.state_dict().values())
    assert folding_of(folded).parameters_after == stored


@pytest.mark.parametrize("what", ["weights", "norms", "both"])
def test_counts_of_tensors_that_are_shared(what: str) -> None:
    """Each convolution needs a weight of its own once it has taken up its batch norm."""
    model = enliven(
        nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
            nn.Conv2d(4, 4, 3, padding=1), nn.AvgPool2d(2), nn.BatchNorm2d(4),
        )
    )  # fmt: skip
    if what != "norms":
        model[3].weight = model[6].weight = model[0].weight
    if what != "weights":
        model[4].weight, model[4].bias = model[1].weight, model[8].bias
    x = torch.randn(3, 4, 6, 6)
    folded = fold_batch_norms(model, x)
    assert largest_difference(model, folded, x) < 1e-6
    folding = folding_of(folded)
    assert folding.parameters_after == sum(t.numel() for t in folded.state_dict().values())
    assert folding.parameters_removed == sum(norm.saved for norm in folding.norms)


@pytest.mark.parametrize(
    ("name", "layers", "parameters"), [("face_densenet10", 7, 5056), ("face_densenet20", 19, 19008)]
)
def test_reductions_of_the_face_densenets(name: str, layers: int, parameters: int) -> None:
    model = enliven(build_model(name, None, (80, 80, 3)))
    folded = fold_batch_norms(model)
    folding = folding_of(folded)
    assert (folding.layers_removed, folding.parameters_removed) == (layers, parameters)
    assert largest_difference(model, folded, torch.rand(1, 3, 80, 80)) < 1e-5
    groups = list(fold_groups(folded).values())
    assert groups.count(Group.MERGED) == layers == groups.count(Group.NORM) + (layers == 7)
    assert groups.count(Group.LINEAR) == 1


def test_dense_form_is_equal_and_larger() -> None:
    model = enliven(Forked(True, 1))
    x = torch.randn(5, 4, 6, 6)
    dense = fold_batch_norms(model, dense=True)
    assert largest_difference(model, dense, x) < 1e-6
    layer = dense.get_submodule("bn_pool")
    assert layer.weight.shape == (8, 8, 1, 1)
    assert int((layer.weight != 0).sum()) == 8


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (nets.ResNet, (3, 16, 16)),
        (nets.PreActivation, (3, 6, 5)),
        (lambda: nets.DenseNet(pre=True), (3, 8, 8)),
        (nets.MobileNet, (3, 12, 10)),
        (nets.ShuffleUnit, (3, 4, 4)),
    ],
)
def test_folded_networks_freeze(make: type[nn.Module], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model, x = enliven(make()), torch.rand(4, *shape)
    folded = fold_batch_norms(model, x)
    assert largest_difference(model, folded, x) < 1e-5
    policy = Policy.uniform("int8", "uint8", "uint8")
    frozen = apply(folded, policy, "freeze", x)
    assert frozen(x).shape == model(x).shape


def test_uses_running_statistics_whatever_the_mode() -> None:
    model = enliven(Forked(True, 1))
    x = torch.randn(5, 4, 6, 6)
    expected = model(x)
    folded = fold_batch_norms(model.train())
    assert model.training
    assert torch.allclose(folded(x), expected, atol=1e-5)


def test_folding_twice_forgets_nothing() -> None:
    once = fold_batch_norms(enliven(Forked(True, 1)))
    twice = fold_batch_norms(once)
    assert folding_of(twice).norms == folding_of(once).norms
    assert fold_groups(twice) == fold_groups(once)
    assert folding_of(twice).parameters_removed == folding_of(once).parameters_removed
    assert set(folding_of(twice).statistics) == {"merged", "fc1"}


def test_refuses_what_cannot_be_folded() -> None:
    model = enliven(Forked(True, 1))
    with torch.no_grad():
        model.fc2.weight[0, 0] = math.nan
    with pytest.raises(ModelError, match=r"fc2\.weight holds NaN"):
        fold_batch_norms(model)
    loose = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2, track_running_stats=False))
    with pytest.raises(ModelError, match="no running statistics"):
        fold_batch_norms(loose)
    norm = nn.BatchNorm2d(2)
    twice = nn.Sequential(nn.Conv2d(1, 2, 1), norm, nn.ReLU(), norm)
    with pytest.raises(ModelError, match="more than once"):
        fold_batch_norms(twice)


def test_ranges_are_the_maxima() -> None:
    model, x = trained_digits(), calibration(50)
    report = measure_ranges(model, x, batches=2, batch_size=20)
    assert (report.batches, report.samples) == (2, 40)
    first = report.layers[0]
    with torch.no_grad():
        output = model.conv1(x[:40])
    assert first.path == "conv1"
    assert first.input == float(x[:40].max())
    assert first.output == pytest.approx(float(output.abs().max()), rel=1e-6)
    assert first.weight == float(model.conv1.weight.detach().abs().max())
    assert (first.bias, report.layers[-1].bias) == (0.0, float(model.fc1.bias.detach().abs().max()))
    assert first.il_parameters == math.ceil(math.log2(first.weight) + 1)
    assert first.il_output == math.ceil(math.log2(first.output))
    assert first.fractions(8)["parameters"] == 8 - first.il_parameters
    assert report.exponent_bits >= 4
    assert "conv1" in report.to_markdown()
    assert report.to_dict()["layers"][0]["il_output"] == first.il_output


def test_ranges_refuse_bad_samples() -> None:
    with pytest.raises(DataError, match="the model is for"):
        measure_ranges(trained_digits(), torch.rand(4, 3, 8, 8))
    with pytest.raises(ModelError, match="no convolution"):
        measure_ranges(nn.Sequential(nn.ReLU()), torch.rand(4, 3))


class LastAxis(nn.Module):
    """A dense layer along the last axis of an image, whose outputs are no channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 1)
        self.fc = nn.Linear(6, 5)
        self.norm = nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.fc(torch.relu(self.conv(x))))


def test_a_dense_layer_along_the_last_axis_is_no_product_of_channels() -> None:
    model = enliven(LastAxis())
    x = torch.randn(3, 4, 7, 6)  # the width equals the number of channels
    folded = fold_batch_norms(model)
    assert largest_difference(model, folded, x) < 1e-6
    even, pairs = equalize(folded)
    assert largest_difference(model, even, x) < 1e-6
    assert not pairs


def test_a_batch_norm_whose_channels_are_another_axis_stays_what_it_is() -> None:
    """Behind a dense layer on (N, C, L) it normalises C, while the layer's outputs are L."""
    rows = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Flatten(), nn.Linear(36, 3))
    for module in rows.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean.copy_(torch.arange(6.0))
            module.running_var.copy_(torch.arange(1.0, 7.0))
    x = torch.randn(4, 6, 6)
    folded = fold_batch_norms(rows, x)
    assert torch.allclose(folded(x), rows.eval()(x), atol=1e-5)
    found = folding_of(folded)
    assert found is not None and not found.norms[0].merged
