# SPDX-License-Identifier: Apache-2.0
"""GM: what it lowers and when, told recorded errors; a run with it (Vink 2023, chapter 6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bitwright.base.errors import RecipeError
from bitwright.data import load_dataset
from bitwright.data.splits import Keep, keep_some
from bitwright.low_precision.arithmetic.errors import relative_error
from bitwright.low_precision.config import LowPrecision
from bitwright.low_precision.costs.counting import count_network
from bitwright.low_precision.costs.devices import load_device
from bitwright.low_precision.costs.formats import ladder_costs
from bitwright.low_precision.gm import Gm, most_to_save
from bitwright.low_precision.policy import EpochSeen, Plan, StepSeen
from bitwright.low_precision.settings import GmSettings
from bitwright.models import build_model
from bitwright.train import TrainConfig, fit

LADDER = ("int4", "int6", "int8", "int12", "float32")
CONV, OTHER = ("conv", "forward"), ("conv", "grad_weight")
SECONDS = {CONV: (1.0, 2.0, 4.0, 5.0, 9.0), OTHER: (1.0, 1.0, 1.5, 1.6, 3.0)}


def policy(seconds: Any = SECONDS, steps: int = 4, **settings: Any) -> Gm:
    given = GmSettings(**{"eta": 3, "psi": 2, "resolution": 1, "patience": 1, **settings})
    plan = Plan(("conv",), 5, 4, 60, 3, steps, names=LADDER, seconds=seconds)
    climbs = tuple(LADDER.index(level) for level in given.climbed(LADDER))
    return Gm(plan, given, climbs)


def epoch(gm: Gm, number: int, errors: dict[Any, tuple[float, float]], direction: float) -> Any:
    """Its steps, each with the same errors of what is watched; then its gradients."""
    for batch in range(gm.plan.steps_per_epoch):
        seen = {key: errors[key] for key in gm.watched()}
        gm.after_step(StepSeen(number, batch, {}, seen))
    gradients = {"conv": torch.tensor([1.0, direction])} if gm.wants_gradients else {}
    return gm.after_epoch(EpochSeen(number, gradients))


GOOD = {CONV: (0.01, 0.03), OTHER: (0.01, 0.5)}


def test_lowers_what_passes_often_enough() -> None:
    """psi = 2 passes of epsilon = 0.02 <= 0.05 a level; the other product's 0.49 never passes."""
    gm = policy()
    assert gm.level(0) == {CONV: 2, OTHER: 2}
    assert gm.watched() == {CONV: (2, 1), OTHER: (2, 1)}
    levels, names = [], []
    for number in range(5):
        entry = epoch(gm, number, GOOD, float(number))
        levels.append(gm.level(number + 1)[CONV])
        names.append(entry.products["conv/forward"])
        assert gm.level(number + 1)[OTHER] == 2
    assert levels == [2, 1, 1, 0, 0]
    assert names == ["int8", "int8", "int6", "int6", "int4"]  # what each epoch ran in
    assert CONV not in gm.watched()  # nothing is lower


def test_tau_keeps_what_saves_little() -> None:
    """8 -> 6 bits saves 2 of 5.5 s, and 0.5 s; a share of a tenth is more than the latter."""
    assert policy().tau(CONV) == 2.0
    assert policy(tau_unit="share").tau(CONV) == pytest.approx(2 / 5.5)
    assert policy(tau_threshold=1.0).candidates() == (CONV,)
    assert policy(tau_unit="share", tau_threshold=0.1).candidates() == (CONV,)
    gm = policy(tau_threshold=0.5)
    gm.after_step(StepSeen(0, 0, {}, {CONV: (0.0, 0.0), OTHER: (0.0, 0.0)}))
    for number in range(2):
        epoch(gm, number, {CONV: (0, 0), OTHER: (0, 0)}, 0.0)
    assert gm.level(2) == {CONV: 1, OTHER: 1}
    assert gm.candidates() == (CONV,)  # 6 -> 4 bits saves the other product nothing


def test_ticks_within_an_epoch() -> None:
    gm = policy(omega=2, psi=1, steps=5)
    changed = []
    for batch in range(5):
        errors = {key: GOOD[key] for key in gm.watched()}
        found = gm.after_step(StepSeen(0, batch, {}, errors))
        changed.append(None if found is None else found[CONV])
    assert changed == [None, None, 1, None, 0]


def test_epsilon_is_the_mean_of_a_tick() -> None:
    gm = policy(psi=1, steps=2)
    for epsilon in (0.0, 0.11):
        gm.after_step(StepSeen(0, int(epsilon > 0), {}, {CONV: (0.0, epsilon)}))
    assert gm.level(1)[CONV] == 2
    for epsilon in (0.0, 0.09):
        gm.after_step(StepSeen(1, int(epsilon > 0), {}, {CONV: (0.0, epsilon)}))
    assert gm.level(1)[CONV] == 1


def test_old_passes_leave_the_history() -> None:
    """One pass in three ticks never makes two."""
    gm, bad = policy(eta=3), {CONV: (0.0, 1.0), OTHER: (0.0, 1.0)}
    for number in range(9):
        epoch(gm, number, GOOD if number % 3 == 0 else bad, float(number))
    assert gm.level(9)[CONV] == 2


