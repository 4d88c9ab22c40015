# SPDX-License-Identifier: Apache-2.0
"""Data sets: numpy arrays, fixed splits, no torch needed."""

from __future__ import annotations

from bitwright.base.progress import Progress, no_progress
from bitwright.data.dataset import UNLABELLED, Dataset, DataSplits, Sample, digest_of
from bitwright.data.load import load_dataset
from bitwright.data.spec import DatasetInfo, DatasetSpec, list_datasets

__all__ = [
    "UNLABELLED",
    "DataSplits",
    "Dataset",
    "DatasetInfo",
    "DatasetSpec",
    "Progress",
    "Sample",
    "digest_of",
    "list_datasets",
    "load_dataset",
    "no_progress",
]
