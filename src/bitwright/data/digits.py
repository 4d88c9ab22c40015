# SPDX-License-Identifier: Apache-2.0
"""The 1 797 real handwritten digits that scikit-learn carries: 8 x 8 pixels, raw values 0 to 16."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.data.dataset import DataSplits
from bitwright.data.splits import Labelled, Labels, split_three

SCALE = 1 / 16
CLASSES = tuple(str(digit) for digit in range(10))


def load(*, name: str, validation: float, test: float, seed: int) -> DataSplits:
    """Split the images in three, stratified. Needs no file of the user's and no network.

    Raises:
        DataError: scikit-learn is not there, or carries another file.
    """
    rows = _rows()
    images = rows[:, :-1].astype(np.uint8).reshape(-1, 8, 8, 1)
    every = Labelled(images, rows[:, -1].astype(np.int64))
    shared = Labels(name, CLASSES, SCALE, "scikit-learn load_digits")
    return split_three(every, shared, validation=validation, test=test, seed=seed)


def _rows() -> NDArray[np.float64]:
    """Pixels and label of every digit, as `sklearn.datasets.load_digits` reads them.

    The file is read without that function, whose import takes seconds in every process.
    """
    spec = find_spec("sklearn")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    path = Path(folders[0] if folders else "sklearn", "datasets", "data", "digits.csv.gz")
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = np.loadtxt(file, delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"the digits of scikit-learn cannot be read: {error}",
            where=str(path),
            hint="install scikit-learn again",
        ) from error
    if rows.shape != (1797, 65):
        raise DataError(
            f"expected 1797 rows of 64 pixels and a label, got an array of {rows.shape}",
            where=str(path),
            hint="install scikit-learn again",
        )
    return rows
