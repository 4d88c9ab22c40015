# SPDX-License-Identifier: Apache-2.0
"""Data sets of the user's own: arrays that a function returns.

::

    data: {name: my_data:load, options: {...}, validation: 0.1, test: 0.2}

The function gets ``options`` and returns one of

- ``(inputs, labels)`` or ``(inputs, labels, classes)``, or `Arrays` for more: one pool, which is
  cut as ``validation`` and ``test`` say;
- a mapping of ``train``, ``test`` and perhaps ``validation`` to such values: parts kept as they
  are;
- a `DataSplits`, taken as it is.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bitwright.base.errors import DataError, RecipeError
from bitwright.base.plugins import load_plugin, users_code
from bitwright.data.dataset import DTYPES, DataSplits
from bitwright.data.labels import CLASSES, LabelKind
from bitwright.data.pixels import warn_of_lost
from bitwright.data.preparation import Preparation, check_finite, fit_preparation
from bitwright.data.spec import DatasetSpec
from bitwright.data.splits import Labelled, Labels, keep_three, split_three, split_two, stratified

#: What the axes of an array mean: N inputs, F columns, L samples in time, C channels, H x W pixels.
LAYOUTS = ("N", "NF", "NLC", "NCL", "NHW", "NHWC", "NCHW")
#: Where nothing is said: what torch and numpy call it.
_USUAL = {1: "N", 2: "NF", 3: "NCL", 4: "NHWC"}
_NOUNS = {2: "rows", 3: "signals", 4: "images"}
_PARTS = ("train", "validation", "test")
_DEFAULT_BITS = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Arrays:
    """Inputs and their labels.

    Attributes:
        inputs: a table (N, F), signals (N, C, L) as torch's ``Conv1d`` takes them, or images
            (N, H, W, C), unless ``layout`` says otherwise. Integers of 8 and 16 bits are levels,
            taken as they are; all other numbers are measurements, which become levels by the range
            of the training part (`preparation.fit_preparation`).
        labels: (N,) integers, numbers of classes.
        classes: their names; left out, they are called by their numbers.
        layout: one of `LAYOUTS`; it must be said of grey images without an axis of channels
            (``NHW``), of signals with channels last (``NLC``) and images with channels first.
        scale: of integers of 8 and 16 bits, the real value of one level for the network; left out,
            the largest level becomes 1.
    """

    inputs: ArrayLike
    labels: ArrayLike
    classes: tuple[str, ...] | None = None
    layout: str | None = None
    scale: float | None = None


def load(spec: DatasetSpec, *, kind: LabelKind = CLASSES, seed: int) -> DataSplits:
    """The data set of a function that a recipe names.

    Raises:
        RecipeError: the name or the options do not fit the function.
        ModelError: the function cannot be imported, is not to be trusted, or fails.
        DataError: it returns something else, or arrays that are no data set.
    """
    function = load_plugin(spec.name, "data.name")
    _check_options(function, spec)
    with users_code("loading the data", spec.name, "correct the function"):
        given = function(**spec.options)
    name = spec.name.rpartition(":")[2]
    return splits_of(given, spec, name, spec.name, kind=kind, seed=seed)


def _check_options(function: Callable[..., Any], spec: DatasetSpec) -> None:
    try:
        inspect.signature(function).bind(**spec.options)
    except TypeError as error:
        raise RecipeError(
            f"{spec.name} does not take these options: {error}",
            where="data.options",
            hint="options are the function's arguments, by name",
        ) from error
    except ValueError:  # no signature is known: calling it tells
        return


def splits_of(
    given: Any,
    spec: DatasetSpec,
    name: str,
    source: str,
    *,
    kind: LabelKind = CLASSES,
    seed: int,
) -> DataSplits:
    """A data set from what a function has returned; see the module's docstring.

    Args:
        spec: ``validation``, ``test`` and ``bits`` are looked at.
        name: of the data set.
        source: for messages and reports.
        kind: what the labels must be, as the recipe's task says.
        seed: of the cut.

    Raises:
        DataError: it is something else, or arrays that are no data set.
    """
    if isinstance(given, DataSplits):
        return given
    parts = {part: _checked(arrays, f"{source}, {part}") for part, arrays in _parts(given, source)}
    _check_alike(parts, source)
    first = next(iter(parts.values()))
    parts = {part: replace(found, labels=kind.cast(found.labels)) for part, found in parts.items()}
    shared = Labels(name, _classes(parts, kind, source), 1.0, source, kind)
    for part, found in parts.items():
        size = found.inputs.shape[1:3]
        kind.check(found.labels, shared.classes, size, f"{source}, {part}")
    training = _training(parts, spec, kind, seed)
    if first.inputs.dtype.name in DTYPES:
        shared = replace(shared, scale=first.scale or _usual_scale(first.inputs.dtype))
        levels = {part: found.inputs for part, found in parts.items()}
        preparation = None
    else:
        _check_scales(parts, source)
        preparation = fit_preparation(training, spec.bits or _DEFAULT_BITS)
        shared = replace(shared, scale=preparation.scale)
        levels = {part: preparation.levels(found.inputs) for part, found in parts.items()}
        _tell(preparation, training, parts, source)
    labelled = {
        part: Labelled(levels[part], np.asarray(found.labels)) for part, found in parts.items()
    }
    made = _split(labelled, shared, spec, seed)
    top = np.iinfo(made.train.images.dtype).max if preparation is None else preparation.high
    if first.inputs.ndim > 2:  # of a table each column is looked at
        warn_of_lost(made.train.pixels, int(top), made.train.noun, source)
    bits = spec.bits if preparation is None else None
    if bits is not None:
        raise RecipeError(
            f"{source} gives integers of {8 * first.inputs.dtype.itemsize} bits, taken as they are",
            where="data.bits",
            hint="leave bits out, or return floats, which are brought to so many bits",
        )
    return replace(made, preparation=preparation, own=True)


@dataclass(frozen=True, eq=False)
class _Part:
    """`Arrays` as arrays, channels last."""

    inputs: NDArray[Any]
    labels: NDArray[Any]
    classes: tuple[str, ...] | None
    scale: float | None


def _parts(given: Any, source: str) -> list[tuple[str, Arrays]]:
    if not isinstance(given, Mapping):
        return [("all", _as_arrays(given, source))]
    found = [str(part) for part in given]
    if not {"train", "test"} <= set(found) <= set(_PARTS):
        raise DataError(
            f"returned the parts {', '.join(found) or 'none'}",
            where=source,
            hint="return train and test, and validation if there is one; or one (inputs, labels), "
            "which is cut as data.validation and data.test say",
        )
    return [
        (part, _as_arrays(given[part], f"{source}, {part}")) for part in _PARTS if part in given
    ]


def _as_arrays(given: Any, source: str) -> Arrays:
    if isinstance(given, Arrays):
        return given
    if isinstance(given, tuple) and len(given) in (2, 3):
        return Arrays(*given)
    raise DataError(
        f"returned {type(given).__name__}",
        where=source,
        hint="return (inputs, labels), (inputs, labels, classes), bitwright.data.Arrays, a mapping "
        "of train, test (and validation) to these, or a bitwright.data.DataSplits",
    )


def _checked(arrays: Arrays, where: str) -> _Part:
    inputs, labels = _plain(arrays.inputs, where, "inputs"), _plain(arrays.labels, where, "labels")
    if not len(inputs):
        raise DataError("has no inputs", where=where)
    if len(labels) != len(inputs):
        raise DataError(f"{len(inputs)} inputs, but labels {labels.shape}", where=where)
    inputs = _channels_last(inputs, arrays.layout, where)
    if 0 in inputs.shape:
        raise DataError(f"inputs of shape {inputs.shape[1:]} hold no numbers", where=where)
    check_finite(inputs, _NOUNS[inputs.ndim], where)
    classes = None if arrays.classes is None else tuple(str(name) for name in arrays.classes)
    scale = arrays.scale
    if scale is not None and not (np.isfinite(scale) and scale > 0):
        raise DataError(f"scale is {scale}, expected a positive number", where=where)
    return _Part(inputs, labels, classes, scale)


def _plain(given: Any, where: str, what: str) -> NDArray[Any]:
    """An array of numbers in memory: of numpy, torch, pandas, or a list."""
    try:
        found = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{what} are no array: {error}", where=where) from error
    if found.ndim == 0 or found.dtype.kind not in "biuf":
        raise DataError(
            f"{what} are {found.dtype} of shape {found.shape}, expected an array of numbers",
            where=where,
            hint="turn names into numbers first (numpy.unique(names, return_inverse=True))",
        )
    if found.dtype.kind == "b":
        found = found.astype(np.int64)
    if found.dtype.kind == "f" and found.dtype.itemsize < 4:
        found = found.astype(np.float32)
    return found


def _channels_last(inputs: NDArray[Any], layout: str | None, where: str) -> NDArray[Any]:
    known = f"one of {', '.join(LAYOUTS)}"
    chosen = layout or _USUAL.get(inputs.ndim)
    if chosen is None or (layout is not None and layout not in LAYOUTS):
        found = f"layout {layout!r}" if layout is not None else f"inputs of shape {inputs.shape}"
        raise DataError(f"{found}: expected {known}", where=where)
    if len(chosen) != inputs.ndim:
        raise DataError(
            f"layout {chosen} has {len(chosen)} axes, inputs are {inputs.shape}", where=where
        )
    if layout is None and inputs.ndim == 3 and inputs.shape[1] >= inputs.shape[2]:
        raise DataError(
            f"inputs of shape {inputs.shape} would be signals (N, C, L) of {inputs.shape[1]} "
            f"channels and {inputs.shape[2]} samples, which is hardly meant",
            where=where,
            hint="return bitwright.data.Arrays(..., layout=...): NCL for signals like that, NLC "
            "with channels last, NHW for grey images",
        )
    if chosen in ("N", "NHW"):
        return inputs[..., np.newaxis]
    return np.moveaxis(inputs, 1, -1) if chosen in ("NCL", "NCHW") else inputs


def _check_alike(parts: Mapping[str, _Part], source: str) -> None:
    names = list(parts)
    first = parts[names[0]]
    for name in names[1:]:
        part = parts[name]
        for what, one, other in (
            ("shape", first.inputs.shape[1:], part.inputs.shape[1:]),
            ("type", first.inputs.dtype, part.inputs.dtype),
            ("scale", first.scale, part.scale),
            ("classes", first.classes, part.classes),
        ):
            if one != other:
                raise DataError(
                    f"inputs of {names[0]} have {what} {one}, those of {name} {other}", where=source
                )


def _classes(parts: Mapping[str, _Part], kind: LabelKind, source: str) -> tuple[str, ...]:
    first = next(iter(parts.values()))
    if first.classes is not None:
        return first.classes
    labels = [part.labels for part in parts.values()]
    if all(found.ndim == 1 and found.dtype.kind in "iu" for found in labels):
        highest = max(int(found.max()) for found in labels)
        if highest >= sum(map(len, labels)):
            raise DataError(
                f"labels go up to {highest}, but there are {sum(map(len, labels))} inputs",
                where=source,
                hint="labels are numbers of classes, from 0; name the classes if some have no "
                "input",
            )
    return max((kind.names(found) for found in labels), key=len)


def _training(
    parts: Mapping[str, _Part], spec: DatasetSpec, kind: LabelKind, seed: int
) -> NDArray[Any]:
    """The inputs that are trained on: what measurements are scaled by."""
    if "validation" in parts:
        return parts["train"].inputs
    pool = parts.get("train") or parts["all"]
    shares = (spec.validation, spec.test) if "all" in parts else (spec.validation,)
    groups = kind.groups(pool.labels)
    return pool.inputs[stratified(groups, shares, seed, where=spec.name)[-1]]


def _split(
    parts: Mapping[str, Labelled], shared: Labels, spec: DatasetSpec, seed: int
) -> DataSplits:
    if "all" in parts:
        shares = {"validation": spec.validation, "test": spec.test}
        return split_three(parts["all"], shared, **shares, seed=seed)
    if "validation" in parts:
        return keep_three(parts["train"], parts["validation"], parts["test"], shared)
    return split_two(parts["train"], parts["test"], shared, validation=spec.validation, seed=seed)


def _usual_scale(kind: np.dtype[Any]) -> float:
    """The largest level is 1; with a sign, the smallest is -1."""
    info = np.iinfo(kind)
    return 1 / (info.max if info.min == 0 else -int(info.min))


def _check_scales(parts: Mapping[str, _Part], source: str) -> None:
    if any(part.scale is not None for part in parts.values()):
        raise DataError(
            "scale is given, but the numbers are no levels: they are scaled by their range",
            where=source,
            hint=f"leave scale out, or return levels: {', '.join(DTYPES)}",
        )


def _tell(
    preparation: Preparation, training: NDArray[Any], parts: Mapping[str, _Part], source: str
) -> None:
    """What becomes of the numbers, and what is lost."""
    noun = _NOUNS[training.ndim]
    _log.info("%s: %s of training %s", source, preparation, noun)
    if training.ndim == 2 and (same := np.flatnonzero(np.ptp(training, axis=0) == 0)).size:
        shown = ", ".join(map(str, same[:10].tolist()))
        _log.warning("%s: columns of one value in training, which become 0: %s", source, shown)
    elif training.ndim > 2 and not np.abs(training).max() > 0:
        _log.warning("%s: every training input is zero", source)
    clipped = sum(preparation.beyond(part.inputs) for part in parts.values())
    total = sum(part.inputs.size for part in parts.values())
    if clipped:
        _log.info(
            "%s: %d of %d numbers lie beyond the range of training and are clipped to it",
            source, clipped, total,
        )  # fmt: skip
