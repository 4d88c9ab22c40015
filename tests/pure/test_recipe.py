# SPDX-License-Identifier: Apache-2.0
"""Recipes: what is wrong is named with file, line, reason and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bitwright.base.errors import BitwrightError, RecipeError
from bitwright.pipeline.recipe import (
    find_recipe,
    list_recipes,
    load_recipe,
    recipe_from_dict,
)
from bitwright.pipeline.recipe_yaml import parse_document
from bitwright.quantize.policy import Policy

BASE: dict[str, Any] = {"name": "x", "data": "digits", "model": "lenet"}


def wrong(**changes: Any) -> RecipeError:
    with pytest.raises(RecipeError) as caught:
        recipe_from_dict({**BASE, **changes})
    return caught.value


def test_every_packaged_recipe_is_valid_and_described() -> None:
    recipes = dict(list_recipes())
    assert {"digits", "mnist-tfc-w1a1", "mnist-tfc-w2a2", "mnist-cnn-w4a4"} <= set(recipes)
    for name, description in recipes.items():
        recipe = load_recipe(name)
        assert recipe.name == name, "a recipe is called as its file"
        assert description
        Policy.from_dict(recipe.quant)


def test_the_resolved_recipe_reads_back_as_the_same(tmp_path: Path) -> None:
    for name, _ in list_recipes():
        recipe = load_recipe(name)
        path = tmp_path / f"{name}.yaml"
        path.write_text(recipe.to_yaml())
        assert load_recipe(path, base_dir=recipe.base_dir) == recipe


@pytest.mark.parametrize(
    ("changes", "where", "message", "hint"),
    [
        ({"trian": {}}, "trian", "unknown key; did you mean 'train'", "keys allowed here: name"),
        (
            {"train": {"float": {"epohs": 3}}},
            "train.float.epohs",
            "did you mean 'epochs'",
            "batch_size",
        ),
        ({"train": {"float": {"epochs": "many"}}}, "train.float.epochs", "'many'", ">= 0"),
        ({"train": {"float": {"epochs": -1}}}, "train.float.epochs", "-1", ">= 0"),
        ({"train": {"float": {"optimizer": "x"}}}, "train.float.optimizer", "'x'", "sgd, adam"),
        ({"train": 3}, "train", "a section of keys, found 3", "float, quantized"),
        ({"data": 3}, "data", "a section of keys", "path"),
        ({"data": {"path": "x"}}, "data.name", "is missing", "data.name"),
        ({"name": "../up"}, "name", "'../up'", "letters"),
        ({"seed": -1}, "seed", "-1", ">= 0"),
        ({"seed": True}, "seed", "True", "integer"),
        ({"simulate": {"images": "most"}}, "simulate.images", "'most'", "or all"),
        ({"simulate": {"images": 0}}, "simulate.images", "0", ">= 1"),
        ({"hardware": {"budget": {"lut": 0}}}, "hardware.budget.lut", "0", ">= 1"),
        ({"hardware": {"budget": {}}}, "hardware.budget", "names no resource", None),
        ({"hardware": {"clock_mhz": 0}}, "hardware.clock_mhz", "0", ">= 1e-09"),
        ({"hardware": {"clock_mhz": float("inf")}}, "hardware.clock_mhz", "inf", ">= 1e-09"),
        ({"hardware": {"fill": 1, "target_fps": 9}}, "hardware", "only one of", None),
        ({"hardware": {"synth_clk_period_ns": "x"}}, "hardware", "positive number", None),
        ({"implement": {"seeds": 1000}}, "implement.seeds", "1000", "<= 64"),
    ],
)
def test_each_mistake_is_named(
    changes: dict[str, Any], where: str, message: str, hint: str | None
) -> None:
    error = wrong(**changes)
    assert error.where == f"recipe: {where}"
    assert message in error.message
    if hint is not None:
        assert hint in str(error.hint)


def test_all_mistakes_are_told_at_once() -> None:
    error = wrong(seed="x", trian={}, hardware={"clock_mhz": -1})
    for field in ("seed", "trian", "hardware.clock_mhz"):
        assert field in str(error)


def test_the_line_of_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("name: x\ndata: digits\nmodel: lenet\ntrain:\n  float:\n    epohs: 4\n")
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert caught.value.where == f"{path}:6: train.float.epohs"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [1, 2", "no valid YAML"),
        ("a: b: c", "no valid YAML"),
        ("- 1\n- 2\n", "expected a mapping"),
        ("", "name: is missing"),
        ("3: x\n", "expected a mapping"),
        ("name: x\nname: y\n", "stands twice, first in line 1"),
        ("a: !!python/object/apply:os.system [echo]", "no valid YAML"),
        ("a: 2024-99-99", "no valid YAML"),
        ("\x00", "no valid YAML"),
        ("x: " + "[" * 5000, "no valid YAML"),
    ],
)
def test_what_is_no_recipe_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(RecipeError, match=message) as caught:
        load_recipe(path)
    assert str(path) in str(caught.value.where)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"name: \xff\xfe")
    with pytest.raises(RecipeError, match="is no text"):
        load_recipe(path)
    path.write_text("#" * (1 << 21))
    with pytest.raises(RecipeError, match="has more than"):
        load_recipe(path)


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("name: x\ndata: digits\nmodel: lenet\ntrain: {float: {lr: 1e-3}}\n")
    assert load_recipe(path).train.float_.lr == 1e-3


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'digits'"):
        find_recipe("digts")
    with pytest.raises(RecipeError, match="no recipe"):
        find_recipe("../digits")


def test_overrides_and_where_they_go_wrong() -> None:
    recipe = load_recipe(
        "digits", ["train.float.epochs=3", "model=tfc", "hardware={fill: 0.25}", "seed=7"]
    )
    assert recipe.train.float_.epochs == 3
    assert recipe.model.name == "tfc"
    assert (recipe.hardware.fill, recipe.hardware.budget) == (0.25, None)
    assert recipe.train.float_.seed == 7, "phases take the recipe's seed"
    for text in ("seed", "=3", "a..b=1", "seed=[", "nothing.at.all=1", "seed=x"):
        with pytest.raises(BitwrightError) as caught:
            load_recipe("digits", [text])
        assert "--set" in str(caught.value.where)


def test_clock_as_frequency_or_as_finns_period() -> None:
    def clock(hardware: dict[str, Any]) -> float:
        return recipe_from_dict({**BASE, "hardware": hardware}).hardware.clock_mhz

    assert clock({"synth_clk_period_ns": 8}) == clock({"clock_mhz": 125})
    assert "not both" in wrong(hardware={"synth_clk_period_ns": 8, "clock_mhz": 125}).message


def test_paths_start_at_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    path = tmp_path / "r.yaml"
    fields = {**BASE, "data": {"name": "folder", "path": "images"}}
    path.write_text(yaml.safe_dump(fields))
    assert load_recipe(path).data.path == tmp_path / "images"
    assert load_recipe(path, data_dir=tmp_path).data.path == tmp_path
    path.write_text(yaml.safe_dump({**BASE, "hardware": {"folding_config_file": "no.json"}}))
    with pytest.raises(RecipeError, match=r"no file .*no\.json"):
        load_recipe(path)


def test_a_wrong_policy_is_a_recipe_error(tmp_path: Path) -> None:
    error = wrong(quant={"weight": "int99"})
    assert "quant.weight" in str(error.where)
    assert "quant" in str(wrong(quant={"wieght": "int4"}).where)


def test_a_merged_section_may_change_its_keys() -> None:
    text = """
