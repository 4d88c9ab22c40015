# SPDX-License-Identifier: Apache-2.0
"""Networks of signals: what a user writes with the layers of one dimension is converted as it is,
and in evaluation equals the integer graph.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bitwright.base.errors import ModelError
from bitwright.ir.executor import Executor
from bitwright.lower import optimise
from bitwright.quantize import IntegerModel, Policy, apply, explain
from bitwright.quantize.ptq import post_training_quantize
from bitwright.quantize.signals import raised

POLICY = Policy.uniform("int4", "uint4", "int8")
SHAPE = (2, 32)


class Keywords(nn.Sequential):
    """What most people write."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(2, 6, 5, padding=2, bias=False),
            nn.BatchNorm1d(6),
            nn.ReLU(),
            nn.MaxPool1d(2),
            nn.Conv1d(6, 8, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AvgPool1d(2),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        )


class Written(nn.Module):
    """Functions, a residual, a concatenation, a constant a channel, a mean over time."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 6, 3, padding="same")
        self.norm = nn.BatchNorm1d(6)
        self.second = nn.Conv1d(6, 6, 3, padding=2, dilation=2)
        self.third = nn.Conv1d(6, 6, 3, groups=6, bias=False)
        self.register_buffer("factor", torch.linspace(0.5, 1.5, 6).view(1, 6, 1))
        self.last = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x)))
        y = torch.relu(self.second(x) * self.factor) + x
        y = F.max_pool1d(y, 2)
        z = F.relu(self.third(F.pad(F.max_pool1d(x, kernel_size=2), (1, 1))))
        joined = torch.cat([y, z], dim=1)
        return self.last(joined.mean(-1))


class Flattened(nn.Module):
    """Sizes read in forward, squeezes, and a dense layer with batch norm on vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 4, stride=4)
        self.fc = nn.Linear(32, 8)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x))
        x = x.view(x.size(0), -1)
        return self.out(torch.relu(self.norm(self.fc(x))))


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.adaptive_avg_pool1d(torch.relu(self.conv(x)), 1).squeeze(-1))


NETWORKS = [Keywords, Written, Flattened, Pooled]


def inputs(count: int = 24) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(1)).clamp(-2, 2)


def trained(kind: type[nn.Module]) -> nn.Module:
    """With statistics of batch norm that are not those of the start."""
    torch.manual_seed(0)
    model = kind()
    model.train()(inputs())
    return model.eval()


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_network_of_images_computes_the_same(kind: type[nn.Module]) -> None:
    model, x = trained(kind), inputs()
    found = raised(model, x)
    torch.testing.assert_close(found(x), model(x), rtol=1e-5, atol=1e-5)
    assert set(dict(model.named_parameters())) <= set(dict(found.named_parameters()))
    assert raised(found, x) is found


@pytest.mark.parametrize("kind", NETWORKS)
def test_evaluation_is_the_integer_graph(kind: type[nn.Module]) -> None:
    x = inputs()
    model = apply(trained(kind), POLICY, "train", x).eval()
    integers = model.integers(SHAPE)
    assert integers is not None, model.why_simulated
    graph = optimise(integers.graph, check=4)
    assert graph.types[graph.inputs[0]].shape == (1, 32, 2)
    levels = integers.input_levels(x).permute(0, 2, 3, 1).contiguous().numpy().astype("int64")
    expected = graph.run({graph.inputs[0]: levels})
    assert (Executor(graph).run({graph.inputs[0]: levels})["label"] == expected["label"]).all()
    with torch.no_grad():
        scores = model(x)
    graphs = (expected["scores"] * integers.score_scale).astype("float32")
    assert scores.shape == (24, len(graphs[0])) and (scores.numpy() == graphs).all()
    assert len(scores.unique()) > 10


def test_training_simulates_it_and_learns() -> None:
    x = inputs(64)
    labels = (x[:, 0].mean(1) > 0).long()
    model = apply(trained(Keywords), POLICY, "train", x).train()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    losses = []
    for _ in range(40):
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    before = model.eval()(x)
    again = apply(trained(Keywords), POLICY, "train", sample_shape=SHAPE)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.eval()(x), before)


