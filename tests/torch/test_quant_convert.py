# SPDX-License-Identifier: Apache-2.0
"""Conversion of a user's own module: what it keeps, what it refuses, and how it says so."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bitwright.base.errors import ModelError, RecipeError
from bitwright.quantize import Phase, Policy, apply, explain, inspect_model
from bitwright.quantize.activation_quantizer import ActivationQuantizer

POLICY = Policy.uniform("int4", "uint4", "int8")


class Net(nn.Module):
    """One ReLU module used twice, functions, groups, a view, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(3, 8, 3, padding="same")
        self.b1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.c2 = nn.Conv2d(8, 8, 3, stride=2, groups=2)
        self.b2 = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.2)
        self.fc1 = nn.Linear(8 * 3 * 3, 16)
        self.fc2 = nn.Linear(16, 5)

    def forward(self, x):
        x = self.relu(self.b1(self.c1(x)))
        x = F.max_pool2d(x, 2)
        x = self.relu(self.b2(self.c2(x)))
        x = x.view(x.size(0), -1)
        x = torch.relu(self.fc1(self.drop(x)))
        return self.fc2(x)


def batch(n: int = 6) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(n, 3, 14, 14)


def test_float_state_dict_loads_unchanged_and_scales_start_anew() -> None:
    model = apply(Net(), POLICY, "train", batch())
    other = Net()
    model.load_state_dict(other.state_dict())  # strict
    assert torch.equal(model.c1.weight, other.c1.weight)
    assert set(other.state_dict()) < set(model.state_dict())
    ready = {m.role.value: m.ready for m in model.modules() if isinstance(m, ActivationQuantizer)}
    assert ready == {"input": True, "activation": False}
    with pytest.raises(ModelError, match="no scale yet"):
        model.relu.unit  # noqa: B018
    model(batch())
    assert model.relu.ready


def test_own_state_dict_round_trips() -> None:
    model = apply(Net(), POLICY, "train", batch())
    twin = apply(Net(), POLICY, "train")
    twin.load_state_dict(copy.deepcopy(model.state_dict()))
    assert torch.equal(twin.eval()(batch()), model.eval()(batch()))
    half = {k: v for k, v in model.state_dict().items() if not k.endswith("batches")}
    with pytest.raises(RuntimeError, match="batches"):
        twin.load_state_dict(half)  # part of a quantizer's state is an error


def test_the_users_model_is_left_alone() -> None:
    net = Net()
    before = copy.deepcopy(net.state_dict())
    model = apply(net, POLICY, "train", batch())
    model(batch()).sum().backward()
    assert type(net.relu) is nn.ReLU and type(net.c1) is nn.Conv2d
    assert all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert net.c1.weight.grad is None


def test_each_use_of_a_shared_relu_has_its_own_scale() -> None:
    model = apply(Net(), POLICY, "train", batch())
    quantizers = [m for m in model.modules() if isinstance(m, ActivationQuantizer)]
    assert len(quantizers) == 4  # input, two uses of relu, torch.relu


def test_unquantized_conversion_computes_the_same_network() -> None:
    net = Net().eval()
    model = apply(net, Policy.uniform(None, None, None), "train")
    assert torch.equal(model(batch()), net(batch()))
    calibrating = apply(net, POLICY, Phase.CALIBRATE)
    assert torch.equal(calibrating(batch()), net(batch()))


def test_copies_stay_whole() -> None:
    model = apply(apply(Net(), POLICY, "calibrate", batch()), POLICY, "train")
    assert model.fc2.input_quantizer is model.relu_2_quantizer
    assert model.fc1.input_quantizer is None
    with pytest.raises(RecipeError, match="another policy"):
        apply(model, Policy.uniform("int2"), "train")


def test_unsigned_input_refuses_normalised_images() -> None:
    with pytest.raises(ModelError, match="cannot hold"):
        apply(Net(), Policy.uniform("int4", "uint4", "uint8"), "train", batch())


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)
        self.drop = nn.Dropout(0.5, inplace=True)

    def forward(self, x):
        y = torch.relu(self.a(x))
        y = self.drop(y)
        z = self.b(y)
        y += z
        return self.c(y.relu_())


def test_in_place_operations_do_not_break_the_backward_pass() -> None:
    model = apply(InPlace(), POLICY, "train", torch.randn(5, 4))
    model(torch.randn(5, 4)).sum().backward()
    assert model.a.weight.grad is not None


def test_calibration_sets_the_scales_that_training_starts_from() -> None:
    calibrated = apply(Net().eval(), POLICY, "calibrate")
    for _ in range(3):
        calibrated(batch())
    model = apply(calibrated, POLICY, "train")
    quantizers = [m for m in model.modules() if isinstance(m, ActivationQuantizer)]
    assert all(m.ready and m.phase is Phase.TRAIN for m in quantizers)
    assert not torch.equal(model(batch()), calibrated(batch()))


