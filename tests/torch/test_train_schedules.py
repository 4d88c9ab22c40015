# SPDX-License-Identifier: Apache-2.0
"""Learning rates equal their formulas, epoch by epoch and, in the warm-up, batch by batch."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from bitwright.train import TrainConfig
from bitwright.train.schedule import lr_factor, plateaus

STEPS = 10


def factors(epochs: int, losses: tuple[float, ...] = (), **fields: object) -> list[float]:
    """At the first batch of each epoch."""
    config = TrainConfig(epochs=epochs, **fields)
    return [lr_factor(config, epoch * STEPS, STEPS, losses[:epoch]) for epoch in range(epochs)]


def test_by_epoch_schedules_equal_their_formulas() -> None:
    epochs = range(50)
    assert factors(50, schedule="time", decay=0.2) == pytest.approx(
        [1 / (1 + 0.2 * epoch) for epoch in epochs]
    )
    assert factors(50, schedule="exponential", decay=0.1) == pytest.approx(
        [math.exp(-0.1 * epoch) for epoch in epochs]
    )
    assert factors(50, schedule="step", gamma=0.5, every=10) == pytest.approx(
        [0.5 ** (epoch // 10) for epoch in epochs]
    )
    found = factors(200, schedule="step", divisor=5, milestones=(60, 120, 160))
    wanted = [5.0 ** -sum(epoch >= place for place in (60, 120, 160)) for epoch in range(200)]
    assert found == pytest.approx(wanted)
    assert found[59:61] == pytest.approx([1.0, 0.2])


def test_milestones_below_one_are_shares() -> None:
    shares = factors(20, schedule="step", divisor=2, milestones=(0.5, 0.75))
    assert shares == pytest.approx(factors(20, schedule="step", divisor=2, milestones=(10, 15)))
    assert factors(20, schedule="step", milestones=(1,))[:3] == pytest.approx([1.0, 0.1, 0.1])


@pytest.mark.parametrize("schedule", ["constant", "step", "time", "exponential", "plateau"])
def test_the_warm_up_rises_by_the_batch_and_multiplies(schedule: str) -> None:
    fields = {"epochs": 6, "schedule": schedule, "milestones": (4,), "decay": 0.3}
    cold = TrainConfig(**fields)
    warm = TrainConfig(**fields, warmup=2.0)
    for step in range(6 * STEPS):
        ramp = min(1.0, (step + 1) / (2 * STEPS))
        wanted = ramp * lr_factor(cold, step, STEPS)
        assert lr_factor(warm, step, STEPS) == pytest.approx(wanted)
    assert lr_factor(warm, 2 * STEPS - 1, STEPS) == lr_factor(cold, 2 * STEPS - 1, STEPS)


@settings(max_examples=50, deadline=None)
@given(
    losses=st.lists(st.floats(0.0, 3.0), max_size=40),
    patience=st.integers(0, 5),
    gamma=st.sampled_from([0.1, 0.5]),
)
def test_a_plateau_is_that_of_torch(losses: list[float], patience: int, gamma: float) -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    peer = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=gamma, patience=patience, eps=0.0
    )
    config = TrainConfig(epochs=100, schedule="plateau", gamma=gamma, patience=patience)
    for count, loss in enumerate(losses, start=1):
        peer.step(loss)
        found = lr_factor(config, count * STEPS, STEPS, losses[:count])
        assert found == pytest.approx(optimizer.param_groups[0]["lr"])


def test_a_plateau_waits_for_its_patience() -> None:
    assert plateaus([3, 2, 2, 2], 2) == 0
    assert plateaus([3, 2, 2, 2, 2], 2) == 1
    assert plateaus([3, 2, 2, 2, 1, 1, 1, 1], 2) == 1
    assert plateaus([], 0) == 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"milestones": (60, 120)}, "milestone at epoch 120 is past the end"),
        ({"milestones": (100,)}, "past the end of the run"),
        ({"milestones": (0.0,)}, "greater than 0"),
        ({"gamma": 0.5, "divisor": 2}, "gamma or divisor, not both"),
        ({"divisor": 0.5}, "greater than or equal to 1"),
        ({"schedule": "multi"}, "Input should be"),
        ({"every": 0}, "greater than or equal to 1"),
        ({"every": 100}, "never drop"),
        ({"decay": -1.0}, "greater than or equal to 0"),
    ],
)
def test_impossible_schedules_are_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        TrainConfig(epochs=100, **{"schedule": "step", **fields})


def test_settings_survive_the_checkpoint() -> None:
    config = TrainConfig(epochs=9, schedule="step", divisor=5, milestones=(0.5, 7), precision=16)
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config
    assert config.precision == "16" and config.drop == pytest.approx(0.2)
