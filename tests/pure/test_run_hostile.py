# SPDX-License-Identifier: Apache-2.0
"""Run directories of strangers: nothing beside them is touched, no private path lies in them."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import Mock

import pytest

from bitwright.base import made, noted
from bitwright.base.errors import RecipeError, RunError
from bitwright.base.files import sha256_file
from bitwright.base.progress import no_progress
from bitwright.cli.entry import EXIT_BUG, run
from bitwright.cli.options import recipe_source
from bitwright.pipeline import board
from bitwright.pipeline.board_subject import BoardSubject
from bitwright.pipeline.context import StepContext
from bitwright.pipeline.recipe import RECIPES, load_recipe
from bitwright.pipeline.run import Outcome, Step, open_run
from bitwright.pipeline.run_files import (
    SCHEMA,
    StepRecord,
    folder_of_recipe,
    hash_files,
    is_whole,
    named_from,
    recipe_folder,
    recover,
)
from bitwright.pipeline.steps.map import read_hardware
from bitwright.pipeline.steps.order import make_steps
from bitwright.pipeline.steps.results_hardware import MapResult
from bitwright.pipeline.steps.workspace import Workspace

RECORD = {
    "schema": SCHEMA, "name": "x", "key": "k", "inputs": {}, "artefacts": {}, "seconds": 1.0,
}  # fmt: skip


@pytest.mark.parametrize("name", [".work-", ".work-.", ".work-precious", ".old-", ".old-.work-x"])
def test_only_folders_of_steps_are_put_in_their_place(name: str, tmp_path: Path) -> None:
    run, beside = tmp_path / "run", tmp_path / ".old-run"
    for folder in (run / name, beside):
        folder.mkdir(parents=True)
        (folder / "step.json").write_text(json.dumps(RECORD))
    recover(run)
    assert (beside / "step.json").is_file() and (run / name / "step.json").is_file()


def test_a_step_that_is_whole_is(tmp_path: Path) -> None:
    (tmp_path / ".work-01-train").mkdir()
    (tmp_path / ".work-01-train" / "step.json").write_text(json.dumps(RECORD))
    recover(tmp_path)
    assert (tmp_path / "01-train" / "step.json").is_file()


@pytest.mark.parametrize("way", ["..", "absolute", "link"])
def test_artefacts_of_a_record_lie_in_its_folder(way: str, tmp_path: Path) -> None:
    """Whether a step is made again would tell what is in a file elsewhere."""
    folder, secret = tmp_path / "01-train", tmp_path / "secret"
    folder.mkdir()
    secret.write_text("guess")
    (folder / "own").write_text("guess")
    link = folder / "link"
    link.symlink_to(secret)
    name = {"..": "../secret", "absolute": str(secret), "link": "link"}[way]
    found = 5, sha256_file(secret)
    own, other = (StepRecord("x", "k", {}, {at: found}, 1.0) for at in ("own", name))
    assert is_whole(folder, own) and not is_whole(folder, other)


def test_the_recipes_folder_is_named_from_the_run(tmp_path: Path) -> None:
    run = tmp_path / "project" / "runs" / "x"
    run.mkdir(parents=True)
    assert folder_of_recipe(run, {"recipe_dir": "../.."}) == tmp_path / "project"
    assert folder_of_recipe(run, {"recipe_dir": "/home/someone"}) == Path("/home/someone")
    assert folder_of_recipe(run, {}) == run == recipe_folder(run)
    assert named_from(run, tmp_path / "project") == "../.."
    assert named_from(run, RECIPES) == "<bitwright>/recipes"
    assert folder_of_recipe(run, {"recipe_dir": named_from(run, RECIPES)}) == RECIPES


def _run(folder: Path, reuse: Path | None = None) -> Outcome:
    """The one step of a run, which leaves RTL."""

    def step(context: StepContext) -> None:
        (context.folder / "rtl").mkdir()
        (context.folder / "rtl" / "top.sv").write_text("module top; endmodule")

    steps = (Step("map", (), ("hardware",), step, is_run=True),)
    facts = {"hardware": "any"}
    with open_run(folder, steps, facts, files={}, notes={}, reuse=reuse) as opened:
        (outcome,) = opened.execute(["map"])
    return outcome


@pytest.mark.parametrize("reused", [False, True])
def test_what_is_run_counts_only_if_the_user_made_it(
    reused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``runs/digits`` in a stranger's folder, gone on with by ``bitwright build digits``, or its
    step reused: the RTL that lay there was simulated, and RTL may call the system.
    """
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "stranger"))
    step = tmp_path / "a" / "01-map"
    _run(tmp_path / "a")
    (step / "rtl" / "top.sv").write_text('module top; initial $system("x"); endmodule')
    record = json.loads((step / "step.json").read_text())
    record["artefacts"] = hash_files(step)
    (step / "step.json").write_text(json.dumps(record))
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "user"))
    monkeypatch.setattr(noted, "_HERE", set())
    folder, reuse = (tmp_path / "b", tmp_path) if reused else (tmp_path / "a", None)
    assert not _run(folder, reuse).was_done
    assert "$system" not in (folder / "01-map" / "rtl" / "top.sv").read_text()
    assert _run(folder, reuse).was_done  # now it is the user's
    found = _run(tmp_path / "c", tmp_path)  # and others of the user's take it over
    assert found.taken_from == (None if reused else folder)  # the stranger's stands in its place
    assert "$system" not in (tmp_path / "c" / "01-map" / "rtl" / "top.sv").read_text()


