# SPDX-License-Identifier: Apache-2.0
"""Data sets: values, splits, built-in sets, and the messages for what cannot be loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitwright.base.errors import DataError, RecipeError
from bitwright.data import Dataset, DatasetSpec, digits, list_datasets, load_dataset
from bitwright.data.splits import stratified


def test_digits_are_the_real_ones_cut_in_three() -> None:
    splits = load_dataset("digits")
    parts = (splits.train, splits.validation, splits.test)
    indices = np.concatenate([part.indices for part in parts])
    assert sorted(indices) == list(range(1797))
    assert splits.image_shape == (8, 8, 1)
    assert splits.num_classes == 10
    assert int(splits.train.images.max()) == 16
    assert splits.train.reals().max() == 1.0
    counts = np.bincount(splits.test.labels)
    assert counts.min() >= 34 and counts.max() <= 37


def test_the_same_seed_gives_the_same_split_and_another_seed_another() -> None:
    first, again, other = (load_dataset("digits", seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.test.indices, again.test.indices)
    assert np.array_equal(first.train.images, again.train.images)
    assert not np.array_equal(first.test.indices, other.test.indices)


def test_digits_are_read_as_scikit_learn_reads_them() -> None:
    from sklearn.datasets import load_digits

    bunch, rows = load_digits(), digits._rows()
    assert (rows[:, :-1] == bunch.data).all() and (rows[:, -1] == bunch.target).all()


def test_the_default_digits_split_never_moves() -> None:
    """Published accuracies refer to these held-out images."""
    test = load_dataset("digits").test
    assert len(test) == 359
    assert test.indices[:8].tolist() == [3, 5, 7, 16, 22, 26, 33, 36]


def test_samples_carry_their_index() -> None:
    splits = load_dataset("digits")
    sample = splits.test[5]
    assert sample.index == int(splits.test.indices[5])
    assert sample.image.shape == (8, 8, 1)
    assert sample.label == int(splits.test.labels[5])
    assert len(list(splits.validation)) == len(splits.validation)
    chosen = splits.test.take([5, 2])
    assert chosen[0].index == sample.index and len(chosen) == 2


def test_reals_are_planar_and_scaled() -> None:
    images = np.arange(2 * 3 * 4 * 2, dtype=np.uint8).reshape(2, 3, 4, 2)
    data = Dataset("d", images, np.array([0, 1]), ("a", "b"), 1 / 255, np.arange(2))
    reals = data.reals()
    assert reals.shape == (2, 2, 3, 4)
    assert reals.dtype == np.float32
    assert reals[1, 1, 2, 3] == np.float32(images[1, 2, 3, 1]) * np.float32(1 / 255)


@given(
    counts=st.lists(st.integers(3, 30), min_size=1, max_size=6),
    shares=st.tuples(st.floats(0.01, 0.45), st.floats(0.01, 0.45)),
    seed=st.integers(0, 1000),
)
def test_stratified_splits_are_a_partition_with_every_class_everywhere(
    counts: list[int], shares: tuple[float, float], seed: int
) -> None:
    labels = np.repeat(np.arange(len(counts)), counts).astype(np.int64)
    parts = stratified(labels, shares, seed, where="x")
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    for part in parts:
        assert set(labels[part]) == set(range(len(counts)))
        assert (np.diff(part) > 0).all()
    for share, part in zip(shares, parts, strict=False):
        for label, count in enumerate(counts):
            found = int((labels[part] == label).sum())
            assert abs(found - count * share) <= 1.5


def test_a_class_too_small_to_split_is_named() -> None:
    with pytest.raises(DataError, match="class 1 has 2 images; 3 splits") as caught:
        stratified(np.array([0, 0, 0, 1, 1]), (0.1, 0.2), 0, where="my/pictures")
    assert caught.value.where == "my/pictures"


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros(2, np.uint8), [0, 1], r"images \(N, H, W, C\)"),
        (np.zeros((2, 4, 4, 1), np.float32), [0, 1], "float32"),
        (np.zeros((2, 4, 4, 1), np.uint8), [0], "2 images, but labels"),
        (np.zeros((2, 4, 4, 1), np.uint8), [0, 2], "there are 2 classes"),
    ],
)
def test_a_data_set_that_does_not_fit_together_is_refused(
    images: np.ndarray, labels: list[int], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        Dataset("d", images, np.array(labels), ("a", "b"), 1.0, np.arange(len(images)))


def test_unknown_names_and_fields_are_refused_with_what_is_known() -> None:
    with pytest.raises(RecipeError, match="unknown data set 'minst'") as caught:
        load_dataset("minst")
    for info in list_datasets():
        assert info.name in str(caught.value)
    with pytest.raises(RecipeError, match="image_sise") as caught:
        load_dataset({"name": "digits", "image_sise": 8})
    assert "image_size" in str(caught.value)
    with pytest.raises(RecipeError, match=r"data\.validation"):
        load_dataset({"name": "digits", "validation": 0.9})


def test_folder_needs_a_path() -> None:
    with pytest.raises(RecipeError, match="needs a path"):
        load_dataset(DatasetSpec(name="folder"))


def test_loading_data_does_not_import_torch() -> None:
    code = (
        "import sys; from bitwright.data import load_dataset; load_dataset('digits');"
        "import bitwright.models, bitwright.train.config;"
        "sys.exit('torch' in sys.modules)"
    )
    source = Path(__file__).resolve().parents[2] / "src"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, timeout=60, check=False
    )
    assert done.returncode == 0
