# SPDX-License-Identifier: Apache-2.0
"""Training as the document's driver does it (spec 2.15), with looks at the test images on the way;
presets; and the ablation of every trick, which the document does not give."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from bitwright.base.errors import DataError
from bitwright.base.records import PositiveOrZero
from bitwright.papers.bnn_soc.model import Model, decide
from bitwright.papers.bnn_soc.settings import PIXELS, Settings, order, rates
from bitwright.papers.bnn_soc.trainer import Trainer

Share = Annotated[float, Field(ge=0, le=1)]
CYCLES = 60_000  # of the document's timing tables
_HIDDEN = 4096
_FLOAT: dict[str, Any] = {
    "binary": False,
    "kernel": "multiply",
    "input": "scale_float",
    "act_forward": "tanh",
    "deriv_at": "preactivation",
    "clip": False,
    "exaggeration": 0.0,
    # Sums are divided by the number of inputs, so weights must be large: the formula as printed.
    "scale_sum": "fan_in",
    "initial": "glorot_mul",
    "scale_error": "root_fan_in",
    "present": 128,
}
#: Without exaggerated targets a sample that is right changes nothing and costs nothing.
_PLAIN: dict[str, Any] = {"exaggeration": 0.0}
#: The document's four networks. It gives no learning rates: these were chosen on training images
#: that were held out (`benchmarks/bnn.py search`), never on the test images; those of ann-2h with
#: 128 units, scaled by what a rate does to the sums of 4096.
PRESETS = {
    "bnn-1h": Settings(sizes=(PIXELS, _HIDDEN, 10), rate_start=5e-7, rate_end=5e-9, **_PLAIN),
    "bnn-2h": Settings(
        sizes=(PIXELS, _HIDDEN, _HIDDEN, 10), rate_start=5e-8, rate_end=5e-10, **_PLAIN
    ),
    "ann-1h": Settings(sizes=(PIXELS, _HIDDEN, 10), rate_start=4e-4, rate_end=4e-6, **_FLOAT),
    "ann-2h": Settings(
        sizes=(PIXELS, _HIDDEN, _HIDDEN, 10), rate_start=4e-5, rate_end=4e-7, **_FLOAT
    ),
}
#: One trick changed at a time; "-" is without it, "+" with one that the preset leaves out.
TRICKS: dict[str, Mapping[str, Any]] = {
    "as preset": {},
    "- decay": {"decay": "none"},
    "- Glorot start": {"initial": "uniform"},
    "Glorot start as printed": {"initial": "glorot_mul"},
    "- Glorot rates": {"rate_constant": 0.0, "rate_scale": 6500.0},
    "+ exaggeration 1": {"exaggeration": 1.0},
    "+ exaggeration 20 000": {"exaggeration": 2e4},
    "+ exaggeration 200 000": {"exaggeration": 2e5},
    "sigmoid backwards": {"act_backward": "sigmoid"},
    "- replacement": {"act_forward": "tanh"},
    "derivative at the sum": {"deriv_at": "preactivation"},
    "errors through floats": {"backprop_weights": "float"},
    "+ scaled sums": {"scale_sum": "fan_in", "deriv_at": "preactivation"},
    "+ dropout": {"drop_input": 0.2, "drop_hidden": 0.5},
    "- shuffle": {"shuffle": "none"},
    "+ stochastic weights": {"weight_binarization": "stochastic"},
    "+ stochastic units": {"activation_binarization": "stochastic"},
    "middle threshold": {"input": "scale_sign"},
}


@dataclass(frozen=True)
class Samples:
    """Images (N, H, W) of bytes and their labels, to train on and to test on."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.int64]


@dataclass(frozen=True)
class Look:
    """The network behind so many cycles: shares of test images that are right, training seconds."""

    cycles: Annotated[int, Field(gt=0, lt=1 << 63)]
    argmax: Share
    strict: Share
    seconds: PositiveOrZero


def load_samples(folder: Path | None = None, *, held_out: float = 0.0) -> Samples:
    """All 60 000 and 10 000 images of a folder with MNIST's (or EMNIST's) IDX files.

    Args:
        held_out: share of the training images that stand for the test images, every class alike:
            what learning rates are chosen on. The test images are then not looked at.

    Raises:
        DataError: a file is missing or damaged, or its images are not 28 x 28 and grey.
    """
    from bitwright.data import load_dataset

    found = load_dataset({"name": "mnist", "validation": held_out}, folder)
    train, test = found.train, found.validation if held_out else found.test
    if train.images.shape[1:] != (28, 28, 1):
        raise DataError(
            f"expected grey images of 28 x 28, got {train.images.shape[1:]}", where=str(folder)
        )
    labels, test_labels = train.labels.astype(np.int64), test.labels.astype(np.int64)
    return Samples(train.images[..., 0], labels, test.images[..., 0], test_labels)


def write_shuffled(folder: Path, samples: Samples, seed: int) -> None:
    """All images as four IDX files, those to train on in the order of ``shuffle: once``: then
    training with ``shuffle: none`` reads them one after the other and ends with the same weights.
    """
    from bitwright.data.mnist import write_idx

    count = len(samples.images)
    way = order(Settings(shuffle="once", seed=seed), count, count)
    parts = {
        "train": (samples.images[way], samples.labels[way]),
        "t10k": (samples.test_images, samples.test_labels),
    }
    for prefix, (images, labels) in parts.items():
        write_idx(folder / f"{prefix}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte.gz", labels.astype(np.uint8))


def model_of(trainer: Trainer) -> Model:
    """The network as it is now."""
    copies = tuple(np.array(weight) for weight in trainer.weights)
    biases = tuple(None if bias is None else bias.copy() for bias in trainer.biases)
    return Model(trainer.settings, copies, biases)


def run_course(
    settings: Settings,
    samples: Samples,
    *,
    cycles: int = CYCLES,
    looks: int = 10,
    threads: int = 1,
    seen: Callable[[Look], None] = lambda _: None,
) -> tuple[Model, tuple[Look, ...]]:
    """Train for ``cycles`` samples.

    Args:
        looks: evaluations on all test images, evenly spaced, the last behind the last sample.
        seen: called with each.

    Raises:
        DataError: samples and network do not fit each other.
        ToolError: no C compiler works here.
    """
    trainer = Trainer(settings, threads=threads)
    count = len(samples.images)
    visited, steps = order(settings, cycles, count), rates(settings, cycles, count)
    found: list[Look] = []
    spent = 0.0
    model = model_of(trainer)
    for part in np.array_split(np.arange(cycles), max(1, looks)):
        start = time.perf_counter()
        trainer.train(samples.images, samples.labels, visited[part], steps[part])
        spent += time.perf_counter() - start
        model = model_of(trainer)
        sums = model.sums(samples.test_images)
        judged = decide(settings, sums, samples.test_labels)
        found.append(Look(trainer.step, judged.argmax, judged.strict, spent))
        seen(found[-1])
    return model, tuple(found)
