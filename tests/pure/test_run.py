# SPDX-License-Identifier: Apache-2.0
"""The run directory: resumed, never half-written, never shared, never of another version."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bitwright.base.errors import RunError
from bitwright.pipeline import run_files
from bitwright.pipeline.context import StepContext
from bitwright.pipeline.run import Step, open_run

FAKE = Path(__file__).with_name("fake_pipeline.py")
_spec = importlib.util.spec_from_file_location("fake_pipeline", FAKE)
assert _spec is not None and _spec.loader is not None
fake = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake)

POINTS = ("middle", "hashed", "recorded", "published", "renaming")


def log_of(tmp_path: Path) -> list[str]:
    path = tmp_path / "log.txt"
    lines = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def run_all(tmp_path: Path, **changes: Any) -> tuple[str, list[str]]:
    """The result of the pipeline, and which steps did work for it."""
    with fake.opened(tmp_path / "run", facts={**fake.FACTS, **changes}) as run:
        return fake.result(run), log_of(tmp_path)


def start(folder: Path, fault: str = "") -> subprocess.CompletedProcess[str]:
    source = Path(run_files.__file__).parents[2]
    return subprocess.run(
        [sys.executable, str(FAKE), str(folder), fault],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(source)},
    )


def test_second_call_does_nothing(tmp_path: Path) -> None:
    assert run_all(tmp_path) == ("sum=15", ["first", "second", "third"])
    assert run_all(tmp_path) == ("sum=15", [])


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ({"start": 4}, ["first", "second", "third"]),
        ({"factor": 6}, ["second", "third"]),
        ({"title": "x"}, ["third"]),
    ],
)
def test_a_change_reruns_only_what_depends_on_it(
    tmp_path: Path, change: dict[str, Any], again: list[str]
) -> None:
    run_all(tmp_path)
    assert run_all(tmp_path, **change)[1] == again


@pytest.mark.parametrize("step", fake.NAMES)
@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_nothing_finished_is_lost(tmp_path: Path, step: str, point: str) -> None:
    folder = tmp_path / "run"
    if point == "renaming":  # there must be an old result to move aside
        run_all(tmp_path, start=1, factor=1, title="old")
    killed = start(folder, f"{step}:{point}")
    assert killed.returncode == -9, killed.stderr
    before = log_of(tmp_path)
    assert before[-1] == step
    value, after = run_all(tmp_path)
    assert value == "sum=15"
    kept = step if point in ("recorded", "published", "renaming") else None
    done = [*before[:-1], *([kept] if kept else [])]
    names = [name.partition(":")[0] for name in after]
    assert names == [name for name in fake.NAMES if name not in done]
    assert not list(folder.glob(".work-*")) and not list(folder.glob(".old-*"))


def test_a_step_that_keeps_its_partial_work_resumes_from_it(tmp_path: Path) -> None:
    start(tmp_path / "run", "second:middle")
    log_of(tmp_path)
    assert run_all(tmp_path)[1] == ["second:resumed", "third"]


def test_partial_work_of_another_recipe_is_not_used(tmp_path: Path) -> None:
    start(tmp_path / "run", "second:middle")
    log_of(tmp_path)
    assert run_all(tmp_path, factor=7)[1] == ["second", "third"]


def assert_all_made_anew_with_other_numbers(tmp_path: Path) -> None:
    """On a machine that gives other numbers for the same key."""
    fake.FACTS["start"] = 9
    try:
        with fake.opened(tmp_path / "run", facts={**fake.FACTS, "start": 3}) as run:
            assert fake.result(run) == "sum=45"
    finally:
        fake.FACTS["start"] = 3
    assert log_of(tmp_path) == ["first", "second", "third"]


def test_partial_work_on_other_inputs_is_not_used(tmp_path: Path) -> None:
    start(tmp_path / "run", "second:middle")
    (tmp_path / "run" / "01-first" / "value.txt").unlink()
    log_of(tmp_path)
    assert_all_made_anew_with_other_numbers(tmp_path)


@pytest.mark.parametrize("harm", ["truncate", "flip", "remove", "record", "no-record"])
def test_a_damaged_artefact_is_noticed_and_made_again(tmp_path: Path, harm: str) -> None:
    run_all(tmp_path)
    folder = tmp_path / "run" / "01-first"
    target = folder / "more" / "data.bin"
    match harm:
        case "truncate":
            target.write_bytes(target.read_bytes()[:100])
        case "flip":
            target.write_bytes(bytes([target.read_bytes()[0] ^ 1]) + target.read_bytes()[1:])
        case "remove":
            target.unlink()
        case "record":
            text = (folder / "step.json").read_text()
            (folder / "step.json").write_text(text[: len(text) // 2])
        case "no-record":
            (folder / "step.json").unlink()
    value, again = run_all(tmp_path)
    assert value == "sum=15"
    assert again == ["first"]  # what it gives is the same as before: nothing else changes


def test_a_step_made_again_with_another_result_reruns_its_readers(tmp_path: Path) -> None:
    run_all(tmp_path)
    (tmp_path / "run" / "01-first" / "value.txt").unlink()
    assert_all_made_anew_with_other_numbers(tmp_path)


def test_two_processes_cannot_share_a_run(tmp_path: Path) -> None:
    with fake.opened(tmp_path / "run"):
        other = start(tmp_path / "run")
    assert other.returncode == 1
    assert f"is in use by process {os.getpid()}" in other.stderr


def test_the_lock_of_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    assert start(tmp_path / "run", "first:middle").returncode == -9
    assert "process" in (tmp_path / "run" / ".lock").read_text()
    assert run_all(tmp_path)[0] == "sum=15"


def test_another_schema_is_refused_with_advice(tmp_path: Path) -> None:
    run_all(tmp_path)
    header = tmp_path / "run" / "run.json"
    fields = json.loads(header.read_text())
    header.write_text(json.dumps({**fields, "schema": 99, "bitwright": "9.9"}))
    with pytest.raises(RunError, match=r"written by Bitwright 9\.9 \(run schema 99\)") as caught:
        run_all(tmp_path)
    assert "--run-dir" in str(caught.value.hint)
    assert json.loads(header.read_text())["schema"] == 99, "a foreign run must not be changed"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema"', '{"no": 1}', "\x00"])
def test_a_broken_header_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(text)
    with pytest.raises(RunError, match="cannot be read"):
        run_all(tmp_path)


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    with pytest.raises(RunError, match="not empty and is no run directory"):
        run_all(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="is a file"), fake.opened(tmp_path / "file"):
        pass


@pytest.mark.parametrize("step", fake.NAMES)
def test_a_full_disk_ends_with_a_clear_error_and_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    original = Path.write_text

    def write_text(self: Path, *args: Any, **kwargs: Any) -> int:
        if f"-{step}" in str(self):
            raise OSError(errno.ENOSPC, "No space left on device", str(self))
        return original(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write_text)
        with pytest.raises(RunError, match=f"disk is full .in step {step}") as caught:
            run_all(tmp_path)
    assert "free some space" in str(caught.value.hint)
    done = log_of(tmp_path)
    assert done[-1] == step
    value, again = run_all(tmp_path)
    assert value == "sum=15"
    assert [n.partition(":")[0] for n in again] == list(fake.NAMES[len(done) - 1 :])


def test_a_full_disk_while_the_record_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fsync(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run_all(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        with pytest.raises(RunError, match="disk is full"):
            run_all(tmp_path, title="other")
    assert run_all(tmp_path) == ("sum=15", []), "the old result must still be there"


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="cannot be written"), fake.opened(tmp_path / "file" / "run"):
        pass


def test_optional_inputs_count_once_they_are_there(tmp_path: Path) -> None:
    calls: list[list[str]] = []

    def write(context: StepContext) -> None:
        (context.folder / "x").write_text("x")

    def report(context: StepContext) -> None:
        calls.append(sorted(context.inputs))

    steps = (
        Step("a", (), (), write),
        Step("b", ("a",), (), write),
        Step("report", ("a",), (), report, uses=("b",)),
    )
    with open_run(tmp_path / "run", steps, {}, files={}, notes={}) as run:
        run.execute(["a", "report"])
        run.execute(["a", "report"])
        run.execute(["b"])
        run.execute(["report"])
        assert run.closure("report") == ["a", "report"]
    assert calls == [["a"], ["a", "b"]]
