# SPDX-License-Identifier: Apache-2.0
"""Data sets by ``module:function``: tables, signals and images of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bitwright.base.errors import BitwrightError, DataError, ModelError, RecipeError
from bitwright.base.plugins import own_code
from bitwright.base.trust import importable
from bitwright.data import Arrays, DatasetSpec, DataSplits, load_dataset
from bitwright.data.labels import BoxLabels, LabelKind, MapLabels, ValueLabels
from bitwright.data.own import splits_of
from bitwright.data.preparation import fit_preparation
from bitwright.data.shown import picture_of

RANDOM = np.random.default_rng(0)
LABELS = np.arange(40) % 2
TABLE = RANDOM.normal(size=(40, 5)) * (1, 10, 100, 0.01, 0) + (0, 5, -1000, 0, 3)
SIGNALS = RANDOM.uniform(-0.5, 0.25, size=(40, 2, 16))


def split(given: Any, **fields: Any) -> DataSplits:
    spec = DatasetSpec(name="my_data:load", **fields)
    return splits_of(given, spec, "mine", "my_data:load", seed=0)


@pytest.mark.parametrize(
    ("kind", "labels", "names"),
    [
        (ValueLabels(), LABELS, ("value 0",)),  # ages, say: whole, but no classes
        (ValueLabels(), LABELS / 3, ("value 0",)),
        (ValueLabels(), np.stack([LABELS, LABELS / 3], axis=1), ("value 0", "value 1")),
        (BoxLabels(), np.tile([1, 0.1, 0.1, 0.4, 0.9], (40, 1, 1)), ("0", "1")),
        (MapLabels(), np.tile(np.eye(4, dtype=np.uint8), (40, 1, 1)), ("0", "1")),
    ],
)
def test_labels_are_of_the_kind_that_the_task_wants(
    kind: LabelKind, labels: np.ndarray[Any, Any], names: tuple[str, ...]
) -> None:
    spec = DatasetSpec(name="my_data:load")
    images = np.zeros((40, 4, 4, 1), np.uint8)
    found = splits_of((images, labels), spec, "mine", "my_data:load", kind=kind, seed=0)
    assert found.train.kind == kind and found.classes == names
    every = np.concatenate([part.labels for part in parts_of(found)])
    order = np.concatenate([part.indices for part in parts_of(found)])
    assert np.allclose(every.reshape(40, -1), labels[order].reshape(40, -1))


def parts_of(splits: DataSplits) -> tuple[Any, ...]:
    return splits.train, splits.validation, splits.test


def test_a_table_is_scaled_column_by_column_from_the_training_part_alone() -> None:
    wild = TABLE.copy()
    splits = split((wild, LABELS), test=0.25)
    training = wild[splits.train.indices]
    prepared = splits.preparation
    assert prepared is not None and splits.input_format == "int8" and splits.scale == 1 / 127
    assert splits.image_shape == splits.sample_shape == (5,)
    levels = splits.train.pixels
    assert levels.dtype == np.int8
    assert (levels.min(axis=0)[:4] == -127).all() and (levels.max(axis=0)[:4] == 127).all()
    assert (levels[:, 4] == 0).all(), "a column of one value"
    for part in parts_of(splits):
        expected = np.clip(
            np.rint((wild[part.indices] - prepared.offset) / prepared.step), -127, 127
        )
        assert np.array_equal(part.pixels, expected)
        assert np.array_equal(part.reals(), part.pixels.astype(np.float32) * np.float32(1 / 127))
    # What lies in the other parts changes nothing: no leak.
    other = wild.copy()
    outside = np.concatenate([splits.validation.indices, splits.test.indices])
    other[outside] *= 1000
    again = split((other, LABELS), test=0.25)
    assert np.array_equal(again.train.pixels, levels)
    assert np.abs(again.test.pixels.astype(int)).max() == 127
    assert np.abs(prepared.levels(training) * prepared.step + prepared.offset - training).max(
        axis=0
    ) == pytest.approx(prepared.step / 2, rel=1)


def test_signals_have_one_range_and_zero_stays_zero() -> None:
    splits = split((SIGNALS, LABELS))
    assert splits.image_shape == (16, 2) and splits.sample_shape == (2, 16)
    assert splits.preparation is not None and splits.input_format == "int8"
    assert np.abs(splits.train.pixels.astype(int)).max() == 127
    top = np.abs(SIGNALS[splits.train.indices]).max()
    expected = np.clip(np.rint(SIGNALS[splits.test.indices] / (top / 127)), -127, 127)
    assert np.array_equal(np.rint(splits.test.reals() * 127), expected)
    louder = split((np.abs(SIGNALS), LABELS), bits=12)
    assert louder.input_format == "uint12" and louder.train.images.dtype == np.uint16
    assert louder.train.pixels.max() == 4095 and louder.scale == 1 / 4095


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int16"])
def test_integers_of_8_and_16_bits_are_levels(kind: str) -> None:
    info = np.iinfo(kind)
    values = RANDOM.integers(info.min, info.max, (40, 4, 6, 3), dtype=kind, endpoint=True)
    splits = split((values, LABELS))
    assert splits.preparation is None and splits.input_format == kind
    assert np.array_equal(splits.train.pixels, values[splits.train.indices])
    assert splits.scale == 1 / (info.max if info.min == 0 else -info.min)
    assert split(Arrays(values, LABELS, scale=0.5)).scale == 0.5
    with pytest.raises(RecipeError, match="taken as they are"):
        split((values, LABELS), bits=8)


@pytest.mark.parametrize("kind", ["bool", "int32", "int64", "uint32", "float16", "float64"])
def test_all_other_numbers_are_measurements(kind: str) -> None:
    splits = split(((TABLE * 10).astype(kind), LABELS))
    assert splits.preparation is not None and splits.train.images.dtype == np.int8
    with pytest.raises(DataError, match="no levels"):
        split(Arrays((TABLE * 10).astype(kind), LABELS, scale=1.0))


def test_layouts() -> None:
    images = RANDOM.integers(0, 256, (40, 6, 8, 3), dtype=np.uint8)
    for made, shape in (
        (Arrays(images, LABELS), (6, 8, 3)),
        (Arrays(np.moveaxis(images, 3, 1), LABELS, layout="NCHW"), (6, 8, 3)),
        (Arrays(images[..., 0], LABELS, layout="NHW"), (6, 8, 1)),
        (Arrays(images[:, 0], LABELS, layout="NLC"), (8, 3)),
        (Arrays(images[:, 0, :3], LABELS, layout="NCL"), (3, 3)),
        (Arrays(images[:, 0, 0, 0], LABELS), (1,)),
    ):
        splits = split(made)
        assert splits.image_shape == shape
    assert np.array_equal(
        split(Arrays(np.moveaxis(images, 3, 1), LABELS, layout="NCHW")).test.pixels,
        split((images, LABELS)).test.pixels,
    )


def test_given_parts_stay_what_they_are() -> None:
    train, test = (TABLE[:30], LABELS[:30]), (TABLE[30:] * 100, LABELS[30:])
    splits = split({"train": train, "test": test})
    assert len(splits.test) == 10 and len(splits.validation) == 4 and len(splits.train) == 26
    three = split({"train": train, "validation": train, "test": test}, bits=4)
    assert (len(three.train), len(three.validation), len(three.test)) == (30, 30, 10)
    assert np.abs(three.train.pixels).max() == 7 and three.input_format == "int4"
    assert split(three) is three
    names = split((TABLE, LABELS, ["no", "yes"]))
    assert names.classes == ("no", "yes")
    none = split((TABLE, LABELS), validation=0)
    assert not len(none.validation) and len(none.train) == 32


BAD: list[tuple[Any, str]] = [
    (
        (np.where(TABLE > 5, np.nan, TABLE), LABELS),
        r"numbers are NaN or infinite, in \d+ of 40 row",
    ),
    ((np.where(SIGNALS > 0.2, np.inf, SIGNALS), LABELS), "NaN or infinite, in .* signals"),
    ((TABLE, LABELS[:5]), "40 inputs, but labels"),
    ((TABLE[:0], LABELS[:0]), "no inputs"),
    ((TABLE[:, :0], LABELS), "hold no numbers"),
    ((TABLE.astype(str), LABELS), "expected an array of numbers"),
    ((TABLE, np.array(["a", "b"] * 20)), "labels are <U1"),
    ((np.zeros((40, 28, 28), np.uint8), LABELS), "28 channels and 28 samples.*NHW"),
    ((np.zeros((40, 16, 2)), LABELS), "layout=.*NLC"),
    ((np.zeros((40, 1, 1, 1, 1)), LABELS), "expected one of N, NF"),
    (Arrays(TABLE, LABELS, layout="NHW"), "layout NHW has 3 axes"),
    (Arrays(TABLE, LABELS, layout="CN"), "layout 'CN'"),
    (Arrays(TABLE.astype(np.uint8), LABELS, scale=-1.0), "scale is -1"),
    ((TABLE, LABELS + 1000), "labels go up to 1001"),
    ((TABLE, LABELS, ["only"]), "there are 1 classes"),
    ({"train": (TABLE, LABELS)}, "returned the parts train"),
    ({"train": (TABLE, LABELS), "test": (TABLE[:, :3], LABELS)}, "shape"),
    ([TABLE, LABELS], "returned list"),
    (None, "returned NoneType"),
    ((np.full((40, 2), -np.inf), LABELS), "80 numbers are NaN or infinite"),
]


@pytest.mark.parametrize(("given", "words"), BAD)
def test_what_is_no_data_set_is_refused_with_words(given: Any, words: str) -> None:
    with pytest.raises(BitwrightError, match=f"(?s){words}") as caught:
        split(given)
    assert "my_data:load" in str(caught.value) or "mine" in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(
    arrays.arrays(
        np.float64,
        st.tuples(st.integers(2, 8), st.integers(1, 4)),
        elements=st.floats(-1e30, 1e30, allow_subnormal=False),
    ),
    st.integers(2, 16),
)
def test_levels_are_within_half_a_step(values: np.ndarray, bits: int) -> None:
    for some in (values, values[:, None, :]):
        prepared = fit_preparation(some, bits)
        levels = prepared.levels(some).astype(np.float64)
        assert prepared.low <= levels.min() and levels.max() <= prepared.high
        assert prepared.beyond(some) == 0
        assert (
            np.abs(levels * prepared.step + prepared.offset - some) <= 0.51 * prepared.step
        ).all()


def module(tmp_path: Path, text: str) -> Callable[..., DataSplits]:
    (tmp_path / "my_data.py").write_text(text)

    def load(**fields: Any) -> DataSplits:
        with importable(tmp_path):
            return load_dataset({"name": "my_data:load", **fields})

    return load


LOADER = """
import numpy as np
def load(count=40, kinds=2):
    random = np.random.RandomState(0)
    return random.normal(size=(count, 3)), np.arange(count) % kinds
