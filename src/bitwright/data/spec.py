# SPDX-License-Identifier: Apache-2.0
"""What a recipe says about its data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_Share = Annotated[float, Field(gt=0.0, lt=0.5)]
_Pixels = Annotated[int, Field(ge=1, le=4096)]


class DatasetSpec(BaseModel):
    """Which data set, where it is, and how it is cut.

    Attributes:
        name: one of ``list_datasets()``.
        path: folder or archive; needed by ``folder``, optional for the others.
        image_size: [height, width] to which a ``folder``'s images are resized.
        grey: one channel (true) or three (false) for a ``folder``; by default as its first image.
        unlabelled: folder or zip file of more images to train on, of no known class, anywhere below
            it; they serve phases that learn from a teacher alone (``distillation: {alpha: 1}``).
        validation: share of the training images kept for choices during training.
        test: share of all images kept for the final measurement, where the source has no own test
            images.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    path: Path | None = None
    image_size: tuple[_Pixels, _Pixels] | None = None
    grey: bool | None = None
    unlabelled: Path | None = None
    validation: _Share = 0.1
    test: _Share = 0.2


@dataclass(frozen=True)
class DatasetInfo:
    """One line of ``bitwright list datasets``."""

    name: str
    summary: str
    source: str


DATASETS = (
    DatasetInfo("digits", "1 797 handwritten digits, 8 x 8 grey", "inside scikit-learn"),
    DatasetInfo(
        "mnist", "70 000 handwritten digits, 28 x 28 grey", "IDX files, or downloaded (12 MB)"
    ),
    DatasetInfo(
        "cifar10",
        "60 000 images of ten kinds, 32 x 32 colour",
        "official archive or class folders, or downloaded (170 MB)",
    ),
    DatasetInfo(
        "cifar100",
        "60 000 images of a hundred kinds, 32 x 32 colour",
        "official archive or class folders, or downloaded (169 MB)",
    ),
    DatasetInfo("folder", "your own images", "a folder or zip file of class folders"),
)


def list_datasets() -> tuple[DatasetInfo, ...]:
    """The data sets that ``load_dataset`` knows."""
    return DATASETS