def test_muppet_overrules() -> None:
    """At its switch every product has its level and an empty history; behind its last level nothing
    is lowered, unless the settings say so."""
    for after in (False, True):
        gm = policy(**{"lambda": 9.0}, psi=1, eta=1, after_float32=after)
        switched, number = [], 0
        while not gm.done(number):
            # two epochs that differ, two that agree: the diversity falls
            entry = epoch(gm, number, GOOD, 1.0 if (number + 1) // 2 % 2 else -1.0)
            if entry.switched_to in ("int12", "float32"):
                switched.append(entry.switched_to)
                level = LADDER.index(entry.switched_to)
                assert gm.level(number + 1) == {CONV: level, OTHER: level}
            number += 1
        assert switched == ["int12", "float32"]
        assert gm.level(number)[CONV] == (1 if after else 4)
        assert gm.last_phase is not None and number == gm.last_phase + 3


def test_goes_on_as_if_it_had_not_stopped() -> None:
    gm = policy()
    for number in range(3):
        epoch(gm, number, GOOD, float(number))
    gm.after_step(StepSeen(3, 0, {}, {CONV: (0.0, 0.1)}))
    again = policy()
    again.load_state_dict(gm.state_dict())
    for number in range(3, 8):
        assert epoch(gm, number, GOOD, 3.0) == epoch(again, number, GOOD, 3.0)
        assert gm.level(number) == again.level(number)
    with pytest.raises(ValueError, match="other products"):
        policy({CONV: SECONDS[CONV]}).load_state_dict(gm.state_dict())


def test_fewest_products_that_hold_the_potential() -> None:
    seconds = {
        (name, "forward"): (1.0, 1.0 + saved)
        for name, saved in zip("abcd", (1, 6, 0, 3), strict=True)
    }
    assert most_to_save(seconds, 0.6) == (("b", "forward"),)
    assert most_to_save(seconds, 0.8) == (("b", "forward"), ("d", "forward"))
    assert most_to_save(seconds, 1.0) == tuple((name, "forward") for name in "abd")


def test_relative_error() -> None:
    result = torch.tensor([3.0, 4.0])
    assert float(relative_error(result, torch.tensor([3.0, 3.0]))) == pytest.approx(0.2)
    assert float(relative_error(torch.zeros(3), torch.zeros(3))) == 0.0


def test_settings_that_make_no_sense() -> None:
    with pytest.raises(ValueError, match=r"psi .4. passes never fit"):
        GmSettings(psi=4, eta=3)
    with pytest.raises(ValueError, match="name the device"):
        LowPrecision(policy="gm")
    with pytest.raises(ValueError, match="climbs must be two levels or more"):
        LowPrecision(policy={"kind": "gm", "climbs": [8, 10]}, device="fpgpt-u250")
    with pytest.raises(RecipeError, match="no time is known"):
        policy({})


def test_fpgpt_is_a_device_of_cost_tables() -> None:
    """Shorter words come faster, on more elements; a wide float it has not."""
    network = count_network(build_model("digits_cnn", 10, (8, 8, 1)), (1, 8, 8), 16)
    settings = LowPrecision(ladder=[8, 16, "float32"])
    table = ladder_costs(network, load_device("fpgpt-u250"), settings, 10, ["float16"])
    assert set(table.levels) == {"int8", "int16", "float32"}
    for times in table.seconds(("int8", "int16", "float32")).values():
        assert times[0] <= times[1] <= times[2]
    assert ("conv1", "grad_input") not in table.seconds(("int8",))


def test_trains(tmp_path: Path) -> None:
    """Through the loop: some products are lowered, the log has their precisions and modelled times,
    and an epoch with lower products takes less."""
    data = keep_some(load_dataset("digits"), Keep(train=200, validation=50, test=10), 0)
    model = build_model("digits_cnn", 10, (8, 8, 1))
    low = {
        "policy": {"kind": "gm", "omega": 2, "eta": 2, "psi": 1, "eps_threshold": 0.2,
                   "lambda": 3.0, "resolution": 1, "patience": 1},
        "ladder": [4, 6, 8, 12, "float32"], "float_epochs": 2, "device": "fpgpt-u250",
        "engine": "emulated",
    }  # fmt: skip
    config = TrainConfig(
        epochs=7, batch_size=50, lr=0.05, optimizer="sgd", threads=1, keep="last",
        low_precision=low,
    )  # fmt: skip
    done = fit(model, data, config, run_dir=tmp_path)
    log = [json.loads(line) for line in (tmp_path / "precision.jsonl").read_text().splitlines()]
    assert len(log) == len(done.history)
    used = {level for entry in log for level in entry["products"].values()}
    assert used & {"int4", "int6"} and log[-1]["level"] == "float32"
    assert not any(key.startswith("fc") for entry in log for key in entry["products"])
    seconds = [entry["device_seconds"] for entry in log]
    assert all(seconds) and min(seconds[:-2]) < seconds[-1]
