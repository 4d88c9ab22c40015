# SPDX-License-Identifier: Apache-2.0
"""The data set value: raw uint8 images, labels, and the scale that makes them real numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.data.image_files import ImageFiles
from bitwright.data.labels import ANY, CLASSES, UNKNOWN, LabelKind, Labels

Images = NDArray[np.uint8] | ImageFiles
"""Images (N, H, W, C): in memory, or in their files."""

UNLABELLED = UNKNOWN
_IMAGE_AXES = 4


@dataclass(frozen=True)
class Sample:
    """One image with its position in the original data set, so that it can always be named again.

    Attributes:
        index: position in the source (before any split).
        image: (H, W, C) uint8 raw pixels.
        label: class number; of other kinds of labels an array.
    """

    index: int
    image: NDArray[np.uint8]
    label: Any


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled images of one split.

    Attributes:
        name: the split's name, such as ``mnist/test``.
        images: (N, H, W, C) uint8, raw; of a data set that does not fit into memory `ImageFiles`.
        labels: (N, ...), what is known of each image, as ``kind`` says: of classes (N,) int64 in
            [0, len(classes)); -1 where none is known (`UNLABELLED`), which only learning from a
            teacher alone can use.
        classes: class names, in label order; of real values, their names.
        scale: real value of one raw step; ``real = raw * scale`` lies in [0, 1].
        indices: (N,) int64, position of each image in its source.
        kind: what the labels are (`data.labels`); by default classes, if there is a number for each
            image, else what the task takes them for.
    """

    name: str
    images: Images
    labels: Labels
    classes: tuple[str, ...]
    scale: float
    indices: NDArray[np.int64]
    kind: LabelKind = CLASSES

    def __post_init__(self) -> None:
        count = len(self.images)
        if self.images.ndim != _IMAGE_AXES or self.images.dtype != np.uint8:
            found = f"{self.images.dtype} {self.images.shape}"
            raise DataError(f"images must be uint8 (N, H, W, C), found {found}", where=self.name)
        if self.labels.shape[:1] != (count,) or self.indices.shape != (count,):
            raise DataError(
                f"{count} images, but labels {self.labels.shape} and indices {self.indices.shape}",
                where=self.name,
            )
        if self.kind is CLASSES and self.labels.ndim > 1:
            object.__setattr__(self, "kind", ANY)
        self.kind.check(self.labels, self.classes, self.image_shape[:2], self.name)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, position: int) -> Sample:
        label = self.labels[position]
        label = label.item() if label.ndim == 0 else label
        return Sample(int(self.indices[position]), self.images[position], label)

    def __iter__(self) -> Iterator[Sample]:
        return (self[position] for position in range(len(self)))

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, C) of one image."""
        height, width, channels = self.images.shape[1:]
        return height, width, channels

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """(N, H, W, C): every image, in memory.

        Raises:
            DataError: one of many in files is damaged, or they do not fit.
        """
        return np.asarray(self.images)

    def take(self, positions: Sequence[int] | NDArray[np.int64], name: str = "") -> Dataset:
        """The images at these positions of this split, in this order."""
        chosen = np.asarray(positions, dtype=np.int64)
        return replace(
            self,
            name=name or self.name,
            images=self.images[chosen],
            labels=self.labels[chosen],
            indices=self.indices[chosen],
        )

    def labelled(self) -> Dataset:
        """The images whose label is known: all of them, as a rule."""
        known = self.kind.known(self.labels)
        return self if known.all() else self.take(np.flatnonzero(known))

    def of_kind(self, kind: LabelKind) -> Dataset:
        """The same images with labels of this kind, which those that are there must be.

        Raises:
            DataError: they are not.
        """
        if self.kind == kind:
            return self
        if self.kind is not ANY:
            raise DataError(
                f"its labels are {self.kind.name}, and {kind.name} are wanted",
                where=self.name,
                hint="choose the task that the data set is for, or another data set: "
                f"{kind.name} are, of your own images, {kind.layout}",
            )
        return replace(self, kind=kind)

    def digest(self) -> str:
        """Hash of every image, label and class name, in this order."""
        return digest_of(self)

    def choice(self) -> str:
        """Hash of which images of their source these are, whatever copy they were read from."""
        return hashlib.sha256(self.indices.astype("<i8").tobytes()).hexdigest()[:32]

    def reals(self) -> NDArray[np.float32]:
        """(N, C, H, W) float32: what a torch model gets; one float32 multiplication a pixel.

        ``train.to_real`` computes the same bits on a device.
        """
        planar = np.ascontiguousarray(self.pixels.transpose(0, 3, 1, 2))
        return planar.astype(np.float32) * np.float32(self.scale)


def digest_of(*parts: Dataset) -> str:
    """Hash of every image, label and class name of some parts of a data set; of images in files see
    `ImageFiles.digest`.
    """
    digest = hashlib.sha256()
    for part in parts:
        images = part.images
        digest.update(repr((images.shape, part.classes, part.scale)).encode())
        digest.update(images.digest() if isinstance(images, ImageFiles) else images.tobytes())
        if part.labels.ndim > 1:
            digest.update(repr((part.kind, part.labels.shape)).encode())
            digest.update(part.labels.astype(part.labels.dtype.newbyteorder("<")).tobytes())
        else:
            digest.update(part.labels.astype("<i8").tobytes())
    return digest.hexdigest()[:32]


@dataclass(frozen=True, eq=False)
class DataSplits:
    """A data set cut in three. Training sees ``train``, choices are made on ``validation``,
    and ``test`` is only ever measured.

    Attributes:
        name: name of the data set.
        source: where the images came from: a path, or the library that carries them.
    """

    name: str
    train: Dataset
    validation: Dataset
    test: Dataset
    source: str

    def digest(self) -> str:
        """Hash of every image, label and class name."""
        return digest_of(self.train, self.validation, self.test)

    def labelled(self) -> DataSplits:
        """Without the training images that have no label."""
        train = self.train.labelled()
        return self if train is self.train else replace(self, train=train)

    def of_kind(self, kind: LabelKind) -> DataSplits:
        """With labels of this kind in all three; see `Dataset.of_kind`."""
        parts = (self.train, self.validation, self.test)
        train, validation, test = (part.of_kind(kind) for part in parts)
        return replace(self, train=train, validation=validation, test=test)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    @property
    def num_classes(self) -> int:
        return len(self.train.classes)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(H, W, C) of one image."""
        return self.train.image_shape

    @property
    def scale(self) -> float:
        return self.train.scale