"""


def test_a_function_beside_the_recipe_is_called_with_options(tmp_path: Path) -> None:
    load = module(tmp_path, LOADER)
    assert load().name == "load" and load().num_classes == 2
    splits = load(options={"count": 60, "kinds": 3}, keep={"test": 6})
    assert splits.num_classes == 3 and len(splits.test) == 6
    with pytest.raises(RecipeError, match=r"does not take these options.*size"):
        load(options={"size": 3})
    with pytest.raises(RecipeError, match="image_size would not be looked at"):
        load(image_size=[3, 3])


def test_its_code_is_in_the_key_and_only_the_users_own_is_called(tmp_path: Path) -> None:
    load = module(tmp_path, LOADER)
    load()
    keys = own_code({"name": "my_data:load"}, [tmp_path])
    module(tmp_path, LOADER.replace("normal", "uniform"))
    assert own_code({"name": "my_data:load"}, [tmp_path]) != keys
    assert load().digest() != module(tmp_path, LOADER)().digest()
    for name in ("os:listdir", "numpy:zeros"):
        with importable(tmp_path), pytest.raises(ModelError):
            load_dataset({"name": name})


def test_a_function_that_fails_is_named_with_its_line(tmp_path: Path) -> None:
    load = module(tmp_path, "def load():\n    return 1 / 0\n")
    with pytest.raises(ModelError, match=r"my_data\.py:2.*division by zero"):
        load()


def test_options_are_for_functions() -> None:
    with pytest.raises(RecipeError, match="options are for a function of your own"):
        load_dataset({"name": "digits", "options": {"a": 1}})


def test_every_kind_of_input_can_be_shown() -> None:
    rows = picture_of(np.array([127, -127, 0], np.int8), 1 / 127)
    zero = rows.shape[0] // 2
    assert (rows[:zero, 2] < 128).all() and (rows[zero + 2 :, 2] > 128).all()
    assert (rows[zero + 2 :, 14] < 128).all() and rows.ndim == 2
    wave = np.sin(np.arange(512) / 20)[:, None]
    curve = picture_of(np.rint(wave * 127).astype(np.int8), 1 / 127)
    assert curve.shape == (96, 256) and ((curve == 0).sum(axis=0) > 0).all()
    image = np.full((4, 5, 3), 128, np.uint8)
    assert (picture_of(image, 1 / 255) == image).all()
    assert picture_of(np.full((4, 5, 1), 65535, np.uint16), 1 / 65535).max() == 255


def test_shipped_tables_and_sounds() -> None:
    table = load_dataset("breast-cancer")
    assert table.image_shape == (30,) and table.classes == ("malignant", "benign")
    assert sum(map(len, parts_of(table))) == 569
    sounds = load_dataset({"name": "tones", "keep": {"train": 80}})
    assert sounds.sample_shape == (1, 256) and sounds.num_classes == 8
    assert sounds.digest() == load_dataset({"name": "tones", "keep": {"train": 80}}).digest()
