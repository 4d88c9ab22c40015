# SPDX-License-Identifier: Apache-2.0
"""Data sets: numpy arrays, fixed splits, no torch needed."""

from __future__ import annotations

from bitwright.base.progress import Progress, no_progress
from bitwright.data.dataset import UNLABELLED, Dataset, DataSplits, Sample, digest_of
from bitwright.data.load import load_dataset
from bitwright.data.own import Arrays
from bitwright.data.preparation import Preparation
from bitwright.data.spec import DatasetInfo, DatasetSpec, list_datasets

__all__ = [
    "UNLABELLED",
    "Arrays",
    "DataSplits",
    "Dataset",
    "DatasetInfo",
    "DatasetSpec",
    "Preparation",
    "Progress",
    "Sample",
    "digest_of",
    "list_datasets",
    "load_dataset",
    "no_progress",
]
