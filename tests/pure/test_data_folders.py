# SPDX-License-Identifier: Apache-2.0
"""A user's own images in class folders: layouts, sizes, the cache, and broken files."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bitwright.base.errors import DataError
from bitwright.data import folders, load_dataset


def png(value: int, size: tuple[int, int] = (6, 5), mode: str = "L") -> bytes:
    """An image of (width, height) ``size`` filled with one value."""
    buffer = io.BytesIO()
    colour = value if mode == "L" else (value, 2 * value, 255 - value)
    Image.new(mode, size, colour).save(buffer, "PNG")
    return buffer.getvalue()


def make(root: Path, counts: dict[str, int], *, mode: str = "L") -> Path:
    for number, (name, count) in enumerate(counts.items()):
        folder = root / name
        folder.mkdir(parents=True)
        for index in range(count):
            (folder / f"{index:04}.png").write_bytes(png(10 * number + index, mode=mode))
    return root


def load(path: Path, **options: object):
    return load_dataset({"name": "folder", "path": path, **options})


def test_class_folders_become_classes_in_sorted_order(tmp_path: Path) -> None:
    splits = load(make(tmp_path / "pets", {"dog": 10, "cat": 10}))
    assert splits.classes == ("cat", "dog")
    assert splits.name == "pets"
    assert splits.image_shape == (5, 6, 1)
    assert [len(p) for p in (splits.train, splits.validation, splits.test)] == [14, 2, 4]
    for part in (splits.train, splits.validation, splits.test):
        for sample in part:  # dogs are images 0 to 9 by value, cats 10 to 19
            assert sample.label == int(sample.image[0, 0, 0] < 10)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_given_splits_are_kept_in_folders_and_zip_files(
    tmp_path: Path, wrapped: bool, packed: bool
) -> None:
    root = tmp_path / "set"
    make(root / "inside" if wrapped else root,
         {"train/a": 5, "train/b": 5, "test/a": 2, "test/b": 3})  # fmt: skip
    (root / ".DS_Store").write_bytes(b"x")
    (root / "notes.txt").write_text("not an image")
    path = root
    if packed:
        path = Path(shutil.make_archive(str(tmp_path / "set"), "zip", root))
    splits = load(path)
    assert splits.classes == ("a", "b")
    found = {(sample.label, int(sample.image[0, 0, 0])) for sample in splits.test}
    assert found == {(0, 20), (0, 21), (1, 30), (1, 31), (1, 32)}
    assert sorted(splits.test.indices) == [10, 11, 12, 13, 14]
    assert len(splits.train) + len(splits.validation) == 10


def test_three_given_splits_are_kept_as_they_are(tmp_path: Path) -> None:
    make(tmp_path, {f"{split}/{name}": 2 for split in ("train", "val", "test") for name in "ab"})
    splits = load(tmp_path)
    assert [len(p) for p in (splits.train, splits.validation, splits.test)] == [4, 4, 4]
    indices = np.concatenate([splits.train.indices, splits.validation.indices, splits.test.indices])
    assert sorted(indices.tolist()) == list(range(12))


def test_the_first_images_of_a_split_show_every_class(tmp_path: Path) -> None:
    """A simulation of the first few images must not see the first class alone."""
    splits = load(
        make(tmp_path, {f"{part}/{name}": 20 for part in ("train", "test") for name in "abc"})
    )
    assert set(splits.test.labels[:12]) == {0, 1, 2}
    again = load(tmp_path)
    assert np.array_equal(splits.test.indices, again.test.indices)
    for sample in splits.test:  # mixed, and each image still with its own label and index
        assert sample.label == (sample.index - 60) // 20


@pytest.mark.parametrize("parts", [[""], ["train", "test"], ["train", "validation", "test"]])
def test_the_order_of_the_images_never_changes(tmp_path: Path, parts: list[str]) -> None:
    """What was trained is trained again from the same seeds: each split in an order of its own."""
    for part in parts:
        make(tmp_path / part, {"cat": 10, "dog": 10})
    splits = load(tmp_path)
    for part in (splits.train, splits.validation, splits.test):
        order = np.random.RandomState(0).permutation(len(part))
        assert (part.indices == np.sort(part.indices)[order]).all()


def test_images_are_resized_and_made_grey_or_colour(tmp_path: Path) -> None:
    make(tmp_path, {"a": 4, "b": 4}, mode="RGB")
    assert load(tmp_path).image_shape == (5, 6, 3)
    small = load(tmp_path, image_size=[3, 2], grey=True)
    assert small.image_shape == (3, 2, 1)
    colour = load(tmp_path, image_size=[8, 8], grey=False)
    assert colour.train.images[0, 4, 4].tolist() == load(tmp_path).train.images[0, 2, 2].tolist()


def test_sizes_that_differ_are_an_error_that_names_both(tmp_path: Path) -> None:
    make(tmp_path, {"a": 4, "b": 4})
    (tmp_path / "b" / "0001.png").write_bytes(png(1, size=(9, 9)))
    with pytest.raises(DataError, match=r"9 x 9 x 1.*a/0000\.png is 5 x 6") as caught:
        load(tmp_path)
    assert "b/0001.png" in str(caught.value) and "image_size" in str(caught.value)
    assert load(tmp_path, image_size=[5, 6]).image_shape == (5, 6, 1)


@pytest.mark.parametrize("content", [b"", b"not an image", png(3)[:40]])
def test_a_broken_image_is_named(tmp_path: Path, content: bytes) -> None:
    make(tmp_path, {"a": 4, "b": 4})
    (tmp_path / "b" / "0002.png").write_bytes(content)
    with pytest.raises(DataError, match=r"b/0002\.png.*cannot be decoded"):
        load(tmp_path)


def test_layouts_that_make_no_classifier_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such folder"):
        load(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no image"):
        load(tmp_path / "empty")
    with pytest.raises(DataError, match="only one class, 'a'"):
        load(make(tmp_path / "one", {"a": 3}))
    make(tmp_path / "hollow", {"a": 3, "b": 3})
    (tmp_path / "hollow" / "c").mkdir()
    with pytest.raises(DataError, match="class folder 'c' holds no image"):
        load(tmp_path / "hollow")
    with pytest.raises(DataError, match="class folder 'test/b' holds no image"):
        load(make(tmp_path / "uneven", {"train/a": 3, "train/b": 3, "test/a": 3}))
    make(tmp_path / "loose", {"a": 3, "b": 3})
    (tmp_path / "loose" / "stray.png").write_bytes(png(1))
    with pytest.raises(DataError, match=r"stray\.png lies in no class folder"):
        load(tmp_path / "loose")
    with pytest.raises(DataError, match="name the folders train and test"):
        load(make(tmp_path / "untested", {"train/a": 3, "train/b": 3, "val/a": 3, "val/b": 3}))


def test_a_broken_zip_file_is_named(tmp_path: Path) -> None:
    make(tmp_path / "set", {"a": 3, "b": 3})
    path = Path(shutil.make_archive(str(tmp_path / "set"), "zip", tmp_path / "set"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="no whole zip file"):
        load(path)
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        start = archive.infolist()[-1].header_offset
    broken = bytearray(whole)
    for offset in range(start + 60, start + 70):
        broken[offset] ^= 0xFF
    path.write_bytes(broken)
    with pytest.raises(DataError, match=r"set\.zip:"):
        load(path)


def test_decoded_images_are_cached_and_a_broken_cache_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    monkeypatch.setenv("BITWRIGHT_CACHE", str(cache))
    monkeypatch.setattr(folders, "_CACHE_FROM", 1)
    make(tmp_path / "set", {"a": 4, "b": 4})
    first = load(tmp_path / "set")
    (kept,) = (cache / "images").glob("*/*.npy")
    decoded: list[str] = []
    real_decode = folders.decode_image
    monkeypatch.setattr(folders, "decode_image", lambda *a: decoded.append("x") or real_decode(*a))
    assert np.array_equal(load(tmp_path / "set").train.images, first.train.images)
    assert not decoded
    kept.write_bytes(kept.read_bytes()[:-7])
    assert np.array_equal(load(tmp_path / "set").train.images, first.train.images)
    assert decoded
    (tmp_path / "set" / "a" / "0000.png").write_bytes(png(200, mode="L"))
    changed = load(tmp_path / "set")
    assert 200 in {int(v) for part in (changed.train, changed.validation, changed.test)
                   for v in part.images[:, 0, 0, 0]}  # fmt: skip


def test_an_image_of_the_same_size_and_time_is_decoded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "_CACHE_FROM", 1)
    root = make(tmp_path / "set", {"a": 10, "b": 10})
    before = load(root).digest()
    for file in root.glob("b/*.png"):  # as unpacking another archive does
        status, body = file.stat(), png(200)
        assert len(body) == status.st_size
        file.write_bytes(body)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert load(root).digest() != before


def test_a_zip_file_is_not_known_by_checksums_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four bytes behind a picture give it any CRC-32: a stranger's pictures came for the user's."""
    monkeypatch.setattr(folders, "_CACHE_FROM", 1)
    places, known = [], []
    for name, value in (("his", 7), ("mine", 9)):
        root = make(tmp_path / name, {"a": 4, "b": 4})
        for file in sorted(root.glob("*/*.png")):
            body = png(value)
            file.write_bytes(body + _ending(zlib.crc32(body), 0x12345678))
        places.append(Path(shutil.make_archive(str(root), "zip", root)))
        with zipfile.ZipFile(places[-1]) as archive:
            known.append([(e.filename, e.file_size, e.CRC) for e in archive.infolist()])
    assert known[0] == known[1]
    values = [{int(image) for image in load(place).train.images[:, 0, 0, 0]} for place in places]
    assert values == [{7}, {9}]


