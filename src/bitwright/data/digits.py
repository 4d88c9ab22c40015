# SPDX-License-Identifier: Apache-2.0
"""The 1 797 real handwritten digits that scikit-learn carries: 8 x 8 pixels, raw values 0 to 16."""

from __future__ import annotations

import numpy as np

from bitwright.data.dataset import DataSplits
from bitwright.data.splits import Labelled, Labels, split_three

SCALE = 1 / 16
CLASSES = tuple(str(digit) for digit in range(10))


def load(*, name: str, validation: float, test: float, seed: int) -> DataSplits:
    """Split the images in three, stratified. Needs no file and no network."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = bunch.images.astype(np.uint8)[..., np.newaxis]
    every = Labelled(images, bunch.target.astype(np.int64))
    shared = Labels(name, CLASSES, SCALE, "scikit-learn load_digits")
    return split_three(every, shared, validation=validation, test=test, seed=seed)
