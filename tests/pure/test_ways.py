# SPDX-License-Identifier: Apache-2.0
"""The way to where something is written: another user could let it lead elsewhere meanwhile."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitwright.base.claims import claimed
from bitwright.base.errors import RunError
from bitwright.base.folders import TRUSTED_GROUPS, check_way, whole_folder
from bitwright.base.places import kept_place
from bitwright.data import image_database
from bitwright.data.image_database import Stored, write_database
from bitwright.papers.bnn_soc import stream
from bitwright.papers.bnn_soc.stream import LABELS
from bitwright.pipeline.designs.folder import alone_in
from bitwright.pipeline.run_files import locked

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stand").mkdir()
    monkeypatch.chdir(tmp_path / "stand")
    monkeypatch.delenv("SUDO_UID", raising=False)
    monkeypatch.delenv(TRUSTED_GROUPS, raising=False)


def given(place: Path) -> Path:
    place.mkdir(parents=True)
    os.chown(place, 54_321, -1)
    return place


WRITERS: dict[str, Callable[[Path], AbstractContextManager[Any]]] = {
    "exports": claimed,
    "results": kept_place,
    "runs": locked,
    "designs": alone_in,
    "folders": whole_folder,
}


@root_only
@pytest.mark.parametrize("kind", WRITERS)
def test_another_users_folder_is_not_on_the_way(kind: str, tmp_path: Path) -> None:
    """He put a link in the place of his folder while an export ran: a folder of the victim's was
    replaced, where the link led to.
    """
    his = given(tmp_path / "his")
    (his / "x").mkdir()
    for place in (his / "new", his / "x" / "new", tmp_path / "stand" / ".." / "his" / "x" / "a"):
        with (
            pytest.raises(RunError, match="his is another user's"),
            WRITERS[kind](place),
        ):
            pass
        assert not os.path.lexists(place)
    (tmp_path / "link").symlink_to(tmp_path / "stand")
    os.chown(tmp_path / "link", 54_321, -1, follow_symlinks=False)
    with pytest.raises(RunError, match="link is another user's"):
        with WRITERS[kind](tmp_path / "link" / "new"):
            pass
    assert not any((tmp_path / "stand").iterdir())


@root_only
def test_whom_one_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    his = given(tmp_path / "his")
    with pytest.raises(RunError, match="his is another user's"):
        check_way(his / "new")
    check_way(his)  # what is made of the place itself is for `check_owner`
    monkeypatch.setenv("SUDO_UID", "54321")
    check_way(his / "new")
    monkeypatch.delenv("SUDO_UID")
    monkeypatch.chdir(his)
    check_way(Path("new"))
    check_way(his / "new")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match="his is another user's"):
        check_way(Path("his/new"))


def test_folders_that_everybody_may_write_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybodys = tmp_path / "everybodys"
    everybodys.mkdir()
    everybodys.chmod(0o777)
    with pytest.raises(RunError, match="everybody may write into"):
        check_way(everybodys / "new" / "a")
    monkeypatch.chdir(everybodys)  # one stands there already
    check_way(Path("new/a"))
    monkeypatch.chdir(tmp_path)
    everybodys.chmod(0o1777)  # as /tmp: everybody can only move what is his own
    check_way(everybodys / "new" / "a")
    everybodys.chmod(0o775)
    check_way(everybodys / "new" / "a")
    check_way(Path("/proc/self/x"))
    (tmp_path / "dangling").symlink_to("nowhere")
    check_way(tmp_path / "dangling" / "a")


def test_what_comes_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    """Without --force: what another program had put there in the last seconds was gone."""
    place = tmp_path / "net"
    with pytest.raises(RunError, match="somebody has just made it"), whole_folder(place) as made:
        (made / "a").write_text("new")
        place.mkdir()
        (place / "results.txt").write_text("precious")
    assert (place / "results.txt").read_text() == "precious"
    for other in (tmp_path / "empty", tmp_path / "none"):
        with whole_folder(other) as made:
            (made / "a").write_text("new")
            other.mkdir()
        assert (other / "a").read_text() == "new"
    assert {entry.name for entry in tmp_path.iterdir()} == {"net", "empty", "none", "stand"}


def test_a_database_is_made_where_nobody_else_puts_a_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal beside it let SQLite remove any file that the journal named."""
    opened, connect = [], sqlite3.connect

    def noted(name: Any, *args: Any, **kwargs: Any) -> sqlite3.Connection:
        opened.append(Path(name))
        return connect(name, *args, **kwargs)

    monkeypatch.setattr(image_database.sqlite3, "connect", noted)
    image = Stored("a", np.zeros((4, 4, 1), np.uint8), 1)
    assert write_database(tmp_path / "x.db", [("TRAIN", image)]) == 1
    (made,) = opened
    assert made.parent != tmp_path and not made.parent.exists()
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_file()] == ["x.db"]


@pytest.mark.parametrize("kind", ["link", "hard link", "another file", "gone"])
def test_rows_go_into_the_table_that_was_written(kind: str, tmp_path: Path) -> None:
    """Who owned the queue put a link there: rows went into any file of the victim's."""
    queue, notes = tmp_path / "queue", tmp_path / "notes.txt"
    queue.mkdir()
    notes.write_text("file,label,guess\n")
    table = stream._Table(queue)
    table.note("a.png", "1")
    table.note("b.png", "2")
    assert (queue / LABELS).read_text() == "file,label,guess\na.png,,1\nb.png,,2\n"
    (queue / LABELS).unlink()
    if kind == "link":
        (queue / LABELS).symlink_to(notes)
    elif kind == "hard link":
        os.link(notes, queue / LABELS)
    elif kind == "another file":
        (queue / LABELS).write_text("file,label,guess\nc.png,3,3\n")
    table._seen = table._state()  # the moment behind the look at what it has written
    if kind == "link":
        with pytest.raises(RunError, match="link that leads out"):
            table.note("d.png", "4")
    else:
        table.note("d.png", "4")
        assert "d.png,,4" in (queue / LABELS).read_text()
    assert notes.read_text() == "file,label,guess\n"
