# SPDX-License-Identifier: Apache-2.0
"""Data sets: numpy arrays, fixed splits, no torch needed."""

from __future__ import annotations

from bitwright.data.dataset import Dataset, DataSplits, Sample
from bitwright.data.files import Progress, no_progress
from bitwright.data.load import load_dataset
from bitwright.data.spec import DatasetInfo, DatasetSpec, list_datasets

__all__ = [
    "DataSplits",
    "Dataset",
    "DatasetInfo",
    "DatasetSpec",
    "Progress",
    "Sample",
    "list_datasets",
    "load_dataset",
    "no_progress",
]
