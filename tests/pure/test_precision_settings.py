# SPDX-License-Identifier: Apache-2.0
"""Settings of training in low precision: what they mean, and what is refused before training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from bitwright.base.errors import DataError, RecipeError
from bitwright.low_precision.config import LowPrecision
from bitwright.low_precision.ladder import parse_level
from bitwright.low_precision.log import write_log
from bitwright.low_precision.policy import Entry
from bitwright.low_precision.settings import MuppetSettings, ReplaySettings
from bitwright.pipeline.recipe import Recipe, load_recipe, recipe_from_dict
from bitwright.quantize.spec import Layer, Product, Role, ScaleRule
from bitwright.train import TrainConfig
from bitwright.train.differences import differences, in_words

LADDER = ("int8", "int12", "int14", "int16", "float32")
LAYER = Layer("conv", "Conv2d")


def refused(**fields: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        LowPrecision(**fields)
    return str(caught.value)


def test_the_defaults_are_those_of_the_paper() -> None:
    found = LowPrecision()
    assert found.ladder == LADDER
    assert (found.float_epochs, found.lr_every, found.lr_divisor) == (45, 15, 10)
    rule = found.policy
    assert isinstance(rule, MuppetSettings)
    assert (rule.alpha, rule.beta, rule.decay) == (1.0, 1.5, 0.1)
    assert (rule.resolution, rule.patience, rule.gradients) == (3, 2, 4)


def test_names_stand_for_settings() -> None:
    assert LowPrecision.model_validate("muppet") == LowPrecision()
    assert LowPrecision(policy="muppet") == LowPrecision(policy={"kind": "muppet"})
    assert LowPrecision(policy={"lambda": 0.3}).policy.decay == 0.3
    assert LowPrecision(ladder=[8, 12, "INT14", 16, "fp32"]).ladder == LADDER
    short = LowPrecision(ladder=["e4m3", "bf16", "float32"]).ladder
    assert short == ("e4m3", "bfloat16", "float32")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"policy": {"kind": "muppet", "lambda": 0.25, "window": "resolution"}},
        {"policy": "baseline"},
        {"policy": {"kind": "mixed", "format": "bfloat16"}},
        {"policy": {"kind": "fixed", "level": 8, "switch_at": 3}},
        {"policy": {"kind": "random", "between": [2, 9], "seed": 4}},
        {"policy": {"kind": "replay", "schedule": [[0, 8], [3, "float32"]]}},
        {"policy": {"kind": "my.code:policy", "options": {"depth": 2}}},
        {"rules": [{"position": "first", "keep_float": True}], "accumulator": 32},
    ],
)
def test_settings_come_back_from_a_checkpoint_and_from_a_recipe(fields: dict[str, Any]) -> None:
    given = LowPrecision(**fields)
    assert LowPrecision.model_validate_json(given.model_dump_json()) == given
    assert LowPrecision.model_validate(given.model_dump(mode="json", by_alias=True)) == given


@pytest.mark.parametrize(
    ("policy", "ladder"),
    [
        ("baseline", ("float32",)),
        ("mixed", ("float16",)),
        ({"kind": "fixed", "level": 6}, ("int6", "float32")),
        ("random", LADDER),
    ],
)
def test_policies_that_know_their_levels_bring_them(policy: Any, ladder: tuple[str, ...]) -> None:
    assert LowPrecision(policy=policy).ladder == ladder


@pytest.mark.parametrize(
    ("ladder", "words"),
    [
        ([8, 8, 16], "must rise, found int8, int8, int16: int8 (8 bits) has not more bits"),
        ([16, 8], "int8 (8 bits) has not more bits than int16 (16 bits)"),
        (["float32", 8], "has not more bits than float32 (32 bits)"),
        ([8, "e4m3"], "e4m3 (8 bits) has not more bits than int8 (8 bits)"),
        ([], "the ladder has no level"),
        ([8], "climbs, and the ladder has one level, int8"),
        ([8, 32], "or float32"),
        ([1, 8], "fewer than 2 bits"),
        (["uint8", "float32"], "gradients have signs"),
        (["bipolar", "float32"], "its levels are no integers"),
        (["cb16", "float32"], "its levels are no integers"),
        (["int8.5"], "unknown format 'int8.5'"),
        (["posit8", "float32"], "unknown format 'posit8'"),
        ([True, 8], "found True"),
        (8, "expected a list of levels"),
    ],
)
def test_a_ladder_that_is_none_is_refused(ladder: Any, words: str) -> None:
    assert words in refused(ladder=ladder)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"patience": 0}, "greater than or equal to 1"),
        ({"resolution": 0}, "greater than or equal to 1"),
        ({"lambda": -0.1}, "greater than or equal to 0"),
        ({"alpha": float("nan")}, "policy.muppet.alpha"),
        ({"beta": -1}, "greater than or equal to 0"),
        ({"resolution": 1, "window": "resolution"}, "compares one gradient with itself"),
        ({"gamma": 2}, "Extra inputs"),
        ({"metric": "variance"}, "package.module:function"),
        ("mupet", "no policy 'mupet'; known: muppet, baseline"),
        ({"kind": 8}, "no policy 8"),
        ({"kind": "my code:"}, "package.module:function"),
        ({"kind": "mixed", "format": "int16"}, "computes in a short float, found int16"),
        ({"kind": "fixed", "level": "float32"}, "use baseline"),
        ({"kind": "fixed", "switch_at": -1}, "greater than or equal to 0"),
        ({"kind": "random", "between": [9, 2]}, "must not be behind the last"),
        ({"kind": "random", "between": [0, 2]}, "greater than or equal to 1"),
        ({"kind": "replay"}, "either file or schedule"),
        ({"kind": "replay", "file": "a", "schedule": [[0, 8]]}, "either file or schedule"),
        ({"kind": "replay", "schedule": [[1, 8]]}, "begin with 0 and rise"),
        ({"kind": "replay", "schedule": [[0, 8], [0, 12]]}, "begin with 0 and rise"),
        ({"kind": "replay", "schedule": []}, "begin with 0 and rise"),
        ({"kind": "replay", "schedule": [[0, "intel"]]}, "unknown format"),
        ({"kind": "replay", "schedule": [8, 12]}, "pairs of epochs done and level"),
    ],
)
def test_a_policy_that_is_none_is_refused(policy: Any, words: str) -> None:
    assert words in refused(policy=policy)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rounding": "sideways"}, "rounding"),
        ({"accumulator": "int1"}, "expected exact, float32, or intN with N from 2 to 64"),
        ({"accumulator": "wide"}, "'wide' is no accumulator"),
        ({"engine": "gpu"}, "no engine 'gpu'; known: auto, emulated, integer"),
        ({"float_epochs": -1}, "greater than or equal to 0"),
        ({"lr_every": 0}, "greater than or equal to 1"),
        ({"rules": [{"position": "first"}]}, "changes nothing"),
        ({"rules": [{"format": "int9", "role": "scores"}]}, "rules[0].role"),
        ({"rules": [{"format": "int9", "product": "sideways"}]}, "rules[0].product"),
    ],
)
def test_other_mistakes_are_refused(fields: dict[str, Any], words: str) -> None:
    assert words in refused(**fields)


@pytest.mark.parametrize(
    ("low", "words"),
    [
        ({"float_epochs": 0}, "the run would be over as soon as it reached the last level"),
        ({"float_epochs": 20}, "leave no epoch for the levels below: epochs is 20"),
        ({"policy": {"kind": "fixed", "switch_at": 20}}, "past the end of the run (20 epochs)"),
        ({"policy": "fixed", "float_epochs": 21}, "are more than epochs (20)"),
        (
            {"policy": {"kind": "random", "between": [3, 16]}, "float_epochs": 5},
            "a switch after 16 epochs and 5 float_epochs are more than epochs (20)",
        ),
    ],
)
def test_a_schedule_that_does_not_fit_the_run_is_refused(low: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TrainConfig(epochs=20, low_precision={"float_epochs": 5, **low})
    assert words in str(caught.value)


def test_a_level_is_a_policy_over_the_operands_of_training() -> None:
    settings = LowPrecision(rules=[{"layers": "conv", "product": "grad_weight", "format": "int16"}])
    policy = settings.arithmetic(0)
    assert policy is not None
    weight = policy.resolve(LAYER, Role.WEIGHT, Product.FORWARD).spec
    assert weight is not None
    assert (weight.format.name, weight.scale, weight.rounding) == (
        "int8",
        ScaleRule.DYNAMIC,
        "stochastic",
    )
    special = policy.resolve(LAYER, Role.INPUT, Product.GRAD_WEIGHT).spec
    assert special is not None and special.format.name == "int16"
    assert policy.resolve(LAYER, Role.GRAD_WEIGHT, Product.GRAD_WEIGHT).spec is not None
    assert policy.resolve(LAYER, Role.ACTIVATION, Product.FORWARD).spec is None
    assert settings.arithmetic(len(settings.ladder) - 1) is None


def test_results_may_be_rounded_too() -> None:
    policy = LowPrecision(results=True, ladder=[6, 8]).arithmetic(0)
    assert policy is not None
    for role, product in ((Role.ACTIVATION, "forward"), (Role.GRAD_INPUT, "grad_input")):
        spec = policy.resolve(LAYER, role, product).spec
        assert spec is not None and spec.format.name == "int6"


def test_settings_are_read_without_torch() -> None:
    code = (
        "from bitwright.low_precision.config import LowPrecision\n"
        "from bitwright.low_precision import log, schedules, policy, rule\n"
        "LowPrecision(policy='fixed'); import sys; assert 'torch' not in sys.modules"
    )
    source = str(Path(__file__).resolve().parents[2] / "src")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": source, "PATH": "/usr/bin:/bin"},
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def recipe(low: Any) -> dict[str, Any]:
    return {
        "name": "x",
        "data": "digits",
        "model": "digits_cnn",
        "hardware": {"target": "ecp5-25k"},
        "train": {"float": {"epochs": 60, "low_precision": low}},
    }


@pytest.mark.parametrize(
    ("low", "where", "words"),
    [
        ("mupet", "policy", "no policy 'mupet'"),
        ({"policy": {"patience": 0}}, "policy.patience", "an integer >= 1"),
        ({"policy": {"lamda": 1}}, "policy.lamda", "did you mean 'lambda'?"),
        ({"policy": {"kind": "random", "pace": 1}}, "policy.pace", "here: kind, between, seed"),
        ({"policy": {"kind": "fixed", "switch_at": "x"}}, "policy.switch_at", "an integer >= 0"),
        ({"policy": {"kind": "my:own", "depth": 1}}, "policy.depth", "here: kind, options"),
        ({"policy": []}, "policy", "the name of a policy or a section"),
        ({"ladder": [8, 8]}, "ladder", "must rise"),
        ({"rules": [{"position": "first"}]}, "rules", "rules[0]: the rule changes nothing"),
    ],
)
def test_a_recipe_says_where_the_mistake_is(low: Any, where: str, words: str) -> None:
    with pytest.raises(RecipeError) as caught:
        recipe_from_dict(recipe(low))
    assert caught.value.where == f"recipe: train.float.low_precision.{where}"
    assert words in str(caught.value)


def test_quantizers_have_formats_of_their_own() -> None:
    fields = recipe("muppet")
    fields["train"]["quantized"] = {"epochs": 60, "low_precision": "muppet"}
    with pytest.raises(RecipeError, match="low_precision belongs to float"):
        recipe_from_dict(fields)


def test_an_unknown_level_is_told_what_a_level_may_be() -> None:
    with pytest.raises(ValueError, match=r"unknown format 'foo7'.*block format") as caught:
        parse_level("foo7")
    assert "bipolar" not in str(caught.value)


def schedule_of(found: Recipe) -> ReplaySettings:
    low = found.train.float_.low_precision
    assert low is not None and isinstance(low.policy, ReplaySettings)
    return low.policy


def test_a_recorded_schedule_is_written_out_in_the_recipe(tmp_path: Path) -> None:
    levels = ["int8", "int8", "int12", "float32"]
    log = [Entry(epoch, level, "r") for epoch, level in enumerate(levels, start=1)]
    write_log(tmp_path / "recorded.jsonl", log)
    path = tmp_path / "r.yaml"
    path.write_text(
        yaml.safe_dump(recipe({"policy": {"kind": "replay", "file": "recorded.jsonl"}}))
    )
    found = load_recipe(path)
    assert schedule_of(found).schedule == ((0, "int8"), (2, "int12"), (3, "float32"))
    (tmp_path / "recorded.jsonl").unlink()
    assert recipe_from_dict(found.resolved()).train == found.train
    with pytest.raises(DataError, match=r"recorded\.jsonl: cannot be read: No such file"):
        load_recipe(path)


def test_settings_that_differ_are_named_to_the_innermost_field() -> None:
    def given(low: Any) -> TrainConfig:
        return TrainConfig(epochs=60, low_precision=low)

    one = given("muppet")
    assert differences(one, given({})) == []
    found = differences(one, given({"policy": {"patience": 3}, "results": True}))
    assert found == [
        ("low_precision.policy.patience", 2, 3),
        ("low_precision.results", False, True),
    ]
    assert in_words(found[:1]) == (
        "written with low_precision.policy.patience = 2, but now low_precision.policy.patience = 3"
    )
    kinds = dict((path, (then, now)) for path, then, now in differences(one, given("baseline")))
    assert kinds["low_precision.policy.kind"] == ("muppet", "baseline")
    assert len(in_words(differences(one, given(None)))) < 250
