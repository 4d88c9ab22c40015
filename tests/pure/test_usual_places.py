# SPDX-License-Identifier: Apache-2.0
"""Where results go that nobody has named a place for: into the current folder, nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from bitwright.base.errors import RunError
from bitwright.base.folders import usual_place
from bitwright.cli.entry import run
from bitwright.cli.options import resolve
from bitwright.pipeline.api import build_recipe
from bitwright.pipeline.run_files import check_own

LINK = "symbolic link"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a stranger's folder, with a folder beside it that is none of his."""
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "elsewhere"


@pytest.mark.parametrize("link", ["runs", "runs/digits"])
def test_a_run_is_written_behind_no_link(link: str, elsewhere: Path) -> None:
    """``runs -> ../runs`` in an archive: ``bitwright build digits`` went on in the user's own."""
    Path(link).parent.mkdir(exist_ok=True)
    Path(link).symlink_to(elsewhere)
    job = resolve("digits")
    with pytest.raises(RunError, match=LINK):
        job.to_write()
    with pytest.raises(RunError, match=LINK):
        build_recipe("digits")
    assert run(["train", "digits"]) == RunError.exit_code
    assert not list(elsewhere.iterdir())
    assert resolve("digits", Path("runs/digits")).to_write() == Path("runs/digits")


def test_a_link_that_is_named_is_meant(elsewhere: Path) -> None:
    Path("runs").symlink_to(elsewhere)
    named = Path("runs/digits")
    assert resolve("digits", named).to_write() == named
    assert usual_place(Path("else/digits"), "--run-dir") == Path("else/digits")


@pytest.mark.parametrize(
    "words",
    [
        "bench nothing",
        "search nothing --budget 1%",
        "formats compare nothing",
        "formats matrix",
        "sweeps sweep digits bits=4,8",
        "sweeps/digits sweep digits bits=4,8",
        "studies study digits",
    ],
)
def test_no_results_are_written_behind_a_link(
    words: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *rest = words.split()
    place = {"formats": {"matrix": "faces"}.get(rest[0], "compare")}.get(first, first)
    Path(place).parent.mkdir(exist_ok=True)
    Path(place).symlink_to(elsewhere)
    verb = rest if first in ("sweeps", "sweeps/digits", "studies") else [first, *rest]
    assert run(verb) == RunError.exit_code
    assert LINK in capsys.readouterr().err and not list(elsewhere.iterdir())


def test_what_is_run_of_a_run_by_its_name_is_the_users(tmp_path: Path) -> None:
    """``bitwright diff digits`` ran the RTL that lay in ``runs/digits``, whoever had made it."""
    check_own(tmp_path / "06-map")  # there is none: others say so
    (tmp_path / "06-map" / "rtl").mkdir(parents=True)
    with pytest.raises(RunError, match="you have not made it"):
        check_own(tmp_path / "06-map")
