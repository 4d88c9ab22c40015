# SPDX-License-Identifier: Apache-2.0
"""Recipes made from a recipe: other widths, seeds, settings of distillation. Each change has one
meaning wherever it can be asked for (`bitwright study`, `bitwright sweep`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bitwright.base.errors import RecipeError
from bitwright.formats import load_format
from bitwright.pipeline.recipe import Recipe, recipe_from_dict

_DEFAULT_FORMATS = {"weight": "int4", "activation": "uint4"}


def with_bits(recipe: Recipe, bits: int) -> Recipe:
    """A recipe with other widths of weights and activations; signs, scales and rules stay.

    Signed operands of one bit are ``bipolar`` (-1 and +1), with ``zero_point: true`` ``int1``. The
    scale of bipolar weights is the mean magnitude unless it is learned, that of activations is
    constant. Rules for single layers stay as they are.

    Raises:
        RecipeError: the recipe keeps one of them float, or the widths contradict its rules.
    """
    _check_whole(bits, "bits", 1, 16)
    quant = dict(recipe.resolved()["quant"])
    for role, default in _DEFAULT_FORMATS.items():
        given = quant.get(role, default)
        section = {"format": given} if isinstance(given, str) else dict(given or {})
        if "format" not in section and section and not section.get("keep_float"):
            section["format"] = default
        if section.get("keep_float") or section.get("format") in (None, "float"):
            raise RecipeError(
                f"{role}s have no format whose bits could change",
                where=f"quant.{role}",
                hint="give it a format, or leave the bits out",
            )
        given_format = load_format(str(section["format"]))
        is_signed = given_format.min_level < 0
        narrow = "n" if bits > 1 and getattr(given_format, "narrow", False) else ""
        if bits == 1 and is_signed and not section.get("zero_point"):
            section["format"] = "bipolar"
            if role == "activation":
                section = {k: v for k, v in section.items() if k != "scale" or v == "const"}
            elif section.get("scale") not in (None, "learned", "mean"):
                section["scale"] = "mean"
        else:
            section["format"] = f"{'int' if is_signed else 'uint'}{bits}{narrow}"
        quant[role] = section
    return recipe_from_dict({**recipe.resolved(), "quant": quant}, recipe.base_dir)


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """The recipe with another seed everywhere; a teacher of given weights stays the same.

    Seeds that differ from the recipe's own keep their distance from it.
    """
    _check_whole(seed, "seed", 0, 2**31 - 1)
    offset = seed - recipe.seed

    def moved(section: dict[str, Any]) -> dict[str, Any]:
        return {**section, "seed": section["seed"] + offset}

    fields = _with_trainings(recipe.resolved(), moved, teachers=True)
    return recipe_from_dict({**fields, "seed": seed}, recipe.base_dir)


def with_distillation(recipe: Recipe, key: str, value: Any) -> Recipe:
    """The recipe with another ``alpha`` or ``temperature`` wherever scores are learned.

    Raises:
        RecipeError: nothing is distilled, or the value is out of range.
    """
    found = 0

    def changed(section: dict[str, Any]) -> dict[str, Any]:
        nonlocal found
        if section.get("distillation") is not None:
            found += 1
            section = {**section, "distillation": {**section["distillation"], key: value}}
        if section.get("peer") is not None:
            section = {**section, "peer": changed(section["peer"])}
        return section

    fields = _with_trainings(recipe.resolved(), changed)
    if not found:
        raise RecipeError(
            f"the recipe distils nothing: there is no {key} to change",
            where=key,
            hint="give train.quantized.distillation (the float model teaches) or phases",
        )
    return recipe_from_dict(fields, recipe.base_dir)


def with_lr(recipe: Recipe, lr: Any) -> Recipe:
    """The recipe with another learning rate in every phase of training in few bits; where there is
    none, of the float training.

    Raises:
        RecipeError: the value is out of range.
    """
    fields = recipe.resolved()
    is_float = fields["train"]["quantized"] is None
    changed = _with_trainings(fields, lambda section: {**section, "lr": lr})
    if not is_float:
        changed["train"]["float"] = fields["train"]["float"]
    return recipe_from_dict(changed, recipe.base_dir)


def _with_trainings(
    fields: Mapping[str, Any],
    change: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    teachers: bool = False,
) -> dict[str, Any]:
    """A resolved recipe with every training of the student (and of its teachers) changed."""
    train = dict(fields["train"])
    train["float"] = change(train["float"])
    if train["quantized"] is not None:
        train["quantized"] = {
            name: phase if phase is None else change(phase)
            for name, phase in train["quantized"].items()
        }
    listed = fields["teacher"]
    if teachers:
        listed = [
            entry if entry["train"] is None else {**entry, "train": change(entry["train"])}
            for entry in listed
        ]
    return {**fields, "train": train, "teacher": listed}


def _check_whole(value: Any, what: str, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise RecipeError(
            f"expected a whole number from {least} to {most}, found {value!r}", where=what
        )


def job_arguments(recipe: Recipe) -> dict[str, Any]:
    """A recipe as JSON values, for a job; `recipe_of` reads them."""
    return {"recipe": recipe.resolved(), "base_dir": str(recipe.base_dir.resolve())}


def recipe_of(arguments: Mapping[str, Any]) -> Recipe:
    """The recipe that a job's arguments hold."""
    return recipe_from_dict(arguments["recipe"], Path(arguments["base_dir"]))
