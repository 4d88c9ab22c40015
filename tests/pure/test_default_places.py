# SPDX-License-Identifier: Apache-2.0
"""Who stands in a stranger's folder and names no place for results writes into it alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bitwright.base.claims import claimed
from bitwright.base.errors import RunError
from bitwright.base.places import claim, default_place, is_claimed, kept_place
from bitwright.cli.app import app
from bitwright.cli.options import recipe_source, resolve
from bitwright.pipeline.api import build_recipe
from bitwright.pipeline.board_subject import find_subject

SOURCE = Path(__file__).resolve().parents[2] / "src"
#: Verbs that have a place of their own, and it.
VERBS = {
    "build digits": "runs",
    "train digits": "runs/digits",
    "sweep digits --over seeds=2": "sweeps",
    "study mnist-kl-mlp-qkd-w8a8": "studies",
    "search digits_cnn --budget 8kB": "search",
    "bench runs/no": "bench",
    "formats compare digits_cnn": "compare",
    "formats matrix": "faces",
}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_writes_behind_a_link_that_it_finds(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, downloads = tmp_path / "mine", tmp_path / "downloads"
    mine.mkdir()
    link = downloads / VERBS[verb]
    link.parent.mkdir(parents=True)
    link.symlink_to(mine)
    monkeypatch.chdir(downloads)
    result = CliRunner().invoke(app, verb.split())
    assert isinstance(result.exception, RunError), result.output
    assert VERBS[verb] in str(result.exception) and "symbolic link" in str(result.exception)
    assert not any(mine.iterdir())


def test_nor_does_a_run_that_is_called_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine" / "digits").mkdir(parents=True)
    (tmp_path / "mine" / "digits" / "run.json").write_text("{}")
    (tmp_path / "runs").symlink_to("mine")
    monkeypatch.chdir(tmp_path)
    for call in (build_recipe, find_subject):
        with pytest.raises(RunError, match="symbolic link"):
            call("digits")


def test_a_place_that_is_named_may_be_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_place(Path("runs/digits"), "--run-dir") == Path("runs/digits")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "digits").symlink_to(tmp_path)
    with pytest.raises(RunError) as error:
        default_place(Path("runs/digits"), "--run-dir")
    assert "--run-dir" in str(error.value.hint)


def test_a_place_of_somebody_else_is_not_gone_on_with_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    claim(Path("runs/digits"))
    Path("runs/digits/run.json").write_text('{"schema": 1, "bitwright": "0"}')
    assert default_place(Path("runs/digits"), "--run-dir") == Path("runs/digits")
    Path("runs/digits").rename("runs/sounds")  # moved, as if from an archive that has its mark
    for look in (find_subject, recipe_source):
        with pytest.raises(RunError, match="you have not made it") as error:
            look("sounds")
        assert "runs/sounds" in str(error.value.hint)
    claim(Path("runs/sounds"))  # as who names it and goes on with it
    assert recipe_source("sounds")[0] == Path("runs/sounds/recipe.yaml")


def test_the_recipe_of_that_name_is_not_touched_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder runs/digits that somebody else has made stands in nobody's way but in its own."""
    monkeypatch.chdir(tmp_path)
    Path("runs/digits").mkdir(parents=True)
    Path("runs/digits/run.json").write_text('{"schema": 1, "bitwright": "0"}')
    assert resolve("digits", tmp_path / "mine").run_dir == tmp_path / "mine"
    with pytest.raises(RunError, match="you have not made it"):
        resolve("digits")


def test_a_call_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    call = [sys.executable, "-c", "from bitwright.cli import main; main()", "bench", "nowhere"]
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(call, cwd=tmp_path, env=env, capture_output=True, check=False, timeout=60)
    assert done.returncode == 2
    assert not any(tmp_path.iterdir())


def test_a_mark_alone_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "cache"))
    place = tmp_path / "place"
    place.mkdir()
    for mark in ("", "0" * 32, "../x", "\0" * 32):
        (place / ".owner").write_text(mark)
        assert not is_claimed(place)
    (place / ".owner").unlink()
    (place / ".owner").symlink_to("/dev/zero")
    assert not is_claimed(place)


@pytest.mark.parametrize(
    "verb",
    [
        "search digits_cnn --budget 8kB",
        "bench runs/no",
        "formats compare digits_cnn",
        "study digits",
        "skynet search my-detector --target-ms 1",
    ],
)
def test_of_two_commands_that_compute_into_one_place_the_second_is_refused(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the current folder may have runs of the user's own
    with claimed(tmp_path / "out"):
        result = CliRunner().invoke(app, [*verb.split(), "--out", str(tmp_path / "out")])
    assert isinstance(result.exception, RunError), result.output
    assert "is about to be written" in str(result.exception)


def test_a_folder_that_cannot_be_made_is_an_error_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    too_long = tmp_path / "on-the-way" / ("x" * 300)
    for place in (tmp_path / "file" / "out", Path("/proc/none/out"), too_long):
        with pytest.raises(RunError, match="cannot be made"), kept_place(place):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