def test_the_steps_whose_results_are_run() -> None:
    steps = make_steps(Workspace(load_recipe("digits")))
    assert [step.name for step in steps if step.is_run] == ["map", "report"]


def test_what_cannot_be_removed_is_no_part_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders without a permission to write: what lay in them counted as made by the user."""
    strange = tmp_path / "a" / ".work-01-map" / "devices"
    strange.mkdir(parents=True)
    monkeypatch.setattr("bitwright.pipeline.run.remove_folder", lambda _: None)
    with pytest.raises(RunError, match="cannot be written"):
        _run(tmp_path / "a")
    assert not (tmp_path / "a" / "01-map").exists()


def test_the_engine_of_a_board_is_made_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``bitwright board digits --simulated`` ran RTL that lay beside the bitstream of the run."""
    implemented = tmp_path / "implement"
    (implemented / "rtl").mkdir(parents=True)
    design = tmp_path / "map" / "rtl"
    subject = BoardSubject(tmp_path, design, None, implemented=implemented)
    monkeypatch.setattr(board, "own_rtl", lambda *_: design)
    monkeypatch.setattr(board, "program_of", lambda _: Mock())
    monkeypatch.setattr(board, "emit_engine_board", lambda _, folder: folder.mkdir())
    with ExitStack() as stack:
        rtl, _ = board._simulated_rtl(subject, stack, no_progress)
        assert rtl.is_dir() and tmp_path not in rtl.parents


def test_a_result_names_no_code(tmp_path: Path) -> None:
    """``bitwright diff digits`` imported what the result in ``runs/digits`` called its blocks."""
    work = Workspace(load_recipe("digits"))
    made = MapResult.model_construct(own_blocks=("evil:block",))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("bitwright.pipeline.steps.map.load_result", lambda *_: made)
        with pytest.raises(RunError, match="evil:block, which the recipe does not name"):
            read_hardware(work, tmp_path)


@pytest.mark.parametrize("what", ["run", "file"])
def test_a_name_of_ours_is_nothing_that_lies_here(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``bitwright build digits`` took a folder or a file called so in the current folder, which may
    be a stranger's: its recipe names code.
    """
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "digits"
    if what == "run":
        recipe.mkdir()
        (recipe / "run.json").write_text(json.dumps({"schema": SCHEMA}))
        recipe /= "recipe.yaml"
    recipe.write_text("name: another\ndata: digits\nmodel: digits_cnn\n")
    with pytest.raises(RecipeError, match="something in the current folder"):
        load_recipe(recipe_source("digits")[0])
    assert load_recipe(recipe_source("./digits")[0]).name == "another"


def test_what_is_made_twice_is_ones_own_both_times(tmp_path: Path) -> None:
    """Of the same sizes, with other times in it; not what nobody has made, of the same sizes."""
    folders = [tmp_path / name for name in ("first", "second", "strange")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        (folder / "step.json").write_text(f"seconds {number}")
    made.remember(folders[0], "key")
    made.remember(folders[1], "key")
    assert [made.is_own(folder, "key") for folder in folders] == [True, True, False]
    assert not made.is_own(folders[0], "other key")


@pytest.mark.parametrize("ending", [".bwq", ".pt", ".bwg", ".caffemodel", ".BWE", ".json", ".gz"])
def test_what_is_data_by_its_name_is_no_recipe(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``bitwright inspect net.bwq`` took the text in it for a recipe, and ran what that names."""
    monkeypatch.chdir(tmp_path.parent)
    file, harm = tmp_path / f"net{ending}", tmp_path / "harm"
    (tmp_path / "evil.py").write_text(f"open({str(harm)!r}, 'w').close()\n")
    file.write_text("name: net\ndata: digits\nmodel: evil:make\n")
    assert run(["inspect", str(file)]) not in (0, EXIT_BUG)
    with pytest.raises(RecipeError, match=r"is no recipe: those end in \.yaml or \.yml"):
        load_recipe(file)
    assert not harm.exists()
