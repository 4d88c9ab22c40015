# SPDX-License-Identifier: Apache-2.0
"""What a recipe says about its data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from bitwright.base.described import Strict
from bitwright.base.trust import is_plugin
from bitwright.data.pixels import BITS

_Share = Annotated[float, Field(gt=0.0, lt=0.5)]
_ShareOrNone = Annotated[float, Field(ge=0.0, lt=0.5)]
IMAGENET = "imagenet"
_Pixels = Annotated[int, Field(ge=1, le=4096)]


_Count = Annotated[int, Field(ge=1, strict=True)]


class Stream(Strict):
    """Images that stay in their files and are decoded as training asks for them, for data sets far
    larger than memory.

    Of each file the short side is resized to ``short_side`` and ``image_size`` is cut out of the
    middle; training with ``augmentation.random_resized_crop`` takes windows of the whole file.

    Attributes:
        short_side: in pixels; at least the larger one of ``image_size``.
        bad_files: what to do about files that are no images: ``refuse`` them before training
            starts, or ``skip`` them with a warning that names them. Of a file whose beginning is
            fine and whose rest is damaged this is known when it is decoded: then training stops, or
            another image of the class takes its place. What accuracy is measured on is never
            replaced.
        threads: that decode; by default one a processor.
        ahead: batches that are decoded while the present one is trained on.
    """

    short_side: _Pixels = 256
    bad_files: Literal["refuse", "skip"] = "refuse"
    threads: Annotated[int, Field(ge=1, le=256)] | None = None
    ahead: Annotated[int, Field(ge=1, le=64)] = 2


class Keep(Strict):
    """So many images of a split, and no more: the same share of every class.

    Attributes:
        train, validation, test: None keeps all. The count is met up to the rounding of each class,
            which keeps one image at least. Of validation images 0 keeps none (as
            ``data.validation``).
    """

    train: _Count | None = None
    validation: Annotated[int, Field(ge=0, strict=True)] | None = None
    test: _Count | None = None


class DatasetSpec(Strict):
    """Which data set, where it is, and how it is cut.

    Attributes:
        name: one of ``list_datasets()``, or ``package.module:function``: arrays of the user's own
            (`data.own`).
        options: keyword arguments for that function.
        path: folder or archive; needed by ``folder`` and ``database``, optional for the others.
        image_size: [height, width] to which a ``folder``'s images are resized; with ``stream`` what
            is cut out of them.
        grey: one channel (true) or three (false) for a ``folder``; by default as its first image.
        bits: of the integers that inputs are held in: 8 or 16 for a ``folder``, by default as its
            first image; 2 .. 16 for floats of the user's own, by default 8.
        unlabelled: folder or zip file of more images to train on, of no known class, anywhere below
            it; they serve phases that learn from a teacher alone (``distillation: {alpha: 1}``).
        stream: leave a ``folder``'s images in their files; ``imagenet`` always does.
        keep: fewer images of each split, for a trial.
        validation: share of the training images kept for choices during training; 0 keeps none,
            and training ends with its last weights.
        test: share of all images kept for the final measurement, where the source has no own test
            images.
    """

    name: str
    options: dict[str, Any] = Field(default_factory=dict)
    path: Path | None = None
    image_size: tuple[_Pixels, _Pixels] | None = None
    grey: bool | None = None
    bits: Annotated[int, Field(ge=2, le=16, strict=True)] | None = None
    unlabelled: Path | None = None
    stream: Stream | None = None
    keep: Keep = Keep()
    validation: _ShareOrNone = 0.1
    test: _Share = 0.2

    @model_validator(mode="before")
    @classmethod
    def _imagenet_fills_in(cls, fields: object) -> object:
        if isinstance(fields, Mapping) and fields.get("name") == IMAGENET:
            return {"image_size": (224, 224), "stream": {}, **fields}
        return fields

    @property
    def is_own(self) -> bool:
        """Whether the name points at the user's own code."""
        return is_plugin(self.name)

    @model_validator(mode="after")
    def _fields_fit(self) -> DatasetSpec:
        if self.is_own:
            images = ("image_size", "grey", "unlabelled", "stream", "path")
            given = [name for name in images if getattr(self, name) is not None]
            if given:
                raise ValueError(
                    f"{self.name} gives its own arrays: {', '.join(given)} would not be looked at; "
                    "hand what it needs over in options"
                )
            return self
        if self.options:
            raise ValueError("options are for a function of your own (name: module:function)")
        if self.bits is not None and (
            self.bits not in BITS or self.name not in ("folder", IMAGENET)
        ):
            raise ValueError(
                "bits are 8 or 16 for the images of a folder; of other data sets they are known"
            )
        return self

    @model_validator(mode="after")
    def _stream_fits(self) -> DatasetSpec:
        if self.stream is None:
            if self.name == IMAGENET:
                raise ValueError("imagenet does not fit into memory: leave stream as it is")
            return self
        if self.name not in ("folder", IMAGENET):
            raise ValueError(f"{self.name} is small and read at once: stream is for a folder")
        if self.image_size is None:
            raise ValueError("stream needs image_size: what is cut out of each image")
        if self.stream.short_side < max(self.image_size):
            raise ValueError(
                f"stream.short_side ({self.stream.short_side}) must be at least the larger side of "
                f"image_size ({max(self.image_size)}), which is cut out of it"
            )
        if self.unlabelled is not None:
            raise ValueError("stream and unlabelled do not go together yet: use one of the two")
        return self


@dataclass(frozen=True)
class DatasetInfo:
    """One line of ``bitwright list datasets``."""

    name: str
    summary: str
    source: str


DATASETS = (
    DatasetInfo("digits", "1 797 handwritten digits, 8 x 8 grey", "inside scikit-learn"),
    DatasetInfo(
        "breast-cancer", "a table: 569 cases with 30 measures, two classes", "inside scikit-learn"
    ),
    DatasetInfo("tones", "2 400 sounds of 256 samples, eight kinds", "drawn here"),
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
    DatasetInfo(
        IMAGENET,
        "ImageNet: images in files, measured on val/",
        "a folder with train/CLASS and val/CLASS, never downloaded",
    ),
    DatasetInfo(
        "shapes",
        "2 000 drawn shapes, 32 x 32 grey, with classes, boxes, maps or values",
        "drawn on the spot",
    ),
    DatasetInfo("database", "your own images in one file", "a file of `bitwright database`"),
    DatasetInfo(
        "MODULE:FUNCTION",
        "your own arrays: tables, signals, images",
        "a function beside the recipe",
    ),
    DatasetInfo("folder", "your own images", "a folder or zip file of class folders"),
)


def list_datasets() -> tuple[DatasetInfo, ...]:
    """The data sets that ``load_dataset`` knows."""
    return DATASETS
