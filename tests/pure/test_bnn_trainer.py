# SPDX-License-Identifier: Apache-2.0
"""The document's trainer: C equals numpy bit for bit, and each trick is what the document says."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bitwright.base.errors import DataError, RecipeError
from bitwright.base.native import FLAG_SETS, find_compiler
from bitwright.papers.bnn_soc import numbers
from bitwright.papers.bnn_soc.reference import ReferenceTrainer
from bitwright.papers.bnn_soc.settings import (
    ACTIVATIONS,
    INITIALS,
    KERNELS,
    Settings,
    initial_weights,
    order,
    rates,
    weight_scale,
)
from bitwright.papers.bnn_soc.trainer import TRAINER, Trainer

needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")
PRESET = (784, 4096, 4096, 10)


@st.composite
def networks(draw: st.DrawFn) -> Settings:
    """Any options, few units."""
    binary = draw(st.booleans())
    widths = st.integers(1, 90)
    common = {
        "sizes": (*draw(st.lists(widths, min_size=1, max_size=3)), draw(st.integers(2, 10))),
        "binary": binary,
        "bias": draw(st.booleans()),
        "act_forward": draw(st.sampled_from(ACTIVATIONS)),
        "act_backward": draw(st.sampled_from([a for a in ACTIVATIONS if a != "step"])),
        "deriv_at": draw(st.sampled_from(["output", "preactivation"])),
        "scale_sum": draw(st.sampled_from(["none", "fan_in", "root_fan_in"])),
        "scale_error": draw(st.sampled_from(["none", "fan_in", "root_fan_in"])),
        "clip": draw(st.booleans()),
        "initial": draw(st.sampled_from(INITIALS)),
        "rate_start": draw(st.sampled_from([1e-5, 1e-3, 1e-2])),
        "rate_end": 1e-5,
        "decay": draw(st.sampled_from(["sample", "epoch", "none"])),
        "exaggeration": draw(st.sampled_from([0.0, 1.0, 1000.0])),
        "exaggeration_rate": draw(st.sampled_from(["global", "layer"])),
        "drop_input": draw(st.sampled_from([0.0, 0.2])),
        "drop_hidden": draw(st.sampled_from([0.0, 0.5])),
        "shuffle": draw(st.sampled_from(["epoch", "once", "none"])),
        "seed": draw(st.integers(0, 1 << 40)),
    }
    if not binary:
        present = draw(st.sampled_from([0, 128]))
        return Settings(**common, kernel="multiply", input="scale_float", present=present)  # type: ignore[arg-type]
    choice = st.sampled_from(["deterministic", "stochastic"])
    return Settings(
        **common,  # type: ignore[arg-type]
        kernel=draw(st.sampled_from(KERNELS)),
        input=draw(st.sampled_from(["threshold", "scale_sign"])),
        backprop_weights=draw(st.sampled_from(["binary", "float"])),
        weight_binarization=draw(choice),
        activation_binarization=draw(choice),
    )


def samples(s: Settings, count: int = 6) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(s.seed)
    images = random.integers(0, 256, (count, s.sizes[0]), dtype=np.uint8)
    return images, random.integers(0, s.sizes[-1], count)


def trained(trainer: Trainer | ReferenceTrainer, cycles: int = 12) -> list[bytes]:
    s = trainer.settings
    images, labels = samples(s)
    trainer.train(images, labels, order(s, cycles, len(images)), rates(s, cycles, len(images)))
    arrays = [*trainer.weights, *(b for b in trainer.biases if b is not None)]
    return [(np.ascontiguousarray(array) + np.float32(0)).tobytes() for array in arrays]


@needs_compiler
@given(networks(), st.integers(1, 3))
@settings(max_examples=60)
def test_c_trains_as_the_reference(s: Settings, threads: int) -> None:
    with np.errstate(all="ignore"):  # float networks may leave the range with such rates
        expected = trained(ReferenceTrainer(s))
    assert trained(Trainer(s, threads=threads)) == expected


@needs_compiler
def test_portable_c_trains_as_that_of_this_processor() -> None:
    compiler = find_compiler()
    assert compiler is not None
    library = TRAINER.build(compiler, FLAG_SETS[1])
    s = Settings(sizes=(100, 70, 10), rate_start=1e-3, rate_end=1e-4, drop_hidden=0.3)
    assert trained(Trainer(s, library=library)) == trained(Trainer(s))


@needs_compiler
@pytest.mark.slow
def test_training_stays_in_its_memory(tmp_path: Path) -> None:
    """The compiler's address checks are preloaded: numpy's buffers have guards, too."""
    compiler = find_compiler()
    assert compiler is not None
    places = []
    for name in ("libasan.so", "libubsan.so"):
        command = [compiler, f"-print-file-name={name}"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        places.append(found.stdout.strip())
    if not all(Path(place).is_absolute() for place in places):
        pytest.skip("the compiler has no address checks")
    checks = {"LD_PRELOAD": ":".join(places), "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("bnn_trainer_bounds.py"))],
        env={**os.environ, **checks, "BITWRIGHT_CACHE": str(tmp_path)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.stdout == "in bounds\n", done.stderr


@needs_compiler
@pytest.mark.parametrize("depth", [(300,), (300, 200)])
def test_all_kernels_train_the_same(depth: tuple[int, ...]) -> None:
    s = Settings(sizes=(784, *depth, 10), rate_start=1e-5, rate_end=1e-6, seed=7)
    found = [trained(Trainer(s.changed(kernel=kernel)), cycles=30) for kernel in KERNELS]
    assert found[0] == found[1] == found[2]


@needs_compiler
def test_the_binary_copy_is_what_classifies() -> None:
    s = Settings(sizes=(90, 40, 5), rate_start=1e-3, rate_end=1e-4)
    trainer = Trainer(s)
    trained(trainer)
    images, _ = samples(s)
    x = np.where(images >= 80, 1, -1)
    first, second = (np.where(w >= 0, 1, -1) for w in trainer.weights)
    hidden = np.where(x @ first.T >= 0, 1, -1)
    assert np.array_equal(trainer.sums(images), hidden @ second.T)


@needs_compiler
def test_drawn_weights_classify_by_their_sign_and_go_on_as_drawn() -> None:
    s = Settings(sizes=(90, 40, 5), weight_binarization="stochastic", rate_start=1e-3)
    looked_at, left = Trainer(s), Trainer(s)
    looked_at.sums(samples(s)[0])
    assert trained(looked_at) == trained(left)


def test_activations_have_their_closed_forms() -> None:
    x = np.concatenate([np.linspace(-30, 30, 4001), [0.0, 1.0, -1.0, 1e-9, -1e-5, 700.0, -800.0]])
    z = x.astype(np.float32)
    wide = z.astype(np.float64)
    sigmoid = np.where(z < 0, np.exp(np.minimum(wide, 0)), 1) / (1 + np.exp(-np.abs(wide)))
    closed = {
        "sigmoid": sigmoid,
        "tanh": np.tanh(wide),
        "hard_sigmoid": np.clip((wide + 1) / 2, 0, 1),
        "hard_tanh": np.clip(wide, -1, 1),
        "step": np.where(z >= 0, 1, -1),
    }
    for name, expected in closed.items():
        np.testing.assert_allclose(numbers.activate(name, z), expected, rtol=2e-7, atol=1e-37)
    slope = numbers.derivative("tanh", z)
    np.testing.assert_allclose(slope, 1 - np.tanh(wide) ** 2, rtol=1e-6, atol=1e-15)
    ends = np.array([1, -1], dtype=np.float32)
    np.testing.assert_allclose(numbers.derivative("tanh", ends), 0.41997, atol=5e-6)
    np.testing.assert_allclose(numbers.derivative("sigmoid", ends), 0.19661, atol=5e-6)
    assert numbers.activate("step", np.zeros(1, np.float32))[0] == 1


def test_the_replaced_activation_has_the_same_sign() -> None:
    sums = np.arange(-4096, 4097, dtype=np.float32)
    step = numbers.activate("step", sums)
    for name in ("tanh", "hard_tanh"):
        assert np.array_equal(np.where(numbers.activate(name, sums) >= 0, 1, -1), step)


def test_initial_weights() -> None:
    s = Settings(sizes=(784, 4096, 10), initial="glorot_div")
    assert [round(weight_scale(*ends), 1) for ends in ((784, 4096), (4096, 4096), (4096, 10))] == [
        49.4,
        64.0,
        45.3,
    ]
    for weight, half_width in zip(initial_weights(s), (0.0202, 0.0221), strict=True):
        assert np.abs(weight).max() == pytest.approx(half_width, rel=3e-3)
        assert np.abs(weight.mean()) < half_width / 50
    by_factor = initial_weights(s.changed(initial="glorot_mul"))[0]
    assert (np.abs(by_factor) == 1).mean() == pytest.approx(1 - 1 / 49.4, abs=1e-3)
    for name, deviation in (("normal_small", 0.01), ("normal", 1.0)):
        free = initial_weights(s.changed(initial=name, clip=False))[0]
        assert free.std() == pytest.approx(deviation, rel=1e-2)


def test_learning_rates() -> None:
    s = Settings(sizes=PRESET, rate_start=1e-3, rate_end=1e-7)
    assert [round(s.rate_scale_of(layer)) for layer in range(3)] == [5704, 7390, 5232]
    found = rates(s, 1000, 100)
    assert found[0] == 1e-3
    d = (1e-7 / 1e-3) ** (1 / 1000)
    np.testing.assert_allclose(found[1:] / found[:-1], d, rtol=1e-9)
    assert found[-1] * d == pytest.approx(1e-7, rel=1e-12)
    by_epoch = rates(s.changed(decay="epoch"), 1000, 100)
    assert len(set(by_epoch)) == 10 and (by_epoch[:100] == 1e-3).all()


@pytest.mark.parametrize("trainer", [ReferenceTrainer, pytest.param(Trainer, marks=needs_compiler)])
def test_exaggerated_targets(trainer: type) -> None:
    """The four cases of spec 2.12: an output that is right pushes on by scale * rate."""
    rate, scale = 0.25, 3.0
    s = Settings(
        sizes=(4, 2), rate_scale=1.0, rate_constant=0.0, clip=False, exaggeration=scale,
        rate_start=rate, decay="none",
    )  # fmt: skip
    fprime = np.float32(1 - math.tanh(1) ** 2)
    image = np.full((1, 4), 255, dtype=np.uint8)
    for first in (0.5, -0.5):
        for label in (0, 1):
            start = np.array([[first] * 4, [-first] * 4], dtype=np.float32)
            made = trainer(s, [start])
            made.train(image, np.array([label]), np.zeros(1, np.int64), np.array([rate]))
            for unit in (0, 1):
                output = 1.0 if start[unit, 0] >= 0 else -1.0
                target = 1.0 if unit == label else -1.0
                error = -scale * rate * target if output == target else output - target
                moved = made.weights[0][unit] - start[unit]
                np.testing.assert_allclose(moved, -rate * fprime * error, rtol=1e-6)


def test_drawn_signs_follow_the_hard_sigmoid() -> None:
    for value in (-1.0, -0.5, 0.0, 0.3, 1.0):
        s = Settings(sizes=(400, 100), weight_binarization="stochastic", seed=3)
        weight = np.full((100, 400), value, dtype=np.float32)
        share = (ReferenceTrainer(s, [weight]).signs[0] > 0).mean()
        assert share == pytest.approx((value + 1) / 2, abs=4 * 0.5 / math.sqrt(40000))


def test_input_values() -> None:
    threshold = Settings().input_values()
    assert threshold[79] == -1 and threshold[80] == 1
    middle = Settings(input="scale_sign").input_values()
    assert middle[127] == -1 and middle[128] == 1
    scaled = Settings(input="scale_float", binary=False, kernel="multiply").input_values()
    assert scaled[0] == -1 and scaled[255] == 1
    base = Settings(input="scale_float", binary=False, kernel="multiply")
    some = base.changed(present=100).input_values()
    assert not some[:100].any() and (some[100:] == scaled[100:]).all()


def test_order_visits_every_sample_once_a_pass() -> None:
    for shuffle in ("epoch", "once", "none"):
        s = Settings(shuffle=shuffle)
        first, second, rest = np.split(order(s, 250, 100), [100, 200])
        assert sorted(first) == sorted(second) == list(range(100)) and len(rest) == 50
        assert (first == second).all() == (shuffle != "epoch")
        assert (first == np.arange(100)).all() == (shuffle == "none")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("sizes", (784,)), ("sizes", (784, 0, 10)), ("kernel", "popcount"),
        ("act_backward", "step"),
        ("drop_hidden", 1.0), ("rate_start", 0.0), ("input", "scale_float"), ("threshold", 300),
        ("initial", "glorot"), ("present", 128), ("seed", -1), ("rate_end", math.nan),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(RecipeError) as caught:
        Settings(**{field: value})  # type: ignore[arg-type]
    assert caught.value.where == field
    with pytest.raises(RecipeError, match="no such option"):
        Settings().changed(momentum=0.9)


@needs_compiler
def test_wrong_samples_are_refused() -> None:
    trainer = Trainer(Settings(sizes=(784, 16, 10)))
    image, rate, first = np.zeros((1, 28, 28), np.uint8), np.ones(1), np.zeros(1, np.int64)
    with pytest.raises(DataError, match="784 bytes, got 729"):
        trainer.train(np.zeros((1, 27, 27), np.uint8), first, first, rate)
    with pytest.raises(DataError, match="784 of uint16"):
        trainer.train(image.astype(np.uint16), first, first, rate)
    with pytest.raises(DataError, match="0 to 9"):
        trainer.train(image, first + 10, first, rate)
    with pytest.raises(DataError, match="no such index"):
        trainer.train(image, first, first + 1, rate)
    with pytest.raises(DataError, match=r"expected weights \(16, 784\)"):
        Trainer(Settings(sizes=(784, 16, 10)), [np.zeros((10, 784), np.float32)])
