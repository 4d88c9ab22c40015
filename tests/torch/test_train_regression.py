# SPDX-License-Identifier: Apache-2.0
"""Distillation without labels: what it learns, what it leaves alone, going on after a stop."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from bitwright.base.errors import DataError, ModelError
from bitwright.train.checkpoint import load_checkpoint, save_checkpoint
from bitwright.train.regression import Regression, regress, relative_error


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 3, 1)
    )
    with torch.no_grad():
        for _ in range(20):
            model.train()(torch.randn(8, 2, 6, 6))
    return model


def batches(step: int) -> torch.Tensor:
    return torch.randn(8, 2, 6, 6, generator=torch.Generator().manual_seed(step))


class Interrupted(Exception):
    pass


def test_a_student_learns_its_teachers_outputs_and_features() -> None:
    teacher, student = network(1), network(1)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    unseen = batches(10_000)

    def errors() -> tuple[float, float]:
        with torch.no_grad():
            outputs = relative_error(student.eval()(unseen), teacher.eval()(unseen))
            return float(outputs), float(relative_error(student[:3](unseen), teacher[:3](unseen)))

    output, feature = errors()
    before = {k: v.clone() for k, v in teacher.state_dict().items()}
    statistics = {k: v.clone() for k, v in student.state_dict().items() if "running" in k}
    config = Regression(300, lr=0.03, features=("2",), feature_weight=0.5)
    losses = regress(student, teacher, batches, config)
    assert len(losses) == 300
    assert sum(losses[-10:]) < 0.2 * sum(losses[:10])
    assert errors()[0] < 0.1 * output and errors()[1] < 0.2 * feature
    assert all(torch.equal(before[k], v) for k, v in teacher.state_dict().items())
    after = student.state_dict()
    assert all(torch.equal(after[k], v) for k, v in statistics.items())
    assert not student.training and not student[0]._forward_hooks and not teacher[2]._forward_hooks


def test_a_stopped_run_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    config = Regression(12, lr=0.05, save_every=4)
    whole = network(2)
    expected = regress(whole, network(1), batches, config)
    path = tmp_path / "run.pt"

    def stop(done: int, loss: float) -> None:
        if done == 7:
            raise Interrupted

    stopped = network(2)
    with pytest.raises(Interrupted):
        regress(stopped, network(1), batches, config, checkpoint=path, on_step=stop)
    seen: list[int] = []
    fresh = network(3)
    losses = regress(
        fresh, network(1), batches, config, checkpoint=path, on_step=lambda n, _: seen.append(n)
    )
    assert seen == list(range(5, 13)) and losses == expected
    assert all(
        torch.equal(a, b) for a, b in zip(whole.parameters(), fresh.parameters(), strict=True)
    )
    assert regress(network(4), network(1), batches, config, checkpoint=path) == expected


def test_a_step_changes_large_and_small_tensors_by_the_same_share() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large = nn.Parameter(torch.tensor([30.0, 40.0]))
            self.small = nn.Parameter(torch.tensor(0.01))
            self.zero = nn.Parameter(torch.tensor(0.0))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.large + self.small + self.zero

    model = Scaled()
    regress(model, nn.Identity(), lambda n: torch.ones(3, 2), Regression(1, lr=0.1))
    step = 0.1 * 1250**0.5
    assert model.large.tolist() == pytest.approx([30 - step, 40 - step])
    assert model.small.item() == pytest.approx(0.009) and model.zero.item() == pytest.approx(-1e-4)


def test_a_loss_of_ones_own_sees_student_and_teacher() -> None:
    seen = []

    def loss(found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        seen.append((found.requires_grad, wanted.requires_grad))
        return (found - wanted).abs().sum()

    regress(network(2), network(1), batches, Regression(2), loss=loss)
    assert seen == [(True, False)] * 2


def test_mistakes_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no layer 'layer9'"):
        regress(network(2), network(1), batches, Regression(1, features=("layer9",)))
    with pytest.raises(ModelError, match="loss of step 0 is nan"):
        regress(network(2), network(1), lambda n: batches(n) * float("nan"), Regression(1))
    for wrong in ({"steps": 0}, {"steps": 1, "lr": 0.0}, {"steps": 1, "feature_weight": -1.0}):
        with pytest.raises(ModelError):
            Regression(**wrong)
    path = tmp_path / "run.pt"
    regress(network(2), network(1), batches, Regression(1), checkpoint=path)
    with pytest.raises(DataError, match="was written with"):
        regress(network(2), network(1), batches, Regression(2), checkpoint=path)
    with pytest.raises(DataError, match="belongs to another model"):
        regress(nn.Conv2d(2, 3, 1), network(1), batches, Regression(1), checkpoint=path)
    more = load_checkpoint(path)
    save_checkpoint(path, {**more, "losses": [0.5, 0.5]})
    with pytest.raises(DataError, match="has 2 losses, and the training ends after 1"):
        regress(network(2), network(1), batches, Regression(1), checkpoint=path)
    save_checkpoint(path, more)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="no whole checkpoint"):
        regress(network(2), network(1), batches, Regression(1), checkpoint=path)
