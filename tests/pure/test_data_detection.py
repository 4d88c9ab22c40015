# SPDX-License-Identifier: Apache-2.0
"""Boxes: decoding, overlap, the contest's files, Pascal VOC annotations."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bitwright.base.errors import DataError
from bitwright.data.detection import load_images, load_voc, parse_voc, preprocess, resize
from bitwright.data.detection_boxes import (
    ANCHORS,
    contest_xml,
    decode,
    iou,
    to_pixels,
    write_contest_results,
)


def output_with(anchor: int, row: int, column: int, numbers: list[float]) -> np.ndarray:
    raw = np.full((1, 10, 4, 6), -3.0)
    raw[0, 5 * anchor : 5 * anchor + 5, row, column] = numbers
    return raw


@pytest.mark.parametrize("anchor", [0, 1])
def test_decode_is_the_printed_formula(anchor: int) -> None:
    found = decode(output_with(anchor, 2, 5, [0.3, -0.7, 0.2, -0.4, 1.5]))
    assert (found.anchor[0], found.row[0], found.column[0]) == (anchor, 2, 5)
    x = (1 / (1 + np.exp(-0.3)) + 5) / 6
    y = (1 / (1 + np.exp(0.7)) + 2) / 4
    w, h = np.exp(0.2) * ANCHORS[anchor][0] / 6, np.exp(-0.4) * ANCHORS[anchor][1] / 4
    expected = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
    assert found.boxes[0] == pytest.approx(expected, abs=1e-15)
    assert found.confidence[0] == pytest.approx(1 / (1 + np.exp(-1.5)))


def test_of_equal_confidences_the_first_counts() -> None:
    found = decode(np.zeros((3, 10, 4, 6)))
    assert len(found) == 3
    assert not found.anchor.any() and not found.row.any() and not found.column.any()


def test_huge_numbers_give_finite_boxes() -> None:
    found = decode(output_with(0, 0, 0, [1e9, -1e9, 1e9, -1e9, 1e9]))
    assert np.isfinite(found.boxes).all() and found.confidence[0] == 1.0


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (np.zeros((10, 4, 6)), r"gives \(N, 10, H, W\), found \(10, 4, 6\)"),
        (np.zeros((1, 12, 4, 6)), r"found \(1, 12, 4, 6\)"),
        (np.zeros((1, 10, 0, 6)), r"found \(1, 10, 0, 6\)"),
        (np.full((1, 10, 4, 6), np.nan), "NaN"),
    ],
)
def test_what_is_no_output_is_refused(raw: np.ndarray, message: str) -> None:
    with pytest.raises(DataError, match=message):
        decode(raw)


def test_overlap() -> None:
    truth, large, apart = [0, 0, 2, 2], [0, 0, 4, 4], [5, 5, 6, 6]
    assert iou(truth, truth) == 1.0
    assert iou(large, truth) == 4 / 16
    assert iou(truth, apart) == 0.0
    assert iou([1, 1, 1, 1], [1, 1, 1, 1]) == 0.0
    assert iou([[1, 0, 3, 2], truth], truth).tolist() == [2 / 6, 1.0]


def whole_boxes() -> st.SearchStrategy[list[int]]:
    spans = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(sorted)
    return st.tuples(spans, spans).map(lambda s: [s[0][0], s[1][0], s[0][1], s[1][1]])


@given(whole_boxes(), whole_boxes())
def test_overlap_is_the_share_of_pixels(a: list[int], b: list[int]) -> None:
    first, second = np.zeros((12, 12), bool), np.zeros((12, 12), bool)
    first[a[1] : a[3], a[0] : a[2]] = True
    second[b[1] : b[3], b[0] : b[2]] = True
    both, either = (first & second).sum(), (first | second).sum()
    assert iou(a, b) == (both / either if either else 0)
    assert iou(a, b) == iou(b, a)


@pytest.mark.parametrize("box", [[0, 0, 1], [3, 0, 1, 1], [0, 0, np.nan, 1], [0, 0, np.inf, 1]])
def test_what_is_no_box_is_refused(box: list[float]) -> None:
    with pytest.raises(DataError):
        iou(box, [0, 0, 1, 1])


def test_the_contest_file_holds_one_box_in_whole_pixels(tmp_path: Path) -> None:
    found = decode(output_with(0, 0, 0, [0.0, 0.0, 1.5, 0.0, 2.0]))
    (path,) = write_contest_results(tmp_path / "new", ["images/7.jpg"], found)
    root = ElementTree.parse(path).getroot()
    assert path.name == "7.xml" and root.tag == "annotation"
    assert root.findtext("filename") == "7.jpg"
    assert (root.findtext("size/width"), root.findtext("size/height")) == ("640", "360")
    edges = [int(root.findtext(f"object/bndbox/{e}")) for e in ("xmin", "ymin", "xmax", "ymax")]
    pixels = to_pixels(found.boxes)[0]
    assert pixels[0] < 0 and edges[0] == 0  # cut to the image
    assert edges[1:] == [round(v) if v > 0 else 0 for v in pixels[1:]]
    boxes, _ = parse_voc(path.read_bytes(), "7.xml", (360, 640))
    assert boxes.tolist() == [[float(e) for e in edges]]


def test_contest_files_are_written_for_all_or_none(tmp_path: Path) -> None:
    found = decode(np.zeros((2, 10, 2, 2)))
    with pytest.raises(DataError, match="1 names for 2 boxes"):
        write_contest_results(tmp_path / "out", ["a.jpg"], found)
    with pytest.raises(DataError, match="same name"):
        write_contest_results(tmp_path / "out", ["x/a.jpg", "y/a.png"], found)
    assert not (tmp_path / "out").exists()
    assert "&lt;a&gt;.jpg" in contest_xml("<a>.jpg", [0, 0, 1, 1])


def jpeg(size: tuple[int, int] = (20, 10)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, (200, 30, 60)).save(buffer, "JPEG")
    return buffer.getvalue()


def annotation(*boxes: tuple[object, ...], name: str = "cat") -> bytes:
    objects = "".join(
        f"<object><name>{name}</name><bndbox><xmin>{a}</xmin><ymin>{b}</ymin><xmax>{c}</xmax>"
        f"<ymax>{d}</ymax></bndbox></object>"
        for a, b, c, d in boxes
    )
    return f"<annotation>{objects}</annotation>".encode()


def make(folder: Path, members: dict[str, bytes], *, packed: bool) -> Path:
    if packed:
        with zipfile.ZipFile(folder / "set.zip", "w") as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return folder / "set.zip"
    for name, content in members.items():
        path = folder / "set" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / "set"


@pytest.mark.parametrize("packed", [True, False])
def test_voc_folders_and_zip_files(tmp_path: Path, packed: bool) -> None:
    members = {
        "images/b.jpg": jpeg(),
        "images/a.jpg": jpeg((8, 4)),
        "annotations/a.xml": annotation(),
        "annotations/b.xml": annotation((1, 2, 20, 10), (0, 0, 2.5, 3)),
    }
    first, second = load_voc(make(tmp_path, members, packed=packed))
    assert (first.name, first.image.shape, first.boxes.shape) == ("images/a.jpg", (4, 8, 3), (0, 4))
    assert second.boxes.tolist() == [[1, 2, 20, 10], [0, 0, 2.5, 3]]
    assert second.labels == ("cat", "cat")


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"images/a\.jpg: has no annotation"),
        (b"<annotation><object>", r"annotations/a\.xml: is no XML file"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><annotation/>', "document type"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation/>'.encode("utf-16"), "document type"),
        (b"<annotation>" + b"<a/>" * 20_000 + b"</annotation>", "more than 20000 elements"),
        (b"<annotation><object/></annotation>", "object 1: has no bndbox"),
        (annotation((0, 0, 5, 5), (1, 1, "wide", 3)), "object 2: xmax is no number but 'wide'"),
        (annotation((0, 0, "nan", 5)), "is empty"),
        (annotation((5, 0, 5, 5)), "is empty"),
        (annotation((0, 0, 21, 5)), r"outside the image of 10 x 20 \(H x W\)"),
        (b"\xff\xfe\x00", "is no XML file"),
    ],
)
def test_a_broken_annotation_is_named(
    tmp_path: Path, packed: bool, content: bytes | None, message: str
) -> None:
    members = {"images/a.jpg": jpeg()}
    if content is not None:
        members["annotations/a.xml"] = content
    with pytest.raises(DataError, match=message):
        load_voc(make(tmp_path, members, packed=packed))


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg()[:100])
    with pytest.raises(DataError, match=r"a\.jpg: cannot be decoded"):
        load_images([path])
    with pytest.raises(DataError, match=r"b\.jpg: cannot be read"):
        load_images([tmp_path / "b.jpg"])


def test_preprocessing_is_the_published_one() -> None:
    image = np.zeros((160, 320, 3), np.uint8)
    image[3, 5] = (0, 128, 255)
    batch = preprocess([image])
    assert batch.shape == (1, 3, 160, 320) and batch.dtype == np.float32
    assert batch[0, :, 3, 5] == pytest.approx([-2, (128 / 255 - 0.5) / 0.25, 2])
    assert resize(np.full((360, 640, 3), 77, np.uint8), (160, 320)).shape == (160, 320, 3)
    assert (resize(np.full((9, 7, 3), 77, np.uint8), (16, 32)) == 77).all()


@pytest.mark.parametrize(
    "images",
    [[], [np.zeros((4, 4, 3))], [np.zeros((4, 4), np.uint8)], [np.zeros((0, 4, 3), np.uint8)]],
)
def test_what_is_no_picture_is_refused(images: list[np.ndarray]) -> None:
    with pytest.raises(DataError, match="preprocess"):
        preprocess(images)


def test_the_raccoons(data_dir: Path) -> None:
    path = data_dir / "raccoon-detection.zip"
    if not path.is_file():
        pytest.skip(f"no {path.name} in the test data")
    images = load_voc(path)
    assert len(images) == 200 and sum(len(i.boxes) for i in images) == 217
    assert {label for i in images for label in i.labels} == {"raccoon"}
    first = next(i for i in images if i.name == "images/raccoon-1.jpg")
    assert first.image.shape == (417, 650, 3) and first.boxes.tolist() == [[81, 88, 522, 408]]
