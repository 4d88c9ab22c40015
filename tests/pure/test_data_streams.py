# SPDX-License-Identifier: Apache-2.0
"""Images that stay in their files: splits, windows, fewer images of a split, and broken files."""

from __future__ import annotations

import io
import logging
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bitwright.base import memory
from bitwright.base.errors import DataError, RecipeError
from bitwright.data import load_dataset
from bitwright.data.decoding import Framing, RandomCrop, frame_image
from bitwright.data.image_files import ImageFiles


def jpeg(size: tuple[int, int], colour: tuple[int, int, int]) -> bytes:
    """A picture of (width, height) ``size``: one colour with a bright left edge."""
    image = Image.new("RGB", size, colour)
    image.paste((255, 255, 255), (0, 0, max(1, size[0] // 8), size[1]))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def make(root: Path, counts: dict[str, int]) -> Path:
    """Class folders of pictures of different sizes; the red channel tells the class."""
    for number, (name, count) in enumerate(counts.items()):
        folder = root / name
        folder.mkdir(parents=True)
        for index in range(count):
            size = (30 + 7 * index % 40, 24 + 5 * index % 30)
            (folder / f"{index:03}.JPEG").write_bytes(jpeg(size, (20 + 40 * number, 90, index)))
    return root


IMAGENET = {"train/a": 12, "train/b": 12, "val/a": 4, "val/b": 5}


def load(path: Path, name: str = "imagenet", **options: object):
    fields = {"image_size": [16, 12], "stream": {"short_side": 18}, "validation": 0.25, **options}
    return load_dataset({"name": name, "path": path, **fields})


@pytest.mark.parametrize("packed", [False, True])
def test_imagenet_is_measured_on_val_and_chosen_on_a_part_of_train(
    tmp_path: Path, packed: bool
) -> None:
    path = make(tmp_path / "set", IMAGENET)
    if packed:
        path = Path(shutil.make_archive(str(tmp_path / "packed"), "zip", path))
    splits = load(path)
    assert splits.name == "imagenet" and splits.classes == ("a", "b")
    assert splits.image_shape == (16, 12, 3)
    assert [len(p) for p in (splits.train, splits.validation, splits.test)] == [18, 6, 9]
    for part in (splits.train, splits.validation, splits.test):
        assert isinstance(part.images, ImageFiles)
        offset = 80 if part is splits.test else 0
        for sample in part:
            red = int(sample.image[8, 8, 0])
            assert abs(red - (20 + offset + 40 * sample.label)) <= 4, "an image and its own label"
    every = np.concatenate([p.indices for p in (splits.train, splits.validation, splits.test)])
    assert sorted(every.tolist()) == list(range(33))


def test_a_folder_may_be_streamed_too(tmp_path: Path) -> None:
    path = make(tmp_path / "pets", {"cat": 10, "dog": 10})
    splits = load(path, "folder", test=0.2)
    assert splits.name == "pets"
    assert [len(p) for p in (splits.train, splits.validation, splits.test)] == [12, 4, 4]
    with pytest.raises(DataError, match="'imagenet' measures on val"):
        load(make(tmp_path / "set", IMAGENET), "folder")


def test_images_in_files_are_what_arrays_of_them_are(tmp_path: Path) -> None:
    train = load(make(tmp_path, IMAGENET)).train
    images, pixels = train.images, train.pixels
    assert pixels.shape == images.shape == (18, 16, 12, 3) and pixels.dtype == images.dtype
    assert np.array_equal(images[3], pixels[3])
    chosen = train.take([5, 0, 5])
    assert isinstance(chosen.images, ImageFiles)
    assert np.array_equal(chosen.pixels, pixels[[5, 0, 5]])
    assert np.array_equal(images[2:5].__array__(), pixels[2:5])
    again = pickle.loads(pickle.dumps(images))  # processes of several devices get a copy
    assert np.array_equal(np.asarray(again), pixels)
    assert train.take([1, 2]).reals().shape == (2, 3, 16, 12)


def test_hashes_tell_images_cuts_and_framings_apart_but_not_copies(tmp_path: Path) -> None:
    path = make(tmp_path / "set", IMAGENET)
    first = load(path)
    shutil.copytree(path, tmp_path / "copy")
    assert load(tmp_path / "copy").train.digest() == first.train.digest()
    assert load(path, stream={"short_side": 20}).train.digest() != first.train.digest()
    assert load(path, validation=0.2).train.digest() != first.train.digest()
    assert first.train.take([0, 1]).digest() != first.train.take([1, 0]).digest()
    (path / "train/a/000.JPEG").write_bytes(jpeg((33, 44), (1, 2, 3)))
    assert load(path).train.digest() != first.train.digest()


def test_the_middle_is_resized_in_proportion() -> None:
    """Columns tell where a pixel was: the middle of the middle, equally far from both sides."""
    ramp = np.tile(np.arange(200, dtype=np.uint8), (100, 1))
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, "PNG")
    found = frame_image(buffer.getvalue(), Framing((40, 40), 50, grey=True), "x")
    # The short side becomes 50 pixels, two of the file each; 40 of them are columns 60 to 140.
    assert found.shape == (40, 40, 1)
    assert np.abs(found[:, :, 0] - (60.5 + 2 * np.arange(40))[None]).max() <= 1


@given(
    width=st.integers(1, 3000),
    height=st.integers(1, 3000),
    size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    smallest=st.floats(0.01, 1.0),
    seed=st.integers(0, 2**32 - 1),
    epoch=st.integers(0, 1000),
    index=st.integers(0, 2**31),
)
def test_a_random_window_lies_inside_and_is_the_same_again(
    width: int, height: int, size: tuple[int, int], smallest: float, seed: int, epoch: int,
    index: int,
) -> None:  # fmt: skip
    crop = RandomCrop(smallest, seed, epoch)
    left, top, right, bottom = crop.window(width, height, size, index)
    assert 0 <= left < right <= width * (1 + 1e-9) and 0 <= top < bottom <= height * (1 + 1e-9)
    assert crop.window(width, height, size, index) == (left, top, right, bottom)
    ratio = (right - left) / (bottom - top) / (size[1] / size[0])
    share = (right - left) * (bottom - top) / (width * height)
    fits_all = share < smallest * (1 - 1e-9)  # nothing fitted: as much as there is
    assert 3 / 4 - 1e-6 <= ratio <= 4 / 3 + 1e-6 or fits_all


def test_random_windows_differ_by_image_epoch_and_seed_and_use_the_whole_range() -> None:
    def window(seed: int, epoch: int, index: int) -> tuple[float, ...]:
        return RandomCrop(0.08, seed, epoch).window(500, 375, (224, 224), index)

    assert len({window(s, e, i) for s in range(3) for e in range(3) for i in range(3)}) == 27
    every = np.array([window(0, 0, index) for index in range(4000)])
    areas = (every[:, 2] - every[:, 0]) * (every[:, 3] - every[:, 1]) / (500 * 375)
    assert 0.08 <= areas.min() < 0.09 and areas.max() > 0.9
    assert 0.4 < areas.mean() < 0.54  # (0.08 + 1) / 2, less what does not fit
    assert every[:, 0].min() < 5 and every[:, 2].max() > 495


def test_numbers_of_the_windows_never_change() -> None:
    """A run is repeated on another machine, and with other versions of everything."""
    found = RandomCrop(0.08, 7, 3).window(500, 375, (224, 224), 42)
    assert [round(edge, 6) for edge in found] == [132.269808, 66.098316, 392.437659, 374.612027]


@pytest.mark.parametrize("content", [b"", b"not an image", b"\xff\xd8\xff"])
def test_files_that_are_no_images_are_named_before_training(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = make(tmp_path, IMAGENET)
    for name in ("train/b/003.JPEG", "val/a/001.JPEG"):
        (path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"2 files are no images: train/b/003\.JPEG, val") as caught:
        load(path)
    assert "bad_files to skip" in str(caught.value)
    with caplog.at_level(logging.WARNING):
        splits = load(path, stream={"short_side": 18, "bad_files": "skip"})
    assert "train/b/003.JPEG, val/a/001.JPEG" in caplog.text
    assert [len(p) for p in (splits.train, splits.validation, splits.test)] == [17, 6, 8]
    splits.train.pixels, splits.test.pixels  # noqa: B018 - all of them can be decoded


def test_a_file_that_is_cut_short_is_named_when_it_is_decoded(tmp_path: Path) -> None:
    path = make(tmp_path, IMAGENET)
    broken = path / "val/b/002.JPEG"
    broken.write_bytes(broken.read_bytes()[:-200])
    splits = load(path)
    with pytest.raises(DataError, match=r"val/b/002\.JPEG: cannot be decoded"):
        splits.test.pixels  # noqa: B018
    broken.unlink()
    with pytest.raises(DataError, match=r"val/b/002\.JPEG: cannot be read"):
        splits.test.pixels  # noqa: B018


def test_a_class_without_a_sound_file_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path, IMAGENET)
    for file in (path / "val/a").iterdir():
        file.write_bytes(b"")
    with pytest.raises(DataError, match=r"class folder 'val.*/a' holds no image"):
        load(path, stream={"short_side": 18, "bad_files": "skip"})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "cifar10", "stream": {}}, "cifar10 is small and read at once"),
        ({"name": "folder", "path": "x", "stream": {}}, "stream needs image_size"),
        (
            {"name": "imagenet", "path": "x", "image_size": [300, 224]},
            r"short_side \(256\) must be at least the larger side of image_size \(300\)",
        ),
        ({"name": "imagenet", "path": "x", "stream": None}, "does not fit into memory"),
        ({"name": "imagenet", "path": "x", "unlabelled": "y"}, "do not go together"),
        ({"name": "imagenet", "path": "x", "stream": {"ahead": 0}}, "stream.ahead"),
        ({"name": "imagenet"}, "'imagenet' needs a path"),
        ({"name": "digits", "keep": {"train": 0}}, "keep.train"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_dataset(fields)


def test_imagenet_has_the_usual_sizes(tmp_path: Path) -> None:
    path = make(tmp_path, IMAGENET)
    splits = load_dataset({"name": "imagenet", "path": path})
    assert splits.image_shape == (224, 224, 3)
    assert splits.train.images.framing.short_side == 256


def test_fewer_images_of_a_split_have_the_same_share_of_every_class(tmp_path: Path) -> None:
    whole = load_dataset("digits")
    few = load_dataset({"name": "digits", "keep": {"train": 200, "test": 50}})
    assert len(few.validation) == len(whole.validation)
    assert abs(len(few.train) - 200) <= 5 and abs(len(few.test) - 50) <= 5
    assert set(few.train.indices) <= set(whole.train.indices)
    shares = np.bincount(few.train.labels) / len(few.train)
    assert np.abs(shares - np.bincount(whole.train.labels) / len(whole.train)).max() < 0.01
    again = load_dataset({"name": "digits", "keep": {"train": 200, "test": 50}})
    assert again.train.digest() == few.train.digest()
    everything = load_dataset({"name": "digits", "keep": {"train": 10**6}})
    assert everything.train.digest() == whole.train.digest()
    splits = load(make(tmp_path, IMAGENET), keep={"train": 6, "test": 1})
    assert isinstance(splits.train.images, ImageFiles) and len(splits.train) == 6
    assert sorted(splits.test.labels) == [0, 1]  # one of each class at least


def test_more_than_memory_is_not_even_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = load(make(tmp_path, IMAGENET)).train
    monkeypatch.setattr(memory, "machine_memory", lambda: 18 * 16 * 12 * 3 - 1)
    with pytest.raises(DataError, match=r"18 images of \(16, 12, 3\) do not fit into memory"):
        train.pixels  # noqa: B018
    assert train.take(range(17)).pixels.shape[0] == 17
