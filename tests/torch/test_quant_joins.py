# SPDX-License-Identifier: Apache-2.0
"""Networks that fork and join: calibrate, train, freeze, lower; equal on every edge."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import join_networks as nets
from torch import nn

from bitwright.base.errors import ModelError
from bitwright.lower import certify, check, optimise
from bitwright.lower.compare import compare_edges
from bitwright.quantize import Policy, apply, explain, inspect_model
from bitwright.quantize.activation_quantizer import ActivationQuantizer
from bitwright.quantize.joins import MAX_MULTIPLIER, QuantAdd, integer_multipliers
from bitwright.quantize.spec import Layer, Role

FORMATS = [("int2", "uint2", "int8"), ("int8", "uint8", "uint8")]
CASES = {
    "resnet": (nets.ResNet, (3, 16, 16)),
    "preactivation": (nets.PreActivation, (3, 6, 5)),
    "densenet": (lambda: nets.DenseNet(pre=False), (3, 8, 8)),
    "densenet-preactivation": (lambda: nets.DenseNet(pre=True), (3, 8, 8)),
    "mobilenet": (nets.MobileNet, (3, 12, 10)),
    "skynet": (nets.SkyNet, (3, 8, 16)),
    "shufflenet": (nets.ShuffleUnit, (3, 4, 4)),
    "pyramid": (nets.FeaturePyramid, (2, 8, 8)),
}


def made(case: str, seed: int = 0) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(seed)
    make, shape = CASES[case]
    model = make()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(std=0.3)
            module.running_var.uniform_(0.3, 2.0)
            module.weight.data.normal_(mean=0.5)
            module.bias.data.normal_(std=0.3)
    return model.eval(), torch.rand(6, *shape)


def assert_equal_everywhere(frozen: nn.Module, x: torch.Tensor) -> None:
    graph = frozen.graph
    raw = compare_edges(graph, frozen.edges(x), accumulators=True)
    raw.require()
    assert set(raw.edges) == set(graph.types)
    optimised = optimise(graph, check=2)
    compare_edges(optimised, frozen.edges(x)).require()
    check(certify(optimised), optimised)


@pytest.mark.parametrize("formats", FORMATS, ids=lambda f: f[0])
@pytest.mark.parametrize("case", CASES)
def test_calibrated_networks_are_equal_on_every_edge(case: str, formats) -> None:
    model, x = made(case)
    policy = Policy.uniform(*formats)
    calibrated = apply(model, policy, "calibrate", x)
    calibrated(x)
    frozen = apply(calibrated, policy, "freeze")
    assert_equal_everywhere(frozen, x)
    if formats[0] == "int8":
        assert close(model, frozen, x) < 0.15


def close(model: nn.Module, frozen: nn.Module, x: torch.Tensor) -> float:
    """Mean distance of the frozen scores from the trained model's, in their spread."""
    with torch.no_grad():
        expected, got = model.eval()(x), frozen(x)
    return float((expected - got).abs().mean() / expected.std())


@pytest.mark.parametrize("case", CASES)
def test_training_then_freezing_keeps_the_function(case: str) -> None:
    model, x = made(case)
    policy = Policy.uniform("int4", "uint4", "uint8")
    trained = apply(model.train(), policy, "train", x)
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01)
    target = torch.randn_like(trained(x))
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(trained(x), target)
        loss.backward()
        nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert min(losses[1:]) < losses[0]  # with four bits, single steps go up and down
    assert all(p.grad is not None for p in trained.parameters())
    frozen = apply(trained, policy, "freeze")
    assert close(trained, frozen, x) < 0.02
    assert_equal_everywhere(frozen, x)
    twin = apply(model, policy, "train", sample_shape=tuple(x.shape[1:]))
    twin.load_state_dict(trained.state_dict())
    again = apply(twin, policy, "freeze")
    assert torch.equal(again(x), frozen(x))


units = st.floats(1e-6, 1e6)


@given(units, units, st.integers(1, 255))
def test_multipliers_are_the_simplest_near_enough(first: float, second: float, peak: int) -> None:
    found = integer_multipliers(first, second, peak)
    assert found.first >= 1 and found.second >= 1
    ratio = max(first, second) / min(first, second)
    if ratio >= MAX_MULTIPLIER:
        assert max(found.first, found.second) == MAX_MULTIPLIER
        return
    got = max(found.first / found.second, found.second / found.first)
    slack = 1 / (2 * peak + 1)
    assert abs(got - ratio) <= ratio * slack * (1 + 1e-9)
    bottom = min(found.first, found.second)
    for smaller in range(1, min(bottom, 40)):
        assert abs(round(ratio * smaller) / smaller - ratio) > ratio * slack * (1 - 1e-9)
    large = (found.first, found.second)[first < second]
    assert found.unit * large == pytest.approx(max(first, second), rel=1e-12)


