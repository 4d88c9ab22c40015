# SPDX-License-Identifier: Apache-2.0
"""Faces: cutting pictures, the ORL archive, pairs files and protocols."""

from __future__ import annotations

import io
import math
import time
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.face_protocols import synthetic_protocol
from tests.memory_peak import peak

from bitwright.base import archives, bounded
from bitwright.base.errors import DataError, RecipeError
from bitwright.papers.faces.images import (
    CHIP,
    FacePreprocessing,
    cut_face,
    face_set,
    load_orl,
    orl_landmarks,
    read_landmarks,
)
from bitwright.papers.faces.pairs import Pair, make_pairs, parse_pairs, resolve_pairs
from bitwright.papers.faces.protocols import (
    OrlSplit,
    lfw_protocol,
    orl_protocol,
)

KEYS = [(f"p{person}", number) for person in range(12) for number in range(1, 6)]


def ramp(height: int = 60, width: int = 40) -> np.ndarray:
    """A picture whose value says where it was taken from."""
    y, x = np.mgrid[:height, :width]
    return (2 * x + y).astype(np.uint8)


def test_landmarks_land_on_their_places():
    """A dot at every landmark is found at the chip's place, whatever the picture's angle."""
    how = FacePreprocessing(size=100)
    for angle in (0.0, 25.0, -40.0):
        turn = complex(math.cos(math.radians(angle)), math.sin(math.radians(angle)))
        marks = []
        for x, y in CHIP:
            place = complex(x - 0.5, y - 0.5) * 60 * turn + complex(100, 90)
            marks.append((place.real, place.imag))
        for mark, place in zip(marks, CHIP, strict=True):
            picture = np.zeros((200, 200), np.uint8)
            x, y = (round(value - 0.5) for value in mark)
            picture[y - 1 : y + 2, x - 1 : x + 2] = 255
            cut = cut_face(picture, how, tuple(marks))[:, :, 0].astype(float)
            rows, columns = np.mgrid[:100, :100] + 0.5
            centre = (columns * cut).sum() / cut.sum(), (rows * cut).sum() / cut.sum()
            assert np.hypot(centre[0] - 100 * place[0], centre[1] - 100 * place[1]) < 1.5


def test_crop_takes_the_part_asked_for():
    how = FacePreprocessing(size=20, align=False, crop=(0.25, 0.25, 0.75, 0.75))
    cut = cut_face(ramp(40, 40), how)
    assert cut.shape == (20, 20, 3)
    assert np.abs(cut[:, :, 0].astype(int) - ramp(40, 40)[10:30, 10:30]).max() <= 1


def test_shrinking_averages():
    checks = np.indices((64, 64)).sum(0) % 2 * 255
    cut = cut_face(checks.astype(np.uint8), FacePreprocessing(size=16, align=False))
    assert np.abs(cut[2:-2, 2:-2].astype(int) - 127).max() <= 3


def test_channel_orders():
    picture = np.zeros((10, 10, 3), np.uint8)
    picture[..., 0], picture[..., 1] = 200, 100
    make = {c: cut_face(picture, FacePreprocessing(size=5, channels=c)) for c in ("rgb", "bgr")}
    assert make["rgb"][2, 2].tolist() == [200, 100, 0]
    assert make["bgr"][2, 2].tolist() == [0, 100, 200]
    grey = cut_face(picture, FacePreprocessing(size=5, channels="grey"))[2, 2]
    assert len(set(grey.tolist())) == 1


@pytest.mark.parametrize(
    "settings",
    [{"crop": (0.5, 0, 0.5, 1)}, {"crop": (0, 0, 1, 1.5)}, {"size": 0}, {"channels": "hsv"}],
)
def test_impossible_preprocessing(settings: dict[str, object]):
    with pytest.raises(RecipeError, match="faces"):
        FacePreprocessing(**settings)  # type: ignore[arg-type]


def test_landmarks_in_one_place():
    with pytest.raises(DataError, match="one place"):
        cut_face(ramp(), FacePreprocessing(), ((5, 5),) * 3)
    with pytest.raises(DataError, match="finite"):
        cut_face(ramp(), FacePreprocessing(), ((5, 5), (8, math.nan), (6, 9)))


def test_landmark_file_of_lfw_and_its_errors():
    marks = read_landmarks("image,a,b,c,d,e,f\nAnn_B/Ann_B_0012.jpg,1,2,3,4,5,6\n", "m.csv")
    assert marks == {("Ann_B", 12): ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))}
    with pytest.raises(DataError, match=r"m\.csv:2"):
        read_landmarks("heading\nAnn/Ann_0001.jpg,1,2\n", "m.csv")


