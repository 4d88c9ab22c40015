# SPDX-License-Identifier: Apache-2.0
"""The command line without a build: help, lists, init, errors, JSON."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

import bitwright
from bitwright.base.errors import BitwrightError, ModelError, RunError, ToolError
from bitwright.base.tools.finder import ToolStatus
from bitwright.cli import entry as cli
from bitwright.pipeline.recipe import load_recipe

SOURCE = Path(bitwright.__file__).parents[1]


def call(*arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    code = "from bitwright.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from bitwright.cli.entry import run\n"
        "run(['--help'])\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'onnx', 'ortools'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.returncode == 0, done.stderr
    for verb in (
        "build",
        "train",
        "estimate",
        "doctor",
        "list",
        "init",
        "explain",
        "inspect",
        "diff",
    ):
        assert verb in done.stdout


@pytest.mark.parametrize(
    "kind",
    ["recipes", "formats", "models", "pretrained", "datasets", "policies", "targets"],
)
def test_lists_as_table_and_as_json(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["list", kind]) == 0
    table = capsys.readouterr().out
    assert cli.run(["list", kind, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows
    for row in rows:
        assert str(next(iter(row.values()))) in table


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--version"]) == 0
    assert capsys.readouterr().out == f"bitwright {bitwright.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["build", "nothing-there"], 2, "no recipe 'nothing-there'"),
        (["build", "digits", "--until", "tomorrow"], 2, "'tomorrow' is not one of"),
        (
            ["inspect", "resnet99"],
            2,
            "none of these: .onnx file, file of a model, model of the zoo",
        ),
        (["diff", "digits", "--bound", "-1"], 2, "--bound"),
        (["build"], 2, "Missing argument"),
        (["biuld"], 2, "No such command"),
        (["build", "digits", "--fast"], 2, "No such option"),
        (["list", "things"], 2, "'things' is not one of"),
        (["build", "digits", "--set", "seed"], 2, "expected KEY=VALUE"),
        (["build", "digits", "--set", "train.float.epohs=1"], 2, "did you mean 'epochs'"),
    ],
)
def test_wrong_calls_end_with_one_message(
    arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(arguments) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and said in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert cli.run([*arguments, "--json"]) == code
    error = json.loads(capsys.readouterr().out)["error"]
    assert said in f"{error['where']} {error['message']}"
    assert error["exit_code"] == code


def test_every_error_has_its_own_exit_code() -> None:
    kinds = BitwrightError.__subclasses__()
    codes = {kind.exit_code for kind in kinds}
    assert len(codes) == len(kinds) and not codes & {0, 1, cli.EXIT_BUG, cli.EXIT_INTERRUPTED}


def test_a_bug_is_told_without_a_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("bitwright.cli.listing.show_list", broken)
    assert cli.run(["list", "models"]) == cli.EXIT_BUG
    said = capsys.readouterr().err
    assert "ZeroDivisionError: division by zero" in said and "Traceback" not in said
    place = re.search(r"report it with (\S+)", said)
    assert place is not None
    path = Path(place[1])
    assert "Traceback" in path.read_text()
    path.unlink()


@pytest.mark.parametrize(
    ("number", "code"), [("EACCES", 8), ("ENOSPC", 8), ("ENOTDIR", 8), ("ENOENT", cli.EXIT_BUG)]
)
def test_a_folder_that_cannot_be_written_is_no_bug(
    number: str, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = getattr(errno, number)

    def refused(*_: Any) -> None:
        raise OSError(kind, os.strerror(kind), "results/x")

    monkeypatch.setattr("bitwright.cli.listing.show_list", refused)
    assert cli.run(["list", "models"]) == code
    said = " ".join(capsys.readouterr().err.split())
    place = re.search(r"report it with (\S+)", said)
    if place is not None:
        Path(place[1]).unlink()
    assert "results/x" in said and ("--out" in said) == (code == RunError.exit_code)


def test_a_full_disk_names_what_was_written_and_what_room_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "source.sv", None, "copy.sv")

    monkeypatch.setattr("bitwright.cli.listing.show_list", refused)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert cli.run(["list", "models"]) == RunError.exit_code
    said = capsys.readouterr().err.replace("\n", "")
    assert "copy.sv" in said and "source.sv" not in said
    assert re.search(r"\d+ MB in \S+ \(TMPDIR\)", " ".join(said.split()))


def test_a_reader_that_goes_away_is_no_error() -> None:
    code = "from bitwright.cli import main; main()"
    command = f"{sys.executable} -c '{code}' list models | true"
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert "Traceback" not in done.stderr and "error" not in done.stderr


def test_init_writes_a_recipe_that_is_valid_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["init", "my net.yaml", "--model", "net:make", "--images", "pictures"]
    assert cli.run(arguments) == 0
    recipe = load_recipe(tmp_path / "my net.yaml")
    assert (recipe.name, recipe.model.name) == ("my-net", "net:make")
    assert str(recipe.data.path) == str(tmp_path / "pictures")
    assert "#" in (tmp_path / "my net.yaml").read_text()
    capsys.readouterr()
    assert cli.run(arguments) == 8
    assert "exists already" in capsys.readouterr().err
    assert cli.run([*arguments, "--force"]) == 0
    assert cli.run(["init", "recipe.txt"]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "resnet2"], "did you mean resnet"),
        (["--model", "my net:make"], "is no module:function"),
        (["--images", "a.txt"], "neither a folder nor a zip file"),
        (["--data", "digit"], "no data set 'digit'"),
        (["--data", "my data:load"], "is no module:function"),
    ],
)
def test_init_refuses_what_no_recipe_can_name(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a")
    assert cli.run(["init", *arguments]) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "recipe.yaml").exists()


def test_init_says_what_is_not_there_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["init", "--model", "net:make", "--images", "pictures", "--force", "--json"]
    notes = []
    for make in (
        lambda: None,
        lambda: (tmp_path / "net.py").write_text("raise SystemExit('never imported here')"),
        (tmp_path / "pictures").mkdir,
        (tmp_path / "pictures" / "cat").mkdir,
    ):
        make()
        assert cli.run(arguments) == 0
        notes.append(json.loads(capsys.readouterr().out)["notes"])
    module, images, classes = "module net is not", "images pictures are not", "no folders yet"
    wanted = [[module, images], [images], [classes], []]
    for found, parts in zip(notes, wanted, strict=True):
        assert len(found) == len(parts)
        assert all(part in note for note, part in zip(found, parts, strict=True))


def test_init_takes_data_of_ones_own_and_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["init", "--model", "mlp", "--data", "wear:load", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert len(notes) == 1 and "the data's module wear is not there yet" in notes[0]
    own = load_recipe(tmp_path / "recipe.yaml")
    assert (own.data.name, own.data.path) == ("wear:load", None)
    assert "input" not in own.quant  # the levels of the data, whatever they are
    assert cli.run(["init", "named.yaml", "--model", "digits_cnn", "--data", "digits"]) == 0
    assert load_recipe(tmp_path / "named.yaml").data.name == "digits"


def test_every_key_that_init_comments_out_exists(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    assert cli.run(["init", str(path)]) == 0
    text = path.read_text()
    for old, new in (("  # grey", "  grey"), ("    # augmentation", "    augmentation")):
        assert old in text
        text = text.replace(old, new)
    for goal in ("target_fps", "fill", "budget"):
        line = next(line for line in text.splitlines() if line.startswith(f"  # {goal}:"))
        path.write_text(text.replace(line, line.replace("# ", "", 1)))
        load_recipe(path)
    rules = text.replace("  # rules:", "  rules:").replace("  #   - ", "    - ")
    path.write_text(rules)
    assert len(load_recipe(path).quant["rules"]) == 2
    assert yaml.safe_load(rules)


def test_doctor_names_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = ToolStatus("yosys", "synthesis", "pip install pyosys", False, "", "", "not found")
    there = ToolStatus("make", "simulation", "apt", True, "/usr/bin/make", "4.3", "")
    monkeypatch.setattr("bitwright.base.tools.finder.doctor", lambda: [missing, there])
    assert cli.run(["doctor"]) == ToolError.exit_code
    said = capsys.readouterr().out
    assert "MISSING" in said and "pip install pyosys" in said
    assert cli.run(["doctor", "--json"]) == ToolError.exit_code
    assert [row["works"] for row in json.loads(capsys.readouterr().out)] == [False, True]


def test_doctor_is_content_without_optional_tools(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spare = ToolStatus("icepack", "iCE40", "pip install it", False, "", "", "not found", True)
    monkeypatch.setattr("bitwright.base.tools.finder.doctor", lambda: [spare])
    assert cli.run(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "not there" in said and "pip install it" in said


def test_json_is_the_only_thing_on_standard_output() -> None:
    done = call("list", "targets", "--json")
    assert done.returncode == 0 and done.stderr == ""
    assert {row["name"] for row in json.loads(done.stdout)} >= {"ecp5-25k", "xc7z020"}


def test_an_interrupt_that_a_library_swallows_is_still_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pressed while a module was imported: that is left half done, and fails as something else."""

    def half_imported(*_: object, **__: object) -> None:
        with suppress(BaseException):
            signal.raise_signal(signal.SIGINT)
        raise ModelError("cannot be traced: module 'sympy' has no attribute 'printing'")

    monkeypatch.setattr("bitwright.cli.app.app", half_imported)
    assert cli.run(["list", "models"]) == cli.EXIT_INTERRUPTED
    assert "sympy" not in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
