# SPDX-License-Identifier: Apache-2.0
"""The data set value: inputs as integers, labels, and the scale that makes them real numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.base.nouns import OF_AXES
from bitwright.data.image_files import ImageFiles
from bitwright.data.labels import ANY, CLASSES, UNKNOWN, LabelKind, Labels
from bitwright.data.preparation import Preparation

Levels = NDArray[np.uint8] | NDArray[np.uint16] | NDArray[np.int8] | NDArray[np.int16]
Images = Levels | ImageFiles
"""Inputs, channels last: images (N, H, W, C), signals (N, L, C), rows of a table (N, F); in memory,
or (images) in their files."""

#: Integer types that inputs are held in.
DTYPES = ("uint8", "uint16", "int8", "int16")
UNLABELLED = UNKNOWN
_AXES = (2, 3, 4)


@dataclass(frozen=True)
class Sample:
    """One input with its position in the original data set, so that it can always be named again.

    Attributes:
        index: position in the source (before any split).
        image: (H, W, C), (L, C) or (F,): raw levels.
        label: class number; of other kinds of labels an array.
    """

    index: int
    image: Levels
    label: Any


@dataclass(frozen=True, eq=False)
class Dataset:
    """Labelled inputs of one split: images, signals or rows of a table.

    Attributes:
        name: the split's name, such as ``mnist/test``.
        images: (N, H, W, C) images, (N, L, C) signals or (N, F) rows, raw: integers of one of
            `DTYPES`; of images that do not fit into memory `ImageFiles`.
        labels: (N, ...), what is known of each input, as ``kind`` says: of classes (N,) int64 in
            [0, len(classes)); -1 where none is known (`UNLABELLED`), which only learning from a
            teacher alone can use.
        classes: class names, in label order; of real values, their names.
        scale: real value of one raw step; ``real = raw * scale`` lies in [0, 1], or with a sign in
            [-1, 1].
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
        if self.images.ndim not in _AXES or self.images.dtype.name not in DTYPES:
            found = f"{self.images.dtype} {self.images.shape}"
            raise DataError(
                f"inputs must be integers ({', '.join(DTYPES)}): images (N, H, W, C), signals "
                f"(N, L, C) or rows (N, F), found {found}",
                where=self.name,
            )
        if self.labels.shape[:1] != (count,) or self.indices.shape != (count,):
            raise DataError(
                f"{count} images, but labels {self.labels.shape} and indices {self.indices.shape}",
                where=self.name,
            )
        is_class = self.labels.ndim == 1 and self.labels.dtype.kind in "iu"
        if self.kind is CLASSES and not is_class:
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
    def image_shape(self) -> tuple[int, ...]:
        """Of one input, channels last: (H, W, C), (L, C) or (F,)."""
        return tuple(self.images.shape[1:])

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Of one input as torch models take it: (C, H, W), (C, L) or (F,)."""
        return torch_shape(self.image_shape)

    @property
    def noun(self) -> str:
        """What the inputs are, in the plural: images, signals or rows."""
        return OF_AXES[self.images.ndim - 1].many

    @property
    def pixels(self) -> Levels:
        """(N, ...), channels last: every input, in memory.

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
        """The same images with labels of this kind, which those that are there must be, unless
        nobody has said what they are.

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
        labels = kind.cast(self.labels)
        classes = self.classes or kind.names(labels)
        kind.check(labels, classes, self.image_shape[:2], self.name)
        return replace(self, labels=labels, classes=classes, kind=kind)

    def digest(self) -> str:
        """Hash of every image, label and class name, in this order."""
        return digest_of(self)

    def choice(self) -> str:
        """Hash of which images of their source these are, whatever copy they were read from."""
        return hashlib.sha256(self.indices.astype("<i8").tobytes()).hexdigest()[:32]

    def reals(self) -> NDArray[np.float32]:
        """(N, C, H, W), (N, C, L) or (N, F), float32: what a torch model gets; one float32
        multiplication a level.

        ``train.to_real`` computes the same bits on a device.
        """
        found: NDArray[np.float32] = channels_first(self.pixels).astype(np.float32)
        found *= np.float32(self.scale)
        return found


def torch_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of one input, channels last, as torch has it: channels first."""
    return (shape[-1], *shape[:-1])


def channels_first(levels: Levels) -> Levels:
    """(N, ..., C) as torch has it: (N, C, ...), in this order in memory."""
    return np.ascontiguousarray(np.moveaxis(levels, -1, 1))


def digest_of(*parts: Dataset) -> str:
    """Hash of every image, label and class name of some parts of a data set; of images in files see
    `ImageFiles.digest`.
    """
    digest = hashlib.sha256()
    for part in parts:
        images = part.images
        kind = () if images.dtype == np.uint8 else (images.dtype.name,)
        digest.update(repr((images.shape, part.classes, part.scale, *kind)).encode())
        if isinstance(images, ImageFiles):
            digest.update(images.digest())
        else:
            digest.update(images.astype(images.dtype.newbyteorder("<"), copy=False).tobytes())
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
        preparation: how the levels were made of other numbers; None: they are as they came.
        own: whether the levels are the user's own arrays, which a network takes as they are.
    """

    name: str
    train: Dataset
    validation: Dataset
    test: Dataset
    source: str
    preparation: Preparation | None = None
    own: bool = False

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
        if not self.classes:  # all parts have the same names
            called = (kind.names(kind.cast(part.labels)) for part in parts if part.kind is ANY)
            names: tuple[str, ...] = max(called, key=len, default=())
            parts = tuple(replace(part, classes=names) for part in parts)
        train, validation, test = (part.of_kind(kind) for part in parts)
        return replace(self, train=train, validation=validation, test=test)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.train.classes

    @property
    def num_classes(self) -> int:
        return len(self.train.classes)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Of one input, channels last: (H, W, C), (L, C) or (F,)."""
        return self.train.image_shape

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Of one input as torch models take it: (C, H, W), (C, L) or (F,)."""
        return self.train.sample_shape

    @property
    def scale(self) -> float:
        return self.train.scale

    @property
    def input_format(self) -> str | None:
        """The format of a network's input that holds just these levels; None for pixels of 8 bits,
        whose range calibration finds.
        """
        if self.preparation is not None:
            return self.preparation.format
        kind = self.train.images.dtype.name
        return kind if self.own or kind != "uint8" else None
