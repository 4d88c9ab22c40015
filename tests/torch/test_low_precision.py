# SPDX-License-Identifier: Apache-2.0
"""Training in low precision through the loop: schedules, resuming, bad gradients."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bitwright.base.errors import ModelError, RecipeError, RunError, TargetError
from bitwright.data import DataSplits, load_dataset
from bitwright.low_precision.arithmetic.apply import apply_arithmetic, remove_arithmetic
from bitwright.low_precision.arithmetic.emulated import EmulatedEngine
from bitwright.low_precision.arithmetic.layers import Context
from bitwright.models import build_model
from bitwright.train import TrainConfig, fit

QUICK = {"kind": "muppet", "lambda": 3.0, "resolution": 1, "patience": 1}


@pytest.fixture(scope="module")
def digits() -> DataSplits:
    return load_dataset("digits")


def network(seed: int = 0) -> nn.Module:
    return build_model("digits_cnn", 10, (8, 8, 1), seed=seed)


def config(**changes: Any) -> TrainConfig:
    low: dict[str, Any] = {
        "policy": QUICK,
        "ladder": [8, 12, "float32"],
        "float_epochs": 2,
        "lr_every": 1,
        "engine": "emulated",
        **changes.pop("low", {}),
    }
    fields: dict[str, Any] = {
        "epochs": 9,
        "lr": 0.1,
        "optimizer": "sgd",
        "threads": 1,
        "keep": "last",
        **changes,
    }
    return TrainConfig(**fields, low_precision=low)


def log_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "precision.jsonl").read_text().splitlines()]


def test_climbs_the_ladder_and_ends_in_float(digits: DataSplits, tmp_path: Path) -> None:
    model = network()
    done = fit(model, digits, config(low={"device": "rtx-2080-ti"}), run_dir=tmp_path)
    log = log_of(tmp_path)
    levels = [entry["level"] for entry in log]
    assert levels == [entry.precision for entry in done.history]
    assert list(dict.fromkeys(levels)) == ["int8", "int12", "float32"]
    assert levels[-2:] == ["float32", "float32"]
    assert levels.count("float32") == 2
    rates = [entry.lr for entry in done.history]
    assert rates == pytest.approx([0.1] * (len(rates) - 1) + [0.01])
    assert done.validation_accuracy > 0.8
    assert all(
        type(layer) in (nn.Conv2d, nn.Linear)
        for layer in model.modules()
        if hasattr(layer, "weight") and not isinstance(layer, nn.BatchNorm2d)
    )
    assert all(entry["reason"] for entry in log)
    seconds = {entry["level"]: entry["device_seconds"] for entry in log}
    assert 0 < seconds["int8"] < seconds["int12"]


@pytest.mark.parametrize("stop_after", [1, 4])
def test_a_stopped_run_goes_on_bit_for_bit(
    digits: DataSplits, tmp_path: Path, stop_after: int
) -> None:
    whole = network()
    fit(whole, digits, config(), run_dir=tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(progress: Any) -> None:
        if progress.last is not None and progress.last.epoch == stop_after:
            raise Stop

    halved = network()
    with pytest.raises(Stop):
        fit(halved, digits, config(), run_dir=tmp_path / "halved", on_progress=stop)
    resumed = network(seed=5)
    fit(resumed, digits, config(), run_dir=tmp_path / "halved")
    for one, other in zip(whole.state_dict().values(), resumed.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "halved")


def test_another_policy_does_not_go_on(digits: DataSplits, tmp_path: Path) -> None:
    fit(network(), digits, config(epochs=3), run_dir=tmp_path)
    before = (tmp_path / "checkpoint.pt").read_bytes()
    other = config(epochs=3, low={"policy": {**QUICK, "patience": 2}})
    with pytest.raises(RunError, match="low_precision"):
        fit(network(), digits, other, run_dir=tmp_path)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


class Poisoned(nn.Module):
    """A network whose gradients are spoilt in one step."""

    def __init__(self, inner: nn.Module, factor: float, at: int) -> None:
        super().__init__()
        self.inner, self.factor, self.at, self.calls = inner, factor, at, 0

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x)
        if self.training:
            self.calls += 1
            if self.calls == self.at:
                out.register_hook(lambda grad: grad * self.factor)
        return out


@pytest.mark.parametrize("factor", [float("nan"), float("inf"), 0.0])
@pytest.mark.parametrize("ladder", [[8, "float32"], ["float32"]])
def test_bad_gradients_stop_the_run(
    digits: DataSplits, tmp_path: Path, factor: float, ladder: list[Any]
) -> None:
    model = Poisoned(network(), factor, at=3)
    settings = config(low={"ladder": ladder, "policy": "baseline" if len(ladder) == 1 else QUICK})
    with pytest.raises(ModelError, match=r"epoch 1, step 3"):
        fit(model, digits, settings, run_dir=tmp_path)


def test_bad_gradients_are_skipped_and_counted(digits: DataSplits, tmp_path: Path) -> None:
    model = Poisoned(network(), float("nan"), at=3)
    fit(model, digits, config(low={"bad_gradients": "skip"}), run_dir=tmp_path)
    log = log_of(tmp_path)
    assert "1 step" in log[0]["reason"]
    assert "skipped" not in log[1]["reason"]
    assert all(torch.isfinite(p).all() for p in model.parameters())


def test_the_accumulator_is_checked_before_training(digits: DataSplits, tmp_path: Path) -> None:
    settings = config(low={"ladder": [8, 16, "float32"], "accumulator": "int32"})
    with pytest.raises(RecipeError, match=r"accumulator int32 holds 2147483647"):
        fit(network(), digits, settings, run_dir=tmp_path)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_a_network_without_products_is_refused(digits: DataSplits, tmp_path: Path) -> None:
    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)

    with pytest.raises(ModelError, match="Nothing has no"):
        fit(Nothing(), digits, config(), run_dir=tmp_path)


def test_an_unknown_device_is_refused(digits: DataSplits, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"low_precision\.device: .*rtx-9999"):
        fit(network(), digits, config(low={"device": "rtx-9999"}), run_dir=tmp_path)
    assert not (tmp_path / "checkpoint.pt").exists()


def test_float_levels_change_nothing() -> None:
    torch.manual_seed(0)
    plain = network()
    low = copy.deepcopy(plain)
    apply_arithmetic(low, Context(EmulatedEngine()))
    x = torch.rand(4, 1, 8, 8)
    assert torch.equal(plain.train()(x), low.train()(x))
    assert list(plain.state_dict()) == list(low.state_dict())
    remove_arithmetic(low)
    assert [type(m) for m in plain.modules()] == [type(m) for m in low.modules()]


@pytest.mark.long
def test_two_processes_climb_together(digits: DataSplits, tmp_path: Path) -> None:
    model = network()
    done = fit(model, digits, config(devices=2, epochs=7), run_dir=tmp_path)
    log = log_of(tmp_path)
    assert [entry["level"] for entry in log] == [entry.precision for entry in done.history]
    assert log[-1]["level"] == "float32"
    assert done.validation_accuracy > 0.7


def test_devices_and_skipping_do_not_go_together(digits: DataSplits, tmp_path: Path) -> None:
    settings = config(devices=2, low={"bad_gradients": "skip"})
    with pytest.raises(RecipeError, match="one device"):
        fit(network(), digits, settings, run_dir=tmp_path)
