# SPDX-License-Identifier: Apache-2.0
"""A user's own boxes: COCO, Pascal VOC with its lists, and what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bitwright.base.errors import DataError
from bitwright.data import DataSplits, load_dataset
from bitwright.data.labels import BoxLabels

H, W = 20, 40
SPEC = {"name": "folder", "validation": 0.2, "test": 0.2}


def load(path: Path, **more: float) -> DataSplits:
    return load_dataset({**SPEC, "path": path, **more}, labels=BoxLabels())


def picture(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    shade = sum(path.stem.encode()) % 200
    Image.fromarray(np.full((H, W), shade, dtype=np.uint8)).save(path)
    return path.name


def xml(name: str, *boxes: tuple[str, tuple[float, ...]]) -> str:
    parts = [f"<filename>{name}</filename>"]
    for kind, edges in boxes:
        corners = "".join(
            f"<{key}>{edge}</{key}>"
            for key, edge in zip(("xmin", "ymin", "xmax", "ymax"), edges, strict=True)
        )
        parts.append(f"<object><name>{kind}</name><bndbox>{corners}</bndbox></object>")
    return f"<annotation>{''.join(parts)}</annotation>"


def coco(folder: Path, **changes: Any) -> Path:
    """Five images; on the first two boxes, on the last none."""
    names = [picture(folder / "images" / f"{i}.png") for i in range(5)]
    table: dict[str, Any] = {
        "images": [
            {"id": 10 + i, "file_name": name, "width": W, "height": H}
            for i, name in enumerate(names)
        ],
        "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}],
        "annotations": [
            {"id": 1, "image_id": 10, "category_id": 7, "bbox": [4, 2, 8, 10]},
            {"id": 2, "image_id": 10, "category_id": 3, "bbox": [20, 10, 20.4, 10]},
            {"id": 3, "image_id": 11, "category_id": 3, "bbox": [0, 0, 40, 20]},
            {"id": 4, "image_id": 12, "category_id": 3, "bbox": [1, 1, 2, 2]},
            {"id": 5, "image_id": 13, "category_id": 3, "bbox": [1, 1, 2, 2], "iscrowd": 1},
        ],
    }
    for key, value in changes.items():
        table[key] = value(table[key]) if callable(value) else value
    (folder / "annotations.json").write_text(json.dumps(table))
    return folder


def every(splits: DataSplits) -> np.ndarray:
    """(N, K, 5) labels in the order of the files."""
    parts = (splits.train, splits.validation, splits.test)
    order = np.argsort(np.concatenate([part.indices for part in parts]))
    return np.concatenate([part.labels for part in parts])[order]


def test_coco_gives_corners_and_classes(tmp_path: Path) -> None:
    splits = load(coco(tmp_path))
    assert splits.classes == ("cat", "dog")
    labels = every(splits)
    assert labels[0, 0].tolist() == pytest.approx([0, 0.1, 0.1, 0.3, 0.6])
    assert labels[0, 1].tolist() == pytest.approx([1, 0.5, 0.5, 1, 1])  # the edge cut off
    assert (labels[3:, :, 0] == -1).all()  # a crowd, and nothing at all


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"annotations": lambda a: [{**a[0], "bbox": [4, 2, -8, 10]}]}, "corners are swapped"),
        ({"annotations": lambda a: [{**a[0], "bbox": [4, 2, 0, 10]}]}, "is empty"),
        ({"annotations": lambda a: [{**a[0], "bbox": [4, 2, 90, 10]}]}, "lies outside the image"),
        ({"annotations": lambda a: [{**a[0], "bbox": [4, 2]}]}, "bbox is"),
        ({"annotations": lambda a: [{**a[0], "category_id": 1}]}, "category_id is 1"),
        ({"annotations": lambda a: [{**a[0], "image_id": 99}]}, "image_id is 99"),
        ({"annotations": lambda a: [{**a[0], "image_id": [10]}]}, r"image_id is \[10\]"),
        ({"annotations": lambda a: [{**a[0], "bbox": [4, 2, 8, 10**400]}]}, "bbox is"),
        ({"images": lambda i: [{**i[0], "width": 10**400}, *i[1:-1]]}, "is in no COCO file"),
        ({"annotations": []}, "none of 5 images has a box"),
        ({"annotations": None}, "has no list of annotations"),
        ({"images": lambda i: i[:-1]}, "is in no COCO file"),
        ({"images": lambda i: [*i, {**i[0], "id": 1, "file_name": "z.png"}]}, "names 'z.png'"),
        ({"images": lambda i: [*i, {**i[0], "file_name": "z.png"}]}, "have the id 10"),
        ({"categories": lambda c: [c[0], {"id": 3}]}, "has no id or name"),
    ],
)
def test_wrong_coco_files_are_refused(
    tmp_path: Path, changes: dict[str, Callable[[Any], Any]], reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        load(coco(tmp_path, **changes))


def test_each_split_may_have_its_own_coco_file(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        names = [picture(tmp_path / split / f"{split}{i}.png") for i in range(3)]
        table = {
            "images": [{"id": i, "file_name": n} for i, n in enumerate(names)],
            "categories": [{"id": 0, "name": "thing"}],
            "annotations": [{"image_id": 1, "category_id": 0, "bbox": [0, 0, 4, 4]}],
        }
        (tmp_path / split / "_annotations.coco.json").write_text(json.dumps(table))
    splits = load(tmp_path)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [3, 3, 3]
    assert (splits.test.labels[:, 0, 0] == [-1, 0, -1]).all()


def voc(folder: Path, count: int = 6) -> Path:
    for i in range(count):
        name = picture(folder / "images" / f"{i}.png")
        path = folder / "annotations" / f"{i}.xml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(xml(name, ("cat", (4, 2, 12, 10))))
    return folder


def test_lists_of_pascal_voc_make_the_splits(tmp_path: Path) -> None:
    lists = voc(tmp_path) / "ImageSets" / "Main"
    lists.mkdir(parents=True)
    for split, names in (("train", "0\n2 1\n4"), ("val", "1"), ("test", "3")):
        (lists / f"{split}.txt").write_text(names + "\n")
    splits = load(tmp_path)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [3, 1, 1]
    (lists / "test.txt").write_text("9\n")
    with pytest.raises(DataError, match="names '9', no image here"):
        load(tmp_path)
    (lists / "test.txt").write_text("4\n")
    with pytest.raises(DataError, match="measured would be trained on"):
        load(tmp_path)


def test_an_annotation_of_another_image_is_refused(tmp_path: Path) -> None:
    voc(tmp_path)
    path = tmp_path / "annotations" / "3.xml"
    path.write_text(xml("1.png", ("cat", (4, 2, 12, 10))))
    with pytest.raises(DataError, match="names the image '1', but lies beside 3"):
        load(tmp_path)
    path.write_text(xml("before-it-was-renamed.png", ("cat", (4, 2, 12, 10))))
    assert len(load(tmp_path).train)


def test_classes_txt_says_which_there_are(tmp_path: Path) -> None:
    voc(tmp_path)
    (tmp_path / "classes.txt").write_text("dog\ncat\n")
    splits = load(tmp_path)
    assert splits.classes == ("dog", "cat") and (splits.train.labels[:, 0, 0] == 1).all()
    (tmp_path / "classes.txt").write_text("dog\n")
    with pytest.raises(DataError, match="has a box of the class 'cat'"):
        load(tmp_path)


def test_no_image_may_be_for_validation(tmp_path: Path) -> None:
    splits = load(voc(tmp_path), validation=0.0)
    assert len(splits.validation) == 0 and len(splits.train) > 0


def test_annotations_may_lie_beside_their_images(tmp_path: Path) -> None:
    for i in range(5):
        name = picture(tmp_path / f"{i}.png")
        (tmp_path / f"{i}.xml").write_text(xml(name, ("cat", (4, 2, 12, 10))))
    assert every(load(tmp_path)).shape == (5, 1, 5)
