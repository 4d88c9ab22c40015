# SPDX-License-Identifier: Apache-2.0
"""Policies of the user's own in real training: for each product, and from step to step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bitwright.base.errors import ModelError, RecipeError
from bitwright.data import DataSplits, load_dataset
from bitwright.low_precision.policy import (
    PRODUCTS,
    Assignment,
    Entry,
    EpochSeen,
    Plan,
    PrecisionPolicy,
    StepSeen,
)
from bitwright.models import build_model
from bitwright.train import OnProgress, TrainConfig, TrainProgress, fit, read_metrics

Weights = dict[str, Tensor]


class Mapped(PrecisionPolicy):
    """The same all the time: levels by product, float32 where none is given."""

    def __init__(self, plan: Plan, levels: dict[str, int], layers: str = "") -> None:
        super().__init__(plan)
        self.levels, self.layers = levels, layers

    def level(self, epoch: int) -> Assignment:
        paths = [path for path in self.plan.layers if self.layers in path]
        return {(path, product): at for path in paths for product, at in self.levels.items()}

    def after_epoch(self, seen: EpochSeen) -> Entry:
        return self.entry(seen, "as it was")


class Narrowing(PrecisionPolicy):
    """Lowers one more layer's forward product behind every second step."""

    wants_steps = True

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.low = 0
        self.steps = 0

    def level(self, epoch: int) -> Assignment:
        found = {(path, product): 1 for path in self.plan.layers for product in PRODUCTS}
        return found | {(path, "forward"): 0 for path in self.plan.layers[: self.low]}

    def after_step(self, step: StepSeen) -> Assignment | None:
        assert set(step.gradients) == set(self.plan.layers)
        self.steps += 1
        if step.batch % 2 == 0:
            return None
        self.low = min(self.low + 1, len(self.plan.layers))
        return self.level(step.epoch)

    def after_epoch(self, seen: EpochSeen) -> Entry:
        assert self.steps == (seen.epoch + 1) * self.plan.steps_per_epoch
        return self.entry(seen, f"{self.low} layers")

    def state_dict(self) -> dict[str, Any]:
        return {"low": self.low, "steps": self.steps}

    def load_state_dict(self, state: Any) -> None:
        self.low, self.steps = state["low"], state["steps"]


class Failing(Mapped):
    """Fails in one method, or gives something else than it should."""

    def __init__(self, plan: Plan, method: str, gives: Any = None) -> None:
        super().__init__(plan, {})
        self.method, self.gives = method, gives
        self.wants_steps = method == "after_step"

    def _at(self, method: str, right: Any) -> Any:
        if method == self.method:
            return self.gives if self.gives is not None else {}["missing"]  # the line of the test
        return right

    def level(self, epoch: int) -> Assignment:
        return self._at("level", super().level(epoch))

    def after_step(self, step: StepSeen) -> Assignment | None:
        return self._at("after_step", None)

    def after_epoch(self, seen: EpochSeen) -> Entry:
        return self._at("after_epoch", self.entry(seen, "so"))

    def lr_factor(self, epoch: int) -> float:
        return self._at("lr_factor", 1.0)

    def state_dict(self) -> dict[str, Any]:
        return self._at("state_dict", {})


class Wrong(Mapped):
    """Names a layer that is not there."""

    def level(self, epoch: int) -> Assignment:
        return {("nowhere", "forward"): 0}


@pytest.fixture(scope="module")
def few() -> DataSplits:
    whole = load_dataset("digits")
    return replace(
        whole, train=whole.train.take(range(200)), validation=whole.validation.take(range(50))
    )


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)


def network() -> nn.Module:
    return build_model("digits_cnn", 10, (8, 8, 1), seed=1)


def train(
    splits: DataSplits,
    folder: Path,
    policy: Any,
    epochs: int = 1,
    told: OnProgress | None = None,
    **options: Any,
) -> Weights:
    model = network()
    if isinstance(policy, str) and policy[0].isupper():
        policy = {"kind": f"test_precision_own:{policy}", "options": options}
    config = TrainConfig(
        epochs=epochs,
        lr=0.1,
        optimizer="sgd",
        threads=1,
        keep="last",
        schedule="constant",
        low_precision={
            "policy": policy,
            "ladder": [8, 12, "float32"],
            "float_epochs": 0,
            "engine": "emulated",
        },
    )
    fit(model, splits, config, run_dir=folder, on_progress=told)
    return model.state_dict()


def equal(one: Weights, other: Weights) -> bool:
    return all(torch.equal(each, other[name]) for name, each in one.items())


