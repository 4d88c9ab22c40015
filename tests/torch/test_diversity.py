# SPDX-License-Identifier: Apache-2.0
"""Gradient diversity, the memory of gradients, and MuPPET as a whole policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bitwright.base.errors import ModelError
from bitwright.low_precision.config import LowPrecision
from bitwright.low_precision.diversity import GradientHistory, gradient_diversity
from bitwright.low_precision.make import make_policy
from bitwright.low_precision.muppet import Muppet
from bitwright.low_precision.policy import Entry, EpochSeen, Plan
from bitwright.train.checkpoint import load_checkpoint, save_checkpoint

E = torch.eye(8)


def diversity(*layers: Sequence[Tensor]) -> float | None:
    return gradient_diversity({f"layer{i}": window for i, window in enumerate(layers)}).value


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7])
def test_equal_gradients_have_one_nth_and_orthogonal_ones_have_one(n: int) -> None:
    g = torch.tensor([0.5, -3.0, 0.25])
    assert diversity([g] * n) == pytest.approx(1 / n, rel=1e-15)
    assert diversity([E[i] for i in range(n)]) == 1.0


def test_gradients_that_nearly_cancel_have_no_bound() -> None:
    assert diversity([torch.tensor([1.0]), torch.tensor([-1.0 + 2.0**-20])]) > 2.0**40


def test_the_mean_is_over_the_ratios_of_the_layers_not_over_their_gradients() -> None:
    # 1/2 and 1, whatever their size: the mean of all gradients would be ruled by the large ones.
    large, small = 1e6 * E[0], 1e-6 * E[1]
    assert diversity([large, large], [small, 1e-6 * E[2]]) == pytest.approx(0.75)


@given(st.lists(st.lists(st.integers(-128, 127), min_size=5, max_size=5), min_size=1, max_size=5))
def test_equals_exact_fractions(levels: list[list[int]]) -> None:
    total = [sum(column) for column in zip(*levels, strict=True)]
    norms, norm = sum(x * x for row in levels for x in row), sum(x * x for x in total)
    found = diversity([torch.tensor(row) * 2.0**-9 for row in levels])
    if norms == 0 or norm == 0:
        assert found is None
    else:
        assert found == pytest.approx(float(Fraction(norms, norm)), rel=1e-14)


def test_a_large_layer_is_summed_as_a_small_one() -> None:
    # More than one chunk of the sums.
    g, h = torch.ones(3 * 2**20 + 5), torch.ones(3 * 2**20 + 5)
    h[::2] = -1
    # 2 n / |g + h|^2, and g + h is 2 where the index is odd.
    n = len(g)
    assert diversity([g, h]) == 2 * n / (4 * (n // 2))


def test_what_is_measured_stays_as_it_is() -> None:
    window = [E[0].double(), E[0].double()]
    assert diversity(window) == diversity(window) == 0.5


def test_layers_without_a_ratio_are_left_out_and_named() -> None:
    dead, opposed = [torch.zeros(3)] * 2, [E[0], -E[0]]
    found = gradient_diversity({"dead": dead, "good": [E[0], E[0]], "opposed": opposed})
    assert found.value == 0.5
    assert found.note == "all gradients of dead are zero, the gradients of opposed cancel"
    assert gradient_diversity({"dead": dead}).value is None
    many = gradient_diversity({f"l{i}": dead for i in range(9)})
    assert many.note == "all gradients of l0, l1, l2 and 6 more layers are zero"


@given(
    st.integers(2, 16),
    st.integers(-140, 120),
    st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=20),
)
def test_a_quantized_gradient_is_packed_without_loss(
    bits: int, exponent: int, shares: list[float]
) -> None:
    top = 2 ** (bits - 1)
    levels = torch.tensor([min(top - 1, round(share * top)) for share in shares])
    real = levels.double().mul(2.0 ** (exponent - bits)).float()
    history = GradientHistory(1)
    history.add({"a": real})
    assert torch.equal(history.window()["a"][0], real)
    kinds = {each["a"]["levels"].dtype for each in history.state_dict()}
    if exponent - bits >= -126:
        assert kinds == {torch.int8} if bits <= 8 else kinds <= {torch.int8, torch.int16}


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
def test_any_gradient_comes_back_as_it_was(values: list[float]) -> None:
    real = torch.tensor(values, dtype=torch.float32)
    history = GradientHistory(2)
    history.add({"a": real})
    history.add({"a": real, "b": real})
    assert all(torch.equal(each, real) for each in history.window()["a"])
    assert list(history.window()) == ["a"]


@pytest.mark.parametrize(
    "packed",
    [
        {"levels": torch.zeros(2), "exponent": 0}, {"levels": torch.zeros(3, 2), "exponent": 1e3},
        {"levels": torch.zeros(3, 2), "exponent": 999}, {"levels": [1.0], "exponent": 0},
        {"levels": torch.zeros(3, 2, dtype=torch.float64), "exponent": 0}, {"exponent": 0},
    ],
)  # fmt: skip
def test_gradients_of_a_file_are_of_their_layers(packed: dict[str, Any]) -> None:
    history = GradientHistory(2, {"a": (3, 2)})
    history.add({"a": torch.ones(3, 2)})
    good = history.state_dict()
    history.load_state_dict(good)
    for wrong in ([{"a": packed}], [{"b": good[0]["a"]}]):
        with pytest.raises((TypeError, ValueError)):
            history.load_state_dict(wrong)
    assert len(history) == 1


def test_a_window_of_8_bits_takes_the_memory_of_one_float_copy() -> None:
    weights = torch.randn(4, 1000).mul(40).round().clamp(-128, 127) * 2.0**-11
    history = GradientHistory(4)
    for each in weights:
        history.add({"a": each})
    stored = sum(e["a"]["levels"].numel() * e["a"]["levels"].itemsize for e in history.state_dict())
    assert stored == weights[0].numel() * 4


# MuPPET on recorded metrics; the sequence and its switches as in tests/pure.
STEEP = [1.0, 0.4, 0.4] * 4
LEVELS = ("int8", "int12", "int14", "int16", "float32")


def muppet(epochs: int = 80, float_epochs: int = 6, **settings: Any) -> Muppet:
    low = LowPrecision(float_epochs=float_epochs, lr_every=2, policy=settings)
    low.check_epochs(epochs)
    plan = Plan(("a", "b"), len(low.ladder), low.float_level, epochs, float_epochs, 10)
    made = make_policy(low, plan)
    assert isinstance(made, Muppet)
    return made


def play(policy: Muppet, metrics: Sequence[float | None], start: int = 0) -> list[Entry]:
    """Epochs with a gradient each; those with a full window take the next metric."""
    left = list(metrics)
    policy.metric = lambda gradients: left.pop(0) if left else 1.0
    found: list[Entry] = []
    while not policy.done(start + len(found)):
        epoch = start + len(found)
        gradients = {"a": E[0], "b": E[1]} if policy.wants_gradients else {}
        found.append(policy.after_epoch(EpochSeen(epoch, gradients)))
    return found


def runs(entries: Sequence[Entry]) -> dict[str, int]:
    """Epochs at each level, in order."""
    names = [entry.level for entry in entries]
    return {name: names.count(name) for name in dict.fromkeys(names)}


def test_the_whole_climb_with_its_rates_and_its_end() -> None:
    policy = muppet()
    found = play(policy, STEEP)
    # The window is full in epoch 3; every level then has three epochs with a metric.
    assert runs(found) == {"int8": 6, "int12": 3, "int14": 3, "int16": 3, "float32": 6}
    assert [e.epoch for e in found if e.switched_to] == [6, 9, 12, 15]
    rates = [policy.lr_factor(epoch) for epoch in range(len(found))]
    assert rates == [1.0] * 17 + [0.1] * 2 + [pytest.approx(0.01)] * 2


def test_the_log_says_why() -> None:
    found = play(muppet(), STEEP)
    assert [entry.reason for entry in found[2:7]] == [
        "not compared: 3 of 4 gradients stored",
        "the first diversity at this level: nothing to compare with",
        "p 2.5 > threshold 2.0055: violation 1 of 2",
        "p 2.5 > threshold 1.9098: violation 2 of 2: int8 is left",
        "the first diversity at this level: nothing to compare with",
    ]
    left = found[5]
    assert (left.level, left.switched_to, left.violations) == ("int8", "int12", 2)
    assert (left.p, left.diversity) == (2.5, 0.4)
    assert left.threshold == pytest.approx(1 + 1.5 * math.exp(-0.5))
    assert found[-1].reason == "float32: the policy is off, epoch 6 of 6"
    assert found[-1].p is None


def test_the_window_and_the_history_say_when_metrics_begin() -> None:
    assert runs(play(muppet(window="resolution"), STEEP))["int8"] == 5
    assert runs(play(muppet(resolution=1), STEEP))["int8"] == 4
    # Cleared at a switch, the window has to fill again: three more epochs a level.
    cleared = runs(play(muppet(history="clear"), STEEP))
    assert list(cleared.values()) == [6, 6, 6, 6, 6]


def test_the_last_phase_begins_in_time() -> None:
    policy = muppet(epochs=20)
    found = play(policy, [])
    assert runs(found) == {"int8": 14, "float32": 6}
    assert found[13].switched_to == "float32"
    assert found[13].reason == "p 1 <= threshold 1.4088; the last 6 of 20 epochs begin"
    # A switch that the policy wants there anyway goes all the way.
    late = play(muppet(epochs=12), STEEP)
    assert runs(late) == {"int8": 6, "float32": 6}
    assert "int8 is left; the last 6 of 12 epochs begin" in late[5].reason


def test_without_float32_the_last_level_has_the_last_phase() -> None:
    low = LowPrecision(ladder=[8, 12], float_epochs=3, policy="muppet")
    policy = make_policy(low, Plan(("a",), 2, low.float_level, 40, 3, 10))
    assert isinstance(policy, Muppet)
    assert runs(play(policy, STEEP)) == {"int8": 6, "int12": 3}


def test_an_epoch_without_gradients_counts_as_none() -> None:
    policy = muppet()
    play_until = [EpochSeen(j, {"a": E[0]}) for j in range(4)]
    for seen in play_until:
        policy.after_epoch(seen)
    for bad in (float("nan"), float("inf")):
        entry = policy.after_epoch(EpochSeen(4, {"a": E[0], "b": E[0] * bad}))
        assert entry.reason == "not compared: the gradients of b are not finite"
        assert (entry.diversity, entry.p, entry.switched_to) == (None, None, None)
    entry = policy.after_epoch(EpochSeen(5, {}, skipped=10))
    assert entry.reason == "not compared: no gradients of the last step; 10 steps skipped"
    entry = policy.after_epoch(EpochSeen(6, {"a": torch.zeros(8)}))
    assert entry.diversity == pytest.approx(1 / 3)  # three equal ones and a zero
    for epoch in range(7, 10):
        entry = policy.after_epoch(EpochSeen(epoch, {"a": torch.zeros(8)}))
    assert entry.reason == "not compared: all gradients of a are zero"
    policy.after_epoch(EpochSeen(10, {"a": E[0]}))
    policy.after_epoch(EpochSeen(11, {"a": -E[0]}))
    assert policy.rule.violations == 0 and all(map(math.isfinite, policy.rule.seen))


def test_violations_are_found_in_real_gradients() -> None:
    # Four epochs of orthogonal gradients: 1. Then one direction comes back and back:
    # 1, 1, 1, 2 equal of four: 4/(4+1+1) = 2/3; three: 4/(9+1) = .4; four: 1/4.
    policy = muppet(beta=0.2, **{"lambda": 0.0})
    directions = [0, 1, 2, 3, 3, 3, 3]
    found = [policy.after_epoch(EpochSeen(j, {"a": E[d]})) for j, d in enumerate(directions)]
    assert [entry.diversity for entry in found[3:6]] == [1.0, pytest.approx(2 / 3), 0.4]
    assert [entry.p for entry in found[3:6]] == [None, pytest.approx(1.5), 2.5]
    assert [entry.switched_to for entry in found[3:6]] == [None, None, "int12"]
    assert found[6].diversity == 0.25 and found[6].p is None


@pytest.mark.parametrize("stop", [1, 4, 5, 7, 16])
def test_a_policy_goes_on_from_a_checkpoint(stop: int, tmp_path: Path) -> None:
    def gradients(epoch: int) -> dict[str, Tensor]:
        drawn = torch.Generator().manual_seed(epoch)
        levels = torch.randint(-128, 128, (2, 50), generator=drawn).float()
        return {"a": levels[0] * 2.0**-12, "b": levels[1] / 3}

    def train(policy: Muppet, first: int, last: int) -> list[Entry]:
        seen = [EpochSeen(j, gradients(j) if policy.wants_gradients else {}) for j in range(last)]
        return [policy.after_epoch(each) for each in seen[first:]]

    settings = {"lambda": 1.0, "patience": 1}
    whole = train(muppet(**settings), 0, 20)
    assert len({entry.level for entry in whole}) > 2
    first = muppet(**settings)
    before = train(first, 0, stop)
    save_checkpoint(tmp_path / "c.pt", {"policy": first.state_dict()})
    again = muppet(**settings)
    again.load_state_dict(load_checkpoint(tmp_path / "c.pt")["policy"])
    assert before + train(again, stop, 20) == whole
    assert again.state_dict().keys() == first.state_dict().keys()


def largest_norm(gradients: Mapping[str, Sequence[Tensor]]) -> float:
    return max(float(each.norm()) for window in gradients.values() for each in window)


def of_nothing(gradients: Mapping[str, Sequence[Tensor]]) -> float | None:
    return None


def negative(gradients: Mapping[str, Sequence[Tensor]]) -> float:
    return -1.0


def failing(gradients: Mapping[str, Sequence[Tensor]]) -> float:
    return float(gradients["nowhere"][0].norm())


def with_metric(name: str) -> Entry:
    policy = muppet(metric=f"test_diversity:{name}")
    found = [policy.after_epoch(EpochSeen(j, {"a": (5 - j) * E[0]})) for j in range(5)]
    return found[-1]


def test_a_metric_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    entry = with_metric("largest_norm")
    assert (entry.diversity, entry.p) == (4.0, 1.25)
    assert with_metric("of_nothing").reason == "not compared: the metric has no value"
    assert "is -1, not a finite number above zero" in with_metric("negative").reason
    with pytest.raises(ModelError, match="the metric failed: KeyError: 'nowhere'") as caught:
        with_metric("failing")
    assert caught.value.where is not None and "test_diversity.py" in caught.value.where
    with pytest.raises(ModelError, match="no function or class 'nobody'"):
        with_metric("nobody")


def test_two_copies_decide_alike_and_the_plan_says_names() -> None:
    one, other = muppet(), muppet()
    assert play(one, STEEP) == play(other, STEEP)
    assert one.plan == replace(other.plan) and one.plan.names == LEVELS


def exact_diversity(window: Sequence[Sequence[Sequence[int]]]) -> float | None:
    """Equation 3.9 in fractions, of gradients by epoch and layer."""
    ratios = []
    for layer in zip(*window, strict=True):
        norms = sum(x * x for g in layer for x in g)
        norm = sum(sum(column) ** 2 for column in zip(*layer, strict=True))
        if norms and norm:
            ratios.append(Fraction(norms, norm))
    return float(sum(ratios) / len(ratios)) if ratios else None


def literal_levels(
    gradients: Sequence[Sequence[Sequence[int]]], rule: dict[str, Any], last_start: int
) -> list[int]:
    """The level of every epoch, as the text says, each time from the whole past."""
    window = rule["resolution"] + (rule["window"] == "literal")
    levels, e = [0], 0
    for j in range(len(gradients)):
        level = levels[-1]
        if level == len(LEVELS) - 1:
            levels.append(level)
            continue
        found: dict[int, float] = {}
        for k in range(e, j + 1):
            oldest = k - window + 1
            if oldest >= (e if rule["history"] == "clear" else 0):
                value = exact_diversity(gradients[oldest : k + 1])
                found |= {} if value is None else {k: value}
        violations = 0
        for k, value in found.items():
            past = [found[i] for i in found if i < k]
            x = k if rule["epoch"] == "absolute" else k - e
            limit = rule["alpha"] + rule["beta"] * math.exp(-rule["lambda"] * x)
            if past and max(past) / value > limit:
                violations += 1
            elif past and rule["violations"] == "consecutive":
                violations = 0
        wanted = rule["patience"] + (rule["count"] == "exceeds")
        level += violations >= wanted
        if j + 1 >= last_start:
            level = len(LEVELS) - 1
        e = j + 1 if level != levels[-1] else e
        levels.append(level)
    return levels[:-1]


RULES = st.fixed_dictionaries(
    {
        "alpha": st.sampled_from([0.8, 1.0, 1.2]),
        "beta": st.sampled_from([0.05, 0.5, 1.5]),
        "lambda": st.sampled_from([0.02, 0.1, 0.3]),
        "resolution": st.integers(2, 4),
        "patience": st.integers(1, 3),
        "window": st.sampled_from(["literal", "resolution"]),
        "count": st.sampled_from(["reaches", "exceeds"]),
        "epoch": st.sampled_from(["absolute", "since_switch"]),
        "violations": st.sampled_from(["since_switch", "consecutive"]),
        "history": st.sampled_from(["keep", "clear"]),
    }
)


@given(
    RULES,
    st.lists(
        st.tuples(*[st.lists(st.integers(-5, 5), min_size=2, max_size=2)] * 2),
        min_size=8,
        max_size=30,
    ),
)
def test_the_policy_is_the_text_taken_literally(
    rule: dict[str, Any], gradients: list[tuple[list[int], ...]]
) -> None:
    float_epochs = 4
    policy = muppet(epochs=len(gradients) + 2, float_epochs=float_epochs, **rule)
    found = []
    for epoch, (a, b) in enumerate(gradients):
        found.append(policy.level(epoch))
        seen = {"a": torch.tensor(a) * 0.5, "b": torch.tensor(b) * 0.125}
        policy.after_epoch(EpochSeen(epoch, seen if policy.wants_gradients else {}))
    assert found == literal_levels(gradients, rule, len(gradients) + 2 - float_epochs)