def test_orl_landmarks_are_faces():
    marks = orl_landmarks()
    assert len(marks) == 400
    for left, right, nose in marks.values():
        assert 20 < right[0] - left[0] < 50
        assert nose[1] > max(left[1], right[1])


def orl_archive(path: Path, people: range) -> Path:
    from PIL import Image

    with zipfile.ZipFile(path, "w") as archive:
        for person in people:
            for number in range(1, 11):
                buffer = io.BytesIO()
                picture = np.full((112, 92), 5 * person + number, np.uint8)
                Image.fromarray(picture).save(buffer, "PPM")
                archive.writestr(f"s{person}/{number}.pgm", buffer.getvalue())
    return path


def test_orl_archive_and_what_can_be_wrong_with_it(tmp_path: Path):
    faces = load_orl(orl_archive(tmp_path / "a.zip", range(1, 4)), people=(3, 1))
    assert faces.people == ("s3", "s1")
    assert faces.data.images.shape == (20, 80, 80, 3)
    assert faces.keys[0] == ("s3", 1)
    assert int(faces.data.images[0].max()) == 16  # person 3, picture 1
    with pytest.raises(DataError, match=r"10 pictures are missing: s4/1\.pgm"):
        load_orl(tmp_path / "a.zip", people=(1, 4))
    whole = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "b.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="no whole zip"):
        load_orl(tmp_path / "b.zip")
    with pytest.raises(DataError, match="no such archive"):
        load_orl(tmp_path)


def test_faces_of_some_people():
    faces = synthetic_protocol(people=4, each=2, size=8).faces
    two = faces.of(("p3", "p1"))
    assert two.data.labels.tolist() == [1, 1, 0, 0]
    assert (two.data.images[2] == faces.data.images[faces.index()["p3", 1]]).all()
    with pytest.raises(DataError, match="no faces of p9"):
        faces.of(("p9",))


def test_a_name_twice():
    with pytest.raises(DataError, match="name of its own"):
        face_set("x", [np.zeros((2, 2, 3), np.uint8)] * 2, [("a", 1)] * 2, FacePreprocessing())


# Pairs -----------------------------------------------------------------------------------------


def format_pairs(folds: tuple[tuple[Pair, ...], ...]) -> str:
    """The text of a pairs file with as many matched as other pairs a fold."""
    count = len(folds[0]) // 2
    lines = [f"{len(folds)}\t{count}" if len(folds) > 1 else str(count)]
    for fold in folds:
        for (name, number), (other, its) in ((p.first, p.second) for p in fold):
            second = [] if name == other else [other]
            lines.append("\t".join(map(str, [name, number, *second, its])))
    return "\n".join(lines) + "\n"


@given(st.integers(1, 6), st.integers(0, 9))
def test_made_pairs_keep_the_rules_and_survive_their_file(folds: int, seed: int):
    made = make_pairs(KEYS, folds, seed=seed)
    assert made == make_pairs(reversed(KEYS), folds, seed=seed)
    every = [pair for fold in made for pair in fold]
    assert len({frozenset((p.first, p.second)) for p in every}) == len(every)
    people = [{p.first[0] for p in fold} for fold in made]
    assert all(not a & b for a, b in pairwise(people))
    for fold in made:
        assert sum(p.matched for p in fold) * 2 == len(fold)
        matched = [p for p in fold if p.matched]
        assert fold[: len(matched)] == tuple(matched)
    assert parse_pairs(format_pairs(made)) == made


def test_too_much_asked_of_few_faces():
    with pytest.raises(DataError, match="13 folds need as many people"):
        make_pairs(KEYS, 13)
    with pytest.raises(DataError, match="there are 10"):
        make_pairs(KEYS, 12, 11)
    with pytest.raises(DataError, match="need as many people"):
        make_pairs([("only", 1), ("only", 2)], 1)


LFW = "2\t1\nAnn\t1\t2\nAnn\t1\tBob\t3\nBob\t1\t3\nBob\t1\tCid\t1\n"


