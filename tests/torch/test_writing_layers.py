# SPDX-License-Identifier: Apache-2.0
"""A network whose first layer writes into its input gives what one that does not would give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bitwright.data import DataSplits, load_dataset
from bitwright.quantize import Policy, apply
from bitwright.quantize.ptq import (
    calibrate,
    choose_policy,
    fold_batch_norms,
    measure_ranges,
    post_training_quantize,
)
from bitwright.train import Distillation, TrainConfig, fit
from bitwright.train.evaluation import run_batches
from bitwright.train.regression import Regression, regress

#: Levels of the first layer's input are kept: nothing stands between the images and it.
OPEN = Policy.from_dict({"weight": "int4", "activation": "uint4", "input": "float"})


class Net(nn.Module):
    """Doubles its input, in place or not, in front of a convolution.

    Args:
        writes: it is done in place.
    """

    def __init__(self, writes: bool, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.writes = writes
        self.norm = nn.BatchNorm2d(4)
        self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4 * 36, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.mul_(2) if self.writes else x.mul(2)
        return self.fc(torch.relu(self.norm(self.conv(x))).flatten(1))


def images(seed: int = 1) -> Tensor:
    return torch.rand(24, 1, 8, 8, generator=torch.Generator().manual_seed(seed))


def quantized(writes: bool) -> object:
    made, report = post_training_quantize(Net(writes).eval(), OPEN, images(), batch_size=10)
    return [*made.state_dict().values()], list(report.scales.values())


def scales_alone(writes: bool) -> object:
    return [*calibrate(Net(writes).eval(), OPEN, images()).state_dict().values()]


def chosen(writes: bool) -> object:
    others = {"a": OPEN, "b": Policy.from_dict({"weight": "int3", "activation": "uint4"})}
    return choose_policy(Net(writes).eval(), others, images()).errors


def folded(writes: bool) -> object:
    given = images()
    found = [*fold_batch_norms(Net(writes).eval(), given).state_dict().values()]
    assert torch.equal(given, images())
    return found


def converted(writes: bool) -> object:
    given = images()
    model = apply(Net(writes).eval(), OPEN, "train", given).eval()
    assert torch.equal(given, images())
    with torch.no_grad():
        return [model(given)]


def ranges(writes: bool) -> object:
    return measure_ranges(Net(writes).eval(), images())


def scored(writes: bool) -> object:
    given = images()
    model = Net(writes).eval()
    first, second = run_batches(model, given, 10), run_batches(model.forward, given, 10)
    assert torch.equal(given, images())
    return [first, second]


def regressed(writes: bool) -> object:
    config = Regression(3, lr=0.01)
    return regress(Net(False, seed=2), Net(writes).eval(), images, config)


@pytest.mark.parametrize(
    "made", [quantized, scales_alone, chosen, folded, converted, ranges, scored, regressed]
)
def test_what_is_made_of_it(made: Callable[[bool], object]) -> None:
    assert str(made(True)) == str(made(False))


@pytest.mark.parametrize("kind", ["teacher", "peer"])
def test_whoever_learns_beside_it_sees_the_same_images(kind: str, tmp_path: Path) -> None:
    splits = load_dataset("digits")
    few: DataSplits = replace(splits, train=splits.train.take(range(128)))
    own = {"peer": {"lr": 0.01}} if kind == "peer" else {}
    config = TrainConfig(epochs=1, batch_size=32, distillation=Distillation(alpha=0.5), **own)
    found = []
    for writes in (True, False):
        # The peer is the second of the two; who is last may write.
        other, student = Net(False if kind == "peer" else writes), Net(writes, seed=2)
        options = {kind: other}
        fit(student, few, config, run_dir=tmp_path / str(writes), **options)  # type: ignore[arg-type]
        found.append([*student.state_dict().values(), *other.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
