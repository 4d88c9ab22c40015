# SPDX-License-Identifier: Apache-2.0
"""What a sweep goes over: ``KEY=V1,V2`` as axes, and the recipe of every point of their grid.

Every recipe is made and checked here, before anything runs.
"""

from __future__ import annotations

import difflib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bitwright.base.errors import BitwrightError, RecipeError
from bitwright.explore.changes import with_bits, with_distillation, with_lr, with_seed
from bitwright.pipeline.recipe import Recipe, recipe_from_document
from bitwright.pipeline.recipe_yaml import Document, load_value
from bitwright.pipeline.run_files import digest_of

OPTION = "--over"
MAX_POINTS = 10_000
_RANGE = re.compile(r"(-?\d+)\.\.(-?\d+)")
_NAME_LENGTH = 80

#: What stands for several fields of a recipe, or for one that depends on the recipe.
SHORTHANDS: dict[str, Callable[[Recipe, Any], Recipe]] = {
    "bits": with_bits,
    "alpha": lambda recipe, value: with_distillation(recipe, "alpha", value),
    "temperature": lambda recipe, value: with_distillation(recipe, "temperature", value),
    "lr": with_lr,
    "seed": with_seed,
}
_SEEDS = "seeds"


@dataclass(frozen=True)
class Axis:
    """One key of a recipe, or a shorthand, and the values it takes."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class SweepPoint:
    """One point of the grid.

    Attributes:
        settings: key -> value, in the order of the axes.
        recipe: with these settings, checked.
    """

    settings: tuple[tuple[str, Any], ...]
    recipe: Recipe

    @property
    def title(self) -> str:
        """For people: ``bits=4, seed=0``; of long keys the last part, where that is enough."""
        names = [short(key) for key, _ in self.settings]
        return ", ".join(
            f"{name if names.count(name) == 1 else key}={shown(value)}"
            for name, (key, value) in zip(names, self.settings, strict=True)
        )

    @property
    def folder(self) -> str:
        """The title as a name of a folder that no tool trips over, with a hash of the settings."""
        name = self.title.replace(", ", "_").replace("=", "-")
        name = re.sub(r"[^A-Za-z0-9._+-]+", "-", name)[:_NAME_LENGTH].strip("-.")
        return f"{name}-{digest_of(list(self.settings))[:8]}"

    def without(self, key: str) -> tuple[tuple[str, Any], ...]:
        """The settings but one."""
        return tuple(entry for entry in self.settings if entry[0] != key)


def parse_axes(assignments: Sequence[str]) -> tuple[Axis, ...]:
    """``KEY=V1,V2,..`` as axes; values are YAML, ``a..b`` is every whole number from a to b.

    Raises:
        RecipeError: no assignment, no or the same value twice, two axes for one thing.
    """
    axes: list[Axis] = []
    for text in assignments:
        axis = _axis(text)
        for other in axes:
            if _overlap(axis.key, other.key):
                raise RecipeError(
                    f"{other.key!r} and {axis.key!r} set the same thing"
                    if axis.key != other.key
                    else f"{axis.key!r} stands twice",
                    where=OPTION,
                    hint=f"one assignment with all values: {axis.key}=V1,V2",
                )
        axes.append(axis)
    if not axes:
        raise RecipeError(
            "a sweep needs something to go over", where=OPTION, hint=f"{OPTION} bits=8,4,2 seeds=5"
        )
    return tuple(axes)


def grid(document: Document, base_dir: Path, axes: Sequence[Axis]) -> tuple[SweepPoint, ...]:
    """Every point, the last axis fastest, each with its checked recipe.

    Args:
        document: the recipe's file, with whatever ``--set`` has changed.

    Raises:
        RecipeError: an unknown key, or a value that the schema refuses; names the point.
    """
    for axis in axes:
        _check_key(axis.key)
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MAX_POINTS:
        raise RecipeError(f"{count:,} points are too many", where=OPTION, hint="fewer values")
    points = []
    for values in itertools.product(*(axis.values for axis in axes)):
        settings = tuple((axis.key, value) for axis, value in zip(axes, values, strict=True))
        points.append(SweepPoint(settings, _recipe(document, base_dir, settings)))
    return tuple(points)


def short(key: str) -> str:
    """The part of a dotted key that tells most."""
    parts = key.split(".")
    return parts[-2] if parts[-1] in ("name", "format") and len(parts) > 1 else parts[-1]


def shown(value: Any) -> str:
    """A value in few words."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _axis(text: str) -> Axis:
    key, sign, listed = text.partition("=")
    key = key.strip()
    if not sign or not key or not all(key.split(".")):
        raise RecipeError(
            f"expected KEY=V1,V2,.., found {text!r}", where=OPTION, hint="such as bits=8,4,2"
        )
    values = load_value(f"[{listed}]", f"{OPTION} {text}") if listed.strip() else []
    values = [one for value in values for one in _spread(value)]
    if not values:
        raise RecipeError("names no value", where=f"{OPTION} {text}", hint=f"{key}=V1,V2")
    if key == _SEEDS:
        if len(values) != 1 or type(values[0]) is not int or values[0] < 1:
            raise RecipeError(
                f"expected how many seeds, found {listed!r}",
                where=f"{OPTION} {text}",
                hint="seeds=5 stands for 0 to 4; seed=3,7 names them",
            )
        key, values = "seed", list(range(values[0]))
    texts = [json.dumps(value, sort_keys=True, default=str) for value in values]
    double = next((text for text in texts if texts.count(text) > 1), None)
    if double is not None:
        raise RecipeError(f"the value {double} stands twice", where=f"{OPTION} {text}")
    if any(not _is_plain(value) for value in values):
        raise RecipeError("a value is no number, text, list or mapping", where=f"{OPTION} {text}")
    return Axis(key, tuple(values))


