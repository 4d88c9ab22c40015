# SPDX-License-Identifier: Apache-2.0
"""The store: what comes out is what went in, whole or not at all, and made once."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path

import pytest

from bitwright.base import store as store_module
from bitwright.base.store import LEFT, Entry, Store, content_key


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("one")
    return path


def test_it_gives_back_what_it_got(tmp_path: Path, file: Path) -> None:
    store = Store(tmp_path / "store")
    assert store.find("kind", "key") is None
    store.keep("kind", "key", {"seconds": 2.5}, {"deep/a.txt": file})
    entry = store.find("kind", "key")
    assert entry is not None and entry.value == {"seconds": 2.5}
    entry.bring(tmp_path / "out")
    assert (tmp_path / "out" / "deep" / "a.txt").read_text() == "one"
    assert store.find("other", "key") is None and store.find("kind", "other") is None


@pytest.mark.parametrize("link", [False, True])
def test_links_share_room_and_copies_do_not(tmp_path: Path, file: Path, link: bool) -> None:
    store = Store(tmp_path / "store")
    entry = store.keep("kind", "key", None, {"a.txt": file}, link=link)
    entry.bring(tmp_path / "out", link=link)
    assert (tmp_path / "out" / "a.txt").samefile(file) == link


@pytest.mark.parametrize("harm", ["file", "missing", "index", "value", "no index"])
def test_a_damaged_entry_is_dropped(tmp_path: Path, file: Path, harm: str) -> None:
    store = Store(tmp_path / "store")
    folder = store.keep("kind", "key", "value", {"a.txt": file}).folder
    index = folder / "entry.json"
    match harm:
        case "file":
            (folder / "a.txt").write_text("two")
        case "missing":
            (folder / "a.txt").unlink()
        case "index":
            index.write_text(index.read_text()[:30])
        case "value":
            index.write_text(index.read_text().replace('"value": "value"', '"value": "lies"'))
        case "no index":
            index.unlink()
    assert store.find("kind", "key") is None
    assert not folder.exists()
    store.keep("kind", "key", "value", {"a.txt": file})
    assert store.find("kind", "key") is not None


OUTSIDE = ["../../../outside", "/ABSOLUTE", "link", "linked/file", "./own", "deep//own", "pipe", ""]


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_entry_names_no_file_but_its_own(tmp_path: Path, file: Path, name: str) -> None:
    """Whoever gives an experiment away writes the index of its store, checksums included."""
    outside = tmp_path / "outside"
    outside.write_text("one")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "file").write_text("one")
    store = Store(tmp_path / "store")
    folder = store.keep("kind", "key", None, {"own": file, "deep/own": file}).folder
    (folder / "link").symlink_to(outside)
    (folder / "linked").symlink_to(tmp_path / "others")
    os.mkfifo(folder / "pipe")
    name = name.replace("/ABSOLUTE", str(outside))
    index = folder / "entry.json"
    fields = json.loads(index.read_text())
    fields["content"]["files"][name] = fields["content"]["files"]["own"]
    index.write_text(json.dumps({**fields, "sha256": content_key(fields["content"])}))
    with pytest.raises((ValueError, OSError)):
        Entry(folder, (name,), None).bring(tmp_path / "x" / "y" / "z")
    assert store.find("kind", "key") is None
    assert outside.read_text() == "one" and (tmp_path / "others" / "file").exists()


@pytest.mark.parametrize("link", [False, True])
def test_what_a_link_leads_to_is_not_overwritten(tmp_path: Path, file: Path, link: bool) -> None:
    entry = Store(tmp_path / "store").keep("kind", "key", None, {"a.txt": file})
    (tmp_path / "of worth").write_text("worth")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "a.txt").symlink_to(tmp_path / "of worth")
    entry.bring(tmp_path / "out", link=link)
    assert (tmp_path / "out" / "a.txt").read_text() == "one"
    assert (tmp_path / "of worth").read_text() == "worth"


def test_one_makes_what_two_want(tmp_path: Path) -> None:
    store, calls, waited = Store(tmp_path), [], threading.Event()

    def make(work: Path) -> str:
        calls.append(work)
        assert waited.wait(20)
        (work / "a.txt").write_text("one")
        return "value"

    def ask() -> None:
        found.append(store.made("kind", "key", make, lambda owner: waited.set()))

    found: list[object] = []
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(calls) == 1 and len(found) == 2 and found[0] == found[1]
    assert sorted(path.name for path in (tmp_path / "kind").iterdir()) == [".locks", "key"]
    assert not list((tmp_path / "kind" / ".locks").iterdir())


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def make(work: Path) -> None:
        (work / "a.txt").write_text("half")
        raise ValueError("half way")

    store = Store(tmp_path)
    with pytest.raises(ValueError, match="half way"):
        store.made("kind", "key", make)
    assert [path.name for path in (tmp_path / "kind").iterdir()] == [".locks"]


def test_those_used_longest_ago_make_room(tmp_path: Path, file: Path) -> None:
    file.write_bytes(bytes(1000))
    store = Store(tmp_path / "store", limit=4000)
    for number in range(3):
        folder = store.keep("kind", str(number), None, {"a": file}).folder
        os.utime(folder / "entry.json", (time.time() - 100 + number,) * 2)
    assert store.find("kind", "0") is not None  # used now
    store.keep("kind", "3", None, {"a": file})
    assert [store.find("kind", str(n)) is not None for n in range(4)] == [True, False, True, True]
    left = [store.folder("kind", name) for name in (".new-x", f"{LEFT}x")]
    for folder in left:
        folder.mkdir()
        os.utime(folder, (0, 0))
    store.keep("kind", "4", None, {"a": file})
    assert not any(folder.exists() for folder in left)


def test_a_place_that_cannot_be_written(tmp_path: Path, file: Path) -> None:
    store = Store(file)
    assert store.find("kind", "key") is None
    assert not store.offer("kind", "key", "value")
    with pytest.raises(OSError, match="Not a directory"):
        store.keep("kind", "key", "value")


def test_without_a_cache_that_can_be_written_work_is_done_all_the_same(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BITWRIGHT_CACHE", str(file / "cache"))  # below a file

    def make(work: Path) -> str:
        (work / "a").write_text("made")
        return "value"

    entry = Store().made("kind", "key", make)
    assert (entry.value, (entry.folder / "a").read_text()) == ("value", "made")
    assert Store().made("kind", "key", make).folder == entry.folder
    assert [record.message for record in caplog.records] == [
        f"{file / 'cache'} cannot be written (Not a directory): nothing is kept for later; "
        "BITWRIGHT_CACHE names another folder"
    ]


def test_the_default_is_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path))
    assert Store().keep("kind", "key", 1).folder == tmp_path / "kind" / "key"


def test_a_key_tells_its_parts_apart() -> None:
    parts = [("ab", "c"), ("a", "bc"), ("ab",), ("ab", ""), (b"ab",), (["a", "b"],), (1,), ("1",)]
    assert len({content_key(*key) for key in parts}) == len(parts)
    assert content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})


@pytest.mark.parametrize("before", ["nothing", "damaged"])
def test_what_another_process_puts_there_meanwhile_is_not_dropped(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    store, other = Store(tmp_path), []
    look = store_module._identity if before == "nothing" else store_module._whole
    if before == "damaged":
        (store.keep("kind", "key", 1, {"a": file}).folder / "a").unlink()

    def late(folder: Path) -> object:
        found = look(folder)
        if not other:
            store_module._remove(folder)
            other.append(store.keep("kind", "key", 1, {"a": file}))
        return found

    monkeypatch.setattr(store_module, look.__name__, late)
    found = store.find("kind", "key")
    assert (other[0].folder / "a").is_file()
    assert found == (None if before == "nothing" else other[0])
    assert store.find("kind", "key") == other[0]


def test_of_two_that_keep_one_key_the_first_stays(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other, place = Store(tmp_path), [], Store._place

    def late(self: Store, new: Path, folder: Path) -> None:
        if not other:
            other.append(None)
            other[0] = store.keep("kind", "key", 1, {"a": file})
            other.append(store_module._identity(folder))
        place(self, new, folder)

    monkeypatch.setattr(Store, "_place", late)
    store.keep("kind", "key", 1, {"a": file})
    assert other[1] == store_module._identity(other[0].folder)
    assert sorted(path.name for path in (tmp_path / "kind").iterdir()) == ["key"]
