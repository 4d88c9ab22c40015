# SPDX-License-Identifier: Apache-2.0
"""Files that a recipe names: relative paths start at its folder, or else where the user stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bitwright.base.errors import RecipeError
from bitwright.low_precision.schedules import recorded
from bitwright.low_precision.settings import ReplaySettings
from bitwright.models.catalog import ModelSpec
from bitwright.pipeline.recipe_schema import Recipe, TeacherSection, TrainSection


def with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths.

    Raises:
        RecipeError: a file does not exist.
        DataError: a recorded schedule cannot be read.
    """
    updates: dict[str, Any] = {}
    given = {name: getattr(recipe.data, name) for name in ("path", "unlabelled")}
    places = {name: _absolute(path, recipe.base_dir) for name, path in given.items() if path}
    updates["data"] = recipe.data.model_copy(update=places)
    if recipe.hardware.folding_config_file is not None:
        place = _absolute(recipe.hardware.folding_config_file, recipe.base_dir)
        if not place.is_file():
            raise RecipeError(f"no file {place}", where="hardware.folding_config_file")
        updates["hardware"] = recipe.hardware.model_copy(update={"folding_config_file": place})
    updates["train"] = _with_schedule(recipe)
    updates["model"] = _with_files(recipe.model, recipe.base_dir, "model")
    updates["teacher"] = tuple(_teacher_files(entry, recipe.base_dir) for entry in recipe.teacher)
    return recipe.model_copy(update=updates)


def with_paths_of_its_folder(recipe: Recipe) -> Recipe:
    """The recipe with files below its folder named from there: it can move with the folder, and
    tells whoever gets it nothing of where that lay. What lies elsewhere keeps its path.
    """

    def short(path: Path | None) -> Path | None:
        return path and _below(path, recipe.base_dir)

    def model(spec: ModelSpec) -> ModelSpec:
        weights = short(spec.weights) if isinstance(spec.weights, Path) else spec.weights
        name = str(_below(Path(spec.name), recipe.base_dir)) if spec.is_file else spec.name
        return spec.model_copy(update={"weights": weights, "name": name})

    def teacher(entry: TeacherSection) -> TeacherSection:
        made = entry.model and model(entry.model)
        return entry.model_copy(update={"model": made, "logits": short(entry.logits)})

    data, folding = recipe.data, recipe.hardware.folding_config_file
    places = {name: short(getattr(data, name)) for name in ("path", "unlabelled")}
    return recipe.model_copy(
        update={
            "data": data.model_copy(update=places),
            "hardware": recipe.hardware.model_copy(update={"folding_config_file": short(folding)}),
            "model": model(recipe.model),
            "teacher": tuple(teacher(entry) for entry in recipe.teacher),
        }
    )


def _below(path: Path, folder: Path) -> Path:
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def _with_schedule(recipe: Recipe) -> TrainSection:
    """Training with a recorded schedule of precisions written out: the recipe then stands alone."""
    config = recipe.train.float_
    low = config.low_precision
    if low is None or not isinstance(low.policy, ReplaySettings) or low.policy.file is None:
        return recipe.train
    file = _absolute(low.policy.file, recipe.base_dir)
    policy = ReplaySettings(schedule=tuple(recorded(file)))
    written = config.model_copy(update={"low_precision": low.model_copy(update={"policy": policy})})
    return recipe.train.model_copy(update={"float_": written})


def _teacher_files(section: TeacherSection, base_dir: Path) -> TeacherSection:
    if section.model is not None:
        update: dict[str, Any] = {"model": _with_files(section.model, base_dir, "teacher")}
    else:
        assert section.logits is not None
        update = {"logits": _absolute(section.logits, base_dir)}
        if not update["logits"].is_file():
            raise RecipeError(f"no file {update['logits']}", where="teacher.logits")
    return section.model_copy(update=update)


def _with_files(spec: ModelSpec, base_dir: Path, where: str) -> ModelSpec:
    """A model whose files have absolute paths and exist."""
    if not spec.files:
        return spec
    fields: dict[str, Any] = {"weights": spec.weights and _absolute(spec.weights, base_dir)}
    if spec.is_file:
        fields["name"] = str(_absolute(Path(spec.name), base_dir))
    found = spec.model_copy(update=fields)
    for path in found.files:
        if not path.is_file():
            raise RecipeError(f"no file {path}", where=where)
    return found


def _absolute(path: Path, base_dir: Path) -> Path:
    """The path that a recipe means.

    Raises:
        RecipeError: no file can have that name.
    """
    try:
        path = path.expanduser()
        beside = base_dir / path
        found = beside if beside.exists() or not path.exists() else path
        return path if path.is_absolute() else found.resolve()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL, ~nobody
        raise RecipeError(f"{str(path)[:60]!r} is no name of a file: {error}") from error
