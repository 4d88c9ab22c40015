# SPDX-License-Identifier: Apache-2.0
"""The key-value database of images: lists, parts, and broken files."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from bitwright.base.errors import DataError, RecipeError
from bitwright.cli.entry import run
from bitwright.data import image_database, load_dataset
from bitwright.data.decoding import Decoding
from bitwright.data.image_database import (
    TEST,
    TRAIN,
    Stored,
    build_database,
    load,
    parse_list,
    read_database,
    write_database,
)

HOW = Decoding((8, 8))


def pictures(root: Path, count: int = 7) -> str:
    from PIL import Image

    lines = []
    for number in range(count):
        name = f"my faces/{number}.png"
        (root / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), 10 * number, np.uint8)).save(root / name)
        lines.append(f"{name} {number % 3}")
    return "\n".join(lines)


def stored(key: str, value: int, side: int = 4) -> Stored:
    return Stored(key, np.full((side, side, 3), value, np.uint8), value)


def test_lists_become_parts_that_are_read(tmp_path: Path):
    entries = parse_list(pictures(tmp_path))
    path = tmp_path / "faces.db"
    assert build_database(path, {TRAIN: entries[:5], TEST: entries[5:]}, tmp_path, HOW) == 7
    parts = read_database(path)
    assert {part: found.images.shape for part, found in parts.items()} == {
        TEST: (2, 8, 8, 3),
        TRAIN: (5, 8, 8, 3),
    }
    assert parts[TRAIN].labels.tolist() == [0, 1, 2, 0, 1]
    last = parts[TEST].images[1]
    assert (parts[TEST].labels[1], last.min(), last.max()) == (0, 60, 60)


def test_a_part_that_is_missing(tmp_path: Path):
    path = tmp_path / "faces.db"
    write_database(path, [("VALID", stored("a", 1)), (TRAIN, stored("a", 1))])
    with pytest.raises(DataError, match=r"has no part 'TEST'(.|\n)*parts: TRAIN, VALID"):
        load(path, validation=0.1, seed=0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n\n", "names no picture"),
        ("a.png\n", "list:1: expected PATH LABEL"),
        ("a.png 1\nb.png -2\n", "list:2"),
        ("a.png 1\na.png 2\n", "named twice"),
        ("a.png 1048576", "label 1048576 is beyond 1048575"),
        ("a.png " + "9" * 5000, "label 99999999999999999999 is beyond"),
    ],
)
def test_bad_lists(text: str, message: str):
    with pytest.raises(DataError, match=message):
        parse_list(text)


@pytest.mark.parametrize("kind", ["above", "absolute", "link", "missing", "loop"])
def test_lists_name_pictures_inside_the_folder(kind: str, tmp_path: Path):
    root = tmp_path / "root"
    root.mkdir()
    entries = parse_list(pictures(root))
    secret = tmp_path / "secret.png"
    secret.write_bytes((root / entries[0][0]).read_bytes())
    names = {"above": "../secret.png", "absolute": str(secret), "missing": "../none.png"}
    if kind in ("link", "loop"):
        (root / "x.png").symlink_to(secret if kind == "link" else "x.png")
    lists = {TRAIN: [*entries, (names.get(kind, "x.png"), 0)]}
    with pytest.raises(DataError, match=r"1 pictures lie outside the folder: .*\n.*holds them all"):
        build_database(tmp_path / "x.db", lists, root, HOW)
    assert not (tmp_path / "x.db").exists()


def test_links_inside_the_folder_are_followed(tmp_path: Path):
    (tmp_path / "real").mkdir()
    (tmp_path / "root").symlink_to("real")
    name, label = parse_list(pictures(tmp_path / "root"))[0]
    (tmp_path / "root" / "x.png").symlink_to(name)
    lists = {TRAIN: [("x.png", label), (str(tmp_path / "root" / name), label)]}
    assert build_database(tmp_path / "x.db", lists, tmp_path / "root", HOW) == 2


def test_nothing_is_half_written(tmp_path: Path):
    entries = parse_list(pictures(tmp_path))
    path = tmp_path / "faces.db"
    path.write_bytes(b"the old one")
    (tmp_path / "my faces" / "3.png").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"3\.png: cannot be decoded"):
        build_database(path, {TRAIN: entries}, tmp_path, HOW)
    (tmp_path / "my faces" / "3.png").unlink()
    with pytest.raises(DataError, match=r"1 pictures are missing: my faces/3\.png"):
        build_database(path, {TRAIN: entries}, tmp_path, HOW)
    with pytest.raises(DataError, match="twice"):
        write_database(path, [(TRAIN, stored("a", 1)), (TRAIN, stored("a", 2))])
    with pytest.raises(DataError, match="no images"):
        write_database(path, [])
    assert path.read_bytes() == b"the old one"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["faces.db", "my faces"]
    with pytest.raises(DataError, match="cannot be written"):
        write_database(tmp_path / "none" / "faces.db", [(TRAIN, stored("a", 1))])


def test_broken_files(tmp_path: Path):
    path = tmp_path / "faces.db"
    write_database(path, [(TRAIN, stored(f"{n:03}", n)) for n in range(200)])
    whole = path.read_bytes()
    for content in (b"", b"no database at all", whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(DataError, match="no whole image database"):
            read_database(path)
    with pytest.raises(DataError, match="no such database"):
        read_database(tmp_path / "other.db")


def test_images_of_two_shapes_are_no_part(tmp_path: Path):
    path = tmp_path / "faces.db"
    write_database(path, [(TRAIN, stored("a", 1)), (TRAIN, stored("b", 2, side=5))])
    with pytest.raises(DataError, match=r"b is \(5, 5, 3\), the images of TRAIN before"):
        read_database(path)


def test_a_recipe_reads_what_the_command_line_builds(tmp_path: Path, capsys):
    lines = pictures(tmp_path, 12).splitlines()
    (tmp_path / "train.txt").write_text("\n".join(lines[:9]))
    (tmp_path / "test.txt").write_text("\n".join(lines[9:]))
    file = tmp_path / "my.db"
    lists = ["--train", str(tmp_path / "train.txt"), "--test", str(tmp_path / "test.txt")]
    options = [*lists, "--root", str(tmp_path), "--input-shape"]
    assert run(["database", str(file), *options, "8x8x1"]) == 0
    assert "wrote 12 images" in capsys.readouterr().out
    data = load_dataset({"name": "database", "path": file, "validation": 0.3})
    assert [len(part) for part in (data.train, data.validation, data.test)] == [6, 3, 3]
    assert data.image_shape == (8, 8, 1) and data.train.classes == ("0", "1", "2")
    assert sorted(data.test.images.max(axis=(1, 2, 3)).tolist()) == [90, 100, 110]
    with pytest.raises(RecipeError, match="needs a path"):
        load_dataset("database")
    with pytest.raises(DataError, match="no such database"):
        load_dataset({"name": "database", "path": tmp_path / "none.db"})
    assert (
        run(
            [
                "database",
                str(tmp_path / "new.db"),
                *options[:1],
                str(tmp_path / "none"),
                *options[2:],
                "8x8x1",
            ]
        )
        != 0
    )
    assert "cannot be read" in capsys.readouterr().err


def changed(path: Path, script: str) -> Path:
    """A database of ours after some SQL."""
    write_database(path, [(part, stored(key, 1)) for part in (TRAIN, TEST) for key in "abc"])
    with closing(sqlite3.connect(path)) as base:
        base.executescript(script)
    return path


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("label", "1000000000", "label of a is 1000000000, expected 0 .. 1048575"),
        ("label", "-1", "label of a is -1"),
        ("label", "'x'", "label of a is 'x'"),
        ("pixels", "'abcd'", "pixels are no bytes"),
        ("pixels", "5", "pixels are no bytes"),
        ("height", "'x'", r"a has the shape \['x', 4, 3\]"),
        ("height", "-4", r"a has the shape \[-4, 4, 3\]"),
        ("width", "x'00'", "a has the shape"),
        ("channels", "1.5", "a has the shape"),
        ("width", "4611686018427387904", "a has 48 pixels"),
        ("key", "x'ff'", "is no text"),
        ("part", "x'ff'", "is no text"),
        ("key", "CAST(x'ff' AS TEXT)", "no whole image database"),
    ],
)
def test_values_of_other_kinds(column: str, value: str, message: str, tmp_path: Path) -> None:
    script = f"UPDATE images SET {column} = {value} WHERE part = 'TRAIN' AND key = 'a'"
    with pytest.raises(DataError, match=message):
        load(changed(tmp_path / "x.db", script), validation=0.2, seed=0)


_ENDLESS = """CREATE VIEW images AS WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c)
SELECT 'TRAIN' part, x key, 0 label, 1 height, 1 width, 1 channels, zeroblob(1) pixels FROM c"""
_ZEROS = """CREATE TABLE images (part TEXT, key TEXT, label INTEGER, height INTEGER, width INTEGER,
channels INTEGER, pixels BLOB AS (zeroblob(height * width)));
INSERT INTO images VALUES ('TRAIN', 'a', 0, 30000, 30000, 1)"""


@pytest.mark.timeout(20)
@pytest.mark.parametrize("script", [_ENDLESS, _ZEROS, "CREATE TABLE images (a)", "SELECT 1"])
def test_another_table_is_none_of_images(script: str, tmp_path: Path) -> None:
    path = changed(tmp_path / "x.db", f"DROP TABLE images; {script}")
    with pytest.raises(DataError, match="has no table of images as this program writes it"):
        read_database(path)


def test_a_second_table_is_none_of_images(tmp_path: Path) -> None:
    """What is said of its rows may be computed when the file is checked."""
    script = "CREATE TABLE more (x CHECK (length(hex(zeroblob(30000 + x))) > 0))"
    path = changed(tmp_path / "x.db", script)
    with pytest.raises(DataError, match="as this program writes it, and nothing else"):
        read_database(path)


@pytest.mark.timeout(20)
def test_what_else_is_in_the_file_ends_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_database, "_STEPS", 10)
    monkeypatch.setattr(image_database, "_STEPS_A_BYTE", 0)
    path = tmp_path / "x.db"
    write_database(path, [(TRAIN, stored(f"{n:03}", n)) for n in range(200)])
    with pytest.raises(DataError, match="interrupted"):
        read_database(path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["x.db-journal", "x.db-wal"])
def test_what_lies_beside_the_file_is_not_opened(name: str, tmp_path: Path) -> None:
    path = changed(tmp_path / "x.db", "")
    os.mkfifo(tmp_path / name)
    assert read_database(path).keys() == {TRAIN, TEST}


def test_damaged_bytes_are_errors_of_the_file(tmp_path: Path) -> None:
    path = changed(tmp_path / "x.db", "")
    whole = path.read_bytes()
    for at in range(0, len(whole), 29):
        for value in (0, 255, whole[at] ^ 0x80):
            path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
            try:
                read_database(path)
            except DataError:
                pass
