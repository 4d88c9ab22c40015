# SPDX-License-Identifier: Apache-2.0
"""Schedules that are known beforehand, their learning rates and ends, and the log of decisions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bitwright.base.errors import DataError, ModelError, RecipeError, RunError
from bitwright.low_precision.config import LowPrecision
from bitwright.low_precision.log import read_log, write_log
from bitwright.low_precision.make import make_policy
from bitwright.low_precision.policy import (
    Assignment,
    Entry,
    EpochSeen,
    Plan,
    PrecisionPolicy,
    StepSeen,
    check_assignment,
)


def made(epochs: int = 12, seed: int = 0, **fields: Any) -> PrecisionPolicy:
    settings = LowPrecision(**{"float_epochs": 4, "lr_every": 2, **fields})
    settings.check_epochs(epochs)
    plan = Plan(
        layers=("conv", "head"),
        levels=len(settings.ladder),
        float_level=settings.float_level,
        max_epochs=epochs,
        float_epochs=settings.float_epochs,
        steps_per_epoch=7,
        seed=seed,
    )
    return make_policy(settings, plan)


def run(policy: PrecisionPolicy) -> list[Entry]:
    found: list[Entry] = []
    while not policy.done(len(found)):
        found.append(policy.after_epoch(EpochSeen(len(found))))
    return found


def levels(policy: PrecisionPolicy) -> list[str]:
    return [entry.level for entry in run(policy)]


def rates(policy: PrecisionPolicy) -> list[float]:
    return [policy.lr_factor(epoch) for epoch in range(len(run(policy)))]


def test_the_baseline_is_float_and_leaves_the_rate_alone() -> None:
    policy = made(policy="baseline")
    assert levels(policy) == ["float32"] * 12
    assert rates(policy) == [1.0] * 12


def test_mixed_precision_is_one_short_float_throughout() -> None:
    policy = made(policy={"kind": "mixed", "format": "bfloat16"})
    assert levels(policy) == ["bfloat16"] * 12
    assert rates(policy) == [1.0] * 12


def test_fixed_switches_after_so_many_epochs_and_keeps_length_and_rates() -> None:
    policy = made(policy={"kind": "fixed", "level": 8, "switch_at": 3})
    assert levels(policy) == ["int8"] * 3 + ["float32"] * 9
    # The rate falls in the last 4 epochs, as it does without a switch.
    assert rates(policy) == [1.0] * 10 + [0.1] * 2
    entry = run(policy)[2]
    assert (entry.epoch, entry.switched_to) == (3, "float32")
    assert entry.reason == "int8 is left after 3 epochs, as the fixed schedule says"


def test_fixed_never_switches_or_from_the_beginning() -> None:
    never = made(policy="fixed")
    assert levels(never) == ["int8"] * 12
    assert rates(never) == [1.0] * 10 + [0.1] * 2
    assert levels(made(policy={"kind": "fixed", "switch_at": 0})) == ["float32"] * 12


def test_random_climbs_every_level_once_and_ends_as_muppet_does() -> None:
    for seed in range(40):
        policy = made(epochs=30, seed=seed, policy={"kind": "random", "between": [2, 20]})
        found = levels(policy)
        order = list(dict.fromkeys(found))
        assert order == ["int8", "int12", "int14", "int16", "float32"]
        starts = [found.index(name) for name in order[1:]]
        assert 2 <= starts[0] and starts[-1] <= 20
        assert len(found) == starts[-1] + 4
        assert rates(policy)[starts[-1] :] == [1.0, 1.0, 0.1, 0.1]
        assert set(rates(policy)[: starts[-1]]) == {1.0}


def test_random_is_the_same_for_one_seed_and_spreads_over_its_range() -> None:
    def starts(run_seed: int, **more: Any) -> list[str]:
        return levels(made(epochs=30, seed=run_seed, policy={"kind": "random", **more}))

    assert starts(3) == starts(3)
    assert starts(1, seed=3) == starts(3)
    assert len({tuple(starts(seed)) for seed in range(20)}) > 15
    # Every epoch that may be drawn is: 200 draws of 4 out of 6 miss one with p < 6 (1/3)^200.
    drawn: set[int] = set()
    for seed in range(200):
        found = starts(seed, between=[3, 8])
        drawn |= {found.index(name) for name in dict.fromkeys(found)}
    assert drawn == {0, 3, 4, 5, 6, 7, 8}


def test_random_needs_room() -> None:
    with pytest.raises(RecipeError, match="4 switches at different epochs do not fit between 1"):
        made(epochs=7, policy="random")
    assert len(levels(made(epochs=8, policy="random"))) == 8


def test_replay_of_a_list() -> None:
    policy = made(policy={"kind": "replay", "schedule": [[0, 8], [2, 14], [5, "float32"]]})
    assert levels(policy) == ["int8"] * 2 + ["int14"] * 3 + ["float32"] * 4
    assert rates(policy) == [1.0] * 7 + [0.1] * 2


def test_replay_of_a_log_repeats_the_run(tmp_path: Path) -> None:
    first = made(epochs=30, seed=5, policy="random")
    log = tmp_path / "precision.jsonl"
    write_log(log, run(first))
    again = made(epochs=40, policy={"kind": "replay", "file": log})
    assert levels(again) == levels(first)
    assert rates(again) == rates(first)


def test_a_schedule_that_does_not_fit_is_refused() -> None:
    with pytest.raises(RecipeError, match="names the level int10 after 2 epochs"):
        made(policy={"kind": "replay", "schedule": [[0, 8], [2, 10], [5, "float32"]]})
    with pytest.raises(RecipeError, match="never reaches float32"):
        made(policy={"kind": "replay", "schedule": [[0, 8], [2, 12]]})
    with pytest.raises(RecipeError, match="set epochs to 13 or more") as caught:
        made(policy={"kind": "replay", "schedule": [[0, 8], [9, "float32"]]})
    assert caught.value.where == "low_precision.policy.schedule"


def test_a_log_that_is_none_is_refused(tmp_path: Path) -> None:
    def replayed(text: str | None) -> None:
        path = tmp_path / "precision.jsonl"
        if text is not None:
            path.write_text(text)
        made(policy={"kind": "replay", "file": path})

    good = json.dumps(Entry(1, "int8", "r").to_dict())
    for text in (None, "", "{", "[]", "{}", '{"epoch": 1}', good.replace("reason", "why")):
        with pytest.raises(DataError) as caught:
            replayed(text)
        assert caught.value.where == str(tmp_path / "precision.jsonl")
    with pytest.raises(DataError, match="epochs from 1 on"):
        replayed(good.replace("1", "2", 1))
    differing = Entry(1, "int8 to int12", "r", products={"conv/forward": "int8"})
    with pytest.raises(RecipeError, match="a precision for each product"):
        replayed(json.dumps(differing.to_dict()))


@pytest.mark.parametrize(
    "field",
    [
        {"products": "abc"},
        {"products": {"conv1/forward": [1]}},
        {"reason": 1},
        {"switched_to": ["int8"]},
        {"diversity": "1"},
        {"p": True},
        {"threshold": {}},
        {"violations": 0.5},
        {"device_seconds": 10**400},
    ],
)
def test_a_log_with_fields_of_other_types_is_refused(tmp_path: Path, field: dict[str, Any]) -> None:
    """They were tracebacks of whoever read them, `forecast RUN` among these."""
    line = {**Entry(1, "int8", "r").to_dict(), **field}
    (tmp_path / "log").write_text(json.dumps(line))
    with pytest.raises(DataError, match=f"{next(iter(field))} cannot be|cannot be read"):
        read_log(tmp_path / "log")


def test_a_log_comes_back_as_it_was(tmp_path: Path) -> None:
    entries = (
        Entry(1, "int8", "first", diversity=0.1 + 0.2),
        Entry(2, "int8", "left", "int12", 0.3, 1 / 3, 2.5, 2, {"conv/forward": "int8"}),
    )
    write_log(tmp_path / "log", entries)
    assert read_log(tmp_path / "log") == entries
    endless = Entry(1, "int8", "r", p=float("inf"), diversity=float("nan"))
    write_log(tmp_path / "log", [endless])
    assert read_log(tmp_path / "log") == (Entry(1, "int8", "r"),)


def test_a_run_goes_on_with_its_schedule_only() -> None:
    state = made(policy={"kind": "fixed", "switch_at": 3}).state_dict()
    made(policy={"kind": "fixed", "switch_at": 3}).load_state_dict(state)
    other = made(policy={"kind": "fixed", "switch_at": 4})
    with pytest.raises(RunError, match="began with the schedule int8 from 0, float32 from 3, now"):
        other.load_state_dict(state)


class Wobble(PrecisionPolicy):
    """Lowers the forward products of a layer while its steps are even: a policy of the kind that
    chooses for each product while the epoch runs.
    """

    wants_steps = True

    def __init__(self, plan: Plan, layer: str = "conv") -> None:
        super().__init__(plan)
        self.layer = layer
        self.low = False

    def level(self, epoch: int) -> Assignment:
        products = ("forward", "grad_input", "grad_weight")
        found = {(path, product): 1 for path in self.plan.layers for product in products}
        return found | {(self.layer, "forward"): 0} if self.low else found

    def after_step(self, step: StepSeen) -> Assignment | None:
        self.low = step.batch % 2 == 0
        return self.level(step.epoch)

    def after_epoch(self, seen: EpochSeen) -> Entry:
        return self.entry(seen, "as the steps go")


def broken(plan: Plan) -> PrecisionPolicy:
    raise OSError("no room")


def no_policy(plan: Plan) -> int:
    return plan.levels


def test_a_policy_of_ones_own_may_choose_for_each_product(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    kind = "test_precision_schedules:Wobble"
    policy = made(policy={"kind": kind, "options": {"layer": "head"}})
    assert run(policy)[0].level == "int12"
    given = policy.after_step(StepSeen(0, 0))
    check_assignment(given, policy)
    assert isinstance(given, dict) and given["head", "forward"] == 0
    entry = policy.after_epoch(EpochSeen(0))
    assert entry.level == "int8 to int12"
    assert entry.products is not None
    assert entry.products["head/forward"] == "int8"
    assert entry.products["conv/grad_weight"] == "int12"


@pytest.mark.parametrize(
    ("kind", "options", "error", "words"),
    [
        ("no_such_module:policy", {}, ModelError, "cannot import 'no_such_module'"),
        ("test_precision_schedules:nobody", {}, ModelError, "no function or class 'nobody'"),
        ("test_precision_schedules:Wobble", {"depth": 1}, RecipeError, "options depth: .*'depth'"),
        ("test_precision_schedules:broken", {}, ModelError, "failed: OSError: no room"),
        ("test_precision_schedules:no_policy", {}, RecipeError, "gave a int, not a Precision"),
    ],
)
def test_a_policy_of_ones_own_that_does_not_work_says_why(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    options: dict[str, Any],
    error: type[Exception],
    words: str,
) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    with pytest.raises(error, match=words):
        made(policy={"kind": kind, "options": options})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (5, "the level 5"),
        (-1, "the level -1"),
        (1.0, "the level 1.0"),
        (None, "the level None"),
        ({("conv", "forward"): 9}, "the level 9"),
        ({("fc", "forward"): 0}, "no product of this network"),
        ({("conv", "sideways"): 0}, "no product of this network"),
        ({"conv": 0}, "no product of this network"),
    ],
)
def test_a_precision_that_is_none_is_refused(given: Any, words: str) -> None:
    policy = made(policy="random")
    with pytest.raises(RecipeError, match=words):
        check_assignment(given, policy)