def test_a_level_for_every_product_is_that_level(few: DataSplits, tmp_path: Path) -> None:
    fixed = train(few, tmp_path / "fixed", {"kind": "fixed", "level": 8})
    every = dict.fromkeys(PRODUCTS, 0)
    assert equal(train(few, tmp_path / "every", "Mapped", levels=every), fixed)
    plain = train(few, tmp_path / "plain", "baseline")
    assert not equal(fixed, plain)
    assert equal(train(few, tmp_path / "none", "Mapped", levels={}), plain)
    top = dict.fromkeys(PRODUCTS, 2)
    assert equal(train(few, tmp_path / "top", "Mapped", levels=top), plain)


@pytest.mark.parametrize("product", PRODUCTS)
def test_each_product_of_a_layer_has_a_level_of_its_own(
    few: DataSplits, tmp_path: Path, product: str
) -> None:
    plain = train(few, tmp_path / "plain", "baseline")
    one = train(few, tmp_path / "one", "Mapped", levels={product: 0}, layers="1")
    assert not equal(one, plain)
    line = json.loads((tmp_path / "one" / "precision.jsonl").read_text())
    assert line["level"] == "int8 to float32"
    assert line["products"] and set(line["products"].values()) == {"int8"}
    assert all(name.endswith(product) for name in line["products"])
    assert read_metrics(tmp_path / "one" / "metrics.jsonl")[0].precision == line["level"]


def test_precision_may_change_from_step_to_step_and_goes_on(
    few: DataSplits, tmp_path: Path
) -> None:
    whole = train(few, tmp_path / "whole", "Narrowing", epochs=2)

    def stop(progress: TrainProgress) -> None:
        if progress.last is not None:  # the first epoch is done, and in its checkpoint
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(few, tmp_path / "halved", "Narrowing", epochs=2, told=stop)
    assert len((tmp_path / "halved" / "precision.jsonl").read_text().splitlines()) == 1
    assert equal(train(few, tmp_path / "halved", "Narrowing", epochs=2), whole)
    log = [json.loads(line) for line in (tmp_path / "whole" / "precision.jsonl").open()]
    lows = [int(line["reason"].split()[0]) for line in log]
    assert 0 < lows[0] <= lows[1]
    assert not equal(whole, train(few, tmp_path / "fixed", {"kind": "fixed", "level": 12}, 2))


def test_a_precision_that_is_none_stops_before_training(few: DataSplits, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="no product of this network") as caught:
        train(few, tmp_path, "Wrong", levels={})
    assert caught.value.where == "test_precision_own:Wrong"
    assert not (tmp_path / "checkpoint.pt").exists()


METHODS = ("level", "after_step", "after_epoch", "lr_factor", "state_dict")


@pytest.mark.parametrize("method", METHODS)
def test_an_error_in_a_policy_names_its_file_and_line(
    few: DataSplits, tmp_path: Path, method: str
) -> None:
    with pytest.raises(ModelError, match=f"{method} of the policy failed: KeyError") as caught:
        train(few, tmp_path, "Failing", method=method)
    lines = Path(__file__).read_text().splitlines()
    (line,) = [at for at, text in enumerate(lines, 1) if text.endswith("# the line of the test")]
    assert caught.value.where == f"{__file__}:{line}"
    assert caught.value.hint


@pytest.mark.parametrize("method", METHODS)
def test_what_a_policy_gives_is_checked(few: DataSplits, tmp_path: Path, method: str) -> None:
    with pytest.raises(ModelError, match=f"{method} of the policy gave a str, expected") as caught:
        train(few, tmp_path, "Failing", method=method, gives="much")
    assert str(caught.value.where).startswith(f"{__file__}:")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"layers": "nowhere", "format": "int12"}, "of nowhere matches no layer"),
        ({"type": "Conv3d", "format": "int12"}, "of type Conv3d matches no layer"),
        (
            {"role": "grad_output", "product": "forward", "format": "int12"},
            "for grad_output of product forward matches no layer",
        ),
    ],
)
def test_a_rule_that_matches_no_layer_is_refused(
    few: DataSplits, tmp_path: Path, rule: dict[str, str], message: str
) -> None:
    low = {"ladder": [8, "float32"], "rules": [{"position": "first", "keep_float": True}, rule]}
    config = TrainConfig(epochs=60, low_precision=low)
    with pytest.raises(RecipeError, match=message) as caught:
        fit(network(), few, config, run_dir=tmp_path / "run")
    assert caught.value.where == "low_precision.rules[1]"
    assert "(Conv2d)" in str(caught.value.hint)
    assert not (tmp_path / "run").exists()
