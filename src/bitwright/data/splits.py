# SPDX-License-Identifier: Apache-2.0
"""Stratified splits that stay the same on every machine and numpy version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bitwright.base.errors import DataError
from bitwright.data.dataset import Dataset, DataSplits, Images
from bitwright.data.labels import CLASSES, LabelKind
from bitwright.data.labels import Labels as LabelArray
from bitwright.data.spec import Keep


@dataclass(frozen=True)
class Labelled:
    """Images and labels straight from a source, before any split."""

    images: Images
    labels: LabelArray


def stratified(
    labels: NDArray[np.int64], fractions: Sequence[float], seed: int, *, where: str
) -> list[NDArray[np.int64]]:
    """Cut positions into parts that each hold the same share of every class.

    Args:
        labels: (N,) class numbers.
        fractions: share of each part but the last; the last part takes the rest.
        seed: of ``numpy.random.RandomState``, whose stream is frozen for ever.
        where: named in errors.

    Returns:
        One ascending array of positions a part; together they hold each position once. Every part
        gets at least one image of every class, but for those of share 0, which stay empty.

    Raises:
        DataError: a class has fewer images than there are parts.
    """
    random = np.random.RandomState(seed)
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(len(fractions) + 1)]
    needed = 1 + sum(fraction > 0 for fraction in fractions)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        if len(members) < needed:
            raise DataError(
                f"class {label} has {len(members)} images; {needed} splits need one each",
                where=where,
                hint="add images to this class or remove it",
            )
        counts = [max(1, round(len(members) * part)) if part else 0 for part in fractions]
        spare = len(members) - 1
        for position, count in enumerate(counts):
            behind = sum(later > 0 for later in fractions[position + 1 :])
            counts[position] = min(count, spare - behind)
            spare -= counts[position]
        cuts = np.cumsum(counts)
        for part, chosen in zip(parts, np.split(random.permutation(members), cuts), strict=True):
            part.append(chosen)
    return [np.sort(np.concatenate(part)).astype(np.int64) for part in parts]


@dataclass(frozen=True)
class Labels:
    """What every split of a data set shares."""

    name: str
    classes: tuple[str, ...]
    scale: float
    source: str
    kind: LabelKind = CLASSES


def split_three(
    every: Labelled,
    shared: Labels,
    *,
    validation: float,
    test: float,
    seed: int,
    mixed: bool = False,
) -> DataSplits:
    """Cut one pool into training, validation and test images.

    Args:
        mixed: in an order of chance, which is always the same; else that of the pool.
    """
    order = _mix if mixed else _keep
    groups = shared.kind.groups(every.labels)
    parts = stratified(groups, (validation, test), seed, where=shared.source)
    pool = _pool(every, shared, 0, "all")
    return DataSplits(
        shared.name,
        pool.take(order(parts[2]), f"{shared.name}/train"),
        pool.take(order(parts[0]), f"{shared.name}/validation"),
        pool.take(order(parts[1]), f"{shared.name}/test"),
        shared.source,
    )


def split_two(
    training: Labelled,
    test: Labelled,
    shared: Labels,
    *,
    validation: float,
    seed: int,
    mixed: bool = False,
) -> DataSplits:
    """Keep the official test images; cut the official training images in two.

    Test images are numbered after the training images, so that every index names one image.

    Args:
        mixed: see `split_three`.
    """
    order = _mix if mixed else _keep
    groups = shared.kind.groups(training.labels)
    parts = stratified(groups, (validation,), seed, where=shared.source)
    pool = _pool(training, shared, 0, "all")
    return DataSplits(
        shared.name,
        pool.take(order(parts[1]), f"{shared.name}/train"),
        pool.take(order(parts[0]), f"{shared.name}/validation"),
        _pool(test, shared, len(training.labels), "test", mixed=mixed),
        shared.source,
    )


def keep_three(
    training: Labelled,
    validation: Labelled,
    test: Labelled,
    shared: Labels,
    *,
    mixed: bool = False,
) -> DataSplits:
    """Keep the three splits that the source already has.

    Args:
        mixed: see `split_three`.
    """
    second = len(training.labels)
    return DataSplits(
        shared.name,
        _pool(training, shared, 0, "train", mixed=mixed),
        _pool(validation, shared, second, "validation", mixed=mixed),
        _pool(test, shared, second + len(validation.labels), "test", mixed=mixed),
        shared.source,
    )


def keep_some(splits: DataSplits, keep: Keep, seed: int) -> DataSplits:
    """Fewer images of the splits for which a number is given, the same share of every class."""

    def fewer(part: Dataset, count: int | None) -> Dataset:
        if count == 0:
            return part.take([])
        if count is None or count >= len(part):
            return part
        random = np.random.RandomState(seed)
        groups = part.kind.groups(part.labels)
        classes = (np.flatnonzero(groups == group) for group in np.unique(groups))
        chosen = [
            random.permutation(members)[: max(1, round(len(members) * count / len(part)))]
            for members in classes
        ]
        return part.take(np.sort(np.concatenate(chosen)))

    return replace(
        splits,
        train=fewer(splits.train, keep.train),
        validation=fewer(splits.validation, keep.validation),
        test=fewer(splits.test, keep.test),
    )


def _keep(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    return positions


def _mix(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """In another order, before they are taken: images that are mixed afterwards are there twice."""
    return positions[np.random.RandomState(0).permutation(len(positions))]


def _pool(
    part: Labelled, shared: Labels, first_index: int, split: str, *, mixed: bool = False
) -> Dataset:
    indices = np.arange(first_index, first_index + len(part.labels), dtype=np.int64)
    name = f"{shared.name}/{split}"
    fixed = (shared.classes, shared.scale, indices, shared.kind)
    found = Dataset(name, part.images, part.labels, *fixed)
    return found.take(_mix(np.arange(len(found)))) if mixed else found
