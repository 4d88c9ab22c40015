# SPDX-License-Identifier: Apache-2.0
"""Finding and loading a data set by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bitwright.base.bounded import bounded
from bitwright.base.errors import DataError, RecipeError
from bitwright.base.progress import Progress, no_progress
from bitwright.data import (
    annotated,
    cifar,
    digits,
    folders,
    image_database,
    mnist,
    own,
    shapes,
    shipped,
    streams,
)
from bitwright.data.dataset import DataSplits
from bitwright.data.labels import CLASSES, LabelKind
from bitwright.data.spec import DATASETS, IMAGENET, DatasetSpec
from bitwright.data.splits import keep_some

ENVIRONMENT = "BITWRIGHT_DATA"


def load_dataset(
    spec: str | DatasetSpec | Mapping[str, Any],
    data_dir: str | Path | None = None,
    seed: int = 0,
    *,
    labels: LabelKind = CLASSES,
    progress: Progress = no_progress,
) -> DataSplits:
    """Load a data set and cut it into training, validation and test images.

    MNIST and the CIFARs are looked for in ``data_dir``, else at ``spec.path``, else in the folder
    named by the environment variable BITWRIGHT_DATA; not found there, they are downloaded once
    into the user's cache, checked by SHA-256.

    Args:
        spec: a name, a ``DatasetSpec``, or a mapping of its fields.
        data_dir: folder to look in first; if given, the data must be there.
        seed: of the stratified cuts; official test images stay what they are.
        labels: the kind that is wanted, which the task of a recipe says.
        progress: called during downloads and decoding.

    Raises:
        RecipeError: the data set is unknown or the spec does not make sense.
        DataError: files are missing, corrupt or truncated, the download failed, or the data set
            has other labels than those that are wanted.
    """
    wanted = _as_spec(spec)
    found = _load(wanted, data_dir, seed, labels, progress).of_kind(labels)
    splits = keep_some(found, wanted.keep, seed)
    if wanted.unlabelled is None:
        return splits
    more = wanted.unlabelled.expanduser()
    add = partial(folders.add_unlabelled, splits, more, progress=progress)
    return bounded(add, more, memory=False)


def _load(
    wanted: DatasetSpec,
    data_dir: str | Path | None,
    seed: int,
    labels: LabelKind,
    progress: Progress,
) -> DataSplits:
    place = Path(data_dir) if data_dir is not None else wanted.path
    if wanted.is_own:
        return own.load(wanted, kind=labels, seed=seed)
    match wanted.name:
        case "breast-cancer" | "tones":
            make = shipped.breast_cancer if wanted.name == "breast-cancer" else shipped.tones
            source = "bitwright" if wanted.name == "tones" else "scikit-learn load_breast_cancer"
            return own.splits_of(make(), wanted, wanted.name, source, kind=labels, seed=seed)
        case "digits":
            shares = {"validation": wanted.validation, "test": wanted.test}
            return digits.load(name="digits", seed=seed, **shares)
        case shapes.NAME:
            shares = {"validation": wanted.validation, "test": wanted.test}
            size, grey = wanted.image_size, wanted.grey
            return shapes.load(labels, size=size, grey=grey, seed=seed, **shares)
        case "mnist":
            folder = _locate("mnist", place, mnist.find) or mnist.fetch(progress)
            read = partial(mnist.load, folder, validation=wanted.validation, seed=seed)
            return bounded(partial(read, name="mnist"), folder)
        case "cifar10" | "cifar100":
            edition = cifar.EDITIONS[wanted.name]
            found = _locate(wanted.name, place, partial(cifar.find, edition=edition))
            folder = found or cifar.fetch(progress, edition)
            read = partial(cifar.load, folder, validation=wanted.validation, seed=seed)
            load = partial(read, name=wanted.name, progress=progress, edition=edition)
            return bounded(load, folder)
        case "database":
            file = _own_path(wanted, data_dir, "name the file that `bitwright database` made")
            load = partial(image_database.load, file, validation=wanted.validation, seed=seed)
            return bounded(load, file)
        case "folder" | "imagenet":
            return _load_folder(wanted, data_dir, seed, labels, progress)
    known = ", ".join(info.name for info in DATASETS)
    raise RecipeError(
        f"unknown data set {wanted.name!r}",
        where="data.name",
        hint=f"known: {known}; for your own images use 'folder' with a path, "
        "for arrays of your own module:function",
    )


def _as_spec(spec: str | DatasetSpec | Mapping[str, Any]) -> DatasetSpec:
    if isinstance(spec, DatasetSpec):
        return spec
    fields = {"name": spec} if isinstance(spec, str) else dict(spec)
    try:
        return DatasetSpec.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in ("data", *first["loc"]))
        raise RecipeError(
            f"{first['msg']}, found {first['input']!r}",
            where=field,
            hint=f"fields: {', '.join(DatasetSpec.model_fields)}",
        ) from error


def _locate(name: str, place: Path | None, find: Callable[[Path], Path | None]) -> Path | None:
    """Where the data lies; None if it has to be downloaded."""
    if place is not None:
        found = find(place.expanduser())
        if found is None:
            raise DataError(
                f"no {name} files here",
                where=str(place),
                hint=f"name the folder that holds them, or none at all to download {name}",
            )
        return found
    folder = os.environ.get(ENVIRONMENT)
    return find(Path(folder).expanduser()) if folder else None


def _load_folder(
    spec: DatasetSpec,
    data_dir: str | Path | None,
    seed: int,
    labels: LabelKind,
    progress: Progress,
) -> DataSplits:
    """The recipe's own images."""
    classes = ", train/CLASS and val/CLASS" if spec.name == IMAGENET else ""
    path = _own_path(spec, data_dir, f"name a folder (or zip file) of {labels.layout}{classes}")
    beside = labels.name in annotated.READERS  # else the names of folders are the labels
    load = partial(annotated.load, kind=labels) if beside else folders.load

    def read() -> DataSplits:
        if spec.stream is not None:
            return streams.load(path, spec, seed=seed, progress=progress)
        return load(
            path,
            folders.Decoding(spec.image_size, spec.grey, spec.bits),
            name=path.stem or "folder",
            validation=spec.validation,
            test=spec.test,
            seed=seed,
            progress=progress,
        )

    return bounded(read, path, memory=False)


def _own_path(spec: DatasetSpec, data_dir: str | Path | None, hint: str) -> Path:
    """Where the recipe's own data lies; a relative path is looked for under ``data_dir`` first.

    Raises:
        RecipeError: there is no path.
    """
    if spec.path is None and data_dir is None:
        raise RecipeError(f"the data set {spec.name!r} needs a path", where="data.path", hint=hint)
    path = Path(data_dir).expanduser() if data_dir is not None else Path()
    if spec.path is None:
        return path
    inside = path / spec.path.expanduser()
    return inside if inside.exists() else spec.path.expanduser()
