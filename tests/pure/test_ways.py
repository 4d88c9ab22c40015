# SPDX-License-Identifier: Apache-2.0
"""The way to where something is written: another user could let it lead elsewhere meanwhile."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bitwright.base import folders
from bitwright.base.claims import claimed
from bitwright.base.errors import RunError
from bitwright.base.folders import whole_folder
from bitwright.base.ownership import TRUSTED_GROUPS, TRUSTED_USERS, check_way
from bitwright.base.places import kept_place
from bitwright.base.tools.python import python
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
    monkeypatch.delenv(TRUSTED_USERS, raising=False)


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


OPEN = 0o1777


@root_only
@pytest.mark.parametrize("kind", sorted(set(WRITERS) - {"designs"}))
def test_a_folder_that_is_not_there_yet_is_made_by_nobody_else(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where everybody may make folders, he made the missing one, with a link in it, while an export
    ran: a file of the victim's was replaced, without `--force`.
    """
    everybodys = tmp_path / "everybodys"
    everybodys.mkdir()
    everybodys.chmod(OPEN)
    with WRITERS[kind](everybodys / "new" / "sub" / "x"):
        assert (everybodys / "new" / "sub").stat().st_uid == os.geteuid()
    make_folder, his = folders.make_folder, everybodys / "his"

    def too_late(folder: Path, **named: bool) -> None:
        if not his.exists():
            given(his)
        make_folder(folder, **named)

    monkeypatch.setattr(folders, "make_folder", too_late)
    with pytest.raises(RunError, match="his is another user's"), WRITERS[kind](his / "sub" / "x"):
        pass


def test_folders_that_are_made_for_nothing_go_again(tmp_path: Path) -> None:
    for kind in ("exports", "results"):
        with WRITERS[kind](tmp_path / "a" / "b" / "x"):
            assert (tmp_path / "a" / "b").is_dir()
        assert not (tmp_path / "a").exists()


def test_no_way_leads_back_from_where_nothing_is(tmp_path: Path) -> None:
    """`missing/../his` was made of a folder that nobody had looked at."""
    (tmp_path / "mine").mkdir()
    with pytest.raises(RunError, match="behind it leads nowhere"):
        check_way(tmp_path / "missing" / ".." / "mine" / "x")
    check_way(tmp_path / "mine" / ".." / "mine" / "x")


def test_folders_that_are_everybodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a mounted disk or a runner of tests all folders are: who stands in one may go on."""
    before = os.umask(0)
    try:
        with kept_place(Path("runs") / "new"):  # what we make is nobody else's
            assert not Path("runs").stat().st_mode & stat.S_IWOTH
            (Path("runs") / "new" / "x").touch()
        (tmp_path / "open" / "a").mkdir(parents=True)
    finally:
        os.umask(before)
    check_way(Path("runs") / "new" / "y")
    with pytest.raises(RunError, match="everybody may write into") as error:
        check_way(tmp_path / "open" / "a" / "x")
    assert "chmod o-w" in str(error.value)
    monkeypatch.chdir(tmp_path / "open")
    check_way(Path("a") / "x")
    check_way(tmp_path / "open" / "a" / "x")


@root_only
def test_users_that_one_trusts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root in a container, and a folder of the one outside that is mounted in it."""
    his = given(tmp_path / "his")
    with pytest.raises(RunError, match="BITWRIGHT_TRUSTED_USERS=USER"):
        check_way(his / "new")
    for name in ("54321", "root, 54321"):
        monkeypatch.setenv(TRUSTED_USERS, name)
        with kept_place(his / "new"):
            pass
    monkeypatch.setenv(TRUSTED_USERS, "54322,no_such_user")
    with pytest.raises(RunError, match="another user's"):
        check_way(his / "new")


@pytest.mark.parametrize("place", ["a" * 300, "/proc/1/root/no", "/dev/null"])
def test_a_cache_that_cannot_be_looked_at_ends_no_command(place: str) -> None:
    env = {**os.environ, "BITWRIGHT_CACHE": place}
    done = subprocess.run(
        [*python("-m", "bitwright"), "--version"],
        env=env, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "Traceback" not in done.stderr


@root_only
def test_a_space_of_users_without_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container that an ordinary user starts, ``/`` and ``/tmp`` are nobody's."""
    nobody = int(Path("/proc/sys/kernel/overflowuid").read_text())
    (tmp_path / "nobodys").mkdir()
    os.chown(tmp_path / "nobodys", nobody, -1)
    with pytest.raises(RunError, match="another user's"):
        check_way(tmp_path / "nobodys" / "x")
    read = Path.read_text

    def mapped(self: Path, encoding: str | None = None) -> str:
        return "1000 0 1\n" if self.name == "uid_map" else read(self, encoding)

    monkeypatch.setattr(Path, "read_text", mapped)
    check_way(tmp_path / "nobodys" / "x")
