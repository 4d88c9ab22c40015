# SPDX-License-Identifier: Apache-2.0
"""Plug-ins: what the built-in ones name exists, and a broken one is refused with its name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from bitwright.base import plugins
from bitwright.base.errors import ModelError
from bitwright.base.plugins import BUILT_IN, ENTRY_POINTS, load_attribute, plugged
from bitwright.models.catalog import list_models

KINDS = ("metrics", "benchmarks", "models", "commands")


@pytest.mark.parametrize("kind", KINDS)
def test_every_name_of_a_built_in_plug_in_stands_for_something(kind: str) -> None:
    assert plugged(kind)  # type: ignore[arg-type]
    for name, place in plugged(kind).items():  # type: ignore[arg-type]
        found = load_attribute(place)
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
