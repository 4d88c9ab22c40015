# SPDX-License-Identifier: Apache-2.0
"""Training with batch norms whose statistics stay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from bitwright.base.errors import RecipeError
from bitwright.data import DataSplits, load_dataset
from bitwright.models import build_model
from bitwright.quantize import Policy, apply
from bitwright.train import TrainConfig, fit

CONFIG = TrainConfig(epochs=4, batch_size=32, lr=5e-3, freeze_norms=0.5, keep="last")


@pytest.fixture(scope="module")
def few() -> DataSplits:
    digits = load_dataset("digits")
    return replace(digits, train=digits.train.take(range(0, len(digits.train), 8)))


def quantized() -> nn.Module:
    model = build_model("digits_cnn", 10, (8, 8, 1), seed=1)
    return apply(model, Policy.uniform("int4", "uint4", "uint8"), "train")


def statistics(model: nn.Module) -> dict[str, torch.Tensor]:
    state = model.state_dict()
    return {name: value.clone() for name, value in state.items() if ".running_" in name}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_statistics_stay_from_the_given_share_on(few: DataSplits, tmp_path: Path) -> None:
    model, seen = quantized(), []
    started = statistics(model)

    def note(progress) -> None:
        if progress.batch == progress.batches and progress.last is not None:
            if len(seen) < progress.epoch:
                seen.append(
                    ({n: p.clone() for n, p in model.named_parameters()}, statistics(model))
                )

    fit(model, few, CONFIG, run_dir=tmp_path, on_progress=note)
    assert len(seen) == 4
    first, second, third, last = (held for _, held in seen)
    assert started and not same(started, first) and not same(first, second)
    assert same(second, third) and same(third, last)
    before, after = seen[1][0], seen[3][0]
    norms = [n for n, m in model.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert norms and all(
        not torch.equal(before[f"{n}.weight"], after[f"{n}.weight"]) for n in norms
    )


def test_nought_keeps_those_of_the_float_training(few: DataSplits, tmp_path: Path) -> None:
    """And the network trains with what it is used with: training and evaluation are the same."""
    model = quantized()
    started = statistics(model)
    fit(model, few, CONFIG.model_copy(update={"freeze_norms": 0.0}), run_dir=tmp_path)
    assert same(started, statistics(model))


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_resumed_run_ends_with_the_same_weights(
    few: DataSplits, tmp_path: Path, stop_after: int
) -> None:
    whole, parts = quantized(), quantized()
    fit(whole, few, CONFIG, run_dir=tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(progress) -> None:
        if progress.last is not None and progress.last.epoch == stop_after:
            raise Stop

    with pytest.raises(Stop):
        fit(parts, few, CONFIG, run_dir=tmp_path / "parts", on_progress=stop)
    other = quantized()
    result = fit(other, few, CONFIG, run_dir=tmp_path / "parts")
    assert result.resumed_from == stop_after
    assert same(whole.state_dict(), other.state_dict())


def test_what_would_have_no_effect_is_refused(few: DataSplits, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"at most 0\.75 takes effect"):
        TrainConfig(epochs=4, freeze_norms=0.9)
    assert TrainConfig(epochs=4, freeze_norms=0.75).norms_frozen(3)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(RecipeError, match="no batch norm"):
        fit(plain, few, CONFIG, run_dir=tmp_path / "none")
    assert not (tmp_path / "none").exists()
