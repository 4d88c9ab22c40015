# SPDX-License-Identifier: Apache-2.0
"""Plug-ins: what the built-in ones name exists, and a broken one is refused with its name."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from bitwright.base import plugins
from bitwright.base.errors import FormatError, ModelError, RecipeError
from bitwright.base.plugins import BUILT_IN, ENTRY_POINTS, load_attribute, plugged
from bitwright.base.trust import importable
from bitwright.explore.search.candidates import parse_candidates
from bitwright.explore.variants import parse_variants
from bitwright.formats import load_format, parse_format
from bitwright.models.catalog import list_models
from bitwright.pipeline.recipe import recipe_from_dict
from bitwright.pipeline.run_files import SCHEMA, recipe_folder
from bitwright.quantize import Policy
from bitwright.quantize.method_words import named_code

KINDS = ("metrics", "benchmarks", "models", "commands", "presets")


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_of_a_built_in_plug_in_stands_for_something(kind: str) -> None:
    assert plugged(kind)  # type: ignore[arg-type]
    for name, place in plugged(kind).items():  # type: ignore[arg-type]
        found = load_attribute(place)
        if kind == "presets":
            assert Policy.from_dict(found) == Policy.from_dict({"preset": name})
        else:
            assert found.name == name if kind == "models" else callable(found)


def test_the_core_names_papers_in_one_place_only() -> None:
    package = Path(plugins.__file__).parents[1]
    naming = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if "bitwright.papers" in path.read_text() and package / "papers" not in path.parents
    }
    assert naming == {"base/plugins.py"}


def test_names_are_used_once() -> None:
    names = [info.name for info in list_models()]
    assert len(set(names)) == len(names)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module ``mine`` that an installed package names as a plug-in."""
    entry = EntryPoint("mine", "mine_of_a_test", ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.plugins.cache_clear()
    yield tmp_path / "mine_of_a_test.py"
    plugins.plugins.cache_clear()
    sys.modules.pop("mine_of_a_test", None)


def test_an_installed_package_adds_its_names(installed: Path) -> None:
    installed.write_text(
        "from bitwright.base.plugins import Plugin\n"
        "PLUGIN = Plugin(metrics={'mine': 'mine_of_a_test:f', 'verification': 'other:f'})\n"
    )
    assert plugged("metrics")["mine"] == "mine_of_a_test:f"
    assert plugged("metrics")["verification"].startswith(BUILT_IN[0])


@pytest.mark.parametrize(("text", "words"), [("PLUGIN = 1", "no PLUGIN"), ("1 / 0", "ZeroDiv")])
def test_a_broken_one_is_named(installed: Path, text: str, words: str) -> None:
    installed.write_text(text)
    with pytest.raises(ModelError, match=words) as error:
        plugged("metrics")
    assert "mine_of_a_test" in str(error.value)


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe's folder with a module of the user's own, and another of its name where one is."""
    for folder, first in (("recipe", 6), ("here", 4)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "beside_of_a_test.py").write_text(
            "from bitwright.formats import IntegerFormat, parse_format\n"
            f"def short(): return parse_format('int{first}')\n"
            "value = parse_format('int5')\n"
            "def long(bits): return parse_format(f'int{bits}')\n"
            "def wrong(): return 3\n"
            "def broken(): return 1 / 0\n"
        )
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delitem(sys.modules, "beside_of_a_test", raising=False)
    return tmp_path / "recipe"


def test_the_folder_of_the_recipe_is_asked_first(beside: Path) -> None:
    before = list(sys.path)
    with importable(beside):
        assert load_format("beside_of_a_test:short").name == "int6"
    assert sys.path == before
    del sys.modules["beside_of_a_test"]
    assert load_format("beside_of_a_test:short").name == "int4"
    del sys.modules["beside_of_a_test"]
    fields = {"data": "digits", "model": "digits_cnn", "name": "own"}
    weight = {"weight": {"format": "beside_of_a_test:short"}}
    recipe_from_dict({**fields, "quant": weight}, beside)
    assert Path(sys.modules["beside_of_a_test"].__file__ or "").parent == beside
    del sys.modules["beside_of_a_test"]


def test_a_value_of_the_users_own_is_a_function_or_the_value_itself(beside: Path) -> None:
    assert load_format("beside_of_a_test:value").name == "int5"
    assert parse_candidates("beside_of_a_test:value").weights == (parse_format("int5"),)
    variant = parse_variants("beside_of_a_test:value/uint6")[0]
    assert (variant.weight_format.name, variant.activation) == ("int5", "uint6")
    with pytest.raises(RecipeError, match=r"without arguments: missing a required .*'bits'") as why:
        load_format("beside_of_a_test:long")
    assert "return long(...)" in (why.value.hint or "")
    with pytest.raises(RecipeError, match=r"gives int, not a bitwright\.formats\.Format"):
        load_format("beside_of_a_test:wrong")
    with pytest.raises(ModelError, match="calling beside_of_a_test:broken failed: ZeroDivision"):
        load_format("beside_of_a_test:broken")
    with pytest.raises(RecipeError, match="without arguments") as why:
        Policy.from_dict({"weight": {"format": "beside_of_a_test:long"}})
    assert why.value.where == "quant.weight.format"
    del sys.modules["beside_of_a_test"]


def test_a_command_says_which_option_names_no_format(beside: Path) -> None:
    with pytest.raises(RecipeError, match="without arguments") as candidates:
        parse_candidates("beside_of_a_test:long")
    with pytest.raises(FormatError, match=r"weights: .* without arguments") as variants:
        parse_variants("beside_of_a_test:long")
    assert (candidates.value.where, variants.value.where) == ("--candidates", "--formats")
    del sys.modules["beside_of_a_test"]


def test_a_run_remembers_the_folder_of_its_recipe(beside: Path, tmp_path: Path) -> None:
    header = {"schema": SCHEMA, "recipe_dir": str(beside)}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps(header))
    assert recipe_folder(tmp_path / "run") == beside
    with importable(recipe_folder(tmp_path / "run")):
        assert load_format("beside_of_a_test:short").name == "int6"
    del sys.modules["beside_of_a_test"]


def test_a_users_module_is_imported_as_its_file_is_now(tmp_path: Path) -> None:
    """Two recipes with a module of one name, edits of it and of what it needs, in one process."""
    for name, width in (("a", "8"), ("b", "16")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "of_a_test.py").write_text("import needed_by_it\nnet = needed_by_it.width\n")
        text = "import json, pathlib\nfile = pathlib.Path(__file__).parent / 'width_of_a_test.json'"
        (folder / "needed_by_it.py").write_text(f"{text}\nwidth = json.loads(file.read_text())\n")
        (folder / "width_of_a_test.json").write_text(width)

    def net(folder: str) -> object:
        with importable(tmp_path / folder):
            return plugins.load_made("of_a_test:net", "model")

    try:
        assert (net("a"), net("b"), net("a")) == (8, 16, 8)
        loaded = sys.modules["needed_by_it"]
        assert net("a") == 8 and sys.modules["needed_by_it"] is loaded
        (tmp_path / "a" / "width_of_a_test.json").write_text("32")
        assert net("a") == 32
        (tmp_path / "a" / "of_a_test.py").write_text("net = 'another'\n")
        assert net("a") == "another"
    finally:
        for part in ("of_a_test", "needed_by_it"):
            sys.modules.pop(part, None)


@pytest.mark.parametrize("methods", ["evil:f", ["calibrate", "evil:f"]])
def test_methods_that_are_code_are_named_however_they_are_given(methods: object) -> None:
    """Of a text alone the letters were looked at."""
    assert named_code({"methods": methods, "weight": "int4"}) == ["evil:f"]
