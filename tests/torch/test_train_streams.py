# SPDX-License-Identifier: Apache-2.0
"""Training on images that stay in their files: as from memory, repeatable, resumable."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from bitwright.base.errors import DataError
from bitwright.data import DataSplits, load_dataset
from bitwright.data.decoding import RandomCrop
from bitwright.models import build_model
from bitwright.train import Augmentation, Distillation, TrainConfig, evaluate, fit
from bitwright.train.images import Feed, FileImages, on_device
from bitwright.train.transforms import to_real

CONFIG = TrainConfig(
    epochs=2,
    batch_size=8,
    lr=1e-3,
    threads=1,
    keep="last",
    augmentation=Augmentation(random_resized_crop=0.3, flip=True, shift=1),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes, bright and dark, in pictures of different sizes."""
    random = np.random.default_rng(0)
    for split, count in (("train", 20), ("val", 6)):
        for number, name in enumerate(("dark", "light")):
            (tmp_path / "set" / split / name).mkdir(parents=True)
            for index in range(count):
                shape = (20 + index, 40 - index, 3)
                pixels = random.integers(0, 128, shape, dtype=np.uint8) + np.uint8(127 * number)
                path = tmp_path / "set" / split / name / f"{index:02}.jpg"
                Image.fromarray(pixels).save(path)
    return tmp_path / "set"


def load(path: Path, **stream: object) -> DataSplits:
    fields = {"short_side": 18, "threads": 2, **stream}
    return load_dataset(
        {"name": "imagenet", "path": path, "image_size": [16, 16], "stream": fields,
         "validation": 0.2}
    )  # fmt: skip


def in_memory(splits: DataSplits) -> DataSplits:
    parts = {
        name: replace(part, images=part.pixels)
        for name, part in vars(splits).items()
        if name in ("train", "validation", "test")
    }
    return replace(splits, **parts)


def small() -> nn.Module:
    return build_model("digits_cnn", 2, (16, 16, 3), seed=3)


def state_of(model: nn.Module) -> list[torch.Tensor]:
    return list(model.state_dict().values())


def equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(state_of(one), state_of(other), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_a_training_from_files_is_that_from_memory_bit_for_bit(
    folder: Path, tmp_path: Path
) -> None:
    """Without random windows, which files see more of: the rest is one and the same."""
    splits = load(folder)
    config = CONFIG.model_copy(update={"augmentation": Augmentation(flip=True, shift=1)})
    first, second = small(), small()
    one = fit(first, splits, config, run_dir=tmp_path / "files")
    two = fit(second, in_memory(splits), config, run_dir=tmp_path / "memory")
    assert equal(first, second)
    assert [e.validation_loss for e in one.history] == [e.validation_loss for e in two.history]
    seen, known = evaluate(first, splits.test), evaluate(first, in_memory(splits).test)
    assert np.array_equal(seen.scores, known.scores)
    assert seen.accuracy > 0.9  # bright from dark is easy


def test_a_run_that_was_stopped_ends_with_the_same_weights(folder: Path, tmp_path: Path) -> None:
    splits = load(folder)
    whole, parts = small(), small()
    fit(whole, splits, CONFIG, run_dir=tmp_path / "whole")

    class Stop(Exception):
        pass

    def stop(progress: object) -> None:
        if progress.last is not None:  # type: ignore[attr-defined]
            raise Stop

    with pytest.raises(Stop):
        fit(parts, splits, CONFIG, run_dir=tmp_path / "parts", on_progress=stop)
    again = small()
    # Other threads and another lead change the time that it takes, and nothing else.
    done = fit(again, load(folder, threads=1, ahead=1), CONFIG, run_dir=tmp_path / "parts")
    assert done.resumed_from == 1
    assert equal(whole, again)


def feed(splits: DataSplits, epoch: int, share: slice = slice(None)) -> Feed:
    images, _ = on_device(splits.train, "cpu")
    return Feed(images, splits.train.indices, splits.scale, CONFIG.augmentation, share, 7, epoch)


def test_windows_depend_on_seed_epoch_and_image_alone(folder: Path) -> None:
    splits = load(folder)
    without = CONFIG.augmentation.model_copy(update={"flip": False, "shift": 0})

    def batch(order: list[int], epoch: int, share: slice = slice(None)) -> torch.Tensor:
        made = replace(feed(splits, epoch, share), augmentation=without)
        return next(made.batches([torch.tensor(order)], torch.Generator().manual_seed(0)))[0]

    whole = batch([4, 1, 9, 2], 0)
    assert torch.equal(batch([2, 9, 4, 1], 0), whole[[3, 2, 0, 1]])
    assert torch.equal(batch([4, 1, 9, 2], 0, slice(2, 4)), whole[2:])
    assert not torch.equal(batch([4, 1, 9, 2], 1), whole)
    index = int(splits.train.indices[9])
    cut = splits.train.images.window(9, RandomCrop(0.3, 7, 0), index)
    assert torch.equal(whole[2], to_real(torch.from_numpy(cut), 1 / 255).permute(2, 0, 1))


def test_in_memory_the_windows_are_the_same_ones(folder: Path) -> None:
    """Cut out of the image at hand: of one colour gradient it is the same gradient, stretched."""
    splits = in_memory(load(folder))
    images = np.broadcast_to(np.arange(16, dtype=np.uint8) * 10, (len(splits.train), 16, 16))
    splits = replace(splits, train=replace(splits.train, images=np.repeat(images[..., None], 3, 3)))
    how = Augmentation(random_resized_crop=0.3)
    made = replace(feed(splits, 0), augmentation=how)
    ((found, _),) = made.batches([torch.tensor([0, 5])], torch.Generator())
    for row, position in zip(found, (0, 5), strict=True):
        box = RandomCrop(0.3, 7, 0).window(16, 16, (16, 16), int(splits.train.indices[position]))
        places = box[0] + (box[2] - box[0]) * (np.arange(16) + 0.5) / 16 - 0.5
        wanted = np.clip(places, 0, 15) * 10 / 255
        assert np.abs(row[0].numpy() - wanted).max() < 1e-5


def test_batches_are_decoded_ahead_and_no_further(folder: Path) -> None:
    splits = load(folder, ahead=2, threads=1)
    images, _ = on_device(splits.train, "cpu")
    assert isinstance(images, FileImages)
    decoded = []
    window = type(images.files).window

    def watched(files: object, position: int, *rest: object) -> np.ndarray:
        decoded.append(position)
        return window(files, position, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(images.files), "window", watched)
        parts = torch.arange(30).split(5)
        batches = images.batches(parts, None, splits.train.indices)
        next(batches)
        for _ in range(200):  # of two batches ahead, in the background
            if len(decoded) == 15:
                break
            time.sleep(0.02)
        assert decoded == list(range(15))
        batches.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("decode")]


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-150])


