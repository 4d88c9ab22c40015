# SPDX-License-Identifier: Apache-2.0
"""The reference of recipe keys: what it lists is what recipes may say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bitwright.base.docstrings import meanings, parse_docstring
from bitwright.base.errors import RecipeError
from bitwright.cli import entry as cli
from bitwright.pipeline.recipe import recipe_from_dict
from bitwright.pipeline.recipe_keys import keys_below, recipe_keys
from bitwright.pipeline.recipe_schema import ImplementSection
from bitwright.quantize.policy import Policy
from bitwright.quantize.policy_keys import quant_keys

PLAIN = {"name": "r", "data": "digits", "model": "digits_cnn"}


def test_a_key_with_its_limits_default_and_meaning() -> None:
    (key,) = keys_below("train.quantized.tutor_study.lr")
    assert (key.path, key.default) == ("train.quantized.tutor_study.lr", "0.001")
    assert (key.allowed, key.meaning) == ("a number > 0 and <= 100", "highest learning rate.")


def test_limits_are_whole_numbers_where_they_are() -> None:
    assert keys_below("seed")[0].allowed == "an integer >= 0 and < 2147483648"


def test_every_resolved_key_of_a_recipe_is_listed() -> None:
    fields = {**PLAIN, "hardware": {"budget": {"lut": 9}}, "train": {"quantized": {"epochs": 1}}}
    resolved = recipe_from_dict(fields).resolved()
    listed = {key.path.replace("[]", "") for section in recipe_keys() for key in section.keys}
    listed |= {key.path.replace("[]", "") for key in keys_below("train.quantized")}

    def paths(value: object, place: str = "") -> set[str]:
        if not isinstance(value, dict) or place in ("quant", "model.options"):
            return {place}
        below = (paths(inner, f"{place}.{key}".lstrip(".")) for key, inner in value.items())
        return {place}.union(*below) - {""}

    assert paths(resolved) - listed == set()


def test_the_listed_keys_of_a_policy_are_those_that_are_read() -> None:
    """An impossible value is refused as such under every listed key, never as an unknown key."""
    policy, operand, rule, brevitas = quant_keys()
    places = {key.path: {key.path.split(".")[1]: object()} for key in policy.keys}
    places |= {key.path: {"weight": {_last(key.path): object()}} for key in operand.keys}
    for key in rule.keys:
        entry = {"role": "weight", "format": "int8"} | {_last(key.path): object()}
        places[key.path] = {"rules": [entry]}
    for key in brevitas.keys:
        name = re.sub(r"\[?prefix_]?", "weight_", key.path.removeprefix("quant."))
        places[key.path] = {name: object(), "bit_width": 4}
        places[f"{key.path} of a rule"] = {"rules": [{name: object()}]}
    for path, data in places.items():
        with pytest.raises(RecipeError) as caught:
            Policy.from_dict(data)
        assert "unknown key" not in str(caught.value), path
    with pytest.raises(RecipeError, match="one of input, weight") as caught:
        Policy.from_dict({"rules": [{"format": "int8"}]})
    with pytest.raises(RecipeError, match="unknown key") as caught:
        Policy.from_dict({"weight": {"wide": True}})
    assert str(caught.value.hint) == f"known: {', '.join(_last(key.path) for key in operand.keys)}"


def _last(path: str) -> str:
    return path.rpartition(".")[2]


def test_an_unknown_section_is_refused_with_the_next_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.run(["list", "keys", "train.flot"]) == 2
    assert "did you mean train.float?" in capsys.readouterr().err
    assert cli.run(["list", "models", "train"]) == 2
    assert "only keys can be listed below a section" in capsys.readouterr().err


def test_the_list_in_plain_words_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["list", "keys"]) == 0
    text = capsys.readouterr().out
    assert "simulate.stall_images = 20   (an integer >= 1 and <= 1000000)" in text
    assert "Also written `stalls`." in text
    assert "as model: teacher[].model" in text
    assert cli.run(["list", "keys", "hardware.budget.lut", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["path"] == "hardware.budget.lut"
    assert row["allowed"] == "an integer >= 1 or nothing"


def test_docstrings_are_taken_apart() -> None:
    found = parse_docstring(
        """Add two.

        Slowly::

            add(1, 2)

        Args:
            a, b: numbers, of which
                this goes on.
            *more: others.

        Returns:
            The sum: one number.

        Raises:
            ValueError: too large.
        """
    )
    assert found.summary == "Add two."
    assert found.body == "Slowly::\n\n    add(1, 2)"
    both = "numbers, of which this goes on."
    assert found.entries["Args"] == {"a": both, "b": both, "*more": "others."}
    assert found.entries["Returns"] == {"": "The sum: one number."}
    assert found.entries["Raises"] == {"ValueError": "too large."}


def test_attributes_of_a_base_hold_for_what_is_made_from_it() -> None:
    class Base:
        """A base.

        Attributes:
            kind: which.
            size: of it.
        """

    class Made(Base):
        """Made from it.

        Attributes:
            size: of the whole.
        """

    assert meanings(Made) == {"kind": "which.", "size": "of the whole."}


def test_what_a_board_s_own_file_says_counts_and_not_where_it_lies(tmp_path: Path) -> None:
    facts = []
    for name, text in (("a.toml", "one"), ("b.toml", "one"), ("a.toml", "two")):
        (tmp_path / name).write_text(text)
        facts.append(ImplementSection(board=str(tmp_path / name)).facts())
    assert facts[0] == facts[1] != facts[2]
    assert ImplementSection(board="ulx3s").facts()["board"] == "ulx3s"
    assert ImplementSection().facts()["board"] is None
