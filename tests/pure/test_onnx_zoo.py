# SPDX-License-Identifier: Apache-2.0
"""Published QONNX files: the imported graph equals QONNX's executor, image for image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bitwright.data import load_dataset
from bitwright.data.spec import DatasetSpec
from bitwright.interop.onnx.export_qdq import export_qdq
from bitwright.interop.onnx.export_qonnx import export_qonnx
from bitwright.interop.onnx.reader import budget, load
from bitwright.interop.onnx.reader.budget import Work
from bitwright.interop.onnx.reader.compare import compare, original_outputs
from bitwright.lower import certify, check


@pytest.fixture(scope="session")
def zoo(data_dir: Path) -> Path:
    """The folder of the published files."""
    if not (data_dir / "qonnx").is_dir():
        pytest.skip("no qonnx/ in the test data")
    return data_dir / "qonnx"


@pytest.fixture(scope="session")
def digits(data_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """MNIST's 10 000 test images as the files take them: (N, 1, 28, 28) in 0 .. 1."""
    if not (data_dir / "mnist").is_dir():
        pytest.skip("no mnist/ in the test data")
    splits = load_dataset(DatasetSpec(name="mnist", path=data_dir / "mnist"), None, 0)
    images = splits.test.images.reshape(-1, 1, 28, 28)
    return (images / np.float32(255)).astype(np.float32), splits.test.labels


@pytest.mark.parametrize(("name", "accuracy"), [("TFC_1W2A", 0.9474), ("TFC_2W2A", 0.9660)])
def test_mnist_files_image_for_image(
    zoo: Path, digits: tuple[np.ndarray, np.ndarray], name: str, accuracy: float
) -> None:
    images, labels = digits
    path = zoo / f"{name}.onnx"
    imported = load(path)
    assert [n.op for n in imported.graph] == [
        "flatten", *["dense", "threshold"] * 3, "dense", "top_k",
    ]  # fmt: skip
    assert not imported.notes
    result = compare(imported, images, original_outputs(path, images))
    result.require()
    assert result.scores == 0 and result.images == 10_000
    assert (result.found == labels).mean() == pytest.approx(accuracy, abs=1e-9)


def test_pixels_as_input_give_the_same_classes(
    zoo: Path, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    """The input's quantizer as hardware: 8-bit pixels instead of levels made by the host."""
    images = digits[0][:1000]
    pixels = np.rint(images * 255).astype(np.int64)
    plain = load(zoo / "TFC_2W2A.onnx")
    whole = load(zoo / "TFC_2W2A.onnx", input_type="uint8", input_scale=1 / 255)
    assert whole.graph.types["x"].wire_bits == 8 and whole.graph.nodes[0].op == "threshold"
    expected = plain.graph.run({"x": plain.levels(images)})
    found = whole.graph.run({"x": whole.levels(pixels)})
    assert np.array_equal(expected["scores"], found["scores"])


def test_keyword_spotting_on_its_input_grid(zoo: Path) -> None:
    """No data at hand: random images on the grid of the input's quantizer, and off it."""
    path = zoo / "kwsmlp_w3a3.onnx"
    imported = load(path)
    rng = np.random.default_rng(0)
    step = np.float32(0.8298503756523132)
    images = (rng.integers(-127, 128, (1000, 1, 10, 49)) * step).astype(np.float32)
    images[500:] += rng.normal(size=(500, 1, 10, 49)).astype(np.float32)
    result = compare(imported, images, original_outputs(path, images))
    result.require()
    assert result.scores == 0
    check(certify(imported.graph), imported.graph)


@pytest.mark.parametrize("name", ["TFC_1W2A", "TFC_2W2A", "kwsmlp_w3a3"])
def test_files_leave_as_they_came(zoo: Path, tmp_path: Path, name: str) -> None:
    imported = load(zoo / f"{name}.onnx")
    graph = imported.graph
    export_qonnx(graph, tmp_path / "q.onnx", frames=3)
    export_qdq(graph, tmp_path / "qdq.onnx", frames=20)
    rng = np.random.default_rng(0)
    kind = graph.types["x"]
    levels = rng.integers(kind.lo, kind.hi + 1, (50, *kind.shape))
    expected = graph.run({"x": levels})
    back = load(tmp_path / "q.onnx").graph.run({"x": levels})
    assert all(np.array_equal(expected[e], back[e]) for e in graph.outputs)
    again = load(tmp_path / "qdq.onnx")
    reals = np.moveaxis(levels * np.float32(kind.scale[0]), -1, 1).astype(np.float32)
    found = again.graph.run({"x": again.levels(reals)})
    assert np.array_equal(found["label"], expected["label"])


def test_published_files_take_a_small_part_of_the_work_that_is_allowed(
    zoo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    works: list[Work] = []

    def noted(size: int) -> Work:
        works.append(Work(budget._WORK))
        return works[-1]

    monkeypatch.setattr(Work, "on", noted)
    for path in zoo.glob("*.onnx"):
        load(path)
    assert works and all(work.done < work.most / 10 for work in works)
