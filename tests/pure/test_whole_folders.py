# SPDX-License-Identifier: Apache-2.0
"""Folders that appear whole, where somebody else may write beside them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from bitwright.base import folders
from bitwright.base.errors import RunError
from bitwright.base.folders import make_folder, whole_folder
from bitwright.cli.entry import run
from bitwright.formats import parse_format
from bitwright.interop.artifact import export_artifact
from bitwright.ir import INTEGER, Graph, GraphBuilder, TensorType, save_graph

POOL = {"kernel": (2, 2), "stride": (2, 2)}


def graph() -> Graph:
    builder = GraphBuilder("g", INTEGER)
    edge = builder.input("x", TensorType((2, 2, 1), parse_format("uint4"), (1.0,), 0, 15))
    return builder.finish(builder.add("max_pool", (edge,), attrs=POOL))


def test_what_is_run_lies_where_nobody_else_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay was run from a folder beside the artefact: who owns what that lies in put a
    program of his there, in the first try.
    """
    ran, called = [], subprocess.run

    def noted(command: list[str], **options: object) -> object:
        ran.append([Path(part).resolve() for part in command if "replay" in part])
        return called(command, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", noted)
    report = export_artifact(graph(), tmp_path / "his" / "net")
    assert (tmp_path / "his" / "net" / "replay.py").is_file() and report.files["replay.py"]
    assert ran and not any(place.is_relative_to(tmp_path) for one in ran for place in one)


@pytest.mark.parametrize("when", ["before", "while"])
def test_a_link_in_its_place_is_not_followed(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, his = tmp_path / "mine", tmp_path / "his"
    for place in (mine, his):
        place.mkdir()
    (mine / "a").write_text("mine")
    opened = folders._opened

    def exchanged(name: str, folder: int | None = None) -> int:
        handle = opened(name, folder) if when == "while" else None
        if folder is None:
            os.rename(name, his / "moved")
            os.symlink(mine, name)
        return opened(name, folder) if handle is None else handle

    monkeypatch.setattr(folders, "_opened", exchanged)
    try:
        with whole_folder(his / "net") as made:
            (made / "a").write_text("new")
            (made / "b").write_text("new")
    except OSError:
        assert when == "before"
    assert [entry.name for entry in mine.iterdir()] == ["a"]
    assert (mine / "a").read_text() == "mine"


def test_the_old_folder_stays_until_the_new_one_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "net"
    with whole_folder(place) as made:
        (made / "sub" / "deep").mkdir(parents=True)
        (made / "sub" / "deep" / "a").write_bytes(b"1")
    for nameless in (Path("."), place / "..", Path("/")):
        with pytest.raises(RunError, match="somebody may stand"), whole_folder(nameless):
            pass
    with pytest.raises(ZeroDivisionError), whole_folder(place):
        1 / 0  # noqa: B018
    with monkeypatch.context() as patch:
        rename = Path.rename

        def refused(self: Path, to: Path) -> Path:
            if Path(to) == place and not self.name.endswith(".old"):
                raise PermissionError("no")
            return rename(self, to)

        patch.setattr(Path, "rename", refused)
        with pytest.raises(PermissionError), whole_folder(place) as made:
            (made / "b").write_bytes(b"2")
    with monkeypatch.context() as patch:

        def interrupted(self: Path, to: Path) -> Path:
            rename(self, to)
            if str(to).endswith(".old"):
                raise KeyboardInterrupt
            return to

        patch.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt), whole_folder(place) as made:
            (made / "b").write_bytes(b"2")
    assert (place / "sub" / "deep" / "a").read_bytes() == b"1"
    assert [entry.name for entry in tmp_path.iterdir()] == ["net"]
    with monkeypatch.context() as patch:

        def taken(self: Path, to: Path) -> Path:
            rename(self, to)
            if str(to).endswith(".old"):
                (place / "his").mkdir(parents=True)
            return to

        patch.setattr(Path, "rename", taken)
        with pytest.raises(RunError, match="is there now") as error, whole_folder(place) as made:
            (made / "b").write_bytes(b"2")
    (kept,) = tmp_path.glob(".net.*.old")  # what was there is lost in no case
    assert (kept / "sub" / "deep" / "a").read_bytes() == b"1" and str(kept) in str(error.value)
    (place / "his").rmdir()
    place.rmdir()
    kept.rename(place)
    with whole_folder(place) as made:
        (made / "b").write_bytes(b"2")
    assert [entry.name for entry in tmp_path.iterdir()] == ["net"]
    assert [entry.name for entry in place.iterdir()] == ["b"]


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="no /proc here")
def test_where_no_folder_can_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was told as a bug of ours."""
    with pytest.raises(OSError, match="no folder can be made here"):
        make_folder(Path("/proc/self/x"))
    save_graph(graph(), tmp_path / "g.bwg")
    asked = ["export", str(tmp_path / "g.bwg"), "--format", "artifact", "--out", "/proc/self/x"]
    for kind, told in (("artifact", "no folder can be made"), ("qonnx", "no file can be made")):
        asked[3] = kind
        assert run(asked) == RunError.exit_code
        said = capsys.readouterr().err
        assert told in said and "/proc/self" in said and "bug" not in said
