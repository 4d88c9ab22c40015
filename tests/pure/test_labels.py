# SPDX-License-Identifier: Apache-2.0
"""Kinds of labels, the drawn data set, and labels in files beside a user's own images."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bitwright.base.errors import DataError
from bitwright.data import Dataset, load_dataset
from bitwright.data.labels import (
    CLASSES,
    Annotation,
    BoxLabels,
    LabelKind,
    MapLabels,
    ValueLabels,
)
from bitwright.data.shapes import NAMES

KINDS: dict[str, LabelKind] = {
    "classes": CLASSES,
    "boxes": BoxLabels(),
    "maps": MapLabels(),
    "values": ValueLabels(),
}
BOX = np.array([[[0, 0.1, 0.2, 0.5, 0.6]]], np.float32)


def images(count: int = 2) -> np.ndarray:
    return np.zeros((count, 8, 8, 1), np.uint8)


def dataset(labels: np.ndarray, kind: LabelKind, names: tuple[str, ...] = ("a", "b")) -> Dataset:
    count = len(labels)
    return Dataset("d", images(count), labels, names, 1.0, np.arange(count), kind)


@pytest.mark.parametrize(
    ("kind", "labels", "reason"),
    [
        (BoxLabels(), BOX[:, 0], "boxes are float32"),
        (BoxLabels(), BOX.astype(np.float64), "boxes are float32"),
        (BoxLabels(), BOX[:, :, [0, 3, 2, 1, 4]], "empty"),
        (BoxLabels(), BOX + np.float32(2), "but there are 2 classes"),
        (BoxLabels(), BOX * np.array([1, 1, 1, 9, 9], np.float32), "centre outside"),
        (MapLabels(), np.zeros((1, 4, 4), np.int64), "with stride 1 they are"),
        (MapLabels(), np.full((1, 8, 8), 2), "but there are 2 classes"),
        (ValueLabels(), np.zeros((1, 3), np.float32), "3 values an image, but 2 names"),
        (ValueLabels(), np.full((1, 2), np.inf, np.float32), "infinite"),
    ],
)
def test_labels_of_another_kind_are_refused(
    kind: LabelKind, labels: np.ndarray, reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        dataset(labels, kind)


def test_labels_become_of_a_kind_when_a_task_takes_them() -> None:
    values = dataset(np.zeros((2, 2), np.float32), CLASSES)  # nobody has said yet
    assert values.of_kind(ValueLabels()).kind == ValueLabels()
    with pytest.raises(DataError, match="boxes are float32"):
        values.of_kind(BoxLabels())
    with pytest.raises(DataError, match="classes are int64"):
        dataset(np.array([0.5, 1]), CLASSES).of_kind(CLASSES)
    with pytest.raises(DataError, match="its labels are classes, and values are wanted"):
        dataset(np.array([0, 1]), CLASSES).of_kind(ValueLabels())


@pytest.mark.parametrize("name", KINDS)
def test_what_is_not_known_is_left_out_and_keeps_its_shape(name: str) -> None:
    kind = KINDS[name]
    known = load_dataset("shapes", labels=kind).test.take(range(3))
    nothing = kind.nothing(known.labels, 2)
    labels = np.concatenate([known.labels, nothing])
    mixed = Dataset(
        "d", np.zeros((5, 32, 32, 1), np.uint8), labels, known.classes, 1.0, np.arange(5), kind
    )
    assert kind.known(labels).tolist() == [True] * 3 + [False] * 2
    assert np.array_equal(mixed.labelled().labels, known.labels)


def test_drawn_shapes_are_the_same_everywhere_and_their_labels_agree() -> None:
    """A digest that was written down once: nothing but whole numbers is drawn."""
    found = {name: load_dataset("shapes", labels=kind) for name, kind in KINDS.items()}
    boxes, maps = found["boxes"].train, found["maps"].train
    values = found["values"].train
    assert {name: splits.classes for name, splits in found.items()} == NAMES
    assert np.array_equal(boxes.images, maps.images)
    for row in range(20):
        category, *edges = boxes.labels[row, 0]
        inside = maps.labels[row] > 0
        rows, columns = np.flatnonzero(inside.any(1)), np.flatnonzero(inside.any(0))
        drawn = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        assert np.allclose(np.array(edges) * 32, drawn)
        assert set(np.unique(maps.labels[row][inside])) == {int(category) + 1}
        middle = [(edges[0] + edges[2]) / 2, (edges[1] + edges[3]) / 2]
        assert np.allclose(middle, values.labels[row, :2], atol=1 / 32)
    assert found["boxes"].digest() == "efd3cddd3e88585cdd26bc89380a25b4"


def test_maps_of_a_coarser_network_take_the_pixel_in_the_middle() -> None:
    fine = np.arange(36).reshape(6, 6)
    (coarse,) = MapLabels(3).pack([Annotation(map=fine)], (6, 6))
    assert coarse.tolist() == [[7, 10], [25, 28]]


def write_images(folder: Path, count: int = 10, size: tuple[int, int] = (20, 10)) -> list[str]:
    folder.mkdir(parents=True)
    names = [f"{number}.png" for number in range(count)]
    for number, name in enumerate(names):
        Image.new("L", size, 10 * number).save(folder / name)
    return names


def folder_of(kind: LabelKind, path: Path) -> dict[str, object]:
    splits = load_dataset({"name": "folder", "path": path, "image_size": [8, 8]}, labels=kind)
    parts = (splits.train, splits.validation, splits.test)
    return {
        "splits": splits,
        "rows": {
            int(pixel): row
            for part in parts
            for pixel, row in zip(part.images[:, 0, 0, 0], part.labels, strict=True)
        },
    }


def test_boxes_of_a_csv_file_are_shares_of_each_image(tmp_path: Path) -> None:
    names = write_images(tmp_path / "images")
    lines = ["file,class,xmin,ymin,xmax,ymax"]
    lines += [
        f"images/{name},dog,2,1,10,{number + 1}" for number, name in enumerate(names) if number
    ]
    lines += ["images/4.png,cat,0,0,20,10"]
    (tmp_path / "boxes.csv").write_text("\n".join(lines))
    found = folder_of(BoxLabels(), tmp_path)
    assert found["splits"].classes == ("cat", "dog")
    rows = found["rows"]
    assert np.allclose(rows[40][0], [1, 0.1, 0.1, 0.5, 0.5])
    assert np.allclose(rows[40][1], [0, 0, 0, 1, 1])
    assert rows[0][:, 0].tolist() == [-1, -1]  # an image without a box


def test_a_zip_file_of_pascal_voc_annotations(tmp_path: Path) -> None:
    names = write_images(tmp_path / "images")
    box = "<bndbox><xmin>5</xmin><ymin>1</ymin><xmax>15</xmax><ymax>9</ymax></bndbox>"
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in names:
            archive.write(tmp_path / "images" / name, f"images/{name}")
            text = f"<annotation><object><name>dog</name>{box}</object></annotation>"
            archive.writestr(f"annotations/{Path(name).stem}.xml", text)
    rows = folder_of(BoxLabels(), tmp_path / "all.zip")["rows"]
    assert all(np.allclose(row, [[0, 0.25, 0.1, 0.75, 0.9]]) for row in rows.values())


def test_masks_follow_the_size_of_the_images(tmp_path: Path) -> None:
    for split in ("train", "test"):
        names = write_images(tmp_path / split / "images")
        (tmp_path / split / "masks").mkdir()
        for number, name in enumerate(names):
            mask = np.full((10, 20), 255, np.uint8)
            mask[:, :10] = number % 3
            Image.fromarray(mask).save(tmp_path / split / "masks" / name)
    (tmp_path / "classes.txt").write_text("sky\nroad\ncar\n")
    found = folder_of(MapLabels(2), tmp_path)
    splits = found["splits"]
    assert splits.classes == ("sky", "road", "car") and len(splits.test) == 10
    assert found["rows"][40].tolist() == [[1, 1, -1, -1]] * 4


def test_values_of_a_csv_file(tmp_path: Path) -> None:
    names = write_images(tmp_path / "images")
    lines = [f"{number / 10},images/{name},{-number}" for number, name in enumerate(names)]
    (tmp_path / "values.csv").write_text("\n".join(["angle,file,depth", *lines]))
    found = folder_of(ValueLabels(), tmp_path)
    assert found["splits"].classes == ("angle", "depth")
    assert np.allclose(found["rows"][30], [0.3, -3])


@pytest.mark.parametrize(
    ("kind", "file", "text", "reason"),
    [
        (BoxLabels(), "boxes.csv", "file,class,xmin,ymin\n", "names the columns"),
        (BoxLabels(), "boxes.csv", "file,class,xmin,ymin,xmax,ymax\nx.png,a,1,1,2,2", "no image"),
        (
            BoxLabels(),
            "boxes.csv",
            "file,class,xmin,ymin,xmax,ymax\nimages/0.png,a,1,1,2,99",
            r"boxes.csv:2.*outside the image",
        ),
        (
            BoxLabels(),
            "boxes.csv",
            "file,class,xmin,ymin,xmax,ymax\nimages/0.png,a,1,1,2,9\nimages/0.png,a,5,1,2,9",
            r"boxes.csv:3: images/0.png: the box .* is empty",
        ),
        (
            BoxLabels(),
            "boxes.csv",
            "\nfile,class,xmin,ymin,xmax,ymax\n\nimages/0.png,a,5,1,2,9",
            r"boxes.csv:4: images/0.png: the box .* is empty",
        ),
        (BoxLabels(), "boxes.csv", "\nfile,class\n", r"boxes.csv:2.*names the columns"),
        (
            BoxLabels(),
            "boxes.csv",
            "file,class,xmin,ymin,xmax,ymax\nimages/0.png,a,1,x,2,9",
            "ymin is no number but 'x'",
        ),
        (BoxLabels(), "other.csv", "", "has no annotation"),
        (MapLabels(), "other.csv", "", "has no mask"),
        (ValueLabels(), "other.csv", "", "no values.csv"),
        (ValueLabels(), "values.csv", "file,a\nimages/0.png,1", "no line in values.csv"),
        (ValueLabels(), "values.csv", "file,a\nimages/0.png,nan", "a is no number"),
        (ValueLabels(), "values.csv", "file,a\nimages/0.png,1,2", "has 3 cells"),
        (ValueLabels(), "values.csv", "file,a\n\xff", "no image|UTF-8|cells"),
    ],
)
def test_what_is_wrong_with_files_of_labels_is_named(
    tmp_path: Path, kind: LabelKind, file: str, text: str, reason: str
) -> None:
    write_images(tmp_path / "images")
    (tmp_path / file).write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=reason):
        folder_of(kind, tmp_path)


def test_a_mask_that_is_a_picture_is_refused(tmp_path: Path) -> None:
    for name in write_images(tmp_path / "images"):
        (tmp_path / "masks").mkdir(exist_ok=True)
        Image.new("RGB", (20, 10)).save(tmp_path / "masks" / name)
    with pytest.raises(DataError, match="PNG of mode RGB"):
        folder_of(MapLabels(), tmp_path)
