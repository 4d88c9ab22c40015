# SPDX-License-Identifier: Apache-2.0
"""State dicts of converted models say which formats they are of, and are checked against them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from bitwright.base.errors import ModelError
from bitwright.quantize import Policy, apply, quantizer
from bitwright.quantize.incremental import set_bits
from bitwright.train import load_weights, save_weights

IMAGES = torch.rand(8, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))


def converted(weight: Any = "int4", activation: str = "uint4", seed: int = 0) -> nn.Module:
    policy = Policy.from_dict({"weight": weight, "activation": activation, "input": "uint8"})
    return apply(network(seed), policy, "train", IMAGES).eval()


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"weight": "int3"}, "int4n?, per"),
        ({"activation": "uint5"}, "uint4, per"),
        ({"weight": {"format": "int4", "power_of_two": True}}, "power of two"),
    ],
)
def test_the_state_of_another_policy_is_refused(
    other: dict[str, Any], named: str, tmp_path: Path
) -> None:
    """All keys and shapes match; the numbers would mean something else."""
    torch.save(converted().state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    model = converted(**other)
    assert set(state) == set(model.state_dict())
    for strict in (True, False):
        with pytest.raises(RuntimeError, match=f"(?s)was saved by a quantizer of.*{named}"):
            model.load_state_dict(state, strict=strict)
    save_weights(tmp_path / "own.pt", converted())
    with pytest.raises(ModelError, match="another model"):
        load_weights(tmp_path / "own.pt", model)


def same(one: nn.Module, two: nn.Module) -> bool:
    return torch.equal(one(IMAGES), two(IMAGES))


def test_the_state_of_the_same_policy_loads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quantizer._tell_unknown.cache_clear()
    model = converted()
    torch.save(model.state_dict(), tmp_path / "state.pt")
    found = converted(seed=1)
    assert not same(found, model)
    found.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert same(found, model)
    average = AveragedModel(found)
    AveragedModel(converted(seed=2)).load_state_dict(average.state_dict())
    with pytest.raises(RuntimeError, match="was saved by a quantizer"):
        AveragedModel(converted("int3")).load_state_dict(average.state_dict())
    assert not caplog.records


def without_metadata(model: nn.Module, folder: Path) -> dict[str, Tensor]:
    save_file(model.state_dict(), folder / "state.safetensors")
    return load_file(folder / "state.safetensors")


def of_before(model: nn.Module, folder: Path) -> dict[str, Tensor]:
    del folder
    state = model.state_dict()
    for entry in state._metadata.values():
        entry.pop("specification", None)
    return state


@pytest.mark.parametrize("kept", [without_metadata, of_before])
def test_what_does_not_say_loads_with_a_warning(
    kept: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quantizer._tell_unknown.cache_clear()
    model, found = converted(), converted(seed=1)
    with caplog.at_level(logging.WARNING):
        found.load_state_dict(kept(model, tmp_path))
    assert same(found, model)
    assert [record.message for record in caplog.records] == [
        message for message in caplog.messages if "does not say which formats" in message
    ]
    assert len(caplog.records) == 1


def test_the_state_of_a_float_model_loads_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    quantizer._tell_unknown.cache_clear()
    model = converted()
    model.load_state_dict(network(1).state_dict())
    model.load_state_dict(dict(network(1).state_dict()))
    assert not caplog.records


def test_bits_that_fall_while_training_are_not_the_policy() -> None:
    """The state is that of the policy, at whatever width it was saved."""
    model, other = converted(), converted(seed=1)
    set_bits(model, 8)
    other.load_state_dict(model.state_dict())
