# SPDX-License-Identifier: Apache-2.0
"""`bitwright bnn` and `bitwright kpi` on a small data set in IDX files."""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bitwright.base.errors import DataError
from bitwright.base.native import find_compiler
from bitwright.cli.entry import run as cli
from bitwright.papers.bnn_soc.course import PRESETS, load_samples
from bitwright.papers.bnn_soc.model import Model
from bitwright.papers.bnn_soc.settings import Settings

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
FEW = "sizes=784-64-10"


def idx(path: Path, array: np.ndarray) -> None:
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(head + array.astype(np.uint8).tobytes()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten classes: a bright bar at a place of its own, with noise."""
    place, random = tmp_path_factory.mktemp("idx"), np.random.default_rng(0)
    for name, count in (("train", 600), ("t10k", 200)):
        labels = np.arange(count) % 10
        images = random.integers(0, 120, (count, 28, 28))
        for image, label in zip(images, labels, strict=True):
            image[2 * label + 3 : 2 * label + 7] += 120
        idx(place / f"{name}-images-idx3-ubyte.gz", images)
        idx(place / f"{name}-labels-idx1-ubyte.gz", labels)
    return place


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a verb; what it printed, standard error too."""

    def run(*arguments: object, code: int = 0) -> str:
        given = cli([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert given == code, out + err
        return out + err if code else out

    return run


def test_options_are_chosen_on_images_that_are_held_out(
    folder: Path, tmp_path: Path, call: Callable[..., str]
) -> None:
    """Of every class as many, and none of them is trained on."""
    whole, part = load_samples(folder), load_samples(folder, held_out=0.25)
    assert (len(part.images), len(part.test_images)) == (450, 150)
    pool = sorted(image.tobytes() for image in (*part.images, *part.test_images))
    assert pool == sorted(image.tobytes() for image in whole.images)
    assert np.bincount(part.test_labels).tolist() == [15] * 10
    train = ("bnn", "train", "bnn-1h", "--out", tmp_path / "x", "--data", folder, "--set", FEW)
    found = call(*train, "--cycles", 200, "--looks", 1, "--held-out", 0.25, "--json")
    share = json.loads(found)["rows"][0]["argmax"] * 150
    assert share == pytest.approx(round(share), abs=1e-6)


def test_images_in_a_new_order_train_as_an_order_does(
    folder: Path, tmp_path: Path, call: Callable[..., str]
) -> None:
    call("bnn", "shuffle", "--data", folder, "--out", tmp_path / "mixed", "--seed", 3)
    mixed, plain = load_samples(tmp_path / "mixed"), load_samples(folder)
    assert np.array_equal(mixed.test_images, plain.test_images)
    assert not np.array_equal(mixed.labels, plain.labels)
    found = []
    for data, shuffle in ((tmp_path / "mixed", "none"), (folder, "once")):
        run = tmp_path / shuffle
        options = ("--set", FEW, "--set", f"shuffle={shuffle}", "--set", "seed=3")
        call("bnn", "train", "bnn-1h", "--out", run, "--data", data, *options, "--cycles", 700)
        found.append(Model.load(run / "model.safetensors").weights)
    assert all(np.array_equal(*pair) for pair in zip(*found, strict=True))


def test_train_classify_kpi(folder: Path, tmp_path: Path, call: Callable[..., str]) -> None:
    run = tmp_path / "run"
    train = ("bnn", "train", "bnn-1h", "--out", run, "--data", folder, "--set", FEW)
    options = ("--cycles", 2000, "--looks", 2, "--set", "rate_start=3e-6")
    looks = json.loads(call(*train, *options, "--json"))["rows"]
    assert [look["cycles"] for look in looks] == [1000, 2000] and looks[-1]["argmax"] > 0.9
    call(*train, code=8)  # the folder is taken
    for model in (run, run / "packed.safetensors"):
        for backend in ("auto", "float32"):
            given = ("bnn", "classify", model, "--data", folder, "--backend", backend, "--json")
            assert json.loads(call(*given))["argmax"] == looks[-1]["argmax"]
    rows = json.loads(call("kpi", run, "--data", folder, "--device", "none", "--json"))["rows"]
    assert [row["platform"] for row in rows] == [
        "CPU", "DE0-Nano-SoC, ARM alone", "DE0-Nano-SoC, ARM and FPGA",
    ]  # fmt: skip
    assert rows[0]["kernel_ms"]["value"] > 0 and rows[2]["logic"] == pytest.approx(0.38, abs=0.01)
    call("kpi", run, "--data", folder, "--device", "none", "--out", tmp_path / "kpi")
    names = {path.name for path in (tmp_path / "kpi").iterdir()}
    assert names == {"kpi.md", "kpi.csv", "accuracy.svg", "kernel_ms.svg", "logic.svg"}


def test_one_picture(folder: Path, tmp_path: Path, call: Callable[..., str]) -> None:
    from PIL import Image

    run = tmp_path / "run"
    call("bnn", "train", "bnn-1h", "--out", run, "--data", folder, "--set", FEW, "--cycles", 10)
    Image.new("L", (28, 28)).save(tmp_path / "right.png")
    found = json.loads(call("bnn", "classify", run, tmp_path / "right.png", "--json"))
    assert len(found["sums"]) == 10 and found["class"] == int(np.argmax(found["sums"]))
    Image.new("L", (27, 28)).save(tmp_path / "wrong.png")
    assert "28 x 28" in call("bnn", "classify", run, tmp_path / "wrong.png", code=4)
    (tmp_path / "noise.png").write_bytes(b"no picture")
    call("bnn", "classify", run, tmp_path / "noise.png", code=4)
    (run / "course.json").write_text('{"looks": []}')
    call("kpi", run, "--data", folder, "--device", "none", code=4)


def bar(label: int, seed: int = 0) -> np.ndarray:
    """A picture of the data set's kind."""
    image = np.random.default_rng(seed).integers(0, 70, (28, 28))
    image[2 * label + 3 : 2 * label + 7] += 120
    return image.astype(np.uint8)


def test_unsure_frames_are_labelled_and_learnt(
    folder: Path, tmp_path: Path, call: Callable[..., str]
) -> None:
    """Two classes that the network never saw apart: after labels and training it knows them."""
    from PIL import Image

    run, frames, queue, new = (tmp_path / name for name in ("run", "frames", "queue", "new"))
    train = ("bnn", "train", "bnn-1h", "--out", run, "--data", folder, "--set", FEW)
    call(*train, "--cycles", 20, "--set", "rate_start=3e-6")
    frames.mkdir()
    for label in range(10):
        Image.fromarray(bar(label)).save(frames / f"f{label}.png")
    watch = ("bnn", "watch", run, frames, "--queue", queue, "--margin", 2, "--json")
    seen = json.loads(call(*watch))
    assert [one["name"] for one in seen] == [f"f{n}.png" for n in range(10)]
    assert not any(one["sure"] for one in seen)  # no lead is so large
    assert "nobody has labelled" in call("bnn", "retrain", run, queue, "--out", new, code=4)
    rows = (queue / "labels.csv").read_text().splitlines()
    assert rows[0] == "file,label,guess" and len(rows) == 11
    filled = [row.split(",") for row in rows[1:]]
    lines = [rows[0], *(f"{name},{name[1]},{guess}" for name, _, guess in filled)]
    (queue / "labels.csv").write_text("\n".join(lines) + "\n")
    call("bnn", "retrain", run, queue, "--out", new, "--passes", 60)
    assert [o["label"] for o in json.loads(call(*watch[:2], new, *watch[3:]))] == list(range(10))
    (queue / "labels.csv").write_text("file,label,guess\n../f1.png,1,0\n")
    call("bnn", "retrain", run, queue, "--out", new, "--force", code=4)
    (queue / "labels.csv").write_text("file,label,guess\nf1.png,11,0\n")
    assert "no class" in call("bnn", "retrain", run, queue, "--out", new, "--force", code=4)


def test_digits_in_a_large_picture(tmp_path: Path, call: Callable[..., str]) -> None:
    """Weights that are the pictures of ten classes find those pictures, where they are."""
    from PIL import Image

    patterns = np.random.default_rng(0).integers(0, 2, (10, 28, 28))
    settings = Settings(sizes=(784, 10))
    weight = (2 * patterns - 1).reshape(10, -1).astype(np.float32)
    Model(settings, (weight,), (None,)).save(tmp_path / "m.safetensors", packed=True)
    picture = np.zeros((64, 120), np.uint8)
    for (top, left), label in {(4, 8): 3, (36, 80): 7}.items():
        picture[top : top + 28, left : left + 28] = 200 * patterns[label]
    Image.fromarray(picture).save(tmp_path / "large.png")
    given = ("bnn", "detect", tmp_path / "m.safetensors", tmp_path / "large.png")
    found = json.loads(call(*given, "--margin", 0.5, "--json"))
    assert {(d["top"], d["left"], d["label"]) for d in found} == {(4, 8, 3), (36, 80, 7)}
    Image.fromarray(picture[:20]).save(tmp_path / "large.png")
    assert "at least 28 x 28" in call(*given, code=4)


def test_ablation(folder: Path, tmp_path: Path, call: Callable[..., str]) -> None:
    out = tmp_path / "out"
    call(
        "bnn", "ablate", "--out", out, "--data", folder, "--set", FEW, "--cycles", 60, "--looks",
        2, "--only", "as preset", "--only", "- decay",
    )  # fmt: skip
    assert (out / "curves.csv").read_text().count("- decay") == 2
    assert "<svg" in (out / "curves0.svg").read_text()
    assert "no trick" in call("bnn", "ablate", "--out", out, "--only", "luck", code=2)


def test_what_is_asked_wrongly_is_named(
    folder: Path, tmp_path: Path, call: Callable[..., str]
) -> None:
    train = ("bnn", "train", "bnn-1h", "--out", tmp_path / "x", "--data", folder)
    assert "changes no option" in call(*train, "--set", "momentum=1", code=2)
    assert "no value" in call(*train, "--set", "clip=maybe", code=2)
    assert "no preset" in call("bnn", "train", "cnn", "--out", tmp_path / "x", code=2)
    broken = folder.parent / "broken"
    broken.mkdir(exist_ok=True)
    for path in folder.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    (broken / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"\1\0\10\3" + bytes(99)))
    given = ("bnn", "train", "bnn-1h", "--out", tmp_path / "x", "--data", broken)
    assert "IDX files begin with 0000" in call(*given, code=4)
    idx(broken / "train-images-idx3-ubyte.gz", np.zeros((600, 27, 27)))
    call(*given, code=4)


def test_tables_and_trace(call: Callable[..., str]) -> None:
    assert "inconsistent" in call("bnn", "tables")
    assert len(json.loads(call("bnn", "trace", "bnn-2h", "--json"))["rows"]) == 2 + 3 * 9
    assert {s.sizes for s in PRESETS.values()} == {(784, 4096, 10), (784, 4096, 4096, 10)}


def test_two_frames_of_one_plain_name_and_a_label_that_stays(
    tmp_path: Path, call: Callable[..., str]
) -> None:
    """Names that become one word are two pictures; who watches again keeps what a person wrote."""
    from PIL import Image

    model = tmp_path / "m.safetensors"
    weight = (2 * np.random.default_rng(0).integers(0, 2, (10, 784)) - 1).astype(np.float32)
    Model(Settings(sizes=(784, 10)), (weight,), (None,)).save(model, packed=True)
    frames, queue = tmp_path / "frames", tmp_path / "queue"
    frames.mkdir()
    for number, name in enumerate(("a b.png", "a?b.png")):
        Image.fromarray(bar(number)).save(frames / name)
    watch = ("bnn", "watch", model, frames, "--queue", queue, "--margin", 2, "--json")
    call(*watch)
    rows = [row.split(",") for row in (queue / "labels.csv").read_text().splitlines()]
    assert len(rows) == 3 and all((queue / row[0]).is_file() for row in rows[1:])
    rows[1][1] = "7"
    (queue / "labels.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    call(*watch)
    again = [row.split(",") for row in (queue / "labels.csv").read_text().splitlines()]
    assert again == rows
    (queue / "labels.csv").write_text("file,label,guess\n" + "x" * 200_000 + ",1,1\n")
    call(*watch, code=4)
    assert "no folder" in call("bnn", "watch", model, tmp_path / "none", "--queue", queue, code=4)


def test_a_model_file_becomes_a_design(
    folder: Path, tmp_path: Path, call: Callable[..., str]
) -> None:
    """A file without its run folder will do; what is no integer network is refused."""
    weight = (2 * np.random.default_rng(0).integers(0, 2, (10, 784)) - 1).astype(np.float32)
    model = tmp_path / "m.safetensors"
    Model(Settings(sizes=(784, 10)), (weight,), (None,)).save(model, packed=True)
    call("bnn", "lower", model, "--out", tmp_path / "d", "--data", folder, "--images", 1)
    assert (tmp_path / "d").is_dir()
    divided = Settings(sizes=(784, 10), scale_sum="fan_in")
    Model(divided, (weight,), (None,)).save(model, packed=True)
    lower = ("bnn", "lower", model, "--out", tmp_path / "e", "--data", folder)
    assert "plain sums" in call(*lower, code=3)


@pytest.mark.parametrize(
    "change",
    [
        {"binary": "yes"},
        {"sizes": [784, 10.0]},
        {"rate_start": "1"},
        {"act_forward": 3},
        {"seed": True},
        {"rate_start": None},
    ],
    ids=str,
)
def test_settings_of_another_type_are_damaged(
    change: dict[str, object], tmp_path: Path, call: Callable[..., str]
) -> None:
    from safetensors.numpy import load_file, save_file

    model = tmp_path / "m.safetensors"
    weight = np.ones((10, 784), np.float32)
    Model(Settings(sizes=(784, 10)), (weight,), (None,)).save(model)
    content = model.read_bytes()
    about = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    about["settings"] = json.dumps({**json.loads(about["settings"]), **change})
    save_file(load_file(model), model, about)
    with pytest.raises(DataError, match="settings are damaged"):
        Model.load(model)
    save_file(load_file(model), model)  # a file without any
    with pytest.raises(DataError):
        Model.load(model)


def test_labels_beyond_the_classes(folder: Path, tmp_path: Path, call: Callable[..., str]) -> None:
    model = tmp_path / "m.safetensors"
    weight = np.ones((4, 784), np.float32)
    Model(Settings(sizes=(784, 4)), (weight,), (None,)).save(model)
    assert "labels 0 to 3" in call("bnn", "classify", model, "--data", folder, code=4)