class Joined(nn.Module):
    """Two branches of very different size, concatenated; the reader is given."""

    def __init__(self, reader: nn.Module, scale: float = 20.0) -> None:
        super().__init__()
        self.a, self.b, self.reader = nn.Conv2d(2, 3, 1), nn.Conv2d(2, 3, 1), reader
        self.b.weight.data.mul_(scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.reader(torch.cat([torch.relu(self.a(x)), torch.relu(self.b(x))], 1))


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x.mean((2, 3)))


def lowered(model: nn.Module, x: torch.Tensor, policy: Policy | None = None):
    frozen = apply(model.eval(), Policy.uniform() if policy is None else policy, "freeze", x)
    assert_equal_everywhere(frozen, x)
    return frozen.graph


@pytest.mark.parametrize(
    ("reader", "scales"),
    [
        (nn.Conv2d(6, 2, 1), 1),
        (nn.Sequential(nn.Conv2d(6, 6, 1, groups=6), nn.ReLU(), nn.Conv2d(6, 2, 1)), 6),
        (nn.Sequential(nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 2, 1)), 6),
        (nn.Sequential(nn.AvgPool2d(2), nn.ReLU(), nn.Conv2d(6, 2, 1)), 6),
        (nn.Sequential(nn.AvgPool2d(2), nn.Flatten()), 1),
        (nn.Sequential(nn.Flatten(), nn.Linear(96, 2)), 1),
        (nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(6, 4, 1, groups=2)), 1),
        (nn.Identity(), 1),
        (Mean(), 1),
    ],
    ids=["conv", "depthwise", "norm", "average", "scores", "dense", "grouped", "output", "mean"],
)
def test_a_concat_has_one_scale_only_where_a_product_reads_it(reader, scales) -> None:
    torch.manual_seed(0)
    graph = lowered(Joined(reader), torch.rand(5, 2, 4, 4))
    (concat,) = [node for node in graph if node.op == "concat"]
    assert len(graph.types[concat.output].scale) == scales


def test_a_shared_scale_fits_the_largest_branch_and_survives_a_copy() -> None:
    torch.manual_seed(0)
    x = torch.rand(5, 2, 4, 4)
    model = apply(Joined(nn.Conv2d(6, 2, 1)), Policy.uniform(), "calibrate", x)
    small, large = model.relu_quantizer, model.relu_1_quantizer
    assert small.unit == large.unit and small.owner is large.owner
    alone = apply(Joined(nn.BatchNorm2d(6)), Policy.uniform(), "calibrate", x)
    assert alone.relu_quantizer.unit < alone.relu_1_quantizer.unit
    names = [name for name, _ in model.named_parameters() if name.endswith("quantizer.scale")]
    assert names == ["relu_quantizer.scale"]
    twin = apply(model, Policy.uniform(), "train")
    assert twin.relu_1_quantizer.owner is twin.relu_quantizer
    twin.relu_quantizer.scale.data.mul_(2)
    assert twin.relu_1_quantizer.unit == 2 * large.unit


def test_the_input_may_be_concatenated_with_features() -> None:
    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(5, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.cat([x, torch.relu(self.a(x))], 1))

    graph = lowered(Skip(), torch.rand(5, 2, 4, 4))
    assert sum("x" in node.inputs for node in graph) == 2  # the convolution and a quantizer
    rows = explain(Skip(), Policy.uniform())
    assert any(row.layer == "cat_input" and row.format == "uint4" for row in rows)


def test_skynets_bypass_keeps_its_scale_through_the_depthwise_convolution() -> None:
    model, x = made("skynet")
    graph = lowered(model, x)
    assert graph.outputs == ("scores",) and len(graph.types["scores"].shape) == 3
    (concat,) = [node for node in graph if node.op == "concat"]
    (reader,) = graph.consumers(concat.output)
    assert reader.op == "conv" and reader.integer("groups") == 26
    assert len(set(graph.types[concat.output].scale)) == 2
    assert [node.op for node in graph].count("space_to_depth") == 1