def _spread(value: Any) -> list[Any]:
    match = _RANGE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return [value]
    first, last = int(match[1]), int(match[2])
    if abs(last - first) >= MAX_POINTS:
        raise RecipeError(f"{value} is too long", where=OPTION)
    return list(range(first, last + 1)) if first <= last else list(range(first, last - 1, -1))


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _overlap(key: str, other: str) -> bool:
    """Whether one of two axes would overwrite the other."""
    if key == other:
        return True
    first, second = sorted((key, other), key=lambda name: name not in SHORTHANDS)
    if second in SHORTHANDS:
        return False  # two shorthands
    if first == "bits":
        return second.split(".")[:2] in (["quant", "weight"], ["quant", "activation"])
    if first in SHORTHANDS:
        return second.split(".")[-1] == first
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def _check_key(key: str) -> None:
    """An unknown first part is told with what is near it; the schema tells the rest."""
    first = key.split(".", maxsplit=1)[0]
    fields = [name for name in Recipe.model_fields if name != "base_dir"]
    if key in SHORTHANDS or first in fields:
        return
    known = [*SHORTHANDS, _SEEDS, *fields]
    close = difflib.get_close_matches(first, known, n=1)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    raise RecipeError(
        f"unknown key {key!r}{guess}",
        where=OPTION,
        hint=f"{', '.join((*SHORTHANDS, _SEEDS))}, or a field of the recipe such as train.float.lr",
    )


def _recipe(document: Document, base_dir: Path, settings: Sequence[tuple[str, Any]]) -> Recipe:
    fields = [(key, value) for key, value in settings if key not in SHORTHANDS]
    for key, value in fields:
        document = document.assign(tuple(key.split(".")), value, OPTION)
    with _naming(fields):
        recipe = recipe_from_document(document, base_dir)
    for key, value in settings:
        if key in SHORTHANDS:
            with _naming([(key, value)]):
                recipe = SHORTHANDS[key](recipe, value)
    return recipe


@contextmanager
def _naming(settings: Sequence[tuple[str, Any]]) -> Iterator[None]:
    """Errors say by which values they come."""
    try:
        yield
    except BitwrightError as error:
        given = " ".join(f"{key}={shown(value)}" for key, value in settings)
        known = (None, given.partition("=")[0])
        where = f"{OPTION} {given}" + ("" if error.where in known else f": {error.where}")
        raise RecipeError(error.message, where=where, hint=error.hint) from error