name: x
data: digits
model: lenet
train:
  float: &usual {epochs: 1, batch_size: 32, lr: 1e-2}
  quantized: {<<: *usual, epochs: 3, lr: 5e-3}
"""
    document = parse_document(text, "r.yaml")
    train = document.value["train"]
    assert train["quantized"] == {"epochs": 3, "batch_size": 32, "lr": 5e-3}
    assert train["float"]["lr"] == 1e-2 and document.lines["train", "quantized", "epochs"] == 7
    with pytest.raises(RecipeError, match="the key stands twice, first in line 7"):
        parse_document(text.replace("lr: 5e-3", "epochs: 4"), "r.yaml")


def test_a_word_of_many_digits_is_read_at_once() -> None:
    """An expression that tries every split of them takes minutes."""
    digits = "1" * 150_000
    assert parse_document(f"description: {digits}x", "r").value == {"description": f"{digits}x"}


@pytest.mark.parametrize(
    "text",
    ["x: !!bool abc", "x: !!timestamp abc", "x: 2024-99-99", "x: !!int a", "x: !!float a"],
)
def test_values_that_are_not_what_they_say(text: str) -> None:
    with pytest.raises(RecipeError, match="is no valid YAML"):
        parse_document(text, "r.yaml")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "~nobody-of-this-name/x"])
@pytest.mark.parametrize(
    "changes",
    [
        lambda name: {"data": {"name": "folder", "path": name}},
        lambda name: {"model": f"{name}.safetensors"},
        lambda name: {"hardware": {"folding_config_file": name}},
    ],
)
def test_names_that_no_file_can_have(name: str, changes: Callable[[str], Any]) -> None:
    assert wrong(**changes(name)).message


def test_a_number_of_thousands_of_digits_is_refused_in_words() -> None:
    number = ":".join(["1"] * 3000)  # YAML 1.1 reads it to the base of 60
    with pytest.raises(RecipeError, match="a number has more than 100 signs") as caught:
        parse_document(f"name: x\ndata: digits\nmodel: lenet\nseed: [{number}]", "r")
    assert caught.value.where == "r:4"