def test_training_reduces_the_loss_and_reaches_every_parameter() -> None:
    torch.manual_seed(5)
    model = apply(Net(), POLICY, "prepare", batch())
    labels = torch.arange(6) % 5
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch()), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_evaluation_keeps_the_quantized_weight_until_the_weight_changes() -> None:
    model = apply(Net(), POLICY, "train", batch()).eval()
    with torch.no_grad():
        first = model(batch())
        kept = model.c1.cache.get(model.c1.weight, model.c1.weight_quantizer)
        assert kept is model.c1.cache.get(model.c1.weight, model.c1.weight_quantizer)
        model.c1.weight.mul_(-1.0)
        assert not torch.equal(model(batch()), first)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c0, self.c1 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.c2, self.head = nn.Conv2d(8, 4, 1), nn.Linear(4, 2)

    def forward(self, x):
        x = torch.relu(self.c0(x))
        y = torch.relu(x + self.c1(x))
        y = self.c2(torch.cat([x, y], 1)).relu()
        return self.head(y.mean((2, 3)))


def test_what_is_kept_float_trains_but_has_no_hardware() -> None:
    policy = Policy.uniform("int4", None, "int8")
    lines = inspect_model(Residual(), policy)
    assert any("test_quant_convert.py" in line and "kept float" in line for line in lines)
    assert not inspect_model(Residual(), POLICY)
    model = apply(Residual(), policy, "train", batch())
    model(batch()).sum().backward()
    with pytest.raises(ModelError, match="kept float"):
        apply(model, policy, "freeze")


class Unsupported(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")
        self.norm = nn.LayerNorm([4, 14, 14])
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        x = self.norm(self.conv(x))
        x = torch.softmax(x, 1)
        return self.head(x.mean((2, 3)) * x.mean((2, 3)))


def test_all_problems_are_listed_with_line_reason_and_advice() -> None:
    with pytest.raises(ModelError) as caught:
        inspect_model(Unsupported(), POLICY)
    text = str(caught.value)
    first = inspect.getsourcelines(Unsupported.forward)[1]
    for name, line, advice in [
        ("conv (Conv2d)", 1, "use zero padding"),
        ("norm (LayerNorm)", 1, "use BatchNorm"),
        ("softmax", 2, "leave it to the loss"),
        ("mul", 3, "multiply by constants only"),
    ]:
        row = next(r for r in text.splitlines() if name in r)
        assert f"test_quant_convert.py:{first + line}" in row
        assert advice in row


class Branching(nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x


class Reusing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(self.fc(x))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x, y):
        return self.fc(x + y)


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(x), x


class Signed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.b(torch.sign(self.a(x)))


@pytest.mark.parametrize(
    ("model", "policy", "error", "says"),
    [
        (Branching(), POLICY, ModelError, "if x.sum() > 0"),
        (Reusing(), POLICY, ModelError, "more than once"),
        (TwoInputs(), POLICY, ModelError, "2 inputs (x, y)"),
        (TwoOutputs(), POLICY, ModelError, "more than one tensor"),
        (Signed(), POLICY, RecipeError, "must be bipolar"),
        (
            nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
            POLICY,
            ModelError,
            "batch norm after the last layer",
        ),
        (
            nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)),
            Policy.uniform("bipolar", "bipolar", "uint8"),
            ModelError,
            "pads with zeros",
        ),
        (
            nn.Sequential(nn.Linear(4, 4)),
            Policy.from_dict(
                {"rules": [{"layers": "0", "role": "weight", "granularity": "per_channel"}]}
            ),
            RecipeError,
            "scale per channel",
        ),
        (
            nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)),
            Policy.from_dict({"activation": {"format": "uint8", "rounding": "ceil"}}),
            RecipeError,
            "multiply-shift",
        ),
        (
            nn.Sequential(nn.Linear(4, 4), nn.Hardtanh(), nn.Linear(4, 4)),
            Policy.uniform("int4", "uint1", "uint8"),
            RecipeError,
            "uint1",
        ),
        (
            nn.Sequential(nn.Conv2d(1, 1, 3), nn.MaxPool2d(2, ceil_mode=True)),
            POLICY,
            ModelError,
            "ceil_mode",
        ),
        (nn.Sequential(nn.Conv3d(1, 1, 3)), POLICY, ModelError, "Conv3d has no few-bit form"),
        (
            nn.Sequential(nn.BatchNorm2d(1, track_running_stats=False), nn.Conv2d(1, 1, 1)),
            POLICY,
            ModelError,
            "running statistics",
        ),
    ],
)
def test_refusals(model, policy, error, says) -> None:
    with pytest.raises(error) as caught:
        inspect_model(model, policy)
    assert says in str(caught.value)
    with pytest.raises(error):
        apply(model, policy, "train")