def test_a_float_state_loads_into_the_quantized_model() -> None:
    model, x = trained(Keywords), inputs()
    quantized = apply(trained(Keywords), POLICY, "train", x)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    found = quantized.load_state_dict(model.state_dict(), strict=False)
    assert not found.unexpected_keys
    assert torch.equal(quantized.get_submodule("0").weight[:, :, 0], model[0].weight)


@pytest.mark.parametrize(
    "methods", [["fold", "calibrate"], ["fold", "equalize", "calibrate", "bias"]]
)
def test_post_training_methods_know_signals(methods: list[str]) -> None:
    x = inputs(64)
    model, _ = post_training_quantize(
        trained(Keywords), Policy.uniform("int8", "uint8", "int8"), x, methods
    )
    assert not any(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    with torch.no_grad():
        close = trained(Keywords)(x)
        far = (model.eval()(x) - close).abs().max()
    assert float(far) < 0.1 * float(close.abs().max())


def test_a_dense_output_of_a_signal_is_a_signal() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv1d(4, 2, 1)).eval()
    x = inputs()
    frozen = apply(net, POLICY, "freeze", x)
    assert isinstance(frozen, IntegerModel)
    assert frozen.graph.types["scores"].shape == (1, 32, 2)
    assert frozen(x).shape == (24, 2, 32) == net(x).shape
    assert torch.equal(apply(net, POLICY, "train", x).eval()(x), frozen(x))


def test_explain_names_the_users_layers() -> None:
    rows = explain(trained(Keywords), POLICY, inputs(1))
    assert {"0", "4", "9"} <= {row.layer for row in rows}


def test_what_has_no_form_is_refused_with_the_users_words() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.ConvTranspose1d(2, 2, 2)
            self.norm = nn.LayerNorm(33)

        def forward(self, x: Tensor) -> Tensor:
            return torch.flatten(self.norm(self.up(x)), 1)

    with pytest.raises(ModelError, match=r"ConvTranspose1d has no few-bit form") as caught:
        apply(Recurrent(), POLICY, "train", inputs())
    assert "test_signals.py" in str(caught.value)

    class Strange(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            return x.mean((1, 2), keepdim=True).flatten(1)

    with pytest.raises(ModelError, match="does not average over"):
        apply(Strange(), POLICY, "train", inputs())


def test_without_an_example_it_is_asked_for() -> None:
    with pytest.raises(ModelError, match=r"(?s)network of signals.*example_input"):
        apply(Keywords(), POLICY, "train")


class Decoder(nn.Module):
    """One layer for both steps up, as a function and as a layer."""

    def __init__(self, resize: str) -> None:
        super().__init__()
        self.first = nn.Conv1d(2, 4, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2)
        self.last = nn.Conv1d(4, 3, 3, padding=1)
        self.resize = resize

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(F.max_pool1d(x, 4)))
        if self.resize == "layer":
            return self.last(self.up(self.up(x)))
        if self.resize == "factor":
            return self.last(F.interpolate(F.interpolate(x, scale_factor=2), scale_factor=2.0))
        return self.last(F.interpolate(x, size=32))


@pytest.mark.parametrize("resize", ["layer", "factor", "size"])
def test_steps_up_stretch_the_signal_alone(resize: str) -> None:
    """A layer that is called twice had no factor any more; functions stretched the row, too."""
    torch.manual_seed(5)
    model, x = Decoder(resize).eval(), torch.rand(4, *SHAPE)
    assert torch.equal(raised(model, x)(x), model(x))
    frozen = apply(model, POLICY, "freeze", x)
    assert frozen.graph.types[frozen.graph.outputs[0]].size == 3 * 32


def test_a_pad_of_more_than_the_last_axis_is_the_users() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv1d(4, 3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(F.pad(x, (1, 1, 1, 1)))

    model, x = Padded().eval(), torch.rand(2, *SHAPE)
    assert torch.equal(raised(model, x)(x), model(x))