def test_lfw_pairs_file():
    folds = parse_pairs(LFW)
    assert folds[0] == (Pair(("Ann", 1), ("Ann", 2)), Pair(("Ann", 1), ("Bob", 3)))
    assert folds[1][1] == Pair(("Bob", 1), ("Cid", 1))
    assert parse_pairs("1\nAnn\t1\t2\nAnn\t1\tBob\t3\n\n") == (folds[0],)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected FOLDS"),
        ("ten 300\n", "expected FOLDS"),
        (LFW[:-20], "need 5 lines"),
        (LFW.replace("Bob\t1\t3", "Bob\t1\tx"), "pairs:4: expected NAME N M"),
        (LFW.replace("Ann\t1\t2", "Ann\t2\t2"), "one picture twice"),
        (LFW.replace("Ann\t1\tBob", "Ann\t1\tAnn"), "two pictures of Ann"),
        (LFW.replace("2\t1\n", "1\t2\n"), "expected NAME N M"),
    ],
)
def test_broken_pairs_files(text: str, message: str):
    with pytest.raises(DataError, match=message):
        parse_pairs(text)


def test_missing_people_are_named_and_can_be_dropped():
    keys = [("Ann", 1), ("Ann", 2), ("Bob", 3), ("Bob", 1)]
    faces = face_set("x", [np.zeros((2, 2, 3), np.uint8)] * 4, keys, FacePreprocessing())
    folds = parse_pairs(LFW)
    with pytest.raises(DataError, match=r"of 1 people there is none at all \(Cid\)"):
        resolve_pairs(folds[1:], faces, where="pairs.txt")
    with pytest.raises(DataError, match="fold 2 has not both"):
        resolve_pairs(folds, faces, where="pairs.txt", drop_missing=True)
    more = (*folds[0], Pair(("Cid", 1), ("Cid", 2)))
    rows, note = resolve_pairs([more], faces, where="pairs.txt", drop_missing=True)
    assert (rows.first.tolist(), rows.second.tolist()) == ([0, 0], [1, 2])
    assert rows.matched.tolist() == [True, False]
    assert note.startswith("1 pairs left out: 2 pictures are missing (Cid 1, Cid 2)")


def lfw_folder(root: Path) -> Path:
    from PIL import Image

    for name, number in (("Ann", 1), ("Ann", 2), ("Bob", 1), ("Bob", 3), ("Cid", 1)):
        (root / "lfw" / name).mkdir(parents=True, exist_ok=True)
        picture = np.full((250, 250, 3), 40 * number, np.uint8)
        Image.fromarray(picture).save(root / "lfw" / name / f"{name}_{number:04d}.jpg")
    (root / "pairs.txt").write_text(LFW, encoding="utf-8")
    view1 = "1\nAnn\t1\t2\nAnn\t1\tBob\t3\n"
    (root / "pairsDevTrain.txt").write_text(view1, encoding="utf-8")
    return root


def test_lfw_folder(tmp_path: Path):
    ready = lfw_protocol(lfw_folder(tmp_path))
    assert (len(ready.view1), len(ready.view2), ready.view2.folds) == (2, 4, 2)
    assert ready.faces.data.images.shape == (5, 80, 80, 3)
    (tmp_path / "lfw" / "Bob" / "Bob_0003.jpg").unlink()
    with pytest.raises(DataError, match=r"1 pictures are missing \(Bob 3\)"):
        lfw_protocol(tmp_path)
    (tmp_path / "pairs.txt").unlink()
    with pytest.raises(DataError, match=r"pairs\.txt: cannot be read"):
        lfw_protocol(tmp_path)


@pytest.mark.parametrize(
    "name", ["/faces/Cid", "../Cid", "a/../../Cid", "..", ".", "a\\Cid", "C\0"]
)
def test_pairs_of_lfw_name_people_of_its_folder(tmp_path: Path, name: str):
    folder = lfw_folder(tmp_path / "faces")
    text = LFW.replace("Cid", name)
    (folder / "pairs.txt").write_text(text, encoding="utf-8")
    line = next(n for n, row in enumerate(text.splitlines(), 1) if name in row.split("\t"))
    with pytest.raises(DataError, match="is the name of no folder") as error:
        lfw_protocol(folder, drop_missing=True)
    assert f"pairs.txt:{line}" in str(error.value)


@pytest.mark.parametrize("which", ["lfw", "lfw/Bob", "lfw/Bob/Bob_0003.jpg"])
def test_pictures_of_lfw_may_be_links(tmp_path: Path, which: str):
    folder, elsewhere = lfw_folder(tmp_path / "faces"), tmp_path / "elsewhere"
    (folder / which).rename(elsewhere)
    (folder / which).symlink_to(elsewhere)
    ready = lfw_protocol(folder)
    assert len(ready.faces.data.images) == 5 and not ready.dropped


BIT = FacePreprocessing(size=8, align=False, crop=(0.4, 0.4, 0.401, 0.401))