def _ending(crc: int, wanted: int) -> bytes:
    """Four bytes that give what has one checksum another one."""
    table = [zlib.crc32(bytes([k])) ^ zlib.crc32(b"\0") for k in range(256)]
    by_top = {entry >> 24: k for k, entry in enumerate(table)}
    register, found = wanted ^ 0xFFFFFFFF, []
    for _ in range(4):
        k = by_top[register >> 24]
        register = ((register ^ table[k]) << 8 | k) & 0xFFFFFFFF
        found.append(k)
    tail, state = [], crc ^ 0xFFFFFFFF
    for k in reversed(found):
        tail.append(k ^ (state & 0xFF))
        state = state >> 8 ^ table[k]
    return bytes(tail)


def test_a_cache_that_cannot_be_written_does_not_stop_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("BITWRIGHT_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(folders, "_CACHE_FROM", 1)
    assert len(load(make(tmp_path / "set", {"a": 4, "b": 4})).train) > 0


def test_relative_paths_start_at_the_data_folder(tmp_path: Path) -> None:
    make(tmp_path / "set", {"a": 4, "b": 4})
    splits = load_dataset({"name": "folder", "path": "set"}, tmp_path)
    assert splits.classes == ("a", "b")
    assert load_dataset("folder", tmp_path / "set").classes == ("a", "b")