def test_a_damaged_file_stops_training_and_is_named(folder: Path, tmp_path: Path) -> None:
    splits = load(folder)
    broken = splits.train.images.source.listing.names[splits.train.images.numbers[3]]
    cut_short(folder / broken)
    with pytest.raises(DataError, match=f"{broken}: cannot be decoded"):
        fit(small(), splits, CONFIG, run_dir=tmp_path / "run")


def test_a_damaged_file_is_replaced_by_another_of_its_class_if_one_says_so(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    splits = load(folder, bad_files="skip")
    files, labels = splits.train.images, splits.train.labels
    broken = files.source.listing.names[files.numbers[3]]
    cut_short(folder / broken)
    with caplog.at_level(logging.WARNING):
        fit(small(), splits, CONFIG, run_dir=tmp_path / "run")
    assert caplog.text.count(broken) == 1 and "takes its place in training" in caplog.text
    images, _ = on_device(splits.train, "cpu")
    (batch,) = images.batches([torch.tensor([3])], None, splits.train.indices)
    same = np.flatnonzero(labels == labels[3])
    after = same[(list(same).index(3) + 1) % len(same)]
    assert torch.equal(batch, images[torch.tensor([int(after)])])
    with pytest.raises(DataError, match="cannot be decoded"):
        list(images.split(4))  # what is measured is never replaced


def test_a_class_of_damaged_files_is_looked_through_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = load(folder, bad_files="skip")
    images, _ = on_device(splits.train, "cpu")
    of_one = np.flatnonzero(splits.train.labels == splits.train.labels[0])
    whole, tried = images.files.window, []

    def window(position: int, *given: object) -> object:
        tried.append(position)
        if position in of_one[:-1]:
            raise DataError("cannot be decoded")
        return whole(position, *given)

    monkeypatch.setattr(type(images.files), "window", lambda self, *given: window(*given))
    for _ in range(2):
        list(images.batches([torch.from_numpy(of_one)], None, splits.train.indices))
    assert len(of_one) > 4 and len(tried) <= 5 * len(of_one)  # not its square


def test_validation_images_are_never_replaced(folder: Path, tmp_path: Path) -> None:
    splits = load(folder, bad_files="skip")
    files = splits.validation.images
    cut_short(folder / files.source.listing.names[files.numbers[0]])
    with pytest.raises(DataError, match="cannot be decoded"):
        fit(small(), splits, CONFIG, run_dir=tmp_path / "run")


def test_a_teacher_may_see_images_from_files(folder: Path, tmp_path: Path) -> None:
    splits = load(folder)
    learned = Distillation(outputs="cached_plain")
    config = CONFIG.model_copy(update={"distillation": learned, "epochs": 1})
    found = fit(small(), splits, config, run_dir=tmp_path / "run", teacher=small())
    assert len(found.history) == 1


def test_large_images_are_measured_in_smaller_batches(folder: Path) -> None:
    splits = load_dataset(
        {"name": "imagenet", "path": folder, "image_size": [800, 600],
         "stream": {"short_side": 800}}
    )  # fmt: skip
    images, _ = on_device(splits.test, "cpu")
    assert {len(batch) for batch in images.split(500)} == {9, 3}
