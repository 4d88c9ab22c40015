# SPDX-License-Identifier: Apache-2.0
"""Files that the settings of a design folder name: from the folder, wherever its user stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bitwright.base import noted
from bitwright.base.errors import RecipeError, RunError
from bitwright.formats import parse_format
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType
from bitwright.lower.placement import ACCELERATOR, Placement
from bitwright.lower.split import Part
from bitwright.pipeline.designs.folder import (
    Design,
    DesignSettings,
    changed,
    open_design,
    parse_settings,
)
from bitwright.pipeline.designs.split import write_split
from bitwright.pipeline.designs.steps import _facts, done_here
from bitwright.pipeline.recipe_hardware import described_by

NAMES = {
    "hardware.target": "own.toml",
    "hardware.folding_config_file": "folding.json",
    "hardware.engine": "engine.json",
    "implement.board": "board.toml",
}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the user stands, with a cache of his own."""
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "cache"))
    noted._HERE.clear()
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield tmp_path
    noted._HERE.clear()


def _graph() -> Graph:
    builder = GraphBuilder("g", INTEGER)
    x = builder.input("x", TensorType((2, 2, 1), parse_format("uint4"), (1.0,), 0, 15))
    return builder.finish(builder.add("upsample", (x,), attrs={"factor": (1, 1)}))


def _design(folder: Path, settings: dict[str, Any] | None = None) -> Path:
    Design(folder, _graph(), DesignSettings()).save()
    if settings is not None:
        (folder / "hardware.json").write_text(json.dumps(settings))
    return folder


def _with(setting: str, name: str) -> dict[str, Any]:
    section, key = setting.split(".")
    kind = {"kind": "engine"} if key == "engine" else {}
    return {section: {key: name, **kind}}


def _kept(folder: Path, setting: str) -> str:
    section, key = setting.split(".")
    return str(json.loads((folder / "hardware.json").read_text())[section][key])


@pytest.mark.parametrize(("setting", "name"), NAMES.items())
def test_names_in_a_folder_start_at_the_folder(
    place: Path, monkeypatch: pytest.MonkeyPatch, setting: str, name: str
) -> None:
    folder = _design(Path("d"), _with(setting, name))
    (folder / name).write_text("")
    found = open_design(folder, ["seed=1"])
    assert found.settings.files == {setting: place / "here" / "d" / name}
    assert _kept(folder, setting) == name
    monkeypatch.chdir(place / "there")
    again = open_design(Path("../here/d"), ["seed=2"])
    assert again.settings.files == found.settings.files
    assert _kept(place / "here" / "d", setting) == name
    (place / "here" / "d").rename(place / "moved")
    assert open_design(place / "moved").settings.files == {setting: place / "moved" / name}


@pytest.mark.parametrize(("setting", "name"), NAMES.items())
def test_names_that_are_typed_start_where_the_user_stands(
    place: Path, monkeypatch: pytest.MonkeyPatch, setting: str, name: str
) -> None:
    (place / "there" / name).write_text("")
    folder = _design(place / "here" / "d", _with(setting, "e256.json") if "eng" in name else None)
    (folder / "e256.json").write_text("")
    open_design(folder, [f"{setting}=../there/{name}"])
    assert _kept(folder, setting) == str(place / "there" / name)
    monkeypatch.chdir(place)
    assert open_design(folder).settings.files == {setting: place / "there" / name}
    (folder / name).write_text("")
    open_design(folder, [f"{setting}=here/d/{name}"])
    assert _kept(folder, setting) == name


