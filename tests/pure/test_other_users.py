# SPDX-License-Identifier: Apache-2.0
"""Other users of the same machine: what lies in their folders, and in the cache where they may
write.
"""

from __future__ import annotations

import fcntl
import grp
import hashlib
import os
import stat
from pathlib import Path

import pytest

from bitwright.base.errors import DataError, RunError
from bitwright.base.locks import exclusive
from bitwright.base.ownership import TRUSTED_GROUPS, check_owner
from bitwright.base.places import claim, default_place, kept_place
from bitwright.base.source import _Kept
from bitwright.base.store import Store
from bitwright.cli.options import held_place
from bitwright.data.files import download
from bitwright.explore import sweep
from bitwright.jobs.job import Job
from bitwright.pipeline.designs.folder import alone_in


def _given_to_another(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests is root or not: the place is another user's, or he is."""
    if os.geteuid() == 0:
        os.chown(place, 54_321, -1)
        monkeypatch.delenv("SUDO_UID", raising=False)
    else:
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)


def test_of_another_users_file_neither_himself_nor_his_rights_come_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "program"
    file.write_text("one")
    _given_to_another(file, monkeypatch)
    file.chmod(0o6777)
    before = os.umask(0o022)
    try:
        store = Store(tmp_path / "store")
        entry = store.keep("kind", "key", None, {"program": file}, link=True)
        entry.bring(tmp_path / "out", link=True)
    finally:
        os.umask(before)
    for mine in (entry.folder / "program", tmp_path / "out" / "program"):
        assert mine.read_text() == "one" and not mine.samefile(file)
        assert stat.S_IMODE(mine.stat().st_mode) == 0o755


