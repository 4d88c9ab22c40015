# SPDX-License-Identifier: Apache-2.0
"""Networks that are too large for the machine are refused before they are built, with figures."""

from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest
import torch
import yaml
from tests.interop_networks import networks
from torch import nn

from bitwright.base import memory as base
from bitwright.base.errors import ModelError, RunError
from bitwright.cli import entry
from bitwright.interop.network_from_torch import network_of
from bitwright.interop.network_to_torch import module_of
from bitwright.models import build_model, memory

GIB = 1 << 30


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of one gibibyte."""
    monkeypatch.setattr(memory, "machine_memory", lambda: GIB)


@pytest.mark.usefixtures("small")
def test_a_network_too_large_is_never_built(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    init = nn.Linear.__init__

    def seen(self: nn.Linear, *args: int, **kwargs: object) -> None:
        init(self, *args, **kwargs)
        made.append(self.weight.device.type)

    monkeypatch.setattr(nn.Linear, "__init__", seen)
    with pytest.raises(ModelError, match=r"lenet.*takes 22\.4 GiB .* this machine has 1\.0 GiB"):
        build_model("lenet", 10, (4096, 4096, 1))
    assert set(made) == {"meta"}
    build_model("lenet", 10, (28, 28, 1))
    assert "cpu" in made


@pytest.mark.usefixtures("small")
def test_half_of_the_memory_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        build_model("lenet", 10, (28, 28, 1))
        assert not caplog.records
        build_model("lenet", 10, (700, 700, 1))
    assert "lenet" in caplog.text and " MiB of memory or more" in caplog.text


def test_the_figure_is_what_the_layers_hold() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(144, 2),
    ).eval()
    found = memory.footprint(model, (1, 8, 8))
    state = [*model.parameters(), *model.buffers()]
    assert found.parameters == sum(value.numel() for value in state)
    # The image, the convolution (which the batch norm needs) and the scores; no view.
    assert found.activations == 64 + 4 * 36 + 2
    assert found.bytes_for(10) == 4 * (3 * found.parameters + 10 * found.activations)
    assert found.bytes_for(10, 2) == 12 * found.parameters + 20 * found.activations
    assert all(value.device.type == "cpu" for value in state)
    assert not any(m._forward_hooks for m in model.modules()) and not model.training


def test_what_cannot_be_known_is_not_guessed() -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, : int(x.sum().item()) + 2]

    assert memory.footprint(Own(), (1, 4, 4)) == memory.Footprint(0, 16)


def test_a_batch_too_large_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    train = {"float": {"epochs": 1, "batch_size": 512}, "quantized": {"epochs": 1}}
    recipe.write_text(
        yaml.safe_dump({"name": "x", "data": "digits", "model": "digits_cnn", "train": train})
    )
    monkeypatch.setattr(memory, "machine_memory", lambda: 1 << 20)
    monkeypatch.chdir(tmp_path)
    assert entry.run(["build", "recipe.yaml", "--until", "train"]) == ModelError.exit_code
    said = capsys.readouterr().err
    assert "for each of 512 images at a time" in said and "this machine has 1.0 MiB" in said


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_no_memory_is_no_bug(
    error: Exception,
    known: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(**_: object) -> None:
        raise error

    from bitwright.cli import app

    monkeypatch.setattr(app, "app", fail)
    code = entry.run(["list", "models"])
    said = capsys.readouterr().err
    assert code == (RunError.exit_code if known else entry.EXIT_BUG)
    assert ("not enough memory" in said) == known


def test_the_machine_has_what_its_limits_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = base.machine_memory()
    assert 1 << 28 < whole < 1 << 50
    group = tmp_path / "memory.max"
    monkeypatch.setattr(base, "_GROUPS", (group,))
    group.write_text("max\n")
    installed = base.machine_memory()
    group.write_text("1000000\n")
    assert base.machine_memory() == 1_000_000 < installed


def test_what_is_held_at_a_time_is_counted_with_views_and_without_weights() -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept = (x + 1).flatten(1)[:, :4]  # a view keeps all of it
            for _ in range(5):
                x = x * 2  # one is made while the one before it lives
            return torch.cat([kept, x.flatten(1)[:, :4]], 1)

    image = 4 * 64
    # The image (which the caller holds), what the view shows, and two of the products.
    assert memory.passing(Own(), (1, 8, 8)).peak == 4 * image
    large = nn.Sequential(nn.Flatten(), nn.Linear(64, 1000), nn.ReLU(inplace=True))
    assert memory.passing(large, (1, 8, 8)).peak == image + 4 * 1000
    assert memory.passing(nn.Sequential(nn.Identity()), (1, 8, 8)).peak == image


def test_as_many_images_pass_at_a_time_as_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """250 of 90 MB each, as a file may ask for, took the whole machine."""
    monkeypatch.setattr(memory, "machine_memory", lambda: 8 * GIB)
    wide = nn.Sequential(nn.Conv2d(1, 64, 1), nn.ReLU(), nn.Conv2d(64, 1, 1)).eval()
    assert memory.images_at_a_time(wide, (1, 8, 8), 250) == 250
    each = 4 * 1024 * 1024 * (64 + 64)
    assert memory.passing(wide, (1, 1024, 1024)).peak == pytest.approx(each, rel=0.02)
    assert memory.images_at_a_time(wide, (1, 1024, 1024), 250) == 1
    # What lives at the second convolution, and the copies of what it reads and gives.
    inside = 4 * 256 * 256 * (1 + 64 + 1 + 64 + 16)
    assert memory.images_at_a_time(wide, (1, 256, 256), 250) == GIB // inside


@pytest.mark.parametrize("name", ["odd", "plain", "residual", "dense", "face"])
def test_every_family_passes_without_numbers(name: str) -> None:
    model, (height, width, channels) = networks()[name]
    module = module_of(network_of(model, (height, width, channels)))
    found = [memory.passing(m, (channels, height, width)).peak for m in (model, module)]
    shapes = network_of(model, (height, width, channels)).shapes
    largest = 4 * max(math.prod(shape) for shape in shapes.values())
    total = 4 * 2 * sum(math.prod(shape) for shape in shapes.values())
    assert all(largest <= size <= total for size in found)
