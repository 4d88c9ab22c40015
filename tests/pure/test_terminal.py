# SPDX-License-Identifier: Apache-2.0
"""What strangers' names may do to a terminal: nothing, whichever way they come there."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from bitwright.base.progress import no_progress
from bitwright.cli import app, entry
from bitwright.cli.output import Output, _Lines, printable

NAME = "x\x1b[31mRED\x07\x9b\udcff.png"
SHOWN = r"x\x1b[31mRED\x07\x9b\udcff.png"


def test_what_is_logged_or_warned_of_is_printable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []

    def verb(**_: object) -> int:
        logging.getLogger("bitwright.data").warning("%s: left out:\n\t%s", "folder", NAME)
        logging.getLogger("some.package").error(NAME)
        said.append(warnings.formatwarning(NAME, UserWarning, "file.py", 1))
        return 0

    before = logging.getLogRecordFactory(), warnings.formatwarning
    monkeypatch.setattr(app, "app", verb)
    assert entry.run([]) == 0
    assert caplog.messages == [f"folder: left out:\n\t{SHOWN}", SHOWN]
    assert SHOWN in said[0] and said[0].replace("\n", "").isprintable()
    assert (logging.getLogRecordFactory(), warnings.formatwarning) == before


def test_halves_of_surrogate_pairs_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert printable(NAME) == SHOWN and printable("é ü 漢\n\t") == "é ü 漢\n\t"
    output = Output(json_wanted=True)
    output.value({"where": NAME})
    assert json.loads(capsys.readouterr().out) == {"where": NAME}
    output.error("DataError", NAME, NAME, NAME, 4)
    captured = capsys.readouterr()
    assert captured.err.count(SHOWN) == 3 and json.loads(captured.out)["error"]["where"] == NAME


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict"])
@pytest.mark.parametrize("options", [["--json"], []])
def test_a_strict_terminal_gets_the_message(
    encoding: str, options: list[str], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", "from bitwright.cli import main; main()"]
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2] / "src")])
    done = subprocess.run(
        [*command, "import", b"\xff\xc3\xa9.onnx", "--out", "o", *options],
        env={**os.environ, "PYTHONPATH": path, "PYTHONIOENCODING": encoding},
        cwd=tmp_path,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 4 and done.stderr.startswith(rb"error: \udcff"), done.stderr
    if options:
        where = json.loads(done.stdout)["error"]["where"]
        assert os.fsencode(where) == b"\xff\xc3\xa9.onnx"


def test_progress_in_plain_lines_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for each thing that lasts, and now and then how far it is; nothing beside JSON."""
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    lines = _Lines()
    for second in range(24):
        clock[0] += 1
        if second in (0, 20):
            lines("over at once", 0, 0)
        lines("training\x1b[2J" if second < 20 else "mapping (3 s)", second, 30)
        lines.tell(clock[0])
    wanted = ["training\\x1b[2J", "training\\x1b[2J: 11 of 30", "mapping"]
    assert capsys.readouterr().err.splitlines() == wanted
    with Output(json_wanted=True).progress() as progress:
        progress("training", 0, 6)
        assert progress is no_progress


def test_lines_come_while_something_lasts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bitwright.cli.output._LASTS", 0.01)
    with Output(json_wanted=False).progress() as progress:
        progress("compiling", 0, 0)
        time.sleep(0.5)
    assert capsys.readouterr().err == "compiling\n"


def test_names_that_are_not_ascii_in_a_locale_of_ascii(tmp_path: Path) -> None:
    """It starts again in UTF-8 mode: what it writes and reads is what it is everywhere else."""
    path = os.pathsep.join([str(Path(__file__).resolve().parents[2] / "src")])
    plain = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C", "LANG": "C"}

    def run(*arguments: str | bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            [sys.executable, "-m", "bitwright", *arguments],
            env={**os.environ, "PYTHONPATH": path, **plain},
            cwd=tmp_path,
            capture_output=True,
            timeout=60,
            check=False,
        )

    done = run("init", "réseau.yaml".encode(), "--images", "bilder-ü".encode())
    assert done.returncode == 0 and "wrote réseau.yaml".encode() in done.stdout, done.stderr
    assert json.dumps("bilder-ü") in (tmp_path / "réseau.yaml").read_text(encoding="utf-8")
    done = run("explain", "réseau.yaml".encode())
    assert done.returncode == 4 and "bilder-ü: no such folder".encode() in done.stderr
    done = run("init", b"\xff.yaml")
    assert done.returncode == 8 and b"rename the file" in done.stderr


def test_a_bug_is_kept_whatever_its_words_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def verb(**_: object) -> int:
        raise KeyError(NAME)

    monkeypatch.setattr(app, "app", verb)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert entry.run([]) == entry.EXIT_BUG
    (kept,) = tmp_path.glob("bitwright-bug-*.txt")
    assert "KeyError" in kept.read_text() and str(kept) in capsys.readouterr().err