def test_a_folder_that_another_user_makes_behind_the_look_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As ``runs`` in a folder where everybody may write, while torch is loaded."""
    monkeypatch.chdir(tmp_path)
    place = default_place(Path("runs/digits"), "--run-dir")
    (tmp_path / "runs").mkdir()
    _given_to_another(tmp_path / "runs", monkeypatch)
    with pytest.raises(RunError, match="another user's"):
        claim(place)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))
    (tmp_path / "elsewhere").mkdir()
    place = default_place(Path("studies/one"), "--out")
    (tmp_path / "studies").symlink_to("elsewhere")
    with pytest.raises(RunError, match="symbolic link"):
        claim(place)
    assert not any((tmp_path / "elsewhere").iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_nothing_is_made_in_another_users_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "digits").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert default_place(Path("runs/digits"), "--run-dir") == Path("runs/digits")
    _given_to_another(tmp_path / "runs", monkeypatch)
    (tmp_path / "runs").chmod(0o755)
    with pytest.raises(RunError, match="another user's"):
        default_place(Path("runs/digits"), "--run-dir")
    with pytest.raises(RunError, match="another user's"), alone_in(tmp_path / "runs"):
        pass
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["digits"]
    assert not any((tmp_path / "runs" / "digits").iterdir())
    with pytest.raises(RunError, match="another user's"), held_place(tmp_path / "runs", "search"):
        pass
    with pytest.raises(RunError, match="another user's"), sweep._held(tmp_path / "runs"):
        pass
    with pytest.raises(RunError, match="another user's"):
        Job("one", "m:f", {}, tmp_path / "runs" / "one").prepare(1)
    assert not (tmp_path / "runs" / "one").exists()
    monkeypatch.setenv("SUDO_UID", "54321")  # sudo, in a folder of who called it
    with alone_in(tmp_path / "runs"):
        pass
    monkeypatch.delenv("SUDO_UID")
    monkeypatch.chdir(tmp_path / "runs")  # as in a container: all that lies there is his
    with alone_in(tmp_path / "runs"):
        pass
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").chmod(0o2775)
    group = grp.getgrall()[-1]  # such as `users`, which all accounts may be in
    os.chown(tmp_path / "runs", 54_321, group.gr_gid)
    monkeypatch.setattr(os, "getgroups", lambda: [group.gr_gid])
    for named in ("", "none_such"):
        monkeypatch.setenv(TRUSTED_GROUPS, named)
        with pytest.raises(RunError, match="another user's"), alone_in(tmp_path / "runs"):
            pass
    monkeypatch.setenv(TRUSTED_GROUPS, f"none_such,{group.gr_name}")
    with alone_in(tmp_path / "runs"):
        pass
    monkeypatch.setattr(os, "getgroups", list)  # a name alone does not make a member
    if group.gr_gid != os.getegid():
        with pytest.raises(RunError, match="another user's"), alone_in(tmp_path / "runs"):
            pass


def test_a_place_is_looked_at_from_a_folder_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with alone_in(tmp_path):
        pass
    monkeypatch.chdir(tmp_path)


def test_a_named_place_is_there_from_the_beginning(tmp_path: Path) -> None:
    """Nobody can put a link there while it is computed what will be written."""
    with held_place(tmp_path / "a" / "out", "search") as place:
        assert place.is_dir()
        (place / "found").write_text("")
    assert (place / "found").is_file()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")  # yet
    with pytest.raises(RunError, match="leads to no folder"), held_place(tmp_path / "link", "s"):
        pass
    with pytest.raises(RunError, match="leads to no folder"), sweep._held(tmp_path / "link"):
        pass
    with pytest.raises(ZeroDivisionError), held_place(tmp_path / "other" / "out", "search"):
        _ = 1 / 0
    assert not (tmp_path / "other").exists()


def test_a_place_that_comes_and_goes_is_a_folder_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user made and removed a file there until nobody looked, and then a link to a folder
    of the victim's: its files were overwritten.
    """
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a file"), kept_place(tmp_path / "file"):
        pass
    place, mkdir, calls = tmp_path / "out", Path.mkdir, 0

    def there_and_gone(self: Path, *given: object, **named: object) -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise FileExistsError
        mkdir(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", there_and_gone)
    with kept_place(place):
        assert place.is_dir() and calls == 3
    assert not place.exists()
    calls = -1000
    with pytest.raises(RunError, match="all the time"), kept_place(place):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give links away")
def test_a_link_of_another_user_is_not_followed_to_ones_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He may let it lead elsewhere when it has been looked at."""
    (tmp_path / "own").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "own")
    with alone_in(tmp_path / "link"):
        pass
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SUDO_UID", raising=False)
    os.chown(tmp_path / "link", 54_321, -1, follow_symlinks=False)
    for place in (tmp_path / "link", Path("link")):
        with pytest.raises(RunError, match="another user's"), alone_in(place):
            pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
def test_a_folder_is_judged_by_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """His folder at the first look, his link to a folder of the victim's at the last one: 1628 of
    88 385 passed while he exchanged them.
    """
    (tmp_path / "own").mkdir()
    place = tmp_path / "there"
    place.mkdir()
    os.chown(place, 54_321, -1)
    monkeypatch.delenv("SUDO_UID", raising=False)
    look = Path.lstat

    def exchanged(self: Path) -> os.stat_result:
        found = look(self)
        if self == place and not stat.S_ISLNK(found.st_mode):
            place.rmdir()
            place.symlink_to(tmp_path / "own")
        return found

    monkeypatch.setattr(Path, "lstat", exchanged)
    with pytest.raises(RunError, match="another user's"):
        check_owner(place)
    assert stat.S_ISLNK(look(place).st_mode)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders away")
@pytest.mark.parametrize("aim", [".", "..", "../his", "../his/."])
def test_a_way_that_ends_by_a_link_to_where_it_is_is_looked_at(
    aim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    his = tmp_path / "his"
    (his / "below").mkdir(parents=True)
    for folder in (his, his / "below"):
        os.chown(folder, 54_321, -1)
    monkeypatch.delenv("SUDO_UID", raising=False)
    link = (his / "below" if aim == ".." else his) / "link"
    link.symlink_to(aim)
    for place in (link, his / "below" / ".."):
        with pytest.raises(RunError, match="another user's"):
            check_owner(place)


def test_why_no_folder_can_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for place, words in (
        (tmp_path / "dangling" / "out", "dangling is no folder"),
        (Path("/dev/null"), "is a file"),
        (tmp_path / "file" / "out", "file is no folder"),
        (tmp_path / "file" / "a" / "out", "Not a directory"),
    ):
        (tmp_path / "file").touch()
        with pytest.raises((DataError, RunError), match=words), kept_place(place):
            pass


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o600), (0o002, 0o660), (0o077, 0o600)])
def test_who_may_not_write_a_lock_may_not_hold_it(mask: int, mode: int, tmp_path: Path) -> None:
    """Whoever may read a file may lock it: other users stopped a run by its lock."""
    made, old = tmp_path / "a", tmp_path / "b"
    before = os.umask(mask)
    try:
        old.write_text("")  # as it was made before
        for lock in (made, old):
            with exclusive(lock):
                assert lock.stat().st_mode & 0o777 == mode
            with exclusive(lock):  # again
                pass
    finally:
        os.umask(before)


def test_what_a_lock_says_of_its_holder_is_short(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    for content in (b"\xff\xfe\x1b[2J" * 100, b"x" * (1 << 24)):
        lock.write_bytes(content)
        with lock.open() as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(RunError, match="is in use by") as error, exclusive(lock):
                pass
        assert len(error.value.message) < 250 and "\x1b" not in error.value.message


def test_what_others_say_of_sources_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path))
    code = tmp_path / "a.py"
    code.write_text("import json\n")
    first = _Kept()
    honest = first.of(code)
    first.keep()
    (kept,) = (tmp_path / "code").iterdir()
    kept.write_text(kept.read_text().replace("json", "jsin"))
    assert _Kept().of(code) != honest  # one's own is believed
    kept.chmod(0o666)
    assert _Kept().of(code) == honest
    kept.chmod(0o644)
    kept.parent.chmod(0o777)
    assert _Kept().of(code) == honest
    kept.parent.chmod(0o755)
    kept.unlink()
    os.mkfifo(kept)  # nobody waits for it
    assert _Kept().of(code) == honest


def test_a_kept_download_that_others_could_put_there_is_checked(tmp_path: Path) -> None:
    kept = tmp_path / "shared" / "images.gz"
    kept.parent.mkdir()
    kept.write_bytes(b"pictures")
    digest = hashlib.sha256(b"pictures").hexdigest()
    assert download([], kept, "0" * 64) == kept  # one's own was checked when it came
    kept.parent.chmod(0o777)
    assert download([], kept, digest) == kept
    with pytest.raises(DataError, match="others may have put it there"):
        download([], kept, "0" * 64)