def test_freezing_needs_scales_and_formats() -> None:
    with pytest.raises(ModelError, match="never set"):
        apply(Net(), POLICY, "freeze")
    with pytest.raises(ModelError, match="kept float"):
        apply(Net(), Policy.uniform(None, "uint4", "int8"), "freeze", batch())
    with pytest.raises(ModelError, match="kept float"):
        apply(Net(), Policy.uniform("int4", None, "int8"), "freeze", batch())
    frozen = apply(Net(), POLICY, "convert", batch())
    with pytest.raises(ModelError, match="frozen already"):
        apply(frozen, POLICY, "train")
    with pytest.raises(ModelError, match="unknown phase"):
        apply(Net(), POLICY, "melt")


def test_diverged_weights_do_not_freeze() -> None:
    model = apply(Net(), POLICY, "train", batch())
    with torch.no_grad():
        model.c2.weight[0, 0, 0, 0] = float("nan")
    with pytest.raises(ModelError, match=r"c2\.weight holds NaN"):
        apply(model, POLICY, "freeze")


def test_a_rule_for_a_layer_that_is_not_there() -> None:
    rule = {"layers": "haed", "role": "weight", "format": "int8"}
    with pytest.raises(RecipeError) as caught:
        inspect_model(Net(), Policy.from_dict({"rules": [rule]}))
    assert caught.value.where == "quant.rules[0]" and "fc2 (Linear)" in str(caught.value)


def test_a_wrong_example_says_so() -> None:
    with pytest.raises(ModelError, match="does not pass"):
        apply(Net(), POLICY, "train", torch.zeros(1, 3, 9, 9))


def test_explain_tells_every_operand() -> None:
    rows = explain(Net(), POLICY)
    table = {(r.layer, r.operand): r for r in rows}
    assert table[("x", "input")].format == "int8"
    assert table[("c1", "weight")].format == "int4n"
    assert table[("c1", "weight")].granularity == "per_channel"
    assert table[("fc2", "weight")].granularity == "per_tensor"
    assert "last layer" in table[("fc2", "weight")].reason
    assert table[("c1", "bias")].format == "folded"
    assert table[("fc2", "bias")].format == "integer"
    assert table[("relu", "activation")].format == "uint4"
    signed = explain(Net(), Policy.uniform("int4", "int4", "int8"))
    relu = next(r for r in signed if r.layer == "relu")
    assert relu.format == "uint3" and "never goes below zero" in relu.reason


def test_a_layer_without_an_activation_before_it_gets_a_signed_quantizer() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    row = next(r for r in explain(model, POLICY) if r.operand == "activation")
    assert row.format == "int4" and "feeds 1 without an activation" in row.reason
    frozen = apply(model, POLICY, "freeze", torch.randn(8, 4))
    assert any(node.op == "threshold" for node in frozen.graph)


@pytest.mark.parametrize("name", ["uint4", "bipolar", "int3"])
def test_evaluation_without_gradients_is_the_same_function(name: str) -> None:
    """Also where the quantizers write over their inputs."""
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Hardtanh(), nn.Flatten(), nn.Linear(576, 3)
    )
    model = apply(net, Policy.uniform("int4", name, "int8"), "train", batch())
    model(batch())  # statistics of batch norm
    model.eval()
    assert model.get_submodule("2").reuse_input
    x = batch()
    with torch.no_grad():
        assert torch.equal(model(x), model(x))
        values = model(x)
    assert torch.equal(x, batch())
    assert torch.allclose(values, model(x).detach(), atol=1e-6)


class Changed(nn.Module):
    """A tensor that is read after an operation has changed it in place."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.relu, self.change = nn.ReLU(inplace=True), change

    def forward(self, x):
        y = self.first(x)
        if self.change == "module":
            z = self.second(self.relu(y))
        elif self.change == "function":
            z = self.second(F.relu(y, True))
        else:
            y.relu_()
            z = self.second(y)
        return z + y


@pytest.mark.parametrize("change", ["module", "function", "method"])
def test_what_an_operation_changes_in_place_is_changed_for_all_that_follow(change: str) -> None:
    torch.manual_seed(0)
    model = Changed(change).eval()
    converted = apply(model, POLICY, "calibrate", sample_shape=(3, 6, 6)).eval()
    images = batch()[:, :, :6, :6]
    assert torch.allclose(converted(images.clone()), model(images.clone()), atol=1e-5)