def test_who_makes_a_design_names_files_from_where_he_stands(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("own.toml").write_text("")
    settings = parse_settings({"hardware": {"target": "own.toml"}}, "build_model")
    Design(Path("made"), _graph(), settings).save()
    monkeypatch.chdir(place / "there")
    found = open_design(place / "here" / "made").settings
    assert found.hardware.target == str(place / "here" / "own.toml")


def test_parts_name_files_from_where_their_maker_stood(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("own.toml").write_text("")
    settings = changed(DesignSettings(), ["hardware.target=own.toml"])
    whole = Placement(_graph(), (Part(ACCELERATOR, _graph()),), {})
    (folder,) = write_split(whole, settings, Path("parts")).values()
    monkeypatch.chdir(place / "there")
    assert open_design(place / "here" / folder).settings.files == {
        "hardware.target": place / "here" / "own.toml"
    }


def test_a_name_of_no_ending_is_still_one_of_a_file(place: Path) -> None:
    folder = _design(place / "here" / "d")
    (folder / "ecp5").write_text("")
    open_design(folder, ["hardware.target=d/ecp5"])
    assert _kept(folder, "hardware.target") == "./ecp5"
    assert open_design(folder).settings.files == {"hardware.target": folder / "ecp5"}


def test_what_was_made_for_files_of_a_folder_counts_where_it_is_moved_to(place: Path) -> None:
    folder = _design(place / "here" / "d")
    for name in ("target", "board.toml"):
        (folder / name).write_text("")
    names = ["hardware.target=d/target", "implement.board=d/board.toml"]
    design = open_design(folder, names)
    design.step("implement", _facts(design, "implement"), lambda folder: None)
    moved = folder.rename(place / "moved")
    assert done_here(open_design(moved), "implement") == moved / "implement"
    for name in ("target", "board.toml"):
        (moved / name).write_text("another")
        assert done_here(open_design(moved), "implement") is None
        (moved / name).write_text("")
    assert done_here(open_design(moved), "implement") == moved / "implement"


def test_a_link_and_dots_lead_where_the_system_says(place: Path) -> None:
    (place / "there" / "deep").mkdir()
    (place / "there" / "own.toml").write_text("")
    Path("link").symlink_to(place / "there" / "deep")
    folder = _design(place / "here" / "d")
    found = open_design(folder, ["hardware.target=link/../own.toml"])
    (path,) = found.settings.files.values()
    assert path.samefile(place / "there" / "own.toml")
    assert open_design(folder).settings.files == found.settings.files


@pytest.mark.parametrize("name", ["../own.toml", "/etc/own.toml", "deep/../../own.toml"])
def test_a_file_that_is_not_there_is_said_to_be_missing(place: Path, name: str) -> None:
    folder = _design(place / "here" / "d", {"hardware": {"target": name}})
    with pytest.raises(RunError, match=r"own.toml': there is no such file") as error:
        open_design(folder)
    assert f"bitwright map {folder} --set hardware.target=FILE" in str(error.value.hint)


def test_a_name_of_no_file_system_is_an_error(place: Path) -> None:
    folder = _design(place / "here" / "d", {"hardware": {"target": "a\0.toml"}})
    with pytest.raises(RecipeError):
        open_design(folder)


def test_the_hint_can_be_followed_and_says_for_how_long(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("own.toml").write_text("")
    folder = _design(place / "here" / "d", {"hardware": {"target": "../own.toml"}})
    with pytest.raises(RunError, match="outside") as error:
        open_design(folder)
    assert error.value.hint == (
        f"if you mean it, say so once: bitwright map {folder} --set hardware.target=FILE"
    )
    (place / "file").write_text("")
    monkeypatch.setenv("BITWRIGHT_CACHE", str(place / "file" / "cache"))
    with pytest.raises(RunError, match="outside") as error:
        open_design(folder)
    hint = str(error.value.hint)
    assert "for this command: --set hardware.target=FILE" in hint and "once" not in hint
    assert "cannot be written" in hint and "BITWRIGHT_CACHE" in hint
    open_design(folder, ["hardware.target=own.toml"])


@pytest.mark.parametrize("name", ["t.toml", ".toml", "./t"])
def test_a_file_of_ones_own_is_known_by_its_content(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was made for the target of before was told as done for another in `.toml`."""
    monkeypatch.chdir(tmp_path)
    Path(name).write_text("lut = 1\n")
    before = described_by(name)
    Path(name).write_text("lut = 2\n")
    assert described_by(name) != before and described_by("ecp5-25k") == "ecp5-25k"
