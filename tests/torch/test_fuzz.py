# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile files: each is read or refused, soon, in little memory, and runs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.program import Program
from tests.torch import fuzz, hostile_files
from tests.torch.fuzz_readers import READERS, Reader

#: Hostile files that a reader takes, since they do nothing there: a record that cannot be read is
#: none, and a recipe's model is looked at when it is built.
HARMLESS = {"step/step.json", "recipe/command.yaml"}


def fuzzed(folder: Path, *arguments: object, seconds: float = 300) -> list[dict[str, Any]]:
    """What it said of each reader or file; nothing was found."""
    program = Program(Path(fuzz.__file__), (folder, *arguments), folder / "log", cwd=folder)
    assert program.wait(seconds) == 0, program.errors
    assert not (folder / "findings.jsonl").exists(), (folder / "findings.jsonl").read_text()
    assert not list(folder.rglob("HARMED"))
    return [json.loads(line) for line in program.output.splitlines()]


def test_damaged_files(tmp_path: Path) -> None:
    lines = fuzzed(tmp_path, 200, 0)
    assert len(lines) == len(READERS)


def test_what_no_reader_may_do_is_found(tmp_path: Path) -> None:
    """The watch itself: an error that is none of ours, and time."""

    def fail(_: Path) -> object:
        raise KeyError("x")

    def hang(_: Path) -> object:
        while True:
            pass

    (tmp_path / "a.txt").write_text("a")
    watch = fuzz.Watch(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuzz, "SECONDS", 0.2)
        for read in (fail, hang, Path.read_text):
            watch.read(
                Reader("r", lambda folder: folder, read), tmp_path / "a.txt", tmp_path / "a.txt"
            )
    assert (watch.found, watch.refused, watch.taken) == (2, 0, 1)
    said = (tmp_path / "findings.jsonl").read_text()
    assert "KeyError" in said and "TooLong" in said


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_a_hundred_thousand_damaged_files(seed: int, tmp_path: Path) -> None:
    fuzzed(tmp_path, 10_000, seed, seconds=590)


@pytest.mark.slow
def test_files_made_to_do_harm(tmp_path: Path) -> None:
    lines = fuzzed(tmp_path, "hostile")
    assert len(lines) == len(hostile_files.FILES)
    assert {line["of"] for line in lines if line["read"]} == HARMLESS