def test_the_residual_stream_is_read_before_its_quantizer() -> None:
    model, x = made("preactivation")
    graph = lowered(model, x)
    first = next(node for node in graph if node.op == "add")
    readers = graph.consumers(first.output)
    assert len(readers) == 2 and {node.op for node in readers} == {"threshold"}


class Padded(nn.Module):
    def __init__(self, pad: nn.Module, behind: nn.Module, positive: bool = True) -> None:
        super().__init__()
        self.conv, self.pad, self.behind = nn.Conv2d(2, 2, 1), pad, behind
        self.positive = positive

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        return self.behind(self.pad(torch.relu(x) if self.positive else x))


@pytest.mark.parametrize(
    "behind",
    [
        nn.Conv2d(2, 3, 2, padding=1),
        nn.Sequential(nn.MaxPool2d(3, 1), nn.Conv2d(2, 3, 1)),
        nn.Sequential(nn.AvgPool2d(3, 2), nn.Conv2d(2, 3, 1)),
        nn.Sequential(nn.ZeroPad2d(1), nn.Conv2d(2, 2, 3, stride=2, groups=2)),
    ],
    ids=["conv", "max", "average", "twice"],
)
def test_a_border_is_made_by_the_layer_behind(behind: nn.Module) -> None:
    torch.manual_seed(0)
    graph = lowered(Padded(nn.ZeroPad2d((0, 1, 2, 0)), behind), torch.rand(4, 2, 5, 4))
    assert any(tuple(n.attrs.get("padding", ())) not in ((), (0, 0, 0, 0)) for n in graph)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Padded(nn.ZeroPad2d(1), nn.MaxPool2d(2), positive=False), "may be negative"),
        (Padded(nn.ZeroPad2d(1), nn.Upsample(scale_factor=2)), "directly in front"),
        (Padded(nn.ZeroPad2d(1), nn.AdaptiveAvgPool2d(1)), "use nn.AvgPool2d"),
        (Padded(nn.ConstantPad2d(1, 0.5), nn.Conv2d(2, 2, 1)), "pads with 0.5"),
        (Padded(nn.Identity(), nn.Upsample(scale_factor=1.5)), "integer scale_factor"),
        (Padded(nn.Identity(), nn.Upsample(scale_factor=2, mode="bilinear")), "mode='nearest'"),
        (Padded(nn.Identity(), nn.AvgPool2d(3, ceil_mode=True)), "ceil_mode=True"),
        (Padded(nn.Identity(), nn.AvgPool2d(3, 1, 1, count_include_pad=False)), "another divisor"),
        (Padded(nn.Identity(), nn.AvgPool2d(3, divisor_override=2)), "divisor_override"),
        (Padded(nn.Identity(), nn.ConvTranspose2d(2, 2, 2)), "nn.Upsample"),
        (Padded(nn.Identity(), nn.Softmax(1)), "leave it to the loss"),
        (Padded(nn.Identity(), nn.GroupNorm(1, 2)), "BatchNorm"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_form_says_what_to_do(model: nn.Module, says: str) -> None:
    with pytest.raises(ModelError) as caught:
        inspect_model(model, Policy.uniform())
    assert says in str(caught.value)


def test_stretched_sums_and_unequal_windows_are_refused_by_name() -> None:
    class Stretched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.conv(x))
            return x + x.mean((2, 3), keepdim=True)

    with pytest.raises(ModelError, match="equal shape only"):
        apply(Stretched(), Policy.uniform(), "freeze", torch.rand(2, 2, 4, 4))
    uneven = Padded(nn.Identity(), nn.AdaptiveAvgPool2d(2))
    with pytest.raises(ModelError, match="equal windows"):
        apply(uneven, Policy.uniform(), "freeze", torch.rand(2, 2, 5, 4))


def test_freezing_without_any_shape_asks_for_one() -> None:
    model = apply(Joined(nn.BatchNorm2d(6)), Policy.uniform(), "train", torch.rand(2, 2, 4, 4))
    fresh = apply(Joined(nn.Conv2d(6, 2, 1)), Policy.uniform(), "train")
    with pytest.raises(ModelError, match="never set"):
        apply(fresh, Policy.uniform(), "freeze")
    twin = apply(Joined(nn.BatchNorm2d(6)), Policy.uniform(), "train")
    twin.load_state_dict(model.state_dict())
    with pytest.raises(ModelError, match="example_input"):
        apply(twin, Policy.uniform(), "freeze")


