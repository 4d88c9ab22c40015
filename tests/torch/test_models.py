# SPDX-License-Identifier: Apache-2.0
"""The zoo and the user's own models."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from bitwright.base.errors import ModelError, RecipeError
from bitwright.models import build_model, list_models

SHAPES = {"mlp": (8, 8, 1), "signal_cnn": (256, 1), "digits_cnn": (8, 8, 1), "cnv": (32, 32, 3)}
#: Large ones, or no classifiers; they have tests of their own.
APART = (
    "box_cnn",
    "bundle_net",
    "unet",
    "lfc",
    "alexnet",
    "alexnet_imagenet",
    "googlenet_imagenet",
    "squeezenet",
    "squeezenet_imagenet",
    "resnet18_imagenet",
    "densenet121",
    "densenet201",
    "skynet",
    "face_densenet",
    "face_densenet10",
    "face_densenet20",
)


def hidden(model: nn.Module) -> list[tuple[int, int]]:
    return [(m.in_features, m.out_features) for m in model.modules() if isinstance(m, nn.Linear)]


@pytest.mark.parametrize("name", [info.name for info in list_models() if info.name not in APART])
def test_every_model_scores_a_batch(name: str) -> None:
    shape = SHAPES.get(name, (28, 28, 1))
    model = build_model(name, 7, shape)
    assert model(torch.zeros(2, shape[-1], *shape[:-1])).shape == (2, 7)
    for module in model.modules():  # what is followed by batch norm needs no bias
        assert not isinstance(module, nn.Conv2d) or module.bias is None


@pytest.mark.parametrize(("name", "width"), [("tfc", 64), ("sfc", 256), ("lfc", 1024)])
def test_the_perceptrons_of_the_finn_paper(name: str, width: int) -> None:
    model = build_model(name, 10, (28, 28, 1))
    assert hidden(model) == [(784, width), (width, width), (width, width), (width, 10)]


def test_cnv_is_the_network_of_the_finn_paper() -> None:
    model = build_model("cnv", 10, (32, 32, 3))
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [64, 64, 128, 128, 256, 256]
    assert {(m.kernel_size, m.padding) for m in convolutions} == {((3, 3), (0, 0))}
    assert hidden(model) == [(256, 512), (512, 512), (512, 10)]


def test_the_digits_network_is_as_small_as_it_says() -> None:
    model = build_model("digits_cnn", 10, (8, 8, 1))
    assert sum(p.numel() for p in model.parameters() if p.ndim > 1) == 1864


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = build_model("tfc", 10, (28, 28, 1), seed=5)
    state = torch.get_rng_state()
    again = build_model("tfc", 10, (28, 28, 1), seed=5)
    other = build_model("tfc", 10, (28, 28, 1), seed=6)
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(first.fc1.weight, again.fc1.weight)
    assert not torch.equal(first.fc1.weight, other.fc1.weight)


def test_options_reach_the_factory() -> None:
    model = build_model(
        {"name": "mlp", "options": {"widths": [9], "activation": "hardtanh"}}, 3, (2, 2, 1)
    )
    assert hidden(model) == [(4, 9), (9, 3)]
    assert any(isinstance(m, nn.Hardtanh) for m in model.modules())


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("lennet", RecipeError, "unknown model 'lennet'"),
        ({"name": "tfc", "options": {"width": 3}}, RecipeError, "no option 'width'"),
        ({"name": "tfc", "option": {}}, RecipeError, r"model\.option"),
        ({"name": "mlp", "options": {"widths": [0]}}, ModelError, "positive whole numbers"),
        ({"name": "mlp", "options": {"widths": ["a"]}}, ModelError, "positive whole numbers"),
        ({"name": "cnv", "options": {"widths": [1, 2]}}, ModelError, "four widths"),
        ({"name": "mlp", "options": {"activation": "gelu"}}, ModelError, "unknown activation"),
        ("cnv", ModelError, "too small: nothing is left after"),
        ("a.b:c.d", RecipeError, "not of the form"),
        (":f", RecipeError, "not of the form"),
        ("no_such_package.m:f", ModelError, "cannot import 'no_such_package'"),
    ],
)
def test_what_cannot_be_built_is_explained(spec, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        build_model(spec, 10, (8, 8, 1))


OWN = """
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes, width=4):
        super().__init__()
        self.body = nn.Linear(12, width)
        self.head = nn.Linear(width, num_classes)

    def forward(self, x):
        return self.head(self.body(x.flatten(1)))

def make(input_shape, num_classes):
    height, width, channels = input_shape
    assert (height, width, channels) == (3, 2, 2)
    return Net(num_classes)

def plain():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5))

def nothing():
    return "a string"

def fails():
    return nn.Linear(3, -1 // 0)

def wrong():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 4))

class Broken(nn.Module):
    def forward(self, x):
        return x @ x

constant = 3
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_nets.py").write_text(OWN)
    (tmp_path / "my_syntax.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in ("my_nets", "my_syntax"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("name", ["make", "plain", "Net"])
def test_a_users_own_model_is_built(name: str) -> None:
    model = build_model(f"my_nets:{name}", 5, (3, 2, 2))
    assert model(torch.zeros(4, 2, 3, 2)).shape == (4, 5)


@pytest.mark.usefixtures("own")
def test_a_users_own_model_takes_options() -> None:
    model = build_model({"name": "my_nets:Net", "options": {"width": 9}}, 5, (3, 2, 2))
    assert model.body.out_features == 9


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("my_nets:absent", ModelError, "no function or class 'absent'"),
        ("my_nets:constant", ModelError, "no function or class 'constant'"),
        ("my_nets:nothing", ModelError, "gave a str"),
        ("my_nets:fails", ModelError, r"my_nets\.py:\d+.*ZeroDivisionError"),
        ("my_nets:wrong", ModelError, r"gives \(1, 4\).*\(1, 5\)"),
        ("my_nets:Broken", ModelError, r"my_nets\.py:\d+: fails on an image"),
        ("my_syntax:f", ModelError, r"my_syntax\.py:1"),
    ],
)
def test_a_users_own_mistake_is_located(own: Path, name: str, error: type, message: str) -> None:
    assert own.is_dir()
    with pytest.raises(error, match=message) as caught:
        build_model(name, 5, (3, 2, 2))
    assert caught.value.hint is not None


@pytest.mark.usefixtures("own")
def test_an_option_the_factory_does_not_take_is_named() -> None:
    with pytest.raises(RecipeError, match="no option 'depth'") as caught:
        build_model({"name": "my_nets:Net", "options": {"depth": 9}}, 5, (3, 2, 2))
    assert "width" in str(caught.value)