def zeros(side: int) -> bytes:
    """A picture of few bytes and many pixels."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("L", (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


def test_pictures_of_faces_do_not_shrink_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """400 pictures of 5400 x 5400 in 179 kB took minutes, and a face that links name many times
    is decoded as often.
    """
    monkeypatch.setattr(archives, "FREE", 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(1, 11):
            archive.writestr(f"s1/{number}.pgm", zeros(1200))
    with pytest.raises(DataError, match=r"s1/\d: \d pictures come from \d+ bytes"):
        load_orl(tmp_path / "a.zip", BIT, people=(1,))
    folder = lfw_folder(tmp_path)
    (folder / "a.png").write_bytes(zeros(1200))
    for picture in (folder / "lfw").rglob("*.jpg"):
        picture.unlink()
        picture.symlink_to(folder / "a.png")
    with pytest.raises(DataError, match=r"jpg: \d pictures come from \d+ bytes"):
        lfw_protocol(folder, BIT)


@pytest.mark.parametrize("which", ["orl", "lfw"])
def test_faces_that_take_too_long_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
):
    for name, value in (("SECONDS", 0.2), ("BYTES_A_SECOND", 10**9), ("_LOOKS", 0.02)):
        monkeypatch.setattr(bounded, name, value)
    place = "bitwright.papers.faces.protocols" if which == "lfw" else load_orl.__module__
    monkeypatch.setattr(f"{place}.cut_face", busy)
    with pytest.raises(DataError, match="takes more than 0 s of the processor"):
        if which == "lfw":
            lfw_protocol(lfw_folder(tmp_path))
        else:
            load_orl(orl_archive(tmp_path / "a.zip", range(1, 4)), people=(3, 1))


def busy(*_: object) -> np.ndarray:
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    return np.zeros((8, 8, 3), np.uint8)


def test_what_surrounds_a_large_picture_is_made_where_it_is_read(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)
    marks = [None, ((10.5, 12.0), (70.0, 3.0), (30.0, 50.0)), ((-90.0, 0.0), (-80, 1), (-85, 9))]
    hows = [FacePreprocessing(size=16), FacePreprocessing(size=64, zoom=0.4, crop=(0, 0, 0.3, 0.4))]
    for how in hows:
        for mark in marks:
            whole = cut_face(picture, how, mark)
            with monkeypatch.context() as small:
                small.setattr(f"{cut_face.__module__}._WHOLE", 0)
                part = cut_face(picture, how, mark)
            # Places are counted from elsewhere, so that a half may be rounded the other way.
            assert np.abs(whole.astype(int) - part.astype(int)).max() <= 1
    large = np.zeros((1600, 1600, 3), np.uint8)
    assert peak(lambda: cut_face(large, BIT)) < 1 << 20  # it was nine times the picture


def test_a_person_with_too_long_a_name_has_no_picture(tmp_path: Path):
    folder = lfw_folder(tmp_path / "faces")
    (folder / "pairs.txt").write_text(LFW.replace("Cid", "C" * 5000), encoding="utf-8")
    with pytest.raises(DataError, match="pictures are missing"):
        lfw_protocol(folder)


def test_broken_lfw_picture(tmp_path: Path):
    lfw_folder(tmp_path)
    (tmp_path / "lfw" / "Ann" / "Ann_0002.jpg").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"Ann_0002\.jpg: cannot be decoded"):
        lfw_protocol(tmp_path)


def test_no_lfw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("BITWRIGHT_DATA", str(tmp_path))
    with pytest.raises(DataError, match="no LFW here"):
        lfw_protocol()
    with pytest.raises(DataError, match="no such archive"):
        orl_protocol()


def test_splits_keep_people_apart():
    assert OrlSplit().known == tuple(range(1, 31))
    with pytest.raises(RecipeError, match="different numbers"):
        OrlSplit(train=(1, 2), view1=(2,), view2=(3, 4))


def test_orl_protocol(data_dir: Path):
    ready = orl_protocol(data_dir / "orl-faces.zip")
    assert (len(ready.view1), len(ready.view2), ready.view2.folds) == (450, 900, 10)
    rows = [*ready.view1.first, *ready.view1.second]
    one = {ready.faces.keys[row][0] for row in rows}
    two = {ready.faces.keys[row][0] for row in [*ready.view2.first, *ready.view2.second]}
    assert one == {f"s{n}" for n in range(26, 31)}
    assert two == {f"s{n}" for n in range(31, 41)}
    for fold in range(10):
        assert ready.view2.matched[ready.view2.fold == fold].sum() == 45