def test_a_layer_whose_input_has_died_is_named() -> None:
    torch.manual_seed(0)
    x = torch.rand(4, 4)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))
    model = apply(net, Policy.uniform(), "train", x)
    model.get_submodule("1").scale.data.fill_(1e-17)
    with pytest.raises(ModelError, match="has died") as caught:
        apply(model, Policy.uniform(), "freeze")
    assert caught.value.where == "2"


def test_results_that_forward_drops_do_not_matter() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(2, 3, 1), nn.Conv2d(3, 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.relu(self.a(x))
            torch.softmax(torch.cat([y, y], 1), 1)
            return self.b(y)

    assert {node.op for node in lowered(Dropping(), torch.rand(3, 2, 4, 4))} == {
        "conv",
        "threshold",
    }


class Scaled(nn.Module):
    """Normalisation by buffers, a layer scale, and plain numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4, 0.5]).view(1, 2, 1, 1))
        self.register_buffer("std", torch.tensor([0.2, 0.3]).view(2, 1, 1))
        self.gamma = nn.Parameter(torch.tensor([0.5, -2.0, 0.1]).view(3, 1, 1))
        self.a, self.b = nn.Conv2d(2, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
        self.c = nn.Conv2d(3, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.a((x - self.mean) / self.std))
        y = self.gamma * self.b(x) + 0.25
        y = torch.relu(1.0 - y * 0.5)
        return self.c(x + (-y))


def test_constants_are_folded() -> None:
    torch.manual_seed(0)
    x = torch.rand(6, 2, 5, 4)
    policy = Policy.uniform("int8", "uint8", "uint8")
    model = apply(Scaled(), policy, "train", x)
    assert "gamma" in dict(model.named_parameters())
    model(x).sum().backward()
    assert model.gamma.grad is not None
    frozen = apply(model, policy, "freeze")
    assert close(model, frozen, x) < 0.02
    assert_equal_everywhere(frozen, x)


def test_constants_that_differ_between_pixels_or_scale_the_scores_are_refused() -> None:
    class Places(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(torch.relu(self.a(x) * self.std.view(1, 1, 1, 2)))

    class Scores(Scaled):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(self.a(x)) * 2

    with pytest.raises(ModelError):
        apply(Places(), Policy.uniform(), "freeze", torch.rand(2, 2, 4, 2))
    with pytest.raises(ModelError, match="after the last layer"):
        inspect_model(Scores(), Policy.uniform())


@pytest.mark.parametrize("order", ["nap", "npn", "pn"])
def test_a_maximum_between_negative_gains_is_the_trained_one(order: str) -> None:
    torch.manual_seed(0)
    x = torch.rand(8, 2, 8, 8)
    layers: list[nn.Module] = [nn.Conv2d(2, 4, 3, bias=False)]
    for letter in order:
        norm = nn.BatchNorm2d(4)
        norm.weight.data.copy_(torch.tensor([1.0, -1.0, -0.5, 2.0]))
        norm.bias.data.normal_()
        layers.append({"n": norm, "p": nn.MaxPool2d(2), "a": nn.ReLU()}[letter])
    net = nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(4, 3, 1))
    policy = Policy.uniform("int8", "uint8", "uint8")
    model = apply(net.eval(), policy, "train", x)
    frozen = apply(model, policy, "freeze")
    assert close(model, frozen, x) < 0.02
    assert_equal_everywhere(frozen, x)


def test_sums_on_a_device_have_the_multipliers_of_the_integers() -> None:
    generator = torch.Generator().manual_seed(4)
    units = torch.rand(200, 2, generator=generator).mul(9).sub(6).exp2().tolist()
    for a, b in [*units, (1.0, 1.0), (0.5, 2.0), (1.0, 5000.0)]:
        add = QuantAdd()
        quantizers = []
        for unit in (a, b):
            found = Policy.uniform("int4", "uint4").resolve(Layer("r", "ReLU"), Role.ACTIVATION)
            quantizers.append(ActivationQuantizer(found.spec))
            quantizers[-1].put_scale(unit)
        add.bind_operands(*quantizers)
        left, right = add._factors(*(torch.tensor(q.unit).double() for q in quantizers))
        found = add.multipliers()
        first, second = (q.unit for q in quantizers)
        assert float(left) == pytest.approx(found.first * found.unit / first, rel=1e-12)
        assert float(right) == pytest.approx(found.second * found.unit / second, rel=1e-12)
